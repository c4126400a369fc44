# SPDX-License-Identifier: MIT
"""The fewest edits are what a slow search finds, and obey the laws of a distance."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepdive.scoring import Edits, edit_distance, fewest_edits

TEXTS = st.text("abc", max_size=6)


def by_definition(a: str, b: str) -> int:
    """Try every first change: the definition itself, exponential but for the cache."""

    @cache
    def least(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        if a[0] == b[0]:
            return least(a[1:], b[1:])
        return 1 + min(least(a[1:], b), least(a, b[1:]), least(a[1:], b[1:]))

    return least(a, b)


@given(TEXTS, TEXTS)
def test_equals_the_definition(a, b):
    assert edit_distance(a, b) == by_definition(a, b)


@given(TEXTS, TEXTS, TEXTS)
def test_is_a_distance(a, b, c):
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@pytest.mark.parametrize(
    ("written", "right", "edits"),
    [
        ("kitten", "sitting", 3),  # the textbook's pair
        ("", "abc", 3),
        ("abc", "", 3),
        (("AH", "T"), ["AH", "T"], 0),  # kinds of sequence may differ
        (["K", "AE", "T", "S"], ["K", "AE", "T"], 1),
    ],
)
def test_known_pairs(written, right, edits):
    assert edit_distance(written, right) == edits


def test_the_nearest_right_answer_counts():
    assert fewest_edits("ab", ["abcd", "abc", "xyz"]) == Edits(1, 3)
    assert fewest_edits("ab", ["a", "abc"]) == Edits(1, 3)  # of two, the longer
    assert fewest_edits("ab", iter(["ab"])) == Edits(0, 2)


@pytest.mark.parametrize("given", [None, 3, {"a"}])
def test_what_is_no_sequence_is_refused(given):
    with pytest.raises(TypeError, match="must be a sequence"):
        edit_distance(given, "a")
    with pytest.raises(TypeError, match="must be a sequence"):
        edit_distance("a", given)


def test_no_right_answer_is_refused():
    with pytest.raises(ValueError, match="at least one right answer"):
        fewest_edits("a", [])
