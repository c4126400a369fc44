# SPDX-License-Identifier: MIT
"""Which shapes does a picture consist of? For Python's frame and the page's drawing.

Node has no document; a stand-in that only remembers what it is told will do.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from conftest import run_node

Shape = dict[str, str]

_DOCUMENT = """
class Node {
  constructor(tag) { this.shape = { tag, text: "" }; }
  setAttribute(key, value) { this.shape[key] = String(value); }
  append(...parts) { for (const p of parts) this.shape.text += p.shape?.text ?? p; }
}
globalThis.document = { createElementNS: (_, tag) => new Node(tag) };
const shapes = (nodes) => nodes.flat(Infinity).filter(Boolean).map((n) => n.shape);
"""


def of_page(expression: str, module: Path, payload: object) -> list[Shape]:
    """The nodes that a JavaScript expression of `m` and `input` makes."""
    return run_node(f"{_DOCUMENT} return shapes({expression});", module, payload)


def of_frame(svg: str) -> list[Shape]:
    """The same of an `<svg>` in writing."""
    return [
        {**node.attrib, "tag": node.tag.split("}")[1], "text": "".join(node.itertext())}
        for node in ElementTree.fromstring(svg)
    ]


def texts(shapes: list[Shape]) -> list[str]:
    """All that is written in the picture, sorted, less what only sets a base line."""
    words = (s["text"].replace("\u200b", "") for s in shapes if s["tag"] == "text")
    return sorted(words)


def points(shape: Shape) -> list[tuple[float, float]]:
    """The corners of a polyline."""
    return [tuple(map(float, p.split(","))) for p in shape["points"].split()]
