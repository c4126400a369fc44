# SPDX-License-Identifier: MIT
"""What do I know, and what do I expect? Questions that answer back, without a kernel.

A quiz is a JSON list in `src/deepdive/quizzes/<name>.json`. Each item is an object:

    id         unique in the book, such as "02-rows"
    kind       "choice"   one of several options is right
               "number"   a number, right within `tolerance`
               "predict"  as "choice", asked before the evidence: the reader's guess is
                          kept and shown again when the answer is opened
    prompt     the question
    options    (choice, predict) a list of {text, correct, why}; one is correct, and
               every `why` says what is right or wrong about its option
    answer, tolerance, why
               (number) the value, how far off still counts (default 0), the reasoning
    hint       (number, optional) shown for a wrong number in place of the answer
    shuffle    (optional, default true) false keeps the options as written, where their
               order means something; otherwise they are mixed, the same way every time

Texts are plain: `code` in backticks, d_k for a lowered k, Unicode for mathematics.

Taught in: every chapter
"""

from __future__ import annotations

import html
import json
import math
import random
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepdive.widgets.base import Widget
from deepdive.widgets.svg import Drawing

QUIZZES = Path(__file__).resolve().parents[1] / "quizzes"

_KEYS = {
    "choice": ({"id", "kind", "prompt", "options"}, {"shuffle"}),
    "predict": ({"id", "kind", "prompt", "options"}, {"shuffle"}),
    "number": ({"id", "kind", "prompt", "answer", "why"}, {"tolerance", "hint"}),
}
_NUMBER = re.compile(r"-?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?")


def check_item(item: Mapping[str, Any]) -> None:
    """Raise ValueError unless the item follows the schema in the module's docstring."""
    name = item.get("id", "an item without id")
    kind = item.get("kind")
    if kind not in _KEYS:
        raise ValueError(
            f"{name}: kind must be choice, number or predict, got {kind!r}"
        )
    needed, optional = _KEYS[kind]
    missing, odd = needed - set(item), set(item) - needed - optional
    if missing or odd:
        raise ValueError(
            f"{name}: missing keys {sorted(missing)}, unknown keys {sorted(odd)}"
        )
    texts = [item["prompt"], item.get("why", "x")]
    if kind == "number":
        for key in ("answer", "tolerance"):
            value = item.get(key, 0)
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name}: {key} must be a number, got {value!r}")
    else:
        options = item["options"]
        for option in options:
            if set(option) != {"text", "correct", "why"}:
                raise ValueError(f"{name}: an option has the keys {sorted(option)}")
            texts += [option["text"], option["why"]]
        right = sum(option["correct"] is True for option in options)
        if len(options) < 2 or right != 1:
            raise ValueError(
                f"{name}: {len(options)} options, {right} correct; expected ≥ 2 and 1"
            )
    for text in texts:
        if not isinstance(text, str) or not text.strip() or "$" in text or "\\" in text:
            raise ValueError(f"{name}: plain words expected, no TeX, got {text!r}")


def parse_number(text: str) -> float | None:
    """A number as readers write it, "." or "," and either minus; None if it is none.

    >>> parse_number(" −0,5 "), parse_number("1e-3"), parse_number("1,000.5")
    (-0.5, 0.001, None)
    """
    plain = text.strip().replace("−", "-").replace(",", ".").lower()
    return float(plain) if _NUMBER.fullmatch(plain) else None


def is_right(item: Mapping[str, Any], answer: int | str | None) -> bool:
    """Whether an answer (an option's place, or a number as typed) is right."""
    if answer is None:
        return False
    if item["kind"] != "number":
        place = int(answer)
        return 0 <= place < len(item["options"]) and bool(
            item["options"][place]["correct"]
        )
    value = parse_number(str(answer))
    off = item.get("tolerance", 0) + 1e-9  # so that 0.575 is within 0.001 of 0.576
    return value is not None and abs(value - item["answer"]) <= off


def _mixed(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with its options in an order that depends on its id alone."""
    out = dict(item)
    if "options" in item and item.get("shuffle", True):
        out["options"] = random.Random(item["id"]).sample(
            item["options"], len(item["options"])
        )
    return out


def _prose(text: str) -> str:
    """Plain words as HTML: backticks become <code>, d_k gets its lowered k."""
    parts = html.escape(text).split("`")
    low = re.compile(r"\b([A-Za-z])_(model|head|ff|[A-Za-z0-9])\b")
    return "".join(
        f"<code>{part}</code>" if i % 2 else low.sub(r"\1<sub>\2</sub>", part)
        for i, part in enumerate(parts)
    )


def _room(items: Sequence[Mapping[str, Any]], letters: int) -> int:
    """Pixels that the questions take where a line holds so many letters."""

    def lines(text: str) -> int:
        return len(textwrap.wrap(text, letters))

    height = 176 if len(items) > 1 else 64  # one question has one row of buttons
    for item in items:
        options = item.get("options")
        height += 92 + 25 * lines(item["prompt"])
        height += sum(19 + 24 * lines(o["text"]) for o in options) if options else 50
    return height


def _heading(n: int) -> str:
    """ "Seven questions": the page around it says already what they are for."""
    words = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")
    return f"{words[n - 1] if n <= len(words) else n} question{'s' * (n > 1)}"


class Quiz(Widget):
    """Questions with native controls, an explanation for every option, and a score.

    Args:
        items: as the module's docstring says.
        name: slug, unique in the book: a reader's answers are kept under it.
        title: heading; by default the number of questions, such as "Seven
            questions", or "Predict first" where every item is a prediction.

    Raises:
        ValueError: an item breaks the schema, or two share an id.
    """

    label = "Check yourself"
    height = 400

    def __init__(
        self,
        items: Sequence[Mapping[str, Any]],
        name: str = "quiz",
        title: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the items and mix their options."""
        if not items:
            raise ValueError("a quiz needs at least one item")
        for item in items:
            check_item(item)
        ids = [item["id"] for item in items]
        if len(set(ids)) < len(ids):
            raise ValueError(f"ids must differ, got {ids}")
        mixed = [_mixed(item) for item in items]
        foresight = all(item["kind"] == "predict" for item in items)
        self.label = title or ("Predict first" if foresight else _heading(len(items)))
        self._items = mixed
        self.height, self.height_mid, self.height_narrow = (
            _room(mixed, n) for n in (70, 62, 29)
        )
        many = f"{len(mixed)} question{'s' if len(mixed) > 1 else ''}"
        super().__init__(
            data={"items": mixed, "title": self.label},
            start={"answers": {}, "checked": {}},
            name=name,
            alt=f"{self.label}: {many}, first “{mixed[0]['prompt']}”",
            caption="",
            **kwargs,
        )

    @classmethod
    def load(cls, name: str, **kwargs: Any) -> Quiz:
        """The quiz of `quizzes/<name>.json`.

        Raises:
            ValueError: there is no such quiz; the message lists those there are.
        """
        path = QUIZZES / f"{name}.json"
        if not path.exists():
            known = ", ".join(sorted(p.stem for p in QUIZZES.glob("*.json")))
            raise ValueError(f"no quiz {name!r}; there are {known}")
        slug = "quiz-" + re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        items = json.loads(path.read_text(encoding="utf-8"))
        return cls(items, **{"name": slug, **kwargs})

    def check(self, state: dict[str, Any]) -> dict[str, Any]:
        """Answers and checks must belong to the quiz's own questions."""
        known = {item["id"] for item in self._items}
        for key in ("answers", "checked"):
            if not isinstance(state[key], dict) or set(state[key]) - known:
                raise ValueError(
                    f"{key} must map ids of {sorted(known)}, got {state[key]!r}"
                )
        return state

    def score(self) -> tuple[int, int]:
        """How many of the checked answers are right, and how many were checked.

        Predictions aren't marked: being surprised is the point.
        """
        done = [
            item
            for item in self._items
            if item["kind"] != "predict" and self.state["checked"].get(item["id"])
        ]
        right = sum(
            is_right(item, self.state["answers"].get(item["id"])) for item in done
        )
        return right, len(done)

    def frame(self) -> str:
        """The questions alone, as a printed sheet shows them."""
        lines: list[tuple[str, int, int]] = []
        for number, item in enumerate(self._items, 1):
            for at, line in enumerate(textwrap.wrap(f"{number}. {item['prompt']}", 74)):
                lines.append((line, 0, 34 if at == 0 else 22))
            for option in item.get("options", [{"text": "………………"}]):
                for at, line in enumerate(textwrap.wrap(option["text"], 70)):
                    lines.append(
                        (line if at else f"○ {line}", 24 if at == 0 else 42, 24)
                    )
        height = 30 + sum(step for *_, step in lines)
        drawing = Drawing(690, height, self.alt)
        y = 0
        for words, indent, step in lines:
            y += step
            drawing.text(
                4 + indent, y, words.replace("`", ""), 16, weight=400 if indent else 600
            )
        return drawing.svg()

    def fallback(self) -> str:
        """The questions as a list with folded answers, for a page without scripts."""
        out = [f"<p><strong>{html.escape(self.label)}</strong></p><ol>"]
        for item in self._items:
            out.append(f"<li><p>{_prose(item['prompt'])}</p>")
            options = item.get("options", [])
            if options:
                choices = "".join(f"<li>{_prose(o['text'])}</li>" for o in options)
                whys = "".join(
                    f"<li>{'✓' if o['correct'] else '✗'} {_prose(o['text'])} "
                    f"— {_prose(o['why'])}</li>"
                    for o in sorted(options, key=lambda o: not o["correct"])
                )
                answer = f"<ul>{whys}</ul>"
                out.append(f"<ul>{choices}</ul>")
            else:
                answer = f"<p>{item['answer']}. {_prose(item['why'])}</p>"
            out.append(f"<details><summary>Answer</summary>{answer}</details></li>")
        return "".join(out) + "</ol>"
