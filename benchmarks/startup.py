# SPDX-License-Identifier: MIT
"""How long does it take until the package can be used? Each entrance, by itself.

    python benchmarks/startup.py      a minute and a half

Every number is a fresh process's, started by turns: the processor's time from its first
moment to its last, and the time by the clock, the best of some rounds, since whatever
disturbs only adds. A process that does nothing stands first and torch by itself beside
it; no entrance that can do without torch may load it. What needs torch is held to
torch: how long does it take, in a process that has loaded torch already?
"""

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

from record import RESULTS, command, write

from deepdive.timing import machine

NOTHING = "pass"
PLAIN = {  # what needs no torch
    "nothing": NOTHING,
    "deepdive": "import deepdive",
    "deepdive.configs": "import deepdive.configs",
    "deepdive.accounting": "import deepdive.accounting",
    "deepdive.roofline": "import deepdive.roofline",
    "deepdive.palette": "import deepdive.palette",
    "deepdive.models": "import deepdive.models",
    "deepdive.pretrained": "import deepdive.pretrained",
    "deepdive.widgets": "import deepdive.widgets",
    "HeadSplit": "from deepdive.widgets import HeadSplit",
    "Quiz": "from deepdive.widgets import Quiz",
    "SoftmaxScale": "from deepdive.widgets import SoftmaxScale",
    "python -m deepdive --help": "import sys; sys.argv[1:] = ['--help']; "
    "from deepdive.commands import main; main()",
}
OTHERS = {  # for comparison: what is not ours to change
    "numpy": "import numpy",
    "anywidget": "import anywidget",
    "matplotlib": "import matplotlib.pyplot",
    "torch": "import torch",
}
BEYOND = {  # what needs torch, after torch
    "deepdive": "import deepdive",
    "deepdive.models.llama": "import deepdive.models.llama",
    "deepdive.models.deepseek": "import deepdive.models.deepseek",
    "deepdive.checks": "import deepdive.checks",
    "deepdive.recipes": "import deepdive.recipes",
    "deepdive.anatomy": "import deepdive.anatomy",
    "MaskGrid": "from deepdive.widgets import MaskGrid",
    "LiveTransformer": "from deepdive.widgets import LiveTransformer",
}
GOAL = 0.2  # seconds, of what needs no torch, and beyond torch

# At the end, so that a command that leaves early says it too.
SAYS = """\
import atexit, sys, time
begun, old = time.process_time(), len(sys.modules)
def say():
    now, loaded = time.process_time(), "torch" in sys.modules
    sys.stderr.write(f"\\n{now} {now - begun} {len(sys.modules) - old} {loaded:d}")
atexit.register(say)
"""
AFTER_TORCH = "import torch\n" + SAYS


def started(program: str) -> dict[str, float]:
    """What one process took: seconds of the processor and the clock, and modules.

    `cpu` is the whole process's, `own` that of the program without Python's start.
    """
    words = [sys.executable, "-c", program]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    begin = time.perf_counter()
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment
    )
    wall = time.perf_counter() - begin
    said = done.stderr.rsplit("\n", 1)[-1].split()
    if len(said) != 4:
        raise RuntimeError(f"{program!r} failed:\n{done.stderr}")
    cpu, own, modules, loaded = said
    return {
        "cpu": float(cpu),
        "own": float(own),
        "wall": wall,
        "modules": int(modules),
        "torch": loaded == "1",
    }


def by_turns(programs: dict[str, str], before: str, rounds: int) -> dict[str, list]:
    """Every program once a round, after a round that fills the caches of files."""
    found: dict[str, list] = {name: [] for name in programs}
    for turn in range(rounds + 1):
        for name, program in programs.items():
            took = started(f"{before}\n{program}")
            if turn:
                found[name].append(took)
    return found


def record(name: str, program: str, runs: list[dict], what: str) -> dict:
    """The best and the median of an entrance's rounds; `what` is held to the goal."""
    best = min(run[what] for run in runs)
    return {
        "entrance": name,
        "program": program,
        "seconds": round(best, 3),
        "median": round(median(run[what] for run in runs), 3),
        "wall_seconds": round(min(run["wall"] for run in runs), 3),
        "modules": runs[0]["modules"],
        "torch": runs[0]["torch"],
    }


def main() -> None:
    """Measure every entrance and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    plain = by_turns(PLAIN | OTHERS, SAYS, chosen.rounds)
    beyond = by_turns(BEYOND, AFTER_TORCH, chosen.rounds)
    content = {
        "question": __doc__.splitlines()[0],
        "command": command("startup", parser, chosen, "rounds"),
        "machine": machine(),
        "rounds": chosen.rounds,
        "unit": "seconds of processor time, the best round; beyond torch: torch's own "
        "are not counted",
        "goal": GOAL,
        "without_torch": [record(n, p, plain[n], "cpu") for n, p in PLAIN.items()],
        "others": [record(n, p, plain[n], "cpu") for n, p in OTHERS.items()],
        "beyond_torch": [record(n, p, beyond[n], "own") for n, p in BEYOND.items()],
    }
    for part in ("without_torch", "others", "beyond_torch"):
        for line in content[part]:
            print(part, line["entrance"], line["seconds"], line["wall_seconds"])
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(RESULTS / "startup.json", text + "\n")


if __name__ == "__main__":
    main()
