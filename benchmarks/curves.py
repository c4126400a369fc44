# SPDX-License-Identifier: MIT
"""As which power do time and memory grow with length, depth, experts, batch and cache?

Each curve changes one size and leaves the others. Measured are the processor's time on
one thread and the most bytes that tensors take at one time; predicted is the exponent
of `deepdive.accounting`'s operations at the same sizes, read off in the same way.

    python benchmarks/curves.py                      some minutes
    python benchmarks/curves.py --curves length      one of them; the others stay

The points of a curve are timed by turns: the median of the rounds, lowest and highest.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from record import RESULTS, command, write
from torch import nn

from deepdive.accounting import causal_pairs, decode_bytes, flops, score_bytes
from deepdive.configs import GptConfig, LlamaConfig, MixtralConfig
from deepdive.growth import growth
from deepdive.kernels import equation, fused, tiled
from deepdive.kernels.tiled import BLOCK
from deepdive.masks import Causal
from deepdive.memory import peak_memory
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.timing import machine, one_thread, seconds

OUT = RESULTS / "curves.json"
LEAST = 0.03  # seconds of one measurement; short work is repeated until it takes that
KERNELS = {"formula": equation, "fused": fused, "tiled": tiled}
GPT = GptConfig(256, d_model=128, n_layers=2, n_heads=4, d_ff=512, max_seq_len=2048)
MIXTRAL = MixtralConfig(
    256, d_model=128, n_layers=2, n_heads=4, n_kv_heads=4, d_expert=256, n_experts=8
)
LLAMA = LlamaConfig(
    256, d_model=256, n_layers=4, n_heads=4, n_kv_heads=4, d_ff=688, max_seq_len=16_385
)
HEADS, WIDTH = 4, 64


class Point(NamedTuple):
    """Work of one size, done one way.

    Args:
        call: the work, without arguments.
        predicted: quantities that the work is predicted to need, by name.
    """

    way: str
    size: int
    call: Callable
    predicted: dict[str, int]


class Curve(NamedTuple):
    """What changes, what stays, and the work at each size."""

    against: str
    what: str
    points: Callable[[], Iterator[Point]]


# The work of a point


def reading(model: nn.Module, tokens: torch.Tensor) -> Callable:
    """A forward pass."""

    def call():
        with torch.no_grad():
            return model(tokens)

    return call


def training(model: nn.Module, tokens: torch.Tensor) -> Callable:
    """A forward and a backward pass; the gradients are dropped again."""

    def call():
        model(tokens).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return call


PASSES = {"forward": (reading, 1), "forward and backward": (training, 3)}


def both_passes(
    model: nn.Module, size: int, B: int, T: int, way: str = "model", skip: bool = True
) -> Iterator[Point]:
    """A model's two passes; the way back is counted as twice the way there."""
    tokens = torch.randint(256, (B, T))
    count = flops(model.config, T, batch=B, skip_blocked=skip)["total"]
    for name, (work, times) in PASSES.items():
        predicted = {"operations": times * count}
        yield Point(f"{way}, {name}", size, work(model, tokens), predicted)


def attention() -> Iterator[Point]:
    """A kernel alone: what it makes besides q, k and v."""
    for T in (512, 1024, 2048, 4096):
        q, k, v = torch.randn(3, 1, HEADS, T, WIDTH)
        for name, kernel in KERNELS.items():
            pairs = T * T if kernel is equation else causal_pairs(T)
            predicted = {
                "operations": 2 * 2 * HEADS * WIDTH * pairs,
                "memory": attention_bytes(kernel, T),
            }
            yield Point(name, T, _attending(kernel, q, k, v), predicted)


def attention_bytes(kernel: Callable, T: int) -> int:
    """Four maps of scores at a time; or the output, a number for each query, a tile."""
    if kernel is equation:
        return 4 * score_bytes(HEADS, T)
    kept = 4 * HEADS * T * (WIDTH + 1)
    # Of a tile: scores and weights; queries, outputs and sums as they change.
    tile = 4 * HEADS * BLOCK * (2 * BLOCK + 6 * WIDTH) if kernel is tiled else 0
    return kept + tile


def _attending(kernel: Callable, *qkv: torch.Tensor) -> Callable:
    def call():
        with torch.no_grad():
            return kernel(*qkv, Causal())

    return call


def length() -> Iterator[Point]:
    """A GPT with each kernel, at lengths where all three can be waited for."""
    for name, kernel in KERNELS.items():
        model = Gpt(GPT)
        for block in model.blocks:
            block.attention.kernel = kernel
        for T in (128, 256, 512, 1024, 2048):
            skip = kernel is not equation
            yield from both_passes(model, T, 1, T, f"GPT, {name}", skip)


def layers() -> Iterator[Point]:
    """A GPT of more and more layers."""
    for n in (1, 2, 4, 8, 16):
        yield from both_passes(Gpt(replace(GPT, n_layers=n)), n, 2, 128)


def batch() -> Iterator[Point]:
    """The same GPT reads more and more texts."""
    model = Gpt(GPT)
    for B in (1, 2, 4, 8, 16):
        yield from both_passes(model, B, B, 128)


def experts() -> Iterator[Point]:
    """More and more experts, of which each token visits two."""
    for E in (4, 8, 16, 32):
        yield from both_passes(Mixtral(replace(MIXTRAL, n_experts=E)), E, 4, 128)


def visited_experts() -> Iterator[Point]:
    """Of eight experts each token visits more and more."""
    for K in (1, 2, 4, 8):
        yield from both_passes(Mixtral(replace(MIXTRAL, top_k=K)), K, 4, 128)


def decoding() -> Iterator[Point]:
    """One more token behind more and more that are held in the caches."""
    model = Llama(LLAMA)
    for seen in (512, 1024, 2048, 4096, 8192, 16_384):
        caches = model.new_caches(seen + 1)
        for cache in caches:
            cache.append(*torch.randn(2, 1, LLAMA.n_kv_heads, seen, 64))
        bytes_read = decode_bytes(LLAMA, seen, weight_bytes=4, cache_bytes=4)
        predicted = {
            "operations": flops(LLAMA, 1, seen=seen)["total"],
            "bytes": sum(bytes_read.values()),
        }
        yield Point("one token", seen, _one_more(model, caches, seen), predicted)


def _one_more(model: nn.Module, caches, seen: int) -> Callable:
    token = torch.zeros(1, 1, dtype=torch.long)

    def call():
        with torch.no_grad():
            model.logits(model.hidden(token, caches))
        caches.truncate(seen)

    return call


GPT_SAYS = f"GPT, width {GPT.d_model}, {GPT.n_heads} heads"
MIXTRAL_SAYS = (
    f"Mixtral, {MIXTRAL.n_layers} layers of {MIXTRAL.d_model}, 4 × 128 tokens"
)
CURVES = {
    "attention": Curve("tokens", f"{HEADS} heads of {WIDTH}, causal", attention),
    "length": Curve("tokens", f"{GPT_SAYS}, {GPT.n_layers} layers", length),
    "layers": Curve("layers", f"{GPT_SAYS}, 2 texts of 128", layers),
    "batch": Curve("texts of 128", f"{GPT_SAYS}, {GPT.n_layers} layers", batch),
    "experts": Curve("experts, 2 of them visited", MIXTRAL_SAYS, experts),
    "visited": Curve("experts visited, of 8", MIXTRAL_SAYS, visited_experts),
    "decoding": Curve(
        "tokens held", f"Llama, {LLAMA.n_layers} layers of {LLAMA.d_model}", decoding
    ),
}


# Measuring


def measure(points: list[Point], rounds: int) -> list[dict]:
    """A record for each point: milliseconds, the most bytes, what was predicted."""
    peaks = [peak_memory(point.call) for point in points]  # warms up, too
    once = [max(seconds(point.call, 1), 1e-6) for point in points]
    repeats = [max(1, round(LEAST / spent)) for spent in once]
    times: list[list[float]] = [[] for _ in points]
    for _ in range(rounds):
        for point, its, n in zip(points, times, repeats, strict=True):
            its.append(1e3 * seconds(point.call, n))
    return [
        {"way": point.way, "size": point.size}
        | {"median": short(median(its))}
        | {"lowest": short(min(its)), "highest": short(max(its))}
        | {"peak_bytes": peak, "predicted": point.predicted}
        for point, its, peak in zip(points, times, peaks, strict=True)
    ]


def short(number: float) -> float:
    """Four digits: the rest is noise."""
    return float(f"{number:.4g}")


def fits(records: list[dict]) -> list[dict]:
    """For each way the exponents of time and memory, and of what was predicted."""
    found = []
    for way in dict.fromkeys(record["way"] for record in records):
        of = [record for record in records if record["way"] == way]
        sizes = [record["size"] for record in of]
        fit = {"way": way}
        for name, key in (("time", "median"), ("memory", "peak_bytes")):
            exponent, error = growth(sizes, [record[key] for record in of])
            fit[name] = {"exponent": round(exponent, 3), "error": round(error, 3)}
        fit["predicted"] = {
            what: round(growth(sizes, [r["predicted"][what] for r in of]).exponent, 3)
            for what in of[0]["predicted"]
        }
        found.append(fit)
    return found


def drawn(name: str, rounds: int, made_by: str) -> dict:
    """A curve, measured."""
    curve = CURVES[name]
    torch.manual_seed(0)
    records = measure(list(curve.points()), rounds)
    return {
        "against": curve.against,
        "what": curve.what,
        "command": made_by,
        "machine": machine(),
        "fits": fits(records),
        "points": records,
    }


def main() -> None:
    """Measure the curves that are asked for, and write them into the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each point")
    parser.add_argument("--out", type=Path, default=OUT, help="file of the results")
    parser.add_argument(
        "--curves", nargs="+", choices=CURVES, default=list(CURVES), metavar="NAME",
        help=f"of {', '.join(CURVES)}",
    )  # fmt: skip
    chosen = parser.parse_args()
    made_by = command("curves", parser, chosen, "rounds", "curves")
    for name in chosen.curves:
        with one_thread():
            curve = drawn(name, chosen.rounds, made_by)
        keep(chosen.out, name, curve)
        for fit in curve["fits"]:
            print(name, json.dumps(fit), flush=True)


def keep(path: Path, name: str, curve: dict) -> None:
    """Put a curve into the file beside those that stand in it."""
    held = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    curves = held.get("curves", {}) | {name: curve}
    content = {
        "question": __doc__.splitlines()[0],
        "unit": "milliseconds of processor time, one thread; bytes",
        "curves": {name: curves[name] for name in CURVES if name in curves},
    }
    write(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
