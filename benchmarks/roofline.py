# SPDX-License-Identifier: MIT
"""Which limit does each kind of work meet on this machine: operations, or bytes?

The machine's limits are measured: how fast it reads numbers that lie in each of its
memories, and how fast it multiplies matrices of each kind of number. Then work of the
book's models, between one word of one text and a training step: how many operations it
takes for each byte that must be moved, as `deepdive.accounting` predicts, and how many
operations a second were reached, beside what the limits leave.

    python benchmarks/roofline.py             # about a minute
    python benchmarks/roofline.py --rounds 9

All by turns in one process, one thread, processor time; the median of the rounds, the
lowest and the highest. All is measured anew each time: a share of a limit means that
both were measured together.

What is counted: matrix products, of pairs that a causal mask blocks only where they are
computed; the bytes of the weights and of the cache. The formula of attention is charged
with what each of its operations reads and writes, `tiled` with its tiles, torch's fused
kernel with its inputs and output alone; a training step with ten times its parameters:
forwards, backwards, a gradient, and AdamW's reading of four numbers and writing of
three. Activations are left out, which makes the limit a little higher than it is.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from record import RESULTS, command, write
from torch.utils._python_dispatch import TorchDispatchMode

from deepdive.accounting import causal_pairs, decode_bytes, flops, kv_bytes, parameters
from deepdive.configs import SMOLLM2_135M, GptConfig
from deepdive.inference import for_inference
from deepdive.kernels import equation, fused, tiled
from deepdive.kernels.tiled import count_bytes
from deepdive.masks import Causal
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.roofline import Machine
from deepdive.timing import LEAST, machine, multiplying, one_thread, seconds
from deepdive.training import adamw

KIB = (16, 128, 512, 2048, 8192, 65_536, 262_144)
SQUARES = (256, 512, 1024)
LAYERS, SEEN, BATCHES = 6, 256, (1, 2, 4, 8, 16, 32, 64)
READ_AHEAD = 256  # words of the text that is read at once
HEADS, WIDTH = 6, 64
GPT = GptConfig(vocab_size=8192, d_model=384, n_layers=6, n_heads=6, d_ff=1536)
TRAINED = (2, 256)  # texts, words
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}


class Work(NamedTuple):
    """A call, and what it takes by prediction."""

    name: str
    way: str
    size: str
    call: Callable
    flops: int
    bytes: int


# The machine's limits


def reading(kib: int) -> tuple[Callable, int]:
    """A call that adds up so many KiB over and over, and the bytes it reads in all."""
    numbers = torch.ones(kib * 256)
    times = max(1, 2**24 // len(numbers))
    return numbers.expand(times, -1).sum, 4 * times * len(numbers)


def product(dtype: torch.dtype, size: int) -> Callable:
    """A call that multiplies two squares."""
    if dtype is torch.float32:
        return multiplying(2 * size**3, size)
    a = torch.ones(size, size, dtype=dtype)
    return partial(torch._int_mm if dtype is torch.int8 else torch.mm, a, a)


def limits() -> dict[tuple, tuple[Callable, int]]:
    """(kind, size) → a call, and the bytes it reads or the operations it takes."""
    found = {("read", kib): reading(kib) for kib in KIB}
    for name, dtype in DTYPES.items():
        for size in SQUARES if name == "float32" else SQUARES[1:2]:
            found[name, size] = product(dtype, size), 2 * size**3
    return found


# The work


def decoding() -> Iterator[Work]:
    """One more word of each text, by the model as it is and laid out for it."""
    config = replace(SMOLLM2_135M, n_layers=LAYERS)
    plain = Llama(config).eval()
    size = {"weight_bytes": 4, "cache_bytes": 4}
    for way, model in {"model": plain, "prepared": for_inference(plain)}.items():
        for B in BATCHES:
            caches = filled(model.new_caches(SEEN + 1), B)
            count = flops(config, 1, seen=SEEN, batch=B)["total"]
            moved = sum(decode_bytes(config, SEEN, B, **size).values())
            call = partial(one_word, model, caches, torch.ones(B, 1, dtype=torch.int64))
            yield Work("decoding", way, f"{B} × {SEEN} words", call, count, moved)
    ids = torch.ones(1, READ_AHEAD, dtype=torch.int64)
    moved = decode_bytes(config, 0, **size)["weights"]
    moved += kv_bytes(config, READ_AHEAD, bytes_per_number=4)
    count = flops(config, READ_AHEAD, skip_blocked=False)["total"]
    call = partial(plain, ids)
    yield Work("reading", "model", f"{READ_AHEAD} words", call, count, moved)


def filled(caches, B: int):
    """Caches as after a text, of random keys and values."""
    heads = SMOLLM2_135M.n_kv_heads, SEEN, SMOLLM2_135M.d_model // SMOLLM2_135M.n_heads
    for cache in caches:
        cache.append(*torch.randn(2, B, *heads))
    return caches


def one_word(model, caches, ids: torch.Tensor) -> torch.Tensor:
    """A step, after which the caches are as before."""
    logits = model(ids, caches)
    caches.truncate(SEEN)
    return logits


def attention(T: int) -> Iterator[Work]:
    """Three ways of one layer's attention, causal, between its projections."""
    q, k, v = torch.randn(3, 1, HEADS, T, WIDTH)
    all_pairs, pairs = T * T, causal_pairs(T)
    ends = 4 * q.nbytes
    with count_bytes() as tiles:
        tiled(q, k, v, mask=Causal())
    formula = bytes_of(partial(equation, *(x.to("meta") for x in (q, k, v))))
    for kernel, seen, moved in (
        (equation, all_pairs, formula),
        (fused, pairs, ends),
        (tiled, pairs, tiles.total),
    ):
        call = partial(kernel, q, k, v, mask=Causal())
        count = 4 * HEADS * WIDTH * seen
        yield Work("attention", kernel.__name__, f"{T} words", call, count, moved)


def training() -> Iterator[Work]:
    """A GPT's update: forwards, backwards, AdamW."""
    B, T = TRAINED
    config = replace(GPT, max_seq_len=T)
    model = Gpt(config)
    optimiser = adamw(model, 1e-4)
    ids = torch.randint(0, config.vocab_size, (B, T + 1))

    def update() -> torch.Tensor:
        with torch.enable_grad():
            logits = model(ids[:, :-1]).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
            loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.detach()

    count = 3 * flops(config, T, batch=B)["total"]
    moved = 10 * 4 * parameters(config)["total"]
    yield Work("training", "model", f"{B} × {T} words", update, count, moved)


class Moved(TorchDispatchMode):
    """The bytes that operations read and write, views left out."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not (func.is_view or "unsafe_view" in str(func)):
            leaves = torch.utils._pytree.tree_leaves((args, kwargs, out))
            self.total += sum(x.nbytes for x in leaves if isinstance(x, torch.Tensor))
        return out


def bytes_of(attend: Callable) -> int:
    """What the operations of a call on meta tensors move, with a causal mask."""
    with Moved() as moved:
        attend(mask=Causal())
    return moved.total


# Measuring


def by_turns(calls: dict, rounds: int) -> dict[tuple, list[float]]:
    """Seconds of each call in each round, after one that warms up."""
    once = {name: seconds(call, 1) for name, call in calls.items()}
    repeats = {name: max(1, round(LEAST / max(t, 1e-6))) for name, t in once.items()}
    times: dict[tuple, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(seconds(call, repeats[name]))
    return times


def spread(numbers: list[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    found = {"median": median(numbers), "lowest": min(numbers), "highest": max(numbers)}
    return {name: float(f"{x:.4g}") for name, x in found.items()}


def measure(rounds: int) -> dict:
    """The limits, and every point beside them."""
    torch.manual_seed(0)
    bounds = limits()
    works = [*decoding(), *attention(1024), *attention(4096), *training()]
    calls = {key: call for key, (call, _) in bounds.items()}
    calls |= {("work", i): work.call for i, work in enumerate(works)}
    times = by_turns(calls, rounds)
    speed = {
        key: [amount / t / 1e9 for t in times[key]]
        for key, (_, amount) in bounds.items()
    }
    memory = speed["read", KIB[-1]]
    best = max(SQUARES, key=lambda size: median(speed["float32", size]))
    tops = [
        Machine(flops_per_second=1e9 * p, bytes_per_second=1e9 * b)
        for p, b in zip(speed["float32", best], memory, strict=True)
    ]
    return {
        "limits": [
            {"kind": kind, "size": size, **spread(its)}
            for (kind, size), its in speed.items()
        ],
        "memory_gigabytes_per_second": spread(memory),
        "peak_gigaflops": spread(speed["float32", best]),
        "ridge": spread([top.ridge for top in tops]),
        "points": [point(work, times["work", i], tops) for i, work in enumerate(works)],
    }


def point(work: Work, times: list[float], tops: list[Machine]) -> dict:
    """One piece of work beside the limits that were measured in the same rounds."""
    intensity = work.flops / work.bytes
    reached = [work.flops / t for t in times]
    shares = [
        r / top.attainable(intensity) for r, top in zip(reached, tops, strict=True)
    ]
    return {
        "work": work.name,
        "way": work.way,
        "size": work.size,
        "flops": work.flops,
        "bytes": work.bytes,
        "intensity": float(f"{intensity:.4g}"),
        "milliseconds": spread([1e3 * t for t in times]),
        "gigaflops": spread([r / 1e9 for r in reached]),
        "share_of_limit": spread(shares),
    }


def main() -> None:
    """Measure everything and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    with one_thread(), torch.no_grad():
        found = measure(chosen.rounds)
    for line in found["points"]:
        print(line["work"], line["way"], line["size"], line["share_of_limit"])
    content = {
        "question": __doc__.splitlines()[0],
        "command": command("roofline", parser, chosen, "rounds"),
        "machine": machine(),
        "rounds": chosen.rounds,
        "unit": "read: gigabytes a second, by KiB read over and over; products: "
        "gigaflops, by the squares' side",
        "layers": LAYERS,
        **found,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(RESULTS / "roofline.json", text + "\n")


if __name__ == "__main__":
    main()
