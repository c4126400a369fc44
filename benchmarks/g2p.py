# SPDX-License-Identifier: MIT
"""Chapter 6's experiment: recurrence, recurrence with attention, attention alone.

    python benchmarks/g2p.py tune [RECIPE RATE]    # half an hour
    python benchmarks/g2p.py train [RECIPE SEED]   # hours; stops and goes on
    python benchmarks/g2p.py measure               # minutes, on a quiet machine

`tune` tries each model's learning rate for 1,000 updates, judged on the 2,000 words
that watch, as the curves are; the recipes have the best. `train` runs what RUNS lists,
or one of it, each from where it stopped. Both work in runs/g2p/, and skip what is
finished there. `measure` starts when all of these have ended: it counts and times an
update of each model, judges the long runs on the 5,000 words on which nothing was
chosen, and writes benchmarks/results/g2p.json, then weights/.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch
from record import write
from torch.utils.flop_counter import FlopCounterMode
from trainings import chosen, ended

from deepdive.attention import record
from deepdive.dependence import longest_chain
from deepdive.halves import EncoderDecoder
from deepdive.recipes import RECIPES, load_run, publish
from deepdive.recipes.g2p import BATCH, BETAS, batches
from deepdive.recipes.spelling import count_errors, has_relative, spell, split
from deepdive.timing import machine
from deepdive.training import adamw, read_log

ROOT = Path(__file__).resolve().parent.parent
RUNS_FOLDER = ROOT / "runs" / "g2p"
RESULT = ROOT / "benchmarks" / "results" / "g2p.json"
MODELS = ("g2p", "g2p-gru-attention", "g2p-gru")
OFF = {
    "warm-up": "g2p-no-warmup",
    "label smoothing": "g2p-no-smoothing",
    "dropout": "g2p-no-dropout",
    "post-norm": "g2p-post-norm",
    "T5's layers": "g2p-relative",
}
SHORT = {"g2p": 6_000, "g2p-gru-attention": 6_500, "g2p-gru": 8_000}  # ≥ 15 CPU min
RATES, TRIED, TUNE_SEED = (1e-3, 2e-3, 4e-3, 8e-3), 1_000, 100  # 1,000 updates
RUNS = [(name, 0, None) for name in MODELS]  # the long runs: the recipe's own steps
RUNS += [(name, 1, SHORT[name]) for name in MODELS]
RUNS += [(name, 0, None) for name in OFF.values()]
RUNS += [(name, 2, SHORT[name]) for name in MODELS]


def folder(name: str, seed: int) -> Path:
    return RUNS_FOLDER / f"{name}-seed-{seed}"


def trial(name: str, rate: float) -> Path:
    return RUNS_FOLDER / f"tune-{name}-{rate:g}"


def tune(trials: Iterable[tuple[str, float]]) -> None:
    """Try a learning rate for a while, from a seed that no run has."""
    for name, rate in trials:
        adam = partial(adamw, lr=rate, weight_decay=0.0, betas=BETAS)
        tried = replace(RECIPES[name], optimiser=adam)
        result = ended(tried, trial(name, rate), TUNE_SEED, TRIED)
        print(name, rate, result, flush=True)


def tried_rates(name: str) -> dict[str, dict]:
    """What `tune` found: rate → both error rates on the words that watch."""
    return {
        f"{rate:g}": json.loads((trial(name, rate) / "result.json").read_text())
        for rate in RATES
    }


def train(runs: Iterable[tuple[str, int, int | None]]) -> None:
    """Run each to its end, from where it stopped, in one thread."""
    for name, seed, steps in runs:
        result = ended(RECIPES[name], folder(name, seed), seed, steps)
        print(name, seed, result, flush=True)


def curve(place: Path) -> list[dict]:
    """The judged updates of a run: pairs seen, both error rates."""
    return [
        {"pairs": r["step"] * BATCH, "per": r["per"], "wer": r["wer"]}
        for r in read_log(place / "log.jsonl")
        if "per" in r
    ]


def update_cost(name: str) -> tuple[int, float]:
    """Longest chain of matrix products in a forward pass, and FLOPs a pair, trained."""
    recipe = RECIPES[name]
    model, chains, flops = recipe.model(), [], 0
    draw = recipe.batches(0)
    for i in range(8):
        batch = draw(i)
        counter = FlopCounterMode(display=False)
        # The counter does not know fused attention: the formula takes its place.
        by_formula = isinstance(model, EncoderDecoder)
        with counter, record(model) if by_formula else nullcontext():
            total = recipe.loss(model, batch).total
            chains.append(longest_chain(total))
            total.backward()
        flops += counter.get_total_flops() / len(batch.src)
    return round(statistics.mean(chains)), flops / 8


def speeds(rounds: int = 5, updates: int = 12) -> dict[str, list[float]]:
    """Pairs a CPU second in training, one thread, the models turn about."""
    torch.set_num_threads(1)
    draw, found = batches(0), {name: [] for name in MODELS}
    models = {name: RECIPES[name].model() for name in MODELS}
    optimisers = {name: RECIPES[name].optimiser(models[name]) for name in MODELS}
    for turn in range(rounds + 1):
        for name in MODELS:
            begin, pairs = time.process_time(), 0
            for i in range(updates):
                batch = draw(turn * updates + i)
                optimisers[name].zero_grad()
                RECIPES[name].loss(models[name], batch).mean.backward()
                optimisers[name].step()
                pairs += len(batch.src)
            if turn:  # the first warms up
                found[name].append(pairs / (time.process_time() - begin))
    return found


def by_length(words: list[str], written: list[tuple[str, ...]]) -> list[dict]:
    """Error rates for words of 3 or fewer letters, 4, 5 … 13, and longer ones."""
    groups: dict[int, list[int]] = {}
    for i, word in enumerate(words):
        groups.setdefault(min(max(len(word), 3), 14), []).append(i)
    rows = []
    for letters, where in sorted(groups.items()):
        errors = count_errors([words[i] for i in where], [written[i] for i in where])
        rows.append({"letters": letters} | errors._asdict())
    return rows


def by_relatives(words: list[str], written: list[tuple[str, ...]]) -> dict[str, dict]:
    """Error rates for words that have a near relative in the training, and for others.

    A model that remembers what it read has the first kind nearly for nothing.
    """
    groups = {"with": [], "without": []}
    for word, said in zip(words, written, strict=True):
        groups["with" if has_relative(word) else "without"].append((word, said))
    return {
        kind: count_errors(*map(list, zip(*group, strict=True)))._asdict()
        for kind, group in groups.items()
    }


def on_training_words(model: torch.nn.Module) -> dict:
    """The same on 2,000 words of the training: is a model behind even where it saw?"""
    words = random.Random(0).sample(split().train, 2_000)
    errors = count_errors(words, spell(model, words))
    return {"per": errors.per, "wer": errors.wer}


def judge(name: str) -> dict:
    """The long run on the words of the test, greedily and with four beams."""
    place, words = folder(name, 0), split().test
    _, model = load_run(place, RECIPES)
    written = {beams: spell(model, words, beams) for beams in (1, 4)}
    last = read_log(place / "log.jsonl")[-1]
    test = {}
    for beams, said in written.items():
        errors = count_errors(words, said)
        name_of = "greedy" if beams == 1 else f"beam{beams}"
        test[name_of] = {"per": errors.per, "wer": errors.wer}
    return {
        "seed": 0,
        "pairs": last["step"] * BATCH,
        "cpu_seconds_as_run": last["cpu_seconds"],
        "test": test,
        "by_length": by_length(words, written[1]),
        "by_relatives": by_relatives(words, written[1]),
        "on_training_words": on_training_words(model),
    }


def seeds(name: str) -> list[int]:
    """Those whose run has ended."""
    return [s for s in range(9) if (folder(name, s) / "result.json").is_file()]


def unfinished() -> list[str]:
    """Folders of trials and of RUNS that hold no result yet."""
    places = [trial(name, rate) for name, rate in product(MODELS, RATES)]
    places += [folder(name, seed) for name, seed, _ in RUNS]
    return [p.name for p in places if not (p / "result.json").is_file()]


def curves(name: str) -> list[dict]:
    """The curve of each run that has ended."""
    return [{"seed": s, "curve": curve(folder(name, s))} for s in seeds(name)]


def measured(name: str, pace: list[float]) -> dict:
    """All that is said of one of the three models."""
    chain, flops = update_cost(name)
    return {
        "tried_rates": tried_rates(name),
        "weights": sum(p.numel() for p in RECIPES[name].model().parameters()),
        "chain": chain,
        "flops_per_pair": flops,
        "pairs_per_cpu_second": statistics.median(pace),
        "pace_of_rounds": pace,
        "runs": curves(name),
        "long": judge(name),
    }


def measure() -> None:
    """Write the results and, when these are safe, the weights of the long runs."""
    if missing := unfinished():
        sys.exit(f"nothing is measured before these end: {', '.join(missing)}")
    pace = speeds()
    result = {
        "command": "; ".join(
            f"python benchmarks/g2p.py {work}" for work in ("tune", "train", "measure")
        ),
        "machine": machine(),
        "words": {part: len(words) for part, words in split()._asdict().items()},
        "models": {name: measured(name, pace[name]) for name in MODELS},
        "switched_off": {what: curves(name) for what, name in OFF.items()},
    }
    write(RESULT, json.dumps(result, indent=1) + "\n")
    for name in MODELS:
        publish(folder(name, 0), ROOT / "weights")


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    elif sys.argv[1:2] in (["train"], ["tune"]):
        work, wanted = sys.argv[1], sys.argv[2:]
        if work == "train":
            train(chosen(RUNS, wanted))
        else:
            tune(chosen(list(product(MODELS, RATES)), wanted))
    else:
        sys.exit(__doc__)
