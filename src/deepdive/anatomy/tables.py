# SPDX-License-Identifier: MIT
"""How do models differ? Rows side by side, as words, Markdown and HTML."""

from dataclasses import fields
from html import escape
from typing import Any

from deepdive.anatomy.row import Anatomy


def difference(a: Anatomy, b: Anatomy) -> dict[str, tuple[Any, Any]]:
    """What changed from one model to the next: field → (before, after).

    The name is left out, and `parts`, whose sum `parameters` gives.

    Raises:
        TypeError: not two rows.

    >>> from deepdive.anatomy import anatomy
    >>> from deepdive.configs import LLAMA_7B, MISTRAL_7B
    >>> from deepdive.models.llama import Llama
    >>> changed = difference(anatomy(Llama, LLAMA_7B), anatomy(Llama, MISTRAL_7B))
    >>> changed["mask"], changed["kv_heads"]
    (('causal', 'causal, window 4096'), (32, 8))
    >>> "norm" in changed
    False

    Taught in: book/08_gpt.ipynb
    """
    _check_rows([a, b])
    pairs = ((f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(Anatomy))
    return {n: (x, y) for n, x, y in pairs if n not in ("name", "parts") and x != y}


def family_table(
    rows: list[Anatomy], columns: tuple[str, ...] | None = None
) -> list[dict[str, str]]:
    """The rows in words: one dictionary a model, heading → text.

    Args:
        columns: fields of `Anatomy`, in order; all but `parts` unless given.

    Raises:
        TypeError: not rows.  ValueError: no rows, or a field that does not exist.

    Taught in: book/16_what_stayed.ipynb
    """
    _check_rows(rows)
    known = [f.name for f in fields(Anatomy)]
    columns = tuple(n for n in known if n != "parts") if columns is None else columns
    if unknown := [name for name in columns if name not in known]:
        raise ValueError(f"unknown columns {unknown}; known: {', '.join(known)}")
    return [
        {_heading(name): _words(getattr(row, name)) for name in columns} for row in rows
    ]


def markdown(table: list[dict[str, str]]) -> str:
    """A table of `family_table` as Markdown.

    Raises:
        ValueError: no rows.

    >>> print(markdown([{"name": "GPT-2", "mask": "causal"}]))
    | name | mask |
    | --- | --- |
    | GPT-2 | causal |

    Taught in: book/16_what_stayed.ipynb
    """
    lines = [_headings(table), ["---"] * len(_headings(table))]
    lines += [[text.replace("|", "\\|") for text in row.values()] for row in table]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_html(table: list[dict[str, str]], caption: str) -> str:
    """A table of `family_table` as HTML; a screen reader finds each cell's headers.

    It says in words what the dash of a narrow table stands for.

    Raises:
        ValueError: no rows.

    Taught in: book/16_what_stayed.ipynb
    """
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in _headings(table))
    out = [f'<table class="dd-family"><caption>{escape(caption)}</caption>']
    out.append(f"<thead><tr>{heads}</tr></thead><tbody>")
    for row in table:
        first, *others = (escape(_aloud(h, text)) for h, text in row.items())
        cells = "".join(f"<td>{text}</td>" for text in others)
        out.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return "".join([*out, "</tbody></table>"])


def _heading(name: str) -> str:
    special = {"d_model": "d_model", "d_ff": "d_ff", "kv_heads": "KV heads"}
    special |= {"head_dim": "head width", "kv_numbers": "KV numbers"}
    return special.get(name, name.replace("_", " "))


def _words(value: Any) -> str:
    """One cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        routed, chosen, shared = value
        return f"{chosen} of {routed}" + (f" + {shared} shared" if shared else "")
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _aloud(heading: str, text: str) -> str:
    """A cell whose dash is spoken: no experts, no cache, nothing to be tied."""
    if text != "–":
        return text
    return "no output layer" if heading == "tied" else "none"


def _headings(table: list[dict[str, str]]) -> list[str]:
    if not table:
        raise ValueError("a table needs at least one row")
    return list(table[0])


def _check_rows(rows) -> None:
    if isinstance(rows, Anatomy) or not all(isinstance(row, Anatomy) for row in rows):
        raise TypeError("expected rows that `anatomy` gave")
    if not rows:
        raise ValueError("a table needs at least one row")
