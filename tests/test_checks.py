# SPDX-License-Identifier: MIT
"""Every check knows the right answer, and answers every known mistake with its hint."""

import math

import numpy as np
import pytest
import torch

from deepdive import checks
from deepdive.checks import Check, Verdict, Wrong

ALL = checks.ALL
VALUES = {name: c for name, c in ALL.items() if not callable(c.right)}
FUNCTIONS = {name: c for name, c in ALL.items() if callable(c.right)}
MISTAKES = [(name, i) for name, c in ALL.items() for i in range(len(c.wrong))]


def test_there_are_checks_of_both_kinds():
    assert len(VALUES) >= 4 and len(FUNCTIONS) >= 4
    assert set(ALL) <= set(checks.__all__)


@pytest.mark.parametrize("name", ALL)
def test_the_right_answer_is_right(name):
    check = ALL[name]
    verdict = check(check.right)
    assert verdict and verdict.message == check.praise
    assert repr(verdict) == f"Right: {check.praise}"


@pytest.mark.parametrize("name, i", MISTAKES)
def test_a_known_mistake_gets_its_own_hint(name, i):
    check = ALL[name]
    verdict = check(check.wrong[i].answer)
    assert not verdict and verdict.message == check.wrong[i].hint


@pytest.mark.parametrize("name", ALL)
def test_enough_hints_all_different(name):
    hints = [wrong.hint for wrong in ALL[name].wrong]
    assert len(hints) >= 3 and len(set(hints)) == len(hints)
    assert all(hint.endswith((".", "?")) for hint in hints)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("answer", [None, ...])
def test_dots_are_no_answer_yet(name, answer):
    assert not ALL[name](answer) and "no answer yet" in ALL[name](answer).message


GARBAGE = [
    "two",
    "",
    [],
    {},
    object(),
    1 + 2j,
    math.nan,
    math.inf,
    10**400,
    torch.ones(2),
    torch.tensor([]),
    np.ones(3),
    ValueError("x"),
    int,
    print,
    lambda: 1,
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("answer", GARBAGE, ids=repr)
def test_garbage_is_told_kindly(name, answer):
    verdict = ALL[name](answer)
    assert isinstance(verdict, Verdict) and not verdict and verdict.message


@pytest.mark.parametrize("name", VALUES)
def test_numbers_of_any_type_count(name):
    right = VALUES[name].right
    for answer in (torch.tensor(right).double(), np.float64(right), str(right)):
        assert VALUES[name](answer)
    assert not VALUES[name](right + 2 * VALUES[name].tolerance)


@pytest.mark.parametrize("name", VALUES)
def test_three_printed_digits_are_enough(name):
    """A reader may round as the page does."""
    assert VALUES[name](round(VALUES[name].right, 3))


def raises(*_):
    raise RuntimeError("sizes 3 and 4")


def dots(*_):
    return ...


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "answer, part",
    [
        (lambda *_: None, "returns nothing yet"),
        (dots, "returns nothing yet"),
        (raises, "stops with RuntimeError: sizes 3 and 4"),
        (lambda: 1, "stops with TypeError"),
        (lambda *_: 3.0, "got float"),
        (lambda *_: torch.zeros(1), "got (1,)"),
        (lambda *a: (a, a), "got tuple"),
        (3, "a function is expected, got 3"),
    ],
    ids=["None", "dots", "raises", "arguments", "float", "shape", "tuple", "number"],
)
def test_functions_that_do_not_answer(name, answer, part):
    verdict = FUNCTIONS[name](answer)
    assert not verdict and part in verdict.message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_near_miss_is_told_how_far_off(name):
    right = FUNCTIONS[name].right
    verdict = FUNCTIONS[name](lambda *a: right(*a) + 0.25)
    assert not verdict and "off by up to 0.25" in verdict.message
    assert not FUNCTIONS[name](lambda *a: right(*a) * math.nan)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_ways_of_being_right(name):
    """Single precision is right, and so is a function that spoils its arguments."""
    right = FUNCTIONS[name].right

    def spoils(*arguments):
        out = right(*arguments).clone()
        for x in arguments:
            if isinstance(x, torch.Tensor):
                x.zero_()
        return out

    assert FUNCTIONS[name](spoils)
    assert FUNCTIONS[name](spoils), "the cases survive the first call"
    assert FUNCTIONS[name](lambda *a: right(*a).clone().requires_grad_())


def test_html_is_escaped():
    check = Check(1.0, "yes", [Wrong(2.0, "a < b.")])
    assert "a &lt; b." in check(2)._repr_html_()
    assert "&lt;b&gt;" in check("<b>")._repr_html_()
    assert "dd-right" in check(1)._repr_html_()
