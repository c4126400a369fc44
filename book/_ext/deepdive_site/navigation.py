# SPDX-License-Identifier: MIT
"""What stands in the table of contents, and where in it is the reader?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx


@dataclass(frozen=True)
class Section:
    """A heading of the second level on the page that is shown."""

    title: str
    anchor: str


@dataclass(frozen=True)
class Entry:
    """One page in the contents; its sections only where it is the page shown."""

    title: str
    url: str
    current: bool
    sections: list[Section] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """A group of pages under one caption."""

    caption: str
    entries: list[Entry]


def contents(app: Sphinx, docname: str, link: Callable[[str], str]) -> list[Part]:
    """Return the parts of the book as seen from the page `docname`."""
    return [
        Part(caption, [_entry(app, name, docname, link) for name in names])
        for caption, names in _parts(app)
    ]


def part_of(app: Sphinx, docname: str) -> str:
    """Return the caption of the part that holds `docname`, or an empty string."""
    for caption, names in _parts(app):
        if docname in names:
            return caption
    return ""


def _parts(app: Sphinx) -> list[tuple[str, list[str]]]:
    """Read captions and pages from the contents list of the root page."""
    cached = getattr(app, "_deepdive_parts", None)
    if cached is None:
        tree = app.env.get_doctree(app.config.root_doc)
        cached = [
            (found.get("caption") or "", [name for _, name in found["entries"]])
            for found in tree.findall(addnodes.toctree)
        ]
        app._deepdive_parts = cached  # type: ignore[attr-defined]
    return cached


def _entry(app: Sphinx, name: str, docname: str, link: Callable[[str], str]) -> Entry:
    current = name == docname
    title = escape(app.env.titles[name].astext())
    sections = _sections(app, name) if current else []
    return Entry(title, link(name), current, sections)


def _sections(app: Sphinx, docname: str) -> list[Section]:
    """Return the second-level headings of a page, in order."""
    found: list[Section] = []
    page = next(iter(app.env.tocs[docname].findall(nodes.list_item)), None)
    if page is None:
        return found
    for child in page.children:
        if not isinstance(child, nodes.bullet_list):
            continue
        for item in child.children:
            reference = next(iter(item.findall(nodes.reference)), None)
            if reference is not None and reference.get("anchorname"):
                title = escape(reference.astext())
                anchor = reference["anchorname"].removeprefix("#")
                found.append(Section(title, anchor))
    return found
