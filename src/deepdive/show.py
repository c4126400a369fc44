# SPDX-License-Identifier: MIT
"""How does a page show source code and matrices, so that ear and eye can follow?"""

import ast
import html
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from IPython.display import Markdown

from deepdive.palette import cividis, fmt, ink_on

_SRC = Path(__file__).resolve().parent.parent
_ROLES = {"", "q", "k", "v"}


def show_source(obj, docstring: bool = False) -> Markdown:
    """The source of a function or class of this package, with its file and line.

    Args:
        docstring: keep the docstring; the page usually has told its content.

    Raises:
        ValueError: the object is not of this package.

    Taught in: book/02_attention.ipynb
    """
    path = Path(inspect.getsourcefile(obj)).resolve()
    if _SRC not in path.parents:
        raise ValueError(f"{obj!r} is not part of deepdive: it stands in {path.name}")
    lines, first = inspect.getsourcelines(obj)
    source = textwrap.dedent("".join(lines))  # a method stands indented in its class
    if not docstring:
        source = _without_docstring(source)
    where = f"`src/{path.relative_to(_SRC).as_posix()}`, line {first}"
    return Markdown(f"```python\n{source.rstrip()}\n```\n\n{where}")


def _without_docstring(source: str) -> str:
    """Cut the docstring out of a definition, if it has one."""
    definition = ast.parse(source).body[0]
    if ast.get_docstring(definition) is None:
        return source
    text, lines = definition.body[0], source.splitlines(keepends=True)
    return "".join(lines[: text.lineno - 1] + lines[text.end_lineno :])


@dataclass(frozen=True)
class Table:
    """A small matrix as an accessible HTML table and as text."""

    html: str
    text: str

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        return {"text/html": self.html, "text/plain": self.text}


def matrix(
    values,
    name: str,
    rows=None,
    columns=None,
    role: str = "",
    digits: int = 3,
    shade: bool = False,
) -> Table:
    """A vector or matrix with its name, row words and column words.

    Shapes:
        values (T, S) or (S,)

    Args:
        role: "q", "k" or "v" colours the name as on every page.
        shade: colour the cells by their value, for weights between 0 and 1.

    Raises:
        ValueError: more than two axes, or headers that do not fit.
    """
    if hasattr(values, "detach"):  # a tensor, perhaps of a layer that is trained
        values = values.detach().cpu().double()
    array = np.atleast_2d(np.asarray(values, dtype=float))
    if array.ndim != 2:
        raise ValueError(f"{name} must have one or two axes, got shape {array.shape}")
    for axis, words in ((0, rows), (1, columns)):
        if words is not None and len(words) != array.shape[axis]:
            raise ValueError(
                f"{name} {array.shape} has {array.shape[axis]} entries on axis {axis}, "
                f"got {len(words)} headers"
            )
    if role not in _ROLES:
        raise ValueError(f"role must be one of {sorted(_ROLES)}, got {role!r}")
    cells = [[fmt(x, digits) for x in row] for row in array]
    table = _html(cells, array, name, rows, columns, role, shade)
    return Table(table, _text(cells, name, rows, columns))


def beside(*tables: Table) -> Table:
    """Several tables in one row, wrapping on a narrow page."""
    inner = "".join(table.html for table in tables)
    text = "\n\n".join(table.text for table in tables)
    return Table(f'<div class="dd-beside">{inner}</div>', text)


def table(rows: Iterable[Mapping[str, object]], caption: str) -> Table:
    """Results as a table: a row for each record, headed by its first entry.

    Whole numbers are written with commas and stand to the right; everything else is as
    `str` has it.

    Raises:
        ValueError: no rows, or rows with different keys.

    >>> print(table([{"layer": "GRU", "weights": 98304}], "Sizes").text)
    Sizes
    layer  weights
      GRU   98,304
    """
    rows = [dict(row) for row in rows]
    if not rows:
        raise ValueError(f"the table {caption!r} has no rows")
    heads = list(rows[0])
    for row in rows:
        if list(row) != heads:
            raise ValueError(f"{caption!r}: a row has {list(row)}, the first {heads}")
    cells = [[f"{x:,}" if type(x) is int else str(x) for x in r.values()] for r in rows]
    right = [
        ' class="text-end"' if all(type(r[h]) is int for r in rows) else ""
        for h in heads
    ]
    top = "".join(
        f'<th scope="col"{side}>{html.escape(head)}</th>'
        for head, side in zip(heads, right, strict=True)
    )
    body = ""
    for first, *others in cells:
        data = "".join(
            f"<td{side}>{html.escape(cell)}</td>"
            for cell, side in zip(others, right[1:], strict=True)
        )
        body += f'<tr><th scope="row">{html.escape(first)}</th>{data}</tr>'
    page = (
        f'<table class="dd-family"><caption>{html.escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    )
    return Table(page, _lines(caption, [heads, *cells]))


def _html(cells, array, name, rows, columns, role, shade) -> str:
    """The table; headers have a scope, so that a screen reader names each cell."""
    colour = f" dd-role-{role}" if role else ""
    out = [f'<table class="dd-matrix{colour}">']
    out.append(f"<caption>{html.escape(name)}</caption>")
    if columns is not None:
        corner = "<td></td>" if rows is not None else ""
        heads = "".join(f'<th scope="col">{html.escape(str(c))}</th>' for c in columns)
        out.append(f"<thead><tr>{corner}{heads}</tr></thead>")
    out.append("<tbody>")
    for i, row in enumerate(cells):
        head = (
            "" if rows is None else f'<th scope="row">{html.escape(str(rows[i]))}</th>'
        )
        body = "".join(
            f"<td{_shade(array[i, j]) if shade else ''}>{cell}</td>"
            for j, cell in enumerate(row)
        )
        out.append(f"<tr>{head}{body}</tr>")
    return "".join([*out, "</tbody></table>"])


def _shade(value: float) -> str:
    """Background from the ramp and black or white ink, whichever is readable on it."""
    ground = cividis(value)
    return f' style="background:{ground};color:{ink_on(ground)}"'


def _text(cells, name, rows, columns) -> str:
    """The same table in a monospaced font, for terminals and for nbval."""
    grid = [[str(r)] if rows is not None else [] for r in (rows or [""] * len(cells))]
    grid = [head + row for head, row in zip(grid, cells, strict=True)]
    if columns is not None:
        grid.insert(0, [""] * (rows is not None) + [str(c) for c in columns])
    return _lines(name, grid)


def _lines(name: str, grid: list[list[str]]) -> str:
    """A heading, and under it the columns in line."""
    widths = [max(len(row[j]) for row in grid) for j in range(len(grid[0]))]
    lines = [
        "  ".join(c.rjust(w) for c, w in zip(r, widths, strict=True)) for r in grid
    ]
    return "\n".join([name, *lines])
