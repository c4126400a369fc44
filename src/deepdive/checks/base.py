# SPDX-License-Identifier: MIT
"""How is an answer judged? By the right one, then by each known wrong one."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """The result of a check: true or false, with one sentence that helps."""

    right: bool
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return f"{'Right' if self.right else 'Not yet'}: {self.message}"

    def _repr_html_(self) -> str:
        kind, word = ("right", "✓ Right") if self.right else ("notyet", "Not yet")
        return (
            f'<p class="dd-verdict dd-{kind}"><strong>{word}.</strong> '
            f"{html.escape(self.message)}</p>"
        )


@dataclass(frozen=True)
class Wrong:
    """A known wrong answer, a value or a function, and the hint that mends it."""

    answer: Any
    hint: str


@dataclass(frozen=True)
class Check:
    """Compare an answer with the right one, then with each known wrong one.

    Args:
        right: a number, or a function when the exercise asks for one.
        cases: argument tuples to try a function on.
        tolerance: how far a number may be off.
    """

    right: Any
    praise: str
    wrong: Sequence[Wrong] = field(default_factory=tuple)
    cases: Sequence[tuple] = field(default_factory=tuple)
    tolerance: float = 5e-4

    def __call__(self, answer) -> Verdict:
        if answer is None or answer is Ellipsis:
            return Verdict(False, "no answer yet. Replace the dots, then run the cell.")
        return self._function(answer) if callable(self.right) else self._value(answer)

    def _value(self, answer) -> Verdict:
        try:
            number = float(answer)
        except Exception:  # a tensor, an array, a huge integer: each has its own error
            return Verdict(False, f"a number is expected, got {answer!r}.")
        if abs(number - self.right) <= self.tolerance:
            return Verdict(True, self.praise)
        for wrong in self.wrong:
            if abs(number - wrong.answer) <= self.tolerance:
                return Verdict(False, wrong.hint)
        if abs(number - self.right) <= 0.01 * abs(self.right):
            return Verdict(False, self._close(number))
        return Verdict(
            False, f"{number:g} is not it. Write down each step and compare."
        )

    def _close(self, number: float) -> str:
        if not isinstance(self.right, int):
            if self.tolerance >= 5e-3:
                return "close. Two decimals will do: carry three, round at the end."
            return "close. Carry three decimals through to the end."
        if number % 1:
            return "close, but a whole number is asked."
        return "close, but it has to be exact. Count again."

    def _function(self, answer: Callable) -> Verdict:
        if not callable(answer):
            return Verdict(False, f"a function is expected, got {answer!r}.")
        for case in self.cases:
            expected = self.right(*case)
            got = _call(answer, case)
            if got is None or got is Ellipsis:
                return Verdict(False, "the function returns nothing yet.")
            if isinstance(got, Exception):
                return Verdict(False, _stopped(got, case))
            if not _same(got, expected):
                return self._hint(answer, expected, got)
        return Verdict(True, self.praise)

    def _hint(self, answer: Callable, expected: Tensor, got) -> Verdict:
        for wrong in self.wrong:
            if all(
                _alike(_call(answer, c), _call(wrong.answer, c)) for c in self.cases
            ):
                return Verdict(False, wrong.hint)
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        if shape != tuple(expected.shape):
            return Verdict(
                False, f"expected shape {tuple(expected.shape)}, got {shape}."
            )
        return Verdict(False, _first_difference(got, expected))


def _first_difference(got: Tensor, expected: Tensor) -> str:
    """Name the first row that is off, and show both, to three decimals."""
    if got.isnan().any():
        return "NaN appears. 0 · (−∞) is NaN: use masked_fill to write −∞."
    ours, right = (x.double().reshape(-1, x.shape[-1]) for x in (got, expected))
    row = int((ours - right).abs().amax(-1).gt(1e-6).nonzero()[0])
    place = f"row {row + 1}"
    if got.dim() > 2:  # rows of rows have no one number
        at = torch.unravel_index(torch.tensor(row), got.shape[:-1])
        place = f"result{[int(i) for i in at]}"
    return (
        f"the shape is right, the numbers are not. Compare {place}: yours is "
        f"{_row(ours[row])}, it should be {_row(right[row])}."
    )


def _row(x: Tensor) -> str:
    """One row of numbers, to three decimals."""
    return f"({', '.join(f'{float(v):.3f}' for v in x)})"


def _stopped(error: Exception, case: tuple) -> str:
    """What the function stopped with, in one line, and what it was given."""
    first_line = str(error).strip().split("\n")[0]
    given = [tuple(x.shape) if isinstance(x, Tensor) else x for x in case]
    return (
        f"it stops with {type(error).__name__}: {first_line} "
        f"It was given {', '.join(map(str, given))}."
    )


def _call(function: Callable, case: tuple):
    """The function's result, or the exception it raised; arguments are copies."""
    try:
        return function(*(x.clone() if isinstance(x, Tensor) else x for x in case))
    except Exception as error:
        return error


def _same(a, b) -> bool:
    """Equal as tensors, to 1e-6, with NaN nowhere."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    return torch.allclose(a.double(), b.double(), rtol=0, atol=1e-6)


def _alike(a, b) -> bool:
    """The same mistake, whether or not NaN was painted over with zeros."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor)
    return both and _same(a.nan_to_num(), b.nan_to_num())


def random_tensors(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Seeded float64 tensors for the cases."""
    generator = torch.Generator().manual_seed(2017)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
