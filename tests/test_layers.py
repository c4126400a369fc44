# SPDX-License-Identifier: MIT
"""Does every file of the package import from strictly lower floors only?

Read from the source, not by running it, so an import inside a function counts too.
"""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parent.parent / "src" / "deepdive"

FLOORS = {
    0: "configs device palette shelf inputs masks norms feedforward cache tokenizers "
    "data scoring memory growth products",
    1: "kernels positions moe recurrent objectives timing",
    2: "attention latent_attention blocks halves decoding training ngrams",
    3: "models ablation filling",
    4: "pretrained inference",
    5: "accounting anatomy heads induction fading",
    6: "trace recipes dependence roofline",
    7: "checks commands figures show",
    8: "widgets grade __main__",
}
FLOOR = {name: floor for floor, names in FLOORS.items() for name in names.split()}
PRACTICE = {"tokenizers", "objectives", "decoding", "training"}
FILES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))


def imports(file: str, source: str) -> list[str]:
    """List what a file of the package imports from it, as "kernels.equation"."""
    here = ["deepdive", *Path(file).with_suffix("").parts]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            # In `from deepdive import trace` the names are modules.
            found += [f"{stem}.{alias.name}" for alias in node.names]
    inside = [name for name in found if name.split(".")[0] == "deepdive"]
    return [name.removeprefix("deepdive").removeprefix(".") for name in inside]


def violations(file: str, source: str) -> list[str]:
    """List what a file does against the floors, in words."""
    part = file.split("/")[0].removesuffix(".py")
    if file == "__init__.py":
        return [f"{file} must stay lazy" for name in imports(file, source)]
    if part not in FLOOR:
        return [f"{file} stands on no floor: give it one in {Path(__file__).name}"]
    wrong = []
    for name in imports(file, source):
        target = name.split(".")[0]
        if target == part and "/" in file:
            own = file == "models/__init__.py" or name.split(".")[1:2] == [
                Path(file).stem
            ]
            if part == "models" and not own:
                wrong.append(f"{file} imports another model: {name}")
        elif target not in FLOOR:
            wrong.append(f"{file} imports {name or 'deepdive'}, which has no floor")
        elif FLOOR[target] >= FLOOR[part]:
            wrong.append(
                f"{file} (floor {FLOOR[part]}) imports {name} (floor {FLOOR[target]})"
            )
        elif part in PRACTICE and target == "models":
            wrong.append(f"{file} imports a model; it should receive one")
    return wrong


@pytest.mark.parametrize("file", FILES)
def test_imports_only_from_lower_floors(file: str) -> None:
    assert violations(file, (SRC / file).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("masks.py", "from deepdive.kernels import equation"),
        ("masks.py", "from deepdive import norms"),
        ("masks.py", "from . import norms"),
        ("kernels/fused.py", "from ..moe import Router"),
        ("attention.py", "def f():\n    import deepdive.blocks"),
        ("models/gpt.py", "from deepdive.models.bert import Bert"),
        ("models/gpt.py", "from .bert import Bert"),
        ("models/gpt.py", "from deepdive.models import bert"),
        ("checks.py", "from deepdive.widgets import Quiz"),
        ("__init__.py", "from deepdive.masks import Causal"),
        ("attention.py", "import deepdive"),
        ("new_idea.py", ""),
    ],
)
def test_a_breach_is_seen(file: str, source: str) -> None:
    assert violations(file, source)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("kernels/fused.py", "from deepdive.kernels.equation import equation"),
        ("kernels/fused.py", "from deepdive.masks import Causal\nimport torch"),
        ("models/__init__.py", "from deepdive.models.bert import Bert"),
        ("widgets/quiz.py", "from .base import Widget\nfrom deepdive import trace"),
    ],
)
def test_what_is_allowed_passes(file: str, source: str) -> None:
    assert violations(file, source) == []


def test_configs_need_no_torch() -> None:
    tree = ast.parse((SRC / "configs.py").read_text(encoding="utf-8"))
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert "torch" not in names
