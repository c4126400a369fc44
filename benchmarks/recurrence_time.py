# SPDX-License-Identifier: MIT
"""How does the time to read a text grow with its length, in turn and all at once?

Four ways of one layer read random texts, forwards only, without gradients: a plain
recurrent cell in this book's loop; torch's own, whose loop is compiled; the same two
matrix products for all words at once, in which no step waits (and which therefore knows
no order: it is a yardstick, not a reader); and a layer of causal attention.

    python benchmarks/recurrence_time.py      some minutes

All is measured anew each time: times of two days are not to be mixed. One thread;
processor time, so other programs disturb little; the median of 9 rounds.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from record import RESULTS, command, write
from torch import nn

from deepdive.attention import MultiHeadAttention
from deepdive.masks import Causal
from deepdive.recurrent import ElmanCell, unroll
from deepdive.timing import machine, one_thread, seconds

WIDTH = 256
HEADS = 4
LENGTHS = {1: (16, 32, 64, 128, 256, 512, 1024, 2048), 32: (16, 32, 64, 128, 256, 512)}
LEAST = 0.03  # seconds of one measurement; short work is repeated until it takes that


def ways(d: int = WIDTH) -> dict[str, Callable]:
    """name → a function of texts (B, T, d)."""
    cell = ElmanCell(d, d)
    compiled = nn.RNN(d, d, batch_first=True)
    for kind in ("weight", "bias"):
        for ours, theirs in ((cell.x_proj, "ih"), (cell.h_proj, "hh")):
            place = getattr(compiled, f"{kind}_{theirs}_l0")
            place.data.copy_(getattr(ours, kind).data)
    layer = MultiHeadAttention(d, HEADS)
    return {
        "loop": lambda x: unroll(cell, x),
        "compiled loop": lambda x: compiled(x)[0],
        "at once": lambda x: torch.tanh(cell.x_proj(x) + cell.h_proj(x)),
        "attention": lambda x: layer(x, mask=Causal()),
    }


def gigaflops(way: str, batch: int, T: int, d: int = WIDTH) -> float:
    """Multiplications and additions of the matrix products, in 10⁹."""
    if way == "attention":  # four products with weights; scores, and their mixture
        return batch * (8 * T * d**2 + 4 * T**2 * d) / 1e9
    return batch * 4 * T * d**2 / 1e9


def measure(rounds: int) -> list[dict]:
    """A record for each way, length and batch."""
    torch.manual_seed(0)
    every, records = ways(), []
    for batch, lengths in LENGTHS.items():
        for T in lengths:
            x = torch.randn(batch, T, WIDTH)
            both = every["loop"](x), every["compiled loop"](x)
            assert torch.allclose(*both, atol=1e-5), "the two loops differ"
            times = taking_turns({n: partial(f, x) for n, f in every.items()}, rounds)
            for way, its in times.items():
                records.append({"way": way, "batch": batch, "length": T, **spread(its)})
                records[-1]["gigaflops"] = gigaflops(way, batch, T)
                print(records[-1])
    return records


def taking_turns(calls: dict[str, Callable], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in each round, after one call that warms up."""
    once = {name: max(seconds(call, 1), 1e-6) for name, call in calls.items()}
    repeats = {name: max(1, round(LEAST / spent)) for name, spent in once.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call, repeats[name]))
    return times


def spread(times: list[float]) -> dict[str, float]:
    """Median, lowest and highest, in milliseconds."""
    found = {"median": median(times), "lowest": min(times), "highest": max(times)}
    return {name: float(f"{1e3 * t:.4g}") for name, t in found.items()}


def main() -> None:
    """Measure everything and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    chosen = parser.parse_args()
    rounds = chosen.rounds
    with one_thread(), torch.no_grad():
        records = measure(rounds)
    content = {
        "question": __doc__.splitlines()[0],
        "command": command("recurrence_time", parser, chosen, "rounds"),
        "machine": machine(),
        "rounds": rounds,
        "width": WIDTH,
        "heads": HEADS,
        "unit": "milliseconds of processor time, forwards only",
        "records": records,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(RESULTS / "recurrence_time.json", text + "\n")


if __name__ == "__main__":
    main()
