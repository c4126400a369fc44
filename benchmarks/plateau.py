# SPDX-License-Identifier: MIT
"""Does a small BERT, built as published, find its neighbours early? Two are compared.

`published` is BERT's own design in small: norms behind the sums, a learned vector for
each place, BERT's head. `near` is `deepdive.recipes.austen.both_ways`: norms in front,
a bias for distance that begins by preferring near places. Both get the same windows
with the same pieces hidden, AdamW, and the recipe's warm-up and cosine, stopped early.
Every 50 updates they fill the gaps of the chapters that watch. `counted` is what a gap
costs on them by each piece's frequency alone.

    python benchmarks/plateau.py            # 10 minutes of one thread
    python benchmarks/plateau.py --fresh    # from an empty record
"""

import time

import torch
from record import RESULTS, Record, command, options

from deepdive.configs import BertConfig
from deepdive.models.bert import MaskedLM
from deepdive.objectives import IGNORED
from deepdive.recipes.austen import (
    SIZES,
    STEPS,
    WARMUP,
    Hidden,
    both_ways,
    dev_windows,
    judge_masked,
    log_frequencies,
    masked_loss,
    windows,
)
from deepdive.training import adamw, cosine, fit

UPDATES, EVERY, SEED = 500, 50, 20
BERT = BertConfig(**SIZES, n_layers=4, d_ff=512, max_seq_len=128, n_segments=1)
BUILT = {"published": lambda: MaskedLM(BERT), "near": both_ways}
PLAN = [("published", 1e-3), ("published", 4e-3), ("near", 4e-3)]
KEYS = ("built", "rate")
JUDGED = ("dev_loss", "accuracy")  # of the gaps of the chapters that watch


def main() -> None:
    """Train each that is not in the record yet."""
    parser = options(__doc__, RESULTS / "plateau.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    shared = {
        "about": "the first updates of two small masked models",
        "seed": SEED,
        "updates": UPDATES,
        "counted": round(counted(), 4),
    }
    made_by = command("plateau", parser, chosen)
    kept = Record(chosen.out, shared, KEYS, place, made_by, chosen.fresh)
    for settings in kept.missing([dict(zip(KEYS, run, strict=True)) for run in PLAN]):
        kept.add(settings | train(**settings))


def place(run: dict) -> list:
    return [PLAN.index((run["built"], run["rate"]))]


def train(built: str, rate: float, updates: int = UPDATES, every: int = EVERY) -> dict:
    """A model's price and share of right guesses, again and again."""
    start = time.process_time()
    torch.manual_seed(SEED)
    model, curve = BUILT[built](), []

    def judge(line: dict) -> None:
        if line["step"] % every == 0:
            found = judge_masked(model)
            curve.append([line["step"], *(round(found[key], 4) for key in JUDGED)])
            print(built, rate, *curve[-1], flush=True)

    fit(
        model,
        Hidden(windows("train", SEED), SEED),
        masked_loss,
        adamw(model, rate, weight_decay=0.1, betas=(0.9, 0.98)),
        steps=updates,
        schedule=cosine(WARMUP, STEPS, floor=0.1),
        callbacks=[judge],
        progress=False,
    )
    seconds = round(time.process_time() - start, 1)
    return {"curve": curve, "cpu_seconds": seconds}


def counted() -> float:
    """What a hidden piece costs by frequency alone, in nats."""
    gaps = Hidden(lambda number: dev_windows(), seed=0, masked=1.0, swapped=0.0)(0)
    labels = gaps.labels[gaps.labels != IGNORED]
    return -log_frequencies()[labels].mean().item()


if __name__ == "__main__":
    main()
