# SPDX-License-Identifier: MIT
"""What does each chapter cost to run? Seconds, and memory at its peak.

    python benchmarks/chapters.py                 all, some minutes
    python benchmarks/chapters.py 02_attention    one, beside what the file holds

A chapter runs in a fresh kernel, one after the other; the notebook's file is only read.
Counted are the processor's seconds and the memory of the kernel with all that it
starts, its own start included. By the clock it took longer where the machine did other
work beside it. A chapter that was measured before is measured again only if it has
changed since, or is named, or with `--fresh`.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

from record import RESULTS, write

from deepdive.timing import machine

ROOT = Path(__file__).resolve().parent.parent
RESULT = RESULTS / "chapters.json"
LONGEST, LARGEST = 60, 1500  # seconds and megabytes: what a chapter may take


def code(path: Path) -> str:
    """What changes with a chapter's cells of code, and not with their outputs."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()[:16]


def measure(path: Path) -> dict:
    """Run one chapter."""
    from tools.notebooks import execute

    run = execute(path)
    return {
        "chapter": path.stem,
        "cells": sum(cell.cell_type == "code" for cell in run.notebook.cells),
        "cpu_seconds": round(run.cpu_seconds, 1),
        "seconds": round(run.seconds, 1),
        "peak_megabytes": round(run.peak_mb),
        "code": code(path),
        "time": machine()["time"],
    }


def wanted(paths: list[Path], names: list[str], held: dict[str, dict]) -> list[Path]:
    """The chapters that are to be run: the named ones, or else those that changed.

    Raises:
        SystemExit: no chapter has such a name.
    """
    if unknown := set(names) - {path.stem for path in paths}:
        raise SystemExit(f"no such chapter: {', '.join(sorted(unknown))}")
    if names:
        return [path for path in paths if path.stem in names]
    return [p for p in paths if held.get(p.stem, {}).get("code") != code(p)]


def main(argv: list[str] | None = None) -> None:
    """Measure what is wanted and write the results file after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="chapters, such as 02_attention")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--fresh", action="store_true", help="measure all again")
    chosen = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT))
    from tools.environment import chapters

    held: dict[str, dict] = {}
    if chosen.out.is_file() and not chosen.fresh:
        held = read(chosen.out)
    paths = chapters()
    for path in wanted(paths, chosen.names, held):
        held[path.stem] = measure(path)
        print(held[path.stem], flush=True)
        keep(chosen.out, [held[p.stem] for p in paths if p.stem in held])


def read(out: Path) -> dict[str, dict]:
    """What the file holds, unless it is of another machine or other versions."""
    stored, here = json.loads(out.read_text(encoding="utf-8")), machine()
    if any(stored["machine"][key] != x for key, x in here.items() if key != "time"):
        print(f"{out.name} is of another machine: every chapter is measured")
        return {}
    return {line["chapter"]: line for line in stored["chapters"]}


def keep(out: Path, lines: list[dict]) -> None:
    """Write the record of the chapters that there are, in the book's order."""
    content = {
        "question": __doc__.splitlines()[0],
        "command": "python benchmarks/chapters.py --fresh",
        "machine": machine(),
        "goal": {"seconds": LONGEST, "peak_megabytes": LARGEST},
        "chapters": lines,
    }
    write(out, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
