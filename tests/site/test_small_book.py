# SPDX-License-Identifier: MIT
"""Does a build keep the promises that the real pages may not show? On a tiny book."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
TOC = "format: jb-book\nroot: book/index\nparts:\n  - caption: Part\n    chapters:\n"
FRONT = "---\nmyst:\n  html_meta:\n    description: A page of a tiny book.\n---\n"


def code(source: str, *tags: str, html: str = "") -> dict:
    outputs = [
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}
    ]
    return {
        "cell_type": "code",
        "execution_count": 1,
        "metadata": {"tags": list(tags)},
        "outputs": outputs if html else [],
        "source": source,
    }


def text(source: str, *tags: str) -> dict:
    return {"cell_type": "markdown", "metadata": {"tags": list(tags)}, "source": source}


CELLS = [
    text(
        "# A chapter\n\nInline $\\sqrt{d_k}$ and\n\n$$a^2 + b^2 = c^2$$ (eq-a)\n\n"
        "See {eq}`eq-a`."
    ),
    code("setup_code = 1", "hide-cell"),
    code("drawing_code = 1", "hide-input", html="<p>drawn</p>"),
    code("unseen_code = 1", "remove-input", html="<p>shown alone</p>"),
    text("OnlyForTeachers: the answer is 42.", "instructor"),
    code("only_for_teachers = 42", "instructor", html="<p>OnlyForTeachers</p>"),
    text("## Exercises\n\n```{admonition} Kit\n:class: dropdown\nHalve 2.\n```"),
    code("assert 2 / 2 == 1", "solution", "hide-cell"),
]


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Return `build(cells, edition)`, which builds a book of one chapter."""

    def run(cells: list[dict], edition: str = "public") -> subprocess.CompletedProcess:
        book = tmp_path / "book"
        for name in ("_ext", "_static", "_templates", "_vendor"):
            if not (book / name).exists():
                shutil.copytree(ROOT / "book" / name, book / name)
        config = (ROOT / "_config.yml").read_text(encoding="utf-8")
        config = config.replace(
            "deepdive_edition: public", f"deepdive_edition: {edition}"
        )
        (tmp_path / "_config.yml").write_text(config, encoding="utf-8")
        (tmp_path / "_toc.yml").write_text(
            f"{TOC}      - file: book/a\n", encoding="utf-8"
        )
        (book / "index.md").write_text(
            f"{FRONT}# Tiny\n\n[a](a.ipynb)\n", encoding="utf-8"
        )
        notebook = {"nbformat": 4, "nbformat_minor": 5, "cells": cells}
        notebook["metadata"] = {
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
            "language_info": {"name": "python", "pygments_lexer": "ipython3"},
        }
        for number, cell in enumerate(cells):
            cell["id"] = f"cell-{number}"
        (book / "a.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
        command = [
            sys.executable,
            "-c",
            JUPYTER_BOOK,
            "build",
            ".",
            "-W",
            "--keep-going",
        ]
        return subprocess.run(
            [*command, "--all"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def everything_in(folder: Path) -> str:
    kinds = {".html", ".js", ".ipynb", ".md", ".txt"}
    files = [path for path in folder.rglob("*") if path.suffix in kinds]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_public_site_folds_solutions_and_hides_instructor_cells(build, tmp_path):
    done = build(CELLS)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "_build" / "html"
    page = (site / "book" / "a.html").read_text(encoding="utf-8")
    assert page.count('<span class="katex">') == 2, "formulas are drawn in the build"
    assert "<script" not in page.split("</header>")[1], "and nothing draws them later"
    for name in ("Set-up code", "Code", "Solution"):
        assert f"<summary>{name}</summary>" in page
    assert "unseen_code" not in page
    assert "shown alone" in page
    fold = page.split("<details class=", 1)[1]
    assert '"admonition dd-fold"' in page
    assert "open" not in fold.split(">", 1)[0]
    published = everything_in(site)
    assert "teachers" not in published.lower()
    assert "42" not in (site / "_sources/book/a.ipynb").read_text(encoding="utf-8")


def test_instructor_edition_keeps_them(build, tmp_path):
    assert build(CELLS, "instructor").returncode == 0
    page = (tmp_path / "_build/html/book/a.html").read_text(encoding="utf-8")
    assert "OnlyForTeachers" in page


def test_bad_formula_stops_the_build_and_names_its_page(build):
    done = build([text("# A\n\n$\\frac{1}{$")])
    assert done.returncode != 0
    assert "book/a" in done.stderr
    assert "KaTeX" in done.stderr


def test_unknown_edition_stops_the_build(build):
    done = build(CELLS, "teacher")
    assert done.returncode != 0
    assert "expected one of: instructor, public" in done.stdout + done.stderr
