# SPDX-License-Identifier: MIT
"""Do the stored notebooks hold what the package computes and bundles now?

nbval compares texts and tables. It sees neither widget state nor drawings, so these are
compared here: widget code to the letter, data and drawings with a tolerance. If a test
here fails after a change to the package, run `make notebooks`.
"""

import base64
import importlib
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from tools.notebooks import STATE, normalise

CHAPTERS = sorted((Path(__file__).resolve().parent.parent / "book").glob("*.ipynb"))
on_linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="floats and drawings differ between systems",
)
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)

TOLERANCE = 1e-9
# Computed by a trained model in float32, so the last digits depend on the processor.
FLOAT32 = {"head-explorer": 2e-6}
PIXELS = 0.5
SECONDS, MEGABYTES = 60, 1500  # what a chapter may cost on two cores


def models(notebook: nbformat.NotebookNode) -> dict[str, dict]:
    """Return the stored state of every anywidget model, by model id."""
    state = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    return {k: m["state"] for k, m in state.items() if "_esm" in m["state"]}


def differences(
    old: object, new: object, tolerance: float, where: str = ""
) -> Iterator[str]:
    """Yield the places where two JSON values differ by more than the tolerance."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{where}.{key} is only in one of them"
            else:
                yield from differences(old[key], new[key], tolerance, f"{where}.{key}")
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where}: {len(old)} entries against {len(new)}"
        for i, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, tolerance, f"{where}[{i}]")
    elif is_number(old) and is_number(new):
        if not math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance):
            yield f"{where}: {old} against {new}"
    elif old != new and not same_packed(old, new):
        yield f"{where}: {str(old)[:60]!r} against {str(new)[:60]!r}"


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def same_packed(old: object, new: object) -> bool:
    """Are two texts the same numbers of three bytes each, to a step of 6·10⁻⁸?"""
    if not (isinstance(old, str) and isinstance(new, str) and len(old) == len(new)):
        return False
    if (
        len(old) < 64
        or len(old) % 4
        or not re.fullmatch(r"[A-Za-z0-9+/]+=*", old + new)
    ):
        return False
    a, b = base64.b64decode(old), base64.b64decode(new)
    steps = (
        int.from_bytes(a[i : i + 3], "little") - int.from_bytes(b[i : i + 3], "little")
        for i in range(0, len(a), 3)
    )
    return all(abs(step) <= 2 for step in steps)


def drawings(notebook: nbformat.NotebookNode) -> list[str]:
    """Return every SVG in a notebook's outputs, in order."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for kind in ("image/svg+xml", "text/html"):
                text = output.get("data", {}).get(kind, "")
                found += re.findall(r"(?s)<svg\b.*?</svg>", text)
    return found


def texts(svg: str) -> list[str]:
    """Return what a drawing says: its texts, its title, its description."""
    svg = re.sub(r"(?s)<(style|metadata)\b.*?</\1>|<!--.*?-->", "", svg)
    said = re.findall(r">([^<>]*\S[^<>]*)<", svg)
    return [t.strip() for t in said + re.findall(r'aria-label="([^"]*)"', svg)]


def shape(svg: str) -> tuple[str, list[float], list[int]]:
    """Split a drawing into its structure, its numbers and its colours."""
    svg = re.sub(r"(?s)<(style|metadata|title|desc)\b.*?</\1>|<!--.*?-->", "", svg)
    svg = re.sub(r'\b(id|href|aria-\w+)="[^"]*"|url\(#[^)]*\)', "", svg)
    colours = [
        int(pair, 16)
        for code in re.findall(r"#([0-9a-fA-F]{6})\b", svg)
        for pair in (code[:2], code[2:4], code[4:])
    ]
    svg = re.sub(r"#[0-9a-fA-F]{6}\b", "COLOUR", svg)
    number = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
    return (
        re.sub(number, "N", svg),
        [float(n) for n in re.findall(number, svg)],
        colours,
    )


@each_chapter
def test_widget_code_is_the_packages(path: Path) -> None:
    """Read from the files, so that a changed .js shows without running a notebook."""
    for state in models(nbformat.read(path, as_version=4)).values():
        module, name = state["_anywidget_id"].rsplit(".", 1)
        kind = getattr(importlib.import_module(module), name)
        for part in ("_esm", "_css"):
            same = state.get(part) == str(getattr(kind, part))  # too long to show
            assert same, (
                f"{path.name} stores another {part} of {name}: run `make notebooks`"
            )


@pytest.mark.slow
@on_linux
@each_chapter
def test_widget_data_is_what_the_package_computes(path: Path, fresh: Callable) -> None:
    stored = models(nbformat.read(path, as_version=4))
    computed = models(fresh(path).notebook)
    assert stored.keys() == computed.keys(), "the chapter shows other widgets now"
    for key, state in stored.items():
        tolerance = FLOAT32.get(state["name"], TOLERANCE)
        wrong = differences(state, computed[key], tolerance, state["name"])
        assert not (found := list(wrong)), "\n".join(found[:10])


@pytest.mark.slow
@on_linux
@each_chapter
def test_drawings_are_what_the_package_draws(path: Path, fresh: Callable) -> None:
    stored = drawings(nbformat.read(path, as_version=4))
    drawn = drawings(fresh(path).notebook)
    assert len(stored) == len(drawn)
    for number, (old, new) in enumerate(zip(stored, drawn, strict=True)):
        where = f"drawing {number} of {path.name}"
        assert texts(old) == texts(new), where
        (form, points, colours), (form2, points2, colours2) = shape(old), shape(new)
        assert form == form2, where
        far = (abs(a - b) for a, b in zip(points, points2, strict=True))
        assert max(far, default=0) <= PIXELS, where
        steps = (abs(a - b) for a, b in zip(colours, colours2, strict=True))
        assert max(steps, default=0) <= 3, where


@pytest.mark.slow
@on_linux
@each_chapter
def test_a_chapter_is_cheap(path: Path, fresh: Callable) -> None:
    run = fresh(path)
    # On a machine that is busy with something else, the clock proves nothing.
    assert min(run.seconds, run.cpu_seconds) <= SECONDS
    assert run.peak_mb <= MEGABYTES


@each_chapter
def test_stored_as_the_tool_stores_it(path: Path) -> None:
    """Saved by hand from JupyterLab, a notebook carries times and random ids."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert nbformat.writes(normalise(notebook, path.stem)) + "\n" == text


# --- the comparisons themselves -----------------------------------------------------


def test_small_and_large_differences() -> None:
    old = {"a": [1.0, {"b": "x"}], "n": 3}
    assert not list(differences(old, json.loads(json.dumps(old)), TOLERANCE))
    assert not list(differences({"a": 1.0}, {"a": 1.0 + 1e-12}, TOLERANCE))
    for new in (
        {"a": [1.0 + 1e-6, {"b": "x"}], "n": 3},
        {"a": [1.0, {"b": "y"}], "n": 3},
        {"a": [1.0], "n": 3},
        {"a": [1.0, {"b": "x"}]},
        {"a": [1.0, {"b": "x"}], "n": True},
    ):
        assert list(differences(old, new, TOLERANCE))


def test_packed_numbers() -> None:
    def pack(*numbers: int) -> str:
        raw = b"".join(n.to_bytes(3, "little") for n in numbers * 8)
        return base64.b64encode(raw).decode()

    assert same_packed(pack(5, 70_000), pack(6, 70_000))
    assert not same_packed(pack(5, 70_000), pack(9, 70_000))


def test_drawing_parts() -> None:
    bar = '<rect x="1.5" fill="#0067a5"/><text>q·k</text>'
    svg = f'<svg id="a1" aria-label="two bars">{bar}</svg>'
    assert texts(svg) == ["q·k", "two bars"]
    moved = svg.replace("1.5", "9.5").replace("a1", "b2")
    assert shape(svg)[0] == shape(moved)[0]
    assert shape(svg)[1] != shape(moved)[1]
    assert shape(svg)[2] == [0, 0x67, 0xA5]
