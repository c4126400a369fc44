# SPDX-License-Identifier: MIT
"""Is a spoilt book noticed? Each fault is planted in a copy, and a gate must go red.

The copy comes first on the path of every process started here, so its package is the
one that the notebooks import.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAPTER = "book/02_attention.ipynb"
KEEP = ("book", "src", "tests", "tools")
LEAVE = ("__pycache__", "*.egg-info", ".ipynb_checkpoints")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="nbval is strict on Linux alone"
    ),
]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """Return a copy of the repository without what was built or installed."""
    for name in KEEP:
        ignore = shutil.ignore_patterns(*LEAVE)
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, tmp_path / path.name)
    return tmp_path


def run(book: Path, *arguments: str) -> tuple[int, str]:
    """Run this Python in the copy; return its exit status and all it said."""
    env = os.environ | {"PYTHONPATH": str(book / "src")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=book,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stdout + done.stderr


def nbval(book: Path, *more: str) -> tuple[int, str]:
    options = ("--nbval", "--nbval-sanitize-with=nbval.cfg", "-p", "no:cacheprovider")
    return run(book, "-m", "pytest", *options, *more, CHAPTER)


def edit(path: Path, change: Callable[[nbformat.NotebookNode], None]) -> None:
    notebook = nbformat.read(path, as_version=4)
    change(notebook)
    nbformat.write(notebook, path)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"the fault can't be planted: no {old!r} in {path.name}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def broken_cell() -> nbformat.NotebookNode:
    return nbformat.v4.new_code_cell("raise ValueError('planted')")


def test_a_changed_output(book: Path) -> None:
    """One digit of one table."""

    def change(notebook: nbformat.NotebookNode) -> None:
        for cell in notebook.cells:
            for output in cell.get("outputs", []):
                html = output.get("data", {}).get("text/html", "")
                if ".384" in html and "<table" in html:
                    output.data["text/html"] = html.replace(".384", ".385", 1)
                    return
        raise AssertionError("no table shows .384")

    edit(book / CHAPTER, change)
    code, said = nbval(book, "-x")
    assert code == 1, said
    assert ".385" in said, said


def test_a_cell_that_raises(book: Path) -> None:
    edit(book / CHAPTER, lambda notebook: notebook.cells.insert(2, broken_cell()))
    code, said = nbval(book, "-x")
    assert code == 1, said
    assert "planted" in said, said


def test_the_formula_without_its_scale(book: Path) -> None:
    formula = book / "src/deepdive/kernels/equation.py"
    replace(formula, "q.shape[-1] ** -0.5 if", "1.0 if")
    code, said = nbval(book)
    assert code == 1, said
    # The numbers on the page, and the page's own proof that formula and torch agree.
    assert said.count("Cell outputs differ") >= 3, said
    assert "AssertionError" in said, said


def test_a_changed_widget_script(book: Path) -> None:
    script = book / "src/deepdive/widgets/attention_trace.js"
    script.write_text(script.read_text(encoding="utf-8") + "// planted\n", "utf-8")
    code, said = run(book, "-m", "pytest", "tests/test_stored.py", "-k", "widget_code")
    assert code == 1, said
    assert "AttentionTrace: run `make notebooks`" in said, said


def test_a_changed_widget_number(book: Path) -> None:
    """In the state that the page reads; nbval can't see it."""

    def change(notebook: nbformat.NotebookNode) -> None:
        (states,) = (widgets["state"] for widgets in notebook.metadata.widgets.values())
        for model in states.values():
            if model["state"].get("name") == "attention-trace":
                spoil(model["state"]["data"])
                return
        raise AssertionError("the widget isn't in the chapter")

    def spoil(value: object) -> bool:
        """Change the first float that is found by one millionth."""
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in pairs:
            if isinstance(item, float):
                value[key] = item + 1e-6
                return True
            if isinstance(item, dict | list) and spoil(item):
                return True
        return False

    edit(book / CHAPTER, change)
    arguments = ("tests/test_stored.py", "-k", "widget_data and 02_attention")
    code, said = run(book, "-m", "pytest", *arguments)
    assert code == 1, said
    assert "attention-trace.data" in said, said


@pytest.mark.parametrize("stored", ["an error", "nothing"])
def test_the_build_refuses_a_failing_notebook(book: Path, stored: str) -> None:
    def change(notebook: nbformat.NotebookNode) -> None:
        cell = broken_cell()
        if stored == "an error":
            cell.execution_count = 99
            error = {"ename": "ValueError", "evalue": "planted", "traceback": []}
            cell.outputs = [nbformat.v4.new_output("error", **error)]
        notebook.cells.append(cell)

    edit(book / CHAPTER, change)
    code, said = run(book, "tools/dev.py", "--here", "site")
    assert code == 1, said
    assert "02_attention.ipynb" in said, said
