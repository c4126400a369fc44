# SPDX-License-Identifier: MIT
"""The trainings of chapters 7, 8 and 9: one text under three objectives.

    python benchmarks/austen.py tune [RECIPE RATE]    # 20 minutes of one thread
    python benchmarks/austen.py train [RECIPE SEED]   # three hours; stops and goes on

`tune` tries learning rates of each model for 300 updates, judged by its loss on the
chapters that watch. `train` runs what RUNS lists, or one of it, each from where it
stopped. Both work in runs/austen/, and skip what is finished there.
`benchmarks/objectives.py` judges what they left.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from trainings import chosen, ended

from deepdive.recipes import RECIPES
from deepdive.recipes.austen import SHORT

ROOT = Path(__file__).resolve().parent.parent
RUNS_FOLDER = ROOT / "runs" / "austen"
MODELS = ("austen-gpt", "austen-bert", "austen-t5")
OTHERWISE = ("austen-bert-masks-only", "austen-bert-no-swap", "austen-bert-no-same")
RATES = {name: (1e-3, 2e-3, 4e-3, 8e-3) for name in MODELS[:2]}  # of AdamW
RATES["austen-t5"] = 1e-2, 2e-2, 3e-2, 6e-2  # of Adafactor
TRIED, TUNE_SEED = 300, 100
SEEDS, SHORT_SEEDS = (0, 1), (10, 11)
RUNS = [(name, seed, None) for seed in SEEDS for name in MODELS]
RUNS += [
    (name, seed, SHORT) for seed in SHORT_SEEDS for name in ("austen-bert", *OTHERWISE)
]


def folder(name: str, seed: int) -> Path:
    return RUNS_FOLDER / f"{name}-seed-{seed}"


def trial(name: str, rate: float) -> Path:
    return RUNS_FOLDER / f"tune-{name}-{rate:g}"


def tune(trials: Iterable[tuple[str, float]]) -> None:
    """Try a learning rate for a while, from a seed that no run has."""
    for name, rate in trials:
        optimiser = partial(RECIPES[name].optimiser, lr=rate)
        tried = replace(RECIPES[name], optimiser=optimiser)
        result = ended(tried, trial(name, rate), TUNE_SEED, TRIED)
        print(name, rate, result, flush=True)


def train(runs: Iterable[tuple[str, int, int | None]]) -> None:
    """Run each to its end, from where it stopped, in one thread."""
    for name, seed, steps in runs:
        result = ended(RECIPES[name], folder(name, seed), seed, steps)
        print(name, seed, result, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] not in (["train"], ["tune"]):
        sys.exit(__doc__)
    work, wanted = sys.argv[1], sys.argv[2:]
    if work == "train":
        train(chosen(RUNS, wanted))
    else:
        tune(chosen([(n, rate) for n in MODELS for rate in RATES[n]], wanted))
