# SPDX-License-Identifier: MIT
"""How does a folder of notebooks become the site? The one Sphinx extension of the book.

Templates in `book/_templates` draw the page, this extension feeds them: the contents
list, mended HTML, formulas drawn at build time, the edition's cells, search data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import imagesize
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import ExtensionError

from . import assets, edition, markup, maths, navigation

STATE_TYPE = edition.STATE_KEY
BOOK = Path(__file__).resolve().parents[2]


def check_config(app: Sphinx, config: Config) -> None:
    """Serve the vendored files, and refuse an edition that does not exist."""
    try:
        edition.hidden_tags(config.deepdive_edition)
    except ValueError as error:
        raise ExtensionError(str(error)) from error
    # Added here and not in _config.yml, whose static folders Jupyter Book scans.
    config.html_static_path.append(str(BOOK / "_vendor"))


def drop_cells(app: Sphinx, docname: str, source: list[str]) -> None:
    """Leave out the cells that the edition hides, before anything reads them."""
    if app.env.doc2path(docname).endswith(".ipynb"):
        source[0] = edition.filter_notebook(source[0], app.config.deepdive_edition)


def fill_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: Any
) -> None:
    """Give the template what it draws."""
    link = context["pathto"]
    static = BOOK / "_static"
    body = markup.mend(context.get("body") or "")
    context["body"] = markup.size_images(body, _measure(app))
    context["book_title"] = app.config.html_title
    context["parts"] = navigation.contents(app, pagename, link)
    context["part"] = navigation.part_of(app, pagename)
    context["has_maths"] = 'class="katex' in body
    context["widget_state"] = [
        script.attributes["body"]
        for script in context.get("script_files", [])
        if getattr(script, "attributes", {}).get("type") == STATE_TYPE
    ]
    context["versions"] = {
        name: assets.fingerprint(static / name)
        for name in ("book.css", "book.js", "search.js", "widget-host.js")
    }
    source = context.get("sourcename") or ""
    context["notebook"] = source if source.endswith(".ipynb") else ""


def _measure(app: Sphinx) -> Any:
    """Return a function from an image's address to its width and height."""
    files = {name: path for path, name in app.builder.images.items()}

    def size(source: str) -> tuple[int, int] | None:
        path = files.get(source.rsplit("/", 1)[-1])
        if path is None:
            return None
        width, height = imagesize.get(Path(app.srcdir) / path)
        return (int(width), int(height)) if width > 0 else None

    return size


def add_search_page(app: Sphinx) -> list[tuple[str, dict[str, Any], str]]:
    """Add our own search page; Sphinx's cannot show excerpts from `file://`."""
    return [("search", {"title": "Search"}, "search.html")]


def use_own_search(app: Sphinx) -> None:
    """Switch off Sphinx's index, which nothing on our pages reads."""
    app.builder.search = False  # type: ignore[attr-defined]


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Write what depends on all pages, and remove what none of them uses."""
    if exception is not None or app.builder.name != "html":
        return
    out = Path(app.outdir)
    assets.filter_sources(out, app.config.deepdive_edition)
    pages = [f"{name}.html" for name in _reading_order(app)]
    assets.write_search_data(out, pages)
    first = f"{app.config.root_doc}.html"
    assets.write_redirect(out, first, app.config.html_title)
    sheet = out / "_static" / "book.css"
    sheet.write_text(assets.minify_css(sheet.read_text("utf-8")), encoding="utf-8")
    assets.prune_static(out)


def _reading_order(app: Sphinx) -> list[str]:
    parts = navigation._parts(app)
    return [app.config.root_doc, *(name for _, names in parts for name in names)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension with Sphinx."""
    app.add_config_value("deepdive_edition", "public", "env", str)
    # Jupyter Book always sets this; the extension that reads it is not loaded.
    app.add_config_value("comments_config", {}, "", dict)
    app.connect("config-inited", check_config)
    app.connect("builder-inited", maths.set_up)
    app.connect("builder-inited", use_own_search)
    app.connect("source-read", drop_cells)
    app.connect("html-page-context", fill_page, priority=900)
    app.connect("html-collect-pages", add_search_page)
    # After the extensions that still copy files of their own at the end.
    app.connect("build-finished", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
