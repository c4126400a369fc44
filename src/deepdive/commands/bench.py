# SPDX-License-Identifier: MIT
"""Measure, on this machine, what each way of computing the same thing costs.

All ways of a row run in one process, by turns, on one thread of the CPU; counted is the
processor's time, so other programs disturb little. First each way is checked to give
the same numbers. Said are each way's time and how many times as fast as the first way
it was: the median over the rounds, and the lowest and highest.

Only the ratios carry over to another machine of the same kind.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from deepdive.commands.words import columns, complain, say, whole

NAME, HELP = "bench", "measure what each way of computing the same costs here"
LEAST = 0.05  # seconds of one measurement; short work is repeated until it takes that


class Row(NamedTuple):
    """Ways of computing the same thing, the first being what the others are held to.

    Args:
        tolerance: how far they may differ, as a share of the largest number.
    """

    name: str
    sizes: str
    ways: dict[str, Callable]
    tolerance: float = 1e-3


class Measured(NamedTuple):
    """One way of a row: milliseconds, and times as fast as the first way."""

    row: str
    sizes: str
    way: str
    milliseconds: float
    ratio: float
    lowest: float
    highest: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `bench`."""
    parser.add_argument(
        "--quick", action="store_true", help="small sizes: seconds, not minutes"
    )
    parser.add_argument(
        "--rounds", type=whole(5), default=5, metavar="N", help="turns (default: 5)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the numbers to a new file too; -: to stdout, the rest to stderr",
    )


def run(chosen: argparse.Namespace) -> int:
    """Measure row by row, and print each as it is there."""
    out = chosen.json
    only_json = out is not None and str(out) == "-"
    if out is not None and not only_json and out.exists():
        raise FileExistsError(f"{out} exists: choose another name")
    import torch

    tell = Teller(complain if only_json else say, carry_on=out is not None)
    tell(f"{processor()}, torch {torch.__version__}, one thread, processor time")
    found: list[Measured] = []
    with one_thread(), torch.no_grad():
        for make in QUICK if chosen.quick else FULL:
            row = make()
            measured = measure(row, chosen.rounds)
            tell(f"\n{row.name}: {row.sizes}\n{table(measured)}")
            found += measured
    content = {"machine": machine(), "rounds": chosen.rounds, "quick": chosen.quick}
    content["measured"] = [m._asdict() for m in found]
    if only_json:
        say(json.dumps(content, indent=2))  # in ASCII: no console can spoil it
    elif out is not None:
        with out.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    if tell.failure is not None:
        raise tell.failure
    return 0


class Teller:
    """Says things; once that fails, is silent, so that the numbers can still be kept.

    Args:
        how: what says them.
        carry_on: False to fail at once: nobody would have the numbers.
    """

    def __init__(self, how: Callable[[str], None], carry_on: bool):
        self.how, self.carry_on = how, carry_on
        self.failure: OSError | ValueError | None = None

    def __call__(self, text: str) -> None:
        """Say it, or remember why it could not be said."""
        if self.failure is not None:
            return
        try:
            self.how(text)
        except (OSError, ValueError) as error:  # a closed pipe, a letter it lacks
            if not self.carry_on:
                raise
            self.failure = error


# Measuring


def measure(row: Row, rounds: int) -> list[Measured]:
    """Time the ways of a row by turns, after one turn that checks and warms up.

    Raises:
        ArithmeticError: a way gives other numbers than the first.
    """
    check_same(row)
    repeats = {way: _repeats(call) for way, call in row.ways.items()}
    times: dict[str, list[float]] = {way: [] for way in row.ways}
    for _ in range(rounds):
        for way, call in row.ways.items():
            times[way].append(seconds(call, repeats[way]))
    first = next(iter(times.values()))
    found = []
    for way, its in times.items():
        ratios = [a / b for a, b in zip(first, its, strict=True)]
        numbers = 1e3 * median(its), median(ratios), min(ratios), max(ratios)
        rounded = (float(f"{n:.4g}") for n in numbers)
        found.append(Measured(row.name, row.sizes, way, *rounded))
    return found


def check_same(row: Row) -> None:
    """Do all ways of a row give the same numbers, up to rounding?

    Raises:
        ArithmeticError: one does not.
    """
    (name, first), *others = row.ways.items()
    expected = first()
    for way, call in others:
        got = call()
        error = (got - expected).abs().max() / expected.abs().max()
        if got.shape != expected.shape or not error < row.tolerance:
            raise ArithmeticError(
                f"{row.name}: {way} differs from {name} by {float(error):.1e}"
            )


def seconds(call: Callable, repeats: int) -> float:
    """Processor time of one call, the mean of some."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def _repeats(call: Callable) -> int:
    return max(1, round(LEAST / max(seconds(call, 1), 1e-6)))


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes with one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def table(measured: list[Measured]) -> str:
    """The ways of a row, a line each under their headings."""
    lines = [["  way", "time", "times as fast", "lowest … highest"]]
    for m in measured:
        spread = f"{m.lowest:.2f} … {m.highest:.2f}"
        digits = ",.0f" if m.milliseconds >= 100 else ".3g"
        numbers = f"{m.milliseconds:{digits}} ms", f"{m.ratio:.2f}", spread
        lines.append([f"  {m.way}", *numbers])
    return columns(lines)


def machine() -> dict[str, str | int]:
    """Where it was measured, and with what."""
    import torch

    return {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepdive": version("deepdive"),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return named[0] if named else platform.processor() or platform.machine()


# Rows


def attention(T: int) -> Row:
    """Causal self-attention, 6 heads of 64: formula, torch's kernel, tiles."""
    import torch

    from deepdive.kernels import equation, fused, tiled
    from deepdive.masks import Causal

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 6, T, 64)
    ways = {"formula": equation, "fused": fused, "tiled": tiled}
    calls = {n: lambda f=f: f(q, k, v, mask=Causal()) for n, f in ways.items()}
    return Row("attention, causal", f"T = {T}, 6 heads of 64", calls)


def decoding(context: int, n_layers: int = 6, d_model: int = 384) -> Row:
    """One more token of a GPT: the whole text again, or only what is new."""
    import torch

    from deepdive.configs import GptConfig
    from deepdive.models.gpt import Gpt

    torch.manual_seed(0)
    sizes = {"n_layers": n_layers, "d_model": d_model, "d_ff": 4 * d_model}
    model = Gpt(GptConfig(8192, n_heads=6, max_seq_len=context + 1, **sizes)).eval()
    tokens = torch.randint(8192, (1, context + 1))
    caches = model.new_caches(context + 1)
    model.hidden(tokens[:, :-1], caches)

    def cached():
        out = model.logits(model.hidden(tokens[:, -1:], caches))
        caches.truncate(context)
        return out

    def uncached():
        return model.logits(model.hidden(tokens)[:, -1:])

    what = f"GPT of {n_layers} layers of {d_model}, {context} tokens before"
    return Row("one more token", what, {"uncached": uncached, "cached": cached})


def experts(N: int, E: int = 32, K: int = 4) -> Row:
    """A mixture of experts: all experts for all tokens, or each for its own."""
    import torch

    from deepdive.moe import Experts, SoftmaxTopKRouter

    torch.manual_seed(0)
    layer = Experts(E, d_model=256, d_expert=256)
    x = torch.randn(N, 256)
    routing = SoftmaxTopKRouter(256, E, K)(x)
    ways = {
        "dense": lambda: layer.dense(x, routing),
        "sorted": lambda: layer(x, routing),
    }
    return Row("experts", f"{N} tokens, {K} of {E} experts, 256 × 256", ways)


def latent(S: int, H: int = 16) -> Row:
    """Latent attention of one new token: keys and values rebuilt, or absorbed."""
    import torch

    from deepdive.latent_attention import LatentAttention

    torch.manual_seed(0)
    layer = LatentAttention(
        d_model=512, n_heads=H, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, v_head_dim=128,
    )  # fmt: skip
    q, c = torch.randn(1, H, 1, 192), torch.randn(1, 1, S, 576)
    ways = {
        "expanded": lambda: layer.expanded(q, c),
        "absorbed": lambda: layer.absorbed(q, c),
    }
    what = f"{S} latents of 512 + 64, {H} heads of 128 + 64"
    return Row("latent attention, one token", what, ways)


def prepared(context: int) -> Row:
    """One more token of a Llama of SmolLM2's shape: as built, joined, 8-bit."""
    import torch

    from deepdive.configs import SMOLLM2_135M
    from deepdive.inference import Int8Linear, for_inference
    from deepdive.models.llama import Llama

    torch.manual_seed(0)
    model = Llama(SMOLLM2_135M).eval()
    tokens = torch.randint(49_152, (1, context + 1))

    def call(model):
        caches = model.new_caches(context + 1)
        model.hidden(tokens[:, :-1], caches)

        def one_more():
            out = model.logits(model.hidden(tokens[:, -1:], caches))
            caches.truncate(context)
            return out

        return one_more

    ways = {
        "as built": call(model),
        "joined": call(for_inference(model)),
        "8-bit": call(for_inference(model, Int8Linear)),
    }
    what = f"SmolLM2's shape, {context} tokens before, batch 1"
    return Row("prepared weights", what, ways, tolerance=0.05)


FULL = (
    lambda: attention(1024),
    lambda: attention(4096),
    lambda: decoding(256),
    lambda: experts(1024),
    lambda: latent(4096),
    lambda: prepared(64),
)
QUICK = (
    lambda: attention(256),
    lambda: decoding(64, n_layers=2, d_model=96),
    lambda: experts(64, E=8, K=2),
    lambda: latent(256, H=4),
)
