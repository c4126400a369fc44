# SPDX-License-Identifier: MIT
"""Which files does the finished site need, and in what form?"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from .edition import filter_notebook

_VOID = frozenset(
    [
        "area",
        "base",
        "br",
        "col",
        "embed",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "source",
        "wbr",
    ]
)
_UNREAD = frozenset({"script", "style", "svg", "annotation", "button", "nav"})
_UNREAD_CLASSES = frozenset({"katex-html", "headerlink", "dd-chapter-tools"})


def fingerprint(path: Path) -> str:
    """Return eight characters that change when the file does."""
    return sha256(path.read_bytes()).hexdigest()[:8] if path.is_file() else ""


def minify_css(css: str) -> str:
    """Remove comments and needless white space, but keep the licence line."""
    licence = re.match(r"/\* SPDX[^*]*\*/", css)
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    css = re.sub(r"\s+", " ", css)
    css = re.sub(r"\s*([{};,])\s*", r"\1", css).replace(";}", "}")
    return (licence[0] if licence else "") + css.strip() + "\n"


class _Sections(HTMLParser):
    """Collect the text of a page, one piece for each heading with an anchor."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[dict[str, str]] = []
        self._ids: list[str] = []
        self._stack: list[tuple[str, bool]] = []
        self._heading: str | None = None

    @property
    def _skipping(self) -> bool:
        return bool(self._stack) and self._stack[-1][1]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "section":
            self._ids.append(values.get("id", ""))
        if tag in _VOID:
            return
        classes = set(values.get("class", "").split())
        skip = self._skipping or tag in _UNREAD or bool(classes & _UNREAD_CLASSES)
        self._stack.append((tag, skip))
        if tag in {"h1", "h2", "h3"} and not skip:
            anchor = "" if tag == "h1" else (self._ids[-1] if self._ids else "")
            self.pieces.append({"a": anchor, "t": "", "x": ""})
            self._heading = tag
        elif tag in {"p", "div", "li", "td", "th", "pre", "figcaption"}:
            self._add(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "section" and self._ids:
            self._ids.pop()
        if tag == self._heading:
            self._heading = None
        # Tolerate an unclosed <p> or <li>: close up to the nearest match.
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth][0] == tag:
                del self._stack[depth:]
                break

    def handle_data(self, data: str) -> None:
        self._add(data)

    def _add(self, data: str) -> None:
        if self.pieces and not self._skipping:
            self.pieces[-1]["t" if self._heading else "x"] += data


def page_pieces(html: str) -> list[dict[str, str]]:
    """Return the searchable pieces of a page: anchor `a`, title `t`, text `x`."""
    article = re.search(r"<article\b.*?</article>", html, re.S)
    if article is None:
        return []
    reader = _Sections()
    reader.feed(article[0])
    reader.close()
    for piece in reader.pieces:
        for key in ("t", "x"):
            piece[key] = " ".join(piece[key].split())
    return reader.pieces


def write_search_data(outdir: Path, pages: list[str]) -> None:
    """Write the text of all pages as a script, which also loads from `file://`."""
    data = []
    for page in pages:
        pieces = page_pieces((outdir / page).read_text(encoding="utf-8"))
        if pieces:
            data.append({"u": page, "t": pieces[0]["t"], "s": pieces})
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace("\u2028", "\\u2028")
    target = outdir / "_static" / "search-data.js"
    target.write_text(f"window.deepdiveSearch={text};\n", encoding="utf-8")


def filter_sources(outdir: Path, edition: str) -> None:
    """Leave the cells that this edition hides out of the notebooks to download."""
    for path in (outdir / "_sources").rglob("*.ipynb"):
        before = path.read_text(encoding="utf-8")
        after = filter_notebook(before, edition)
        if after != before:
            path.write_text(after, encoding="utf-8")


def write_redirect(outdir: Path, first_page: str, title: str) -> None:
    """Write `index.html`, which leads to the first page of the book."""
    link = escape(first_page)
    (outdir / "index.html").write_text(
        '<!DOCTYPE html>\n<html lang="en-GB"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="0; url={link}">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:,"></head>'
        f'<body><p><a href="{link}">{escape(title)}</a></p></body></html>\n',
        encoding="utf-8",
    )


def prune_static(outdir: Path) -> list[str]:
    """Delete files of `_static` that no page uses; return their names.

    Extensions copy what their own themes need. A file stays when a page, a style
    sheet or a script that stays names it; licences stay too.
    """
    static = outdir / "_static"
    text = "\n".join(
        page.read_text(encoding="utf-8") for page in outdir.rglob("*.html")
    )
    used = {name.split("?")[0] for name in re.findall(r'_static/([^"\s>]+)', text)}
    for name in list(used):
        sheet = static / name
        if sheet.suffix == ".css" and sheet.is_file():
            for url in re.findall(r"url\(([^)]+)\)", sheet.read_text("utf-8")):
                path = (sheet.parent / url.strip("\"'")).resolve()
                if path.is_relative_to(static.resolve()):
                    used.add(path.relative_to(static.resolve()).as_posix())
    removed = []
    for path in sorted(static.rglob("*"), reverse=True):
        name = path.relative_to(static).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif name not in used and not path.name.startswith("LICENSE"):
            path.unlink()
            removed.append(name)
    return removed
