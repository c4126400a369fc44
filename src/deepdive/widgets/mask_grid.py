# SPDX-License-Identifier: MIT
"""Which words may a word look at? One grid, three rules, and a word appended.

The rules are those of `deepdive.masks`; the page recomputes them, and a test compares
the two for every length, prefix and window the grid can show.

Taught in: book/02_attention.ipynb
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepdive.masks import Causal, Everyone
from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing

WORDS = ("cats", "chase", "mice", "daily", "while", "dogs", "sleep", "late")
RULES = ("causal", "bidirectional", "prefix")


def allowed(rule: str, n: int, prefix: int = 0, window: int = 8) -> list[list[int]]:
    """The mask as rows of 1 (may attend) and 0 (blocked), query by key.

    Args:
        rule: one of `RULES`; only "prefix" looks at `prefix`.
        n: number of words.
        prefix: how many first words see each other both ways.
        window: how many keys a query sees, itself included; no limit from n on. The
            bidirectional rule has none.

    >>> allowed("causal", 3)
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
    if rule == "bidirectional":
        mask = Everyone()
    else:
        mask = Causal(window=window, prefix=prefix if rule == "prefix" else 0)
    return mask.tensor(n, n).int().tolist()


def counts(rule: str, n: int, prefix: int = 0, window: int = 8) -> dict[str, int]:
    """What the mask amounts to.

    Returns:
        `allowed` and `cells` (of n²); `kept` and `changed`, how many of the n − 1 older
        words see the same words as before the last one came, or others; `leaks`, how
        many words can see the next one, their target when the next word is predicted.
    """
    now = allowed(rule, n, prefix, window)
    before = allowed(rule, n - 1, prefix, window) if n > 1 else []
    changed = sum([*old, 0] != new for old, new in zip(before, now, strict=False))
    return {
        "allowed": sum(map(sum, now)),
        "cells": n * n,
        "kept": n - 1 - changed,
        "changed": changed,
        "leaks": sum(now[t][t + 1] for t in range(n - 1)),
    }


class MaskGrid(Widget):
    """A grid of queries and keys; choose the rule, append a word, look for the leak.

    Args:
        words: two to eight words; the last ones wait to be appended.
        n: how many of them stand in the grid at first.
        rule: "causal", "bidirectional" or "prefix".
        prefix: how many first words see each other both ways (rule "prefix").
        window: how many keys a query may see at most, itself included.
        targets: whether each row's next word, the training target, is ringed.
        name: slug, unique on its page.

    Raises:
        ValueError: any of these out of range.

    Taught in: book/02_attention.ipynb
    """

    label = "Who may attend to whom"
    height = 770
    height_narrow = 1088

    def __init__(
        self,
        words: Sequence[str] = WORDS,
        n: int | None = None,
        rule: str = "causal",
        prefix: int = 3,
        window: int | None = None,
        targets: bool = False,
        name: str = "mask-grid",
        **kwargs: Any,
    ) -> None:
        """Show the first `n` words under the given rule."""
        words = tuple(words)
        if isinstance(words, str) or not 2 <= len(words) <= 8 or not all(words):
            raise ValueError(f"words must be 2 to 8 non-empty words, got {words!r}")
        most = len(words)
        self._most = most
        start = {
            "rule": rule,
            "n": most - 1 if n is None else n,
            "prefix": min(prefix, most),
            "window": most if window is None else window,
            "targets": bool(targets),
        }
        self.check(start)
        found = counts(rule, start["n"], start["prefix"], start["window"])
        super().__init__(
            data={"words": list(words)},
            start=start,
            name=name,
            alt=(
                f"A grid of {start['n']} queries by {start['n']} keys under the {rule} "
                f"rule: {found['allowed']} of {found['cells']} cells allowed. The last "
                f"word changed what {found['changed']} of the older words see."
            ),
            caption=(
                "Rows are queries, columns keys. A filled cell may be attended to, a "
                "hatched one is blocked; a plus marks what the last word brought."
            ),
            **kwargs,
        )

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """The rule must exist and every number fit the grid."""
        if state["rule"] not in RULES:
            raise ValueError(
                f"rule must be one of {', '.join(RULES)}, got {state['rule']!r}"
            )
        for key, low in (("n", 1), ("prefix", 0), ("window", 1)):
            if not isinstance(state[key], int) or not low <= state[key] <= self._most:
                raise ValueError(
                    f"{key} must be {low} … {self._most}, got {state[key]!r}"
                )
        return state

    def numbers(self) -> dict[str, list[list[int]]]:
        """What the table view shows for the present state, by table name."""
        s = self.state
        args = (s["rule"], s["n"], s["prefix"], s["window"])
        return {"mask": allowed(*args), "counts": [[v] for v in counts(*args).values()]}

    def frame(self) -> str:
        """The grid on the left, its counts on the right."""
        s = self.data["start"]
        words, n = self.data["words"], s["n"]
        args = (s["rule"], n, s["prefix"], s["window"])
        mask, found = allowed(*args), counts(*args)
        size, gap, x, y = 44, 3, 92, 62
        drawing = Drawing(690, y + n * (size + gap) + 20, self.alt)
        drawing.text(x, 20, "key →", 15, "k", weight=600)
        drawing.text(x - 12, y - 10, "query ↓", 15, "q", "end", 600)
        for j in range(n):
            drawing.text(
                x + j * (size + gap) + size / 2,
                y - 10,
                words[j],
                14,
                "k",
                "middle",
                600,
            )
        for t in range(n):
            top = y + t * (size + gap)
            drawing.text(x - 12, top + size / 2 + 5, words[t], 15, "q", "end", 600)
            for j in range(n):
                left = x + j * (size + gap)
                if not mask[t][j]:
                    drawing.hatch(left, top, size, size)
                    continue
                new = t == n - 1 or j == n - 1
                drawing.rect(
                    left, top, size, size, "accent" if new else "muted", radius=4
                )
                mark = "+" if new else "●"
                drawing.text(
                    left + size / 2,
                    top + size / 2 + 6,
                    mark,
                    18 if new else 12,
                    "paper",
                    "middle",
                    600,
                )
            status = (
                "new" if t == n - 1 else "same" if mask[t][n - 1] == 0 else "changed"
            )
            drawing.text(
                x + n * (size + gap) + 8, top + size / 2 + 5, status, 14, "muted"
            )
        side = x + n * (size + gap) + 84
        for i, (big, *small) in enumerate(
            (
                (f"{found['allowed']} of {found['cells']}", "cells allowed"),
                (f"{found['changed']} of {n - 1}", "older rows changed"),
                (f"{found['leaks']} of {n - 1}", "rows that peek at", "the next word"),
            )
        ):
            drawing.text(side, y + 26 + i * 84, big, 26, weight=650)
            for line, words_ in enumerate(small):
                drawing.text(side, y + 48 + 18 * line + i * 84, words_, 14, "muted")
        return drawing.svg()
