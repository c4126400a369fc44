# SPDX-License-Identifier: MIT
"""How far is what a model wrote from what it should have written?

Counted as the fewest changes that turn one into the other. Divided by the length of the
right answer, that is the error per word, letter or sound.

Taught in: book/01_recurrence.ipynb, book/06_transformer_2017.ipynb
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Edits(NamedTuple):
    """Changes that a written sequence needs, and the length of the right one."""

    count: int
    length: int


def edit_distance(written: Sequence, right: Sequence) -> int:
    """The fewest insertions, deletions and exchanges that make `written` right.

    Raises:
        TypeError: one of them is not a sequence.

    Source: Levenshtein 1966.

    >>> edit_distance("mice", "rice"), edit_distance(["K", "AE"], ["K", "AE", "T"])
    (1, 1)
    """
    for name, given in (("written", written), ("right", right)):
        if not isinstance(given, Sequence):
            raise TypeError(f"{name} must be a sequence, got {type(given).__name__}")
    row = list(range(len(right) + 1))  # from nothing written to each start of `right`
    for i, piece in enumerate(written, start=1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(right, start=1):
            exchanged = diagonal + (piece != wanted)
            diagonal = row[j]
            row[j] = min(exchanged, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def fewest_edits(written: Sequence, accepted: Iterable[Sequence]) -> Edits:
    """The same against several right answers: the one that needs fewest changes.

    Of two that need as many, the longer: its share of errors is the smaller one.

    Raises:
        ValueError: there is no right answer.

    >>> fewest_edits("either", ["iether", "eether"])
    Edits(count=1, length=6)
    """
    found = [Edits(edit_distance(written, right), len(right)) for right in accepted]
    if not found:
        raise ValueError("accepted must hold at least one right answer, got none")
    return min(found, key=lambda edits: (edits.count, -edits.length))
