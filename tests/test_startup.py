# SPDX-License-Identifier: MIT
"""Does an entrance load only what it needs? Counted in modules, which have no noise.

The seconds are measured by `benchmarks/startup.py`. Here a process of its own for each
entrance says which modules it has loaded.
"""

import json
import os
import subprocess
import sys
from functools import cache

import pytest

import deepdive

SAYS = """
import json, sys, time
print(json.dumps({"modules": sorted(sys.modules), "cpu": time.process_time()}))
"""


def fresh(program: str) -> dict:
    """What a new process that ran a program has loaded, and its processor time."""
    done = subprocess.run(
        [sys.executable, "-c", program + "\n" + SAYS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout.splitlines()[-1])


@cache
def loaded(program: str) -> frozenset[str]:
    return frozenset(fresh(program)["modules"])


# What an entrance may load of other packages, and how many modules of all kinds at most
# beyond those of Python itself (half as many again as in December 2026, Python 3.11).
NONE: frozenset[str] = frozenset()
LIVE = frozenset({"anywidget", "ipywidgets", "IPython"})
FREE = {
    "import deepdive": (NONE, 10),
    "import deepdive.configs": (NONE, 40),
    "import deepdive.accounting": (NONE, 45),
    "import deepdive.roofline": (NONE, 45),
    "import deepdive.palette": (NONE, 20),
    "import deepdive.shelf": (NONE, 20),
    "import deepdive.timing": (NONE, 150),
    "import deepdive.models, deepdive.pretrained, deepdive.widgets": (NONE, 15),
    "import deepdive.commands": (NONE, 200),
    "from deepdive.widgets import HeadSplit": (LIVE, 420),
    "from deepdive.widgets import Quiz": (LIVE, 420),
    "from deepdive.widgets import SoftmaxScale": (LIVE, 420),
}
HEAVY = {"torch", "numpy", "matplotlib", "IPython", "anywidget", "ipywidgets"}
HEAVY |= {"pandas", "transformers", "tokenizers", "safetensors", "tqdm"}


@pytest.fixture(scope="module")
def bare() -> frozenset[str]:
    """What a process loads that does nothing."""
    return loaded("")


@pytest.mark.parametrize("program", FREE)
def test_an_entrance_loads_no_torch_and_few_modules(program, bare):
    may, most = FREE[program]
    modules = loaded(program) - bare
    assert modules & HEAVY <= may
    assert len(modules) <= most, sorted(modules)


def test_a_module_that_is_heavy_would_be_seen(bare):
    """Were torch imported at the top of any of these, two bounds would be broken."""
    modules = loaded("import deepdive.norms") - bare
    assert "torch" in modules and len(modules) > max(most for _, most in FREE.values())


def test_help_needs_no_torch(bare):
    program = (
        "import contextlib, io, sys\n"
        "from deepdive.commands import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), "
        "contextlib.suppress(SystemExit):\n"
        "    main(['--help'])"
    )
    modules = loaded(program) - bare
    assert not modules & HEAVY and len(modules) <= 200


def test_the_package_adds_nothing_to_torch():
    """And its parts, beside widgets and pictures, add no library that is slow to load.

    torch loads some of its own parts on use only, such as its compiler.
    """
    modules = loaded("import torch")
    assert loaded("import torch, deepdive") - modules == {"deepdive"}
    parts = sorted(deepdive._SUBMODULES - {"widgets", "figures", "show"})
    program = "import torch\n" + "\n".join(f"import deepdive.{part}" for part in parts)
    added = loaded(program) - modules
    slow = {"torch._dynamo", "torch._inductor", "transformers", "matplotlib", "IPython"}
    assert not added & (slow | {"anywidget", "pandas", "scipy", "sklearn"})
    foreign = {name.split(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert len(foreign) <= 12, sorted(foreign)


def test_what_needs_no_torch_starts_much_sooner_than_torch():
    """By the processor's time, in turns, the best of two; measured: an eighth."""
    programs = ("from deepdive.widgets import SoftmaxScale", "import torch")
    times = [[fresh(program)["cpu"] for program in programs] for _ in range(2)]
    ours, torchs = (min(its) for its in zip(*times, strict=True))
    assert ours < torchs / 2
