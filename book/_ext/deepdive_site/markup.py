# SPDX-License-Identifier: MIT
"""What does the generated HTML of a page need before it is good to read?

Each function mends one thing in a string of HTML and leaves every other byte as it
was: no parser that would write the page anew, so formulas and drawings stay exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_DROPDOWN = re.compile(
    r'<div class="(?P<classes>[^"]*\badmonition\b[^"]*)"(?P<rest>[^>]*)>\s*'
    r'<p class="admonition-title">(?P<title>.*?)</p>',
    re.S,
)
_FOLDING = {"dropdown", "toggle"}


def close_of(html: str, start: int, tag: str) -> int:
    """Return the offset just after the end tag of the `tag` that opens at `start`.

    Raises:
        ValueError: if the element is never closed.
    """
    depth = 0
    for match in re.compile(rf"<(/?){tag}\b[^>]*>").finditer(html, start):
        depth += -1 if match[1] else 1
        if depth == 0:
            return match.end()
    raise ValueError(f"<{tag}> at offset {start} is never closed")


def fold_dropdowns(html: str) -> str:
    """Turn `dropdown` admonitions into native `<details>`.

    They open by mouse, keyboard and the browser's own search in the page, without a
    script, and print closed.
    """
    position = 0
    while match := _DROPDOWN.search(html, position):
        classes = match["classes"].split()
        position = match.start() + 1
        if not _FOLDING & set(classes):
            continue
        end = close_of(html, match.start(), "div")
        kept = " ".join(name for name in classes if name not in _FOLDING)
        title = re.sub(r"</?a\b[^>]*>", "", match["title"])
        html = (
            f'{html[: match.start()]}<details class="{kept} dd-fold"{match["rest"]}>'
            f'<summary class="admonition-title">{title}</summary>'
            f"{html[match.end() : end - len('</div>')]}</details>{html[end:]}"
        )
    return html


_HIDDEN = re.compile(
    r'<summary aria-label="Toggle hidden content">\s*'
    r'<p class="collapsed admonition-title">Show (?P<what>\w+)</p>.*?</summary>',
    re.S,
)


def name_hidden_cells(html: str) -> str:
    """Name a folded cell by what it holds; the browser tells if it is open."""
    position = 0
    while match := _HIDDEN.search(html, position):
        start = html.rindex("<details", 0, match.start())
        inside = html[match.end() : close_of(html, start, "details")]
        if re.search(r'<div class="cell [^"]*tag_solution[^"]*">\s*$', html[:start]):
            words = "Solution"
        elif match["what"] == "source":
            words = "Code"
        elif match["what"] == "content":
            words = "Code and output" if "cell_output" in inside else "Set-up code"
        else:
            words = "Output"
        summary = f"<summary>{words}</summary>"
        html = html[: match.start()] + summary + html[match.end() :]
        position = match.start() + len(summary)
    return html


def quiet_permalinks(html: str) -> str:
    """Leave the mark beside a heading to the mouse.

    Inside the heading it would be part of its name and one more stop of the Tab key;
    whoever listens or types has the contents list, which links the same places.
    """
    return re.sub(
        r'<a class="headerlink" href="([^"]*)" title="([^"]*)">.*?</a>',
        r'<a class="headerlink" href="\1" title="\2" aria-hidden="true"'
        r' tabindex="-1"></a>',
        html,
    )


def name_footnotes(html: str) -> str:
    """Give footnotes a role that ARIA still knows."""
    return re.sub(
        r'<aside class="footnote(-list)? ([^"]*)"([^>]*?)( role="[^"]*")?>(.*?)',
        r'<aside class="footnote\1 \2"\3 role="note">\5',
        html,
    )


def empty_headers(html: str) -> str:
    """Make the corner of a table a plain cell: it heads nothing."""
    return re.sub(r"<th\b[^>]*>\s*(?:<p>\s*</p>)?\s*</th>", "<td></td>", html)


_MARKDOWN_TABLE = re.compile(r'<table class="[^"]*\bdocutils\b.*?</table>', re.S)
_CELL = r"<td\b([^>]*)>(.*?)</td>"
_FIRST_CELLS = re.compile(rf"(<tr\b[^>]*>\s*){_CELL}(?:(\s*){_CELL})?", re.S)


def head_rows(html: str) -> str:
    """Let the first cell of each row in a Markdown table head that row.

    Markdown has no way to say so. A cell without a letter or digit ("–") heads nothing:
    behind one, the second cell does.
    """

    def says(cell: str) -> bool:
        return bool(re.search(r"\w", re.sub(r"<[^>]*>|&\w+;", "", cell)))

    def head(match: re.Match[str]) -> str:
        row, how, first, between, how2, second = match.groups()
        if says(first):
            rest = match[0][match.end(3) + len("</td>") - match.start() :]
            return f'{row}<th scope="row"{how}>{first}</th>{rest}'
        if second is None or not says(second):
            return match[0]
        dash = f"{row}<td{how}>{first}</td>{between}"
        return f'{dash}<th scope="row"{how2}>{second}</th>'

    def mend_table(match: re.Match[str]) -> str:
        top, body, rows = match[0].partition("<tbody>")
        top = re.sub(r"<th (?!scope)", '<th scope="col" ', top)
        return top + body + _FIRST_CELLS.sub(head, rows)

    return _MARKDOWN_TABLE.sub(mend_table, html)


def name_outputs(html: str) -> str:
    """Tell text that code printed from the code itself: to the eye it is the frame.

    Tables, figures and widgets have names of their own.
    """
    return re.sub(
        r'<div class="output (stream|text_plain)\b([^"]*)">',
        r'<div class="output \1\2" role="group" aria-label="Output">',
        html,
    )


def wrap(html: str, tag: str, css_class: str | None = None) -> str:
    """Put each `tag` into a box that may scroll sideways on a narrow screen.

    With `css_class`, only elements that have this class. An element that stands in
    such a box already is left alone.
    """
    pattern = re.compile(rf"<{tag}\b[^>]*>")
    position = 0
    while match := pattern.search(html, position):
        position = match.end()
        attributes = re.search(r'\bclass="([^"]*)"', match[0])
        classes = attributes[1].split() if attributes else []
        if css_class is not None and css_class not in classes:
            continue
        if re.search(
            r'<div class="[^"]*\bdd-scroll\b[^>]*>\s*$', html[: match.start()]
        ):
            continue
        end = close_of(html, match.start(), tag)
        before, element, after = (
            html[: match.start()],
            html[match.start() : end],
            html[end:],
        )
        html = f'{before}<div class="dd-scroll">{element}</div>{after}'
        position = match.end() + len('<div class="dd-scroll">')
        if tag == "table":
            position = end + len('<div class="dd-scroll">')
    return html


def wrap_drawings(html: str) -> str:
    """Let a wide drawing scroll in its figure instead of shrinking to nothing."""

    def box(match: re.Match[str]) -> str:
        alive = "data-model=" in match[0].split(">", 1)[0]  # a widget does it itself
        return match[0] if alive else wrap(match[0], "svg")

    return re.sub(
        r'<figure class="[^"]*\bdd-figure\b[^>]*>.*?</figure>', box, html, flags=re.S
    )


def size_images(html: str, size: Callable[[str], tuple[int, int] | None]) -> str:
    """Write width and height on images, so that nothing jumps while they load."""

    def add(match: re.Match[str]) -> str:
        tag = match[0]
        source = re.search(r'\bsrc="([^"]*)"', tag)
        if source is None or re.search(r"\bwidth=", tag) or "style=" in tag:
            return tag
        found = size(source[1])
        if found is None:
            return tag
        width, height = found
        return tag.replace("<img ", f'<img width="{width}" height="{height}" ', 1)

    return re.sub(r"<img [^>]*>", add, html)


def drop_empty(html: str) -> str:
    """Remove boxes and captions that hold nothing."""
    html = re.sub(r"<figcaption>\s*</figcaption>", "", html)
    return re.sub(r'<div class="cell_input docutils container">\s*</div>', "", html)


STEPS: Mapping[str, Callable[[str], str]] = {
    "dropdowns": fold_dropdowns,
    "hidden cells": name_hidden_cells,
    "permalinks": quiet_permalinks,
    "footnotes": name_footnotes,
    "corners": empty_headers,
    "rows": head_rows,
    "outputs": name_outputs,
    "tables": lambda html: wrap(html, "table"),
    "drawings": wrap_drawings,
    "empty": drop_empty,
}


def mend(html: str) -> str:
    """Apply every step that needs nothing but the page itself."""
    for step in STEPS.values():
        html = step(html)
    return html
