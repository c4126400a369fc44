# SPDX-License-Identifier: MIT
"""Which way of computing the same thing is faster, and by how much for certain?

All ways of a row run in one process, by turns, on one thread of the CPU; counted is the
processor's time, so other programs disturb little. First each way is checked to give
the same numbers. Said is how many times as fast one way was as another: the median
over the rounds, and the lowest and highest. Only such ratios carry over to another
machine of the same kind.

A limit is measured like a way: how long would reading the bytes that must be read take,
or multiplying what must be multiplied, and nothing else?

Taught in: book/01_recurrence.ipynb
"""

import argparse
import gc
import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

NONE = MappingProxyType({})
LEAST = 0.05  # seconds of one measurement; short work is repeated until it takes that
ROUNDS = 7


class Goal(NamedTuple):
    """`way` is to be at least so many times as fast as `against`, a way or a limit."""

    way: str
    against: str
    at_least: float
    why: str = ""


class Row(NamedTuple):
    """Ways of computing the same thing, the first being what the others are held to.

    Args:
        ways: calls without arguments that return tensors with the same numbers.
        limits: calls whose time nothing can go below; what they return is not compared.
        named: ways that are not run here, each with what is known of it.
        tolerance: how far ways may differ, as a share of the largest number.
    """

    name: str
    sizes: str
    ways: dict[str, Callable]
    goals: tuple[Goal, ...] = ()
    limits: Mapping[str, Callable] = NONE
    named: Mapping[str, str] = NONE
    tolerance: float = 1e-3


class Measured(NamedTuple):
    """One way of a row: milliseconds, and times as fast as the first way."""

    way: str
    milliseconds: float
    ratio: float
    lowest: float
    highest: float


class Judged(NamedTuple):
    """A goal, and the ratio that was measured."""

    way: str
    against: str
    at_least: float
    why: str
    ratio: float
    lowest: float
    highest: float

    @property
    def verdict(self) -> str:
        """Reached; within the spread: some round reached it; or missed: none did."""
        if self.ratio >= self.at_least:
            return "reached"
        return "within the spread" if self.highest >= self.at_least else "missed"


class Result(NamedTuple):
    """What a row's measurement gave."""

    row: str
    sizes: str
    measured: list[Measured]
    judged: list[Judged]
    named: dict[str, str]

    def as_dict(self) -> dict:
        """As JSON keeps it; `from_dict` reads it."""
        content = self._asdict()
        content["measured"] = [m._asdict() for m in self.measured]
        content["judged"] = [g._asdict() | {"verdict": g.verdict} for g in self.judged]
        return content

    @classmethod
    def from_dict(cls, content: dict) -> "Result":
        """What `as_dict` made, as objects again."""
        judged = [dict(goal) for goal in content["judged"]]
        for goal in judged:
            goal.pop("verdict")
        objects = {
            "measured": [Measured(**m) for m in content["measured"]],
            "judged": [Judged(**goal) for goal in judged],
        }
        return cls(**content | objects)


# Measuring


def measure(row: Row, rounds: int = ROUNDS, judge: bool = True) -> Result:
    """Time the ways of a row by turns, after one turn that checks and warms up.

    Args:
        judge: hold the ratios to the row's goals; small sizes are not what these are
            for.

    Raises:
        ArithmeticError: a way gives other numbers than the first.
        ValueError: a goal names a way that the row does not have.
    """
    calls = {**row.ways, **row.limits}
    for goal in row.goals:
        for name in (goal.way, goal.against):
            if name not in calls:
                raise ValueError(
                    f"{row.name}: no way {name!r}, only {', '.join(calls)}"
                )
    check_same(row)
    repeats = {way: _repeats(call) for way, call in calls.items()}
    times: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(rounds):
        for way, call in calls.items():
            times[way].append(seconds(call, repeats[way]))
    first = next(iter(times))
    measured = [
        Measured(way, _short(1e3 * median(its)), *ratio(times[first], its))
        for way, its in times.items()
    ]
    judged = [
        Judged(*goal, *ratio(times[goal.against], times[goal.way]))
        for goal in row.goals
        if judge
    ]
    return Result(row.name, row.sizes, measured, judged, dict(row.named))


def ratio(those: list[float], these: list[float]) -> tuple[float, float, float]:
    """How many times as fast these were, round by round: median, lowest, highest."""
    ratios = [a / b for a, b in zip(those, these, strict=True)]
    return _short(median(ratios)), _short(min(ratios)), _short(max(ratios))


def check_same(row: Row) -> None:
    """Do all ways of a row give the same numbers, up to rounding?

    Raises:
        ArithmeticError: one does not.
    """
    (name, first), *others = row.ways.items()
    expected = first()
    for way, call in others:
        got = call()
        if got.shape != expected.shape:
            shapes = f"{tuple(got.shape)}, not {tuple(expected.shape)}"
            raise ArithmeticError(f"{row.name}: {way} gives {shapes} as {name}")
        error = (got - expected).abs().max() / expected.abs().max()
        if not error < row.tolerance:
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


def _short(number: float) -> float:
    return float(f"{number:.4g}")


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


# Limits


def reading(nbytes: int) -> Callable:
    """A call that reads so many bytes from memory once, and adds them up.

    Raises:
        ValueError: nbytes < 1.

    >>> float(reading(4000)())
    1000.0
    """
    import torch

    if nbytes < 1:
        raise ValueError(f"nbytes must be ≥ 1, got {nbytes}")
    numbers = torch.ones(max(1, nbytes // 4))
    return numbers.sum


def multiplying(flops: float, size: int = 1024) -> Callable:
    """A call that takes as many operations as given, as products of square matrices.

    The product is MKL's or oneDNN's, whichever is faster here (where torch has both).

    Args:
        flops: a multiplication and an addition are two.
        size: of the squares; smaller ones where the work is less than one of these.

    Raises:
        ValueError: flops < 2.
    """
    import torch

    from deepdive.products import has_onednn, onednn_linear

    if flops < 2:
        raise ValueError(f"flops must be ≥ 2, got {flops}")
    while size > 1 and 2 * size**3 > flops:
        size //= 2
    a, b = torch.ones(2, size, size)
    ways = [torch.mm, onednn_linear] if has_onednn() else [torch.mm]
    mm = min(ways, key=lambda way: min(seconds(lambda: way(a, b), 1) for _ in range(5)))
    whole, rest = divmod(flops, 2 * size**3)
    rows = round(size * rest / (2 * size**3))  # of one more product

    def call():
        for _ in range(int(whole)):
            mm(a, b)
        if rows:
            mm(a[:rows], b)

    return call


# Where it was measured


def installed(package: str) -> bool:
    """Is a package there that a row would run beside ours?

    >>> installed("torch")
    True
    """
    return importlib.util.find_spec(package) is not None


def machine() -> dict[str, str | int]:
    """Where it was measured, and with what."""
    import torch

    found = {
        "processor": processor(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepdive": version("deepdive"),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": 1,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    return found


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":")[1].strip() for line in lines if "model name" in line]
    return named[0] if named else platform.processor() or platform.machine()


# One script


def rows(makers: Iterable[Callable], rounds: int, judge: bool) -> Iterator[Result]:
    """Measure row by row; each row's models are freed before the next are built."""
    import torch

    with one_thread():
        for make in makers:
            with torch.no_grad():
                result = measure(make(), rounds, judge)
            gc.collect()
            yield result


def table(result: Result) -> str:
    """A row in words: a line for each way, each way that was not run, and each goal."""
    width = max(map(len, ["way", *(m.way for m in result.measured)]))
    lines = [f"{result.row}: {result.sizes}"]
    lines += [f"  {'way':<{width}}  {'time':>10}  times as fast  lowest … highest"]
    for m in result.measured:
        digits = ",.0f" if m.milliseconds >= 100 else ".3g"
        time = f"{m.milliseconds:{digits}} ms"
        spread = f"{m.lowest:.2f} … {m.highest:.2f}"
        lines.append(f"  {m.way:<{width}}  {time:>10}  {m.ratio:<13.2f}  {spread}")
    lines += [f"  not run: {way}, {what}" for way, what in result.named.items()]
    for goal in result.judged:
        lines.append(
            f"  goal: {goal.way} at least {goal.at_least:.3g} × {goal.against}: "
            f"{goal.ratio:.3g} ({goal.lowest:.3g} … {goal.highest:.3g}), {goal.verdict}"
        )
    return "\n".join(lines)


def main(
    about: str,
    full: Iterable[Callable],
    quick: Iterable[Callable],
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a script of rows: measure each, and print it as a table.

    Args:
        about: the script's docstring.
        full, quick: functions that make a `Row`.
        arguments: the command line's unless given.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, no goals")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each way")
    parser.add_argument("--lines", action="store_true", help="a line of JSON for a row")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 5:
        parser.error(f"--rounds must be at least 5, got {chosen.rounds}")
    makers = quick if chosen.quick else full
    for result in rows(makers, chosen.rounds, judge=not chosen.quick):
        text = json.dumps(result.as_dict()) if chosen.lines else table(result) + "\n"
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
