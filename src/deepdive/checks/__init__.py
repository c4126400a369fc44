# SPDX-License-Identifier: MIT
"""Is the exercise solved? One check each, with a hint for every known wrong answer.

A check is a function of the answer: `checks.attention(my_attention)`. It depends on
nothing else in the notebook, neither on cell names nor on their order. Each chapter's
checks stand in a file of its own; their names are the book's, so none stands twice.
"""

from deepdive.checks import (
    chapter01,
    chapter02,
    chapter03,
    chapter04,
    chapter05,
    chapter06,
    chapter07,
    chapter08,
    chapter09,
)
from deepdive.checks.base import Check, Verdict, Wrong

ALL: dict[str, Check] = {}
for _chapter in (
    chapter01,
    chapter02,
    chapter03,
    chapter04,
    chapter05,
    chapter06,
    chapter07,
    chapter08,
    chapter09,
):
    _found = {n: c for n, c in vars(_chapter).items() if isinstance(c, Check)}
    if _twice := ALL.keys() & _found.keys():
        raise ImportError(f"{_chapter.__name__} repeats the checks {sorted(_twice)}")
    ALL |= _found
globals().update(ALL)

__all__ = ["ALL", *ALL, "Check", "Verdict", "Wrong"]
