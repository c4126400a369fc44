# SPDX-License-Identifier: MIT
"""Chapter 9's experiment: one model for three tasks, or three of a third of its size?

    python benchmarks/three_tasks.py train [RECIPE SEED]   # 50 minutes of one thread
    python benchmarks/three_tasks.py measure               # two minutes

`train` runs what RUNS lists, or one of it, each from where it stopped, in
runs/three_tasks/. `measure` starts when all of these have ended: it judges them on
words that no model has seen and by which nothing was chosen, counts multiplications,
and writes benchmarks/results/three_tasks.json, then weights/.
"""

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from record import write
from torch.utils.flop_counter import FlopCounterMode
from trainings import chosen, ended

from deepdive.attention import record
from deepdive.recipes import RECIPES, load_run, publish
from deepdive.recipes.spelling import split
from deepdive.recipes.three_tasks import BATCH, STEPS, TASKS, exact, unheard
from deepdive.timing import machine
from deepdive.training import read_log

ROOT = Path(__file__).resolve().parent.parent
RUNS_FOLDER = ROOT / "runs" / "three_tasks"
RESULT = ROOT / "benchmarks" / "results" / "three_tasks.json"
TOGETHER = "three-tasks"
ALONE = {task: f"{TOGETHER}-{task}" for task in TASKS}
SEEDS = 0, 1
RUNS = [(name, seed) for seed in SEEDS for name in (TOGETHER, *ALONE.values())]
WORDS = 2_000  # of the 5,000 that judge
GROUP = 500  # answered side by side


def folder(name: str, seed: int) -> Path:
    return RUNS_FOLDER / f"{name}-seed-{seed}"


def train(runs: Iterable[tuple[str, int]]) -> None:
    """Run each to its end, from where it stopped, in one thread."""
    for name, seed in runs:
        result = ended(RECIPES[name], folder(name, seed), seed)
        print(name, seed, result, flush=True)


def judge(name: str, seed: int, tasks: Iterable[str]) -> dict[str, float]:
    """Share of the words of the test that are answered without a fault.

    Those to be spelled sound like no word of the training.
    """
    _, model = load_run(folder(name, seed), RECIPES)
    found = {}
    for task in tasks:
        words = unheard(split().test) if task == "spell" else split().test
        groups = [words[i : i + GROUP] for i in range(0, WORDS, GROUP)]
        found[task] = statistics.fmean(exact(model, task, group) for group in groups)
    return found


def watched(name: str, seed: int) -> list[dict]:
    """The judged updates of a run: pairs seen, share of 500 words right."""
    return [
        {"pairs": r["step"] * BATCH} | {t: r[t] for t in TASKS if t in r}
        for r in read_log(folder(name, seed) / "log.jsonl")
        if set(TASKS) & set(r)
    ]


def flops(name: str) -> float:
    """Multiplications and additions of a pair, trained, mean of eight batches."""
    recipe, total, pairs = RECIPES[name], 0, 0
    model, draw = recipe.model(), recipe.batches(0)
    for i in range(8):
        batch = draw(i)
        counter = FlopCounterMode(display=False)
        # The counter does not know fused attention: the formula takes its place.
        with counter, record(model):
            recipe.loss(model, batch).total.backward()
        total += counter.get_total_flops()
        pairs += len(batch.src)
    return total / pairs


def measured(name: str, tasks: Iterable[str]) -> dict:
    """All that is said of one model."""
    return {
        "weights": sum(p.numel() for p in RECIPES[name].model().parameters()),
        "flops_per_pair": flops(name),
        "updates": STEPS,
        "runs": [
            {
                "seed": seed,
                "test": judge(name, seed, tasks),
                "cpu_seconds_as_run": read_log(folder(name, seed) / "log.jsonl")[-1][
                    "cpu_seconds"
                ],
                "watched": watched(name, seed),
            }
            for seed in SEEDS
        ],
    }


def measure() -> None:
    """Write the results and, when these are safe, the weights of seed 0."""
    places = [folder(name, seed) for name, seed in RUNS]
    missing = [p.name for p in places if not (p / "result.json").is_file()]
    if missing:
        sys.exit(f"nothing is measured before these end: {', '.join(missing)}")
    result = {
        "command": "; ".join(
            f"python benchmarks/three_tasks.py {work}" for work in ("train", "measure")
        ),
        "machine": machine(),
        "words": WORDS,
        "together": measured(TOGETHER, TASKS),
        "alone": {task: measured(name, (task,)) for task, name in ALONE.items()},
    }
    write(RESULT, json.dumps(result, indent=1) + "\n")
    for name in (TOGETHER, *ALONE.values()):
        publish(folder(name, 0), ROOT / "weights")


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    elif sys.argv[1:2] == ["train"]:
        train(chosen(RUNS, sys.argv[2:]))
    else:
        sys.exit(__doc__)
