# SPDX-License-Identifier: MIT
"""Where do the novels in data/austen come from? This script made them.

    python tools/austen.py Rdata.rdb data/austen

reads the data file of the R package janeaustenr (in Debian: r-cran-janeaustenr), which
holds six texts of Project Gutenberg line by line, and writes each novel as one
paragraph a line. What is not Austen's is left out: title, notes of editors, FINIS.
"""

import re
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

NAMES = (
    "emma",
    "mansfield_park",
    "northanger_abbey",
    "persuasion",
    "pride_and_prejudice",
    "sense_and_sensibility",
)
HEADING = re.compile(r"\s*chapter ([ivxlc]+|\d+)\s*", re.IGNORECASE)
OTHERS = re.compile(
    r"\s*(volume [iv]+|finis|the end|[* ]*|\[.*edition.*)\s*", re.IGNORECASE
)
AFTER = "*Vide a letter"  # Northanger Abbey: a footnote, and an editor's note


def read_strings(path: Path) -> Iterator[list[str]]:
    """The character vectors of an R database: a length, then zlib, each."""
    raw, place = path.read_bytes(), 0
    while place < len(raw):
        unpack = zlib.decompressobj()
        found = unpack.decompress(raw[place + 4 :])
        if len(found) != struct.unpack(">I", raw[place : place + 4])[0]:
            raise ValueError(f"{path}: a block of another length than it says")
        yield _strings(found)
        place = len(raw) - len(unpack.unused_data)


def _strings(data: bytes) -> list[str]:
    """One serialised character vector (XDR): type 16 of elements of type 9."""
    if data[:2] != b"X\n":
        raise ValueError("expected R's XDR format")
    version, place = struct.unpack(">i", data[2:6])[0], 14
    if version == 3:  # names its encoding
        place += 4 + struct.unpack(">i", data[place : place + 4])[0]
    kind, n = struct.unpack(">ii", data[place : place + 8])
    if kind & 255 != 16:
        raise ValueError(f"expected a character vector (16), found type {kind & 255}")
    place, strings = place + 8, []
    for _ in range(n):
        kind, length = struct.unpack(">ii", data[place : place + 8])
        latin = bool(kind >> 12 & 4)
        text = data[place + 8 : place + 8 + length]
        strings.append(text.decode("latin-1" if latin else "utf-8"))
        place += 8 + length
    return strings


def chapters(lines: list[str]) -> list[list[str]]:
    """The paragraphs of each chapter."""
    found: list[list[str]] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.startswith(AFTER):
            break
        if HEADING.fullmatch(line):
            found.append([])
        elif found and not OTHERS.fullmatch(line):
            paragraph.append(line.replace("_", ""))
        elif found and paragraph:
            found[-1].append(re.sub(r"\s+", " ", " ".join(paragraph)).strip())
            paragraph = []
    return found


def main(database: Path, folder: Path) -> None:
    """Write the six files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(NAMES, read_strings(database), strict=True):
        parts = chapters(lines)
        texts = [
            f"Chapter {number}\n" + "\n".join(paragraphs)
            for number, paragraphs in enumerate(parts, start=1)
        ]
        path = folder / f"{name}.txt"
        path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
        print(f"{path}: {len(parts)} chapters, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
