# SPDX-License-Identifier: MIT
"""How does a command speak? Results on stdout, the rest on stderr, numbers checked."""

import argparse
import sys
from collections.abc import Callable, Sequence


class Usage(Exception):  # noqa: N818
    """The command was called wrongly; what is said is how to call it."""


class Stopped(Exception):  # noqa: N818
    """The user pressed Ctrl+C; what is said is how to go on."""


def say(text: str = "", end: str = "\n") -> None:
    """Write to stdout, at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def complain(text: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A reader of whole numbers in a range, for `add_argument(type=…)`."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least or (most is not None and value > most):
            limit = f"at least {least}" if most is None else f"in {least} … {most}"
            raise argparse.ArgumentTypeError(f"must be {limit}, got {value}")
        return value

    return read


def number(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """A reader of numbers in a range; with `above`, `least` itself is refused."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if not least <= value <= most or (above and value == least):
            first = f"above {least:g}" if above else f"at least {least:g}"
            raise argparse.ArgumentTypeError(
                f"must be {first} and at most {most:g}, got {value:g}"
            )
        return value

    return read


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of words as columns, aligned on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def device(name: str):
    """The device of a name; "auto" is the fastest at hand.

    Raises:
        ValueError: this machine has none of that kind.
    """
    import torch

    from deepdive.device import best_device

    if name == "auto":
        return best_device()
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if name in there and not there[name]():
        raise ValueError(f"no {name} device on this machine; cpu always works")
    return torch.device(name)


def add_device(parser: argparse.ArgumentParser) -> None:
    """The option --device."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="where to compute; auto takes the fastest at hand (default)",
    )
