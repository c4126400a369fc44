# SPDX-License-Identifier: MIT
"""Does it matter how BERT hides a piece? Four ways to hide, judged on three texts.

The small masked model of `deepdive.recipes.austen` was trained with the paper's
80/10/10 and in three other ways, 500 updates, two seeds each. Every model reads the
chapters of the test in windows, three times:

- hidden: 15 % of the pieces are [MASK]. How many does it name?
- plain: nothing is hidden. Does it name the piece that stands before its eyes, and how
  sure is it (entropy, in nats)?
- swapped: 5 % of the pieces are other ones. Is the piece that stands there less likely
  at a swapped place than at a sound one (area under the ROC curve; 0.5 is chance)? And
  how many swapped pieces does it put right?

    python benchmarks/masking.py            measures the trainings that have ended
    python benchmarks/masking.py --fresh    all of them again, half a minute a model

The trainings are `benchmarks/austen.py train`'s. One that has not ended is left for the
next call.
"""

import time
from itertools import product
from pathlib import Path

import torch
from austen import RUNS_FOLDER, SHORT_SEEDS
from record import RESULTS, Record, command, options
from torch import Tensor, nn

from deepdive.objectives import IGNORED, masked_lm_batch
from deepdive.recipes import RECIPES, load_run
from deepdive.recipes.austen import BATCH, LENGTH, SHORT
from deepdive.recipes.novels import MASK, SPECIAL, VOCABULARY, stream, tokenizer
from deepdive.recipes.runs import read_claim

WAYS = {  # recipe → shares hidden, left as they are, swapped
    "austen-bert": "80/10/10",
    "austen-bert-masks-only": "100/0/0",
    "austen-bert-no-swap": "80/20/0",
    "austen-bert-no-same": "80/0/20",
}
TEXTS = {  # how the text that is read was spoilt
    "hidden": {"rate": 0.15, "masked": 1.0, "swapped": 0.0},
    "plain": {"rate": 0.0},
    "swapped": {"rate": 0.05, "masked": 0.0, "swapped": 1.0},
}
KEYS = ("recipe", "seed")
DRAW = 2018  # the seed by which the test's pieces are chosen, for all models the same
SHARED = {
    "about": "four ways of hiding pieces from a small BERT",
    "shares": "hidden/left as they are/swapped, of the 15 % that are asked",
    "texts": TEXTS,
    "draw": DRAW,
}


def main() -> None:
    """Measure each model that has been trained and is not in the record yet."""
    kept, plan, folder = prepare()
    torch.set_num_threads(1)
    for settings in kept.missing(plan):
        place = folder / "{recipe}-seed-{seed}".format(**settings)
        if not (place / "result.json").is_file():
            print(f"{place.name} has not been trained yet", flush=True)
            continue
        steps = read_claim(place)["steps"]
        if steps != kept.shared["steps"]:
            print(f"{place.name} was trained for {steps} updates, not", end=" ")
            print(f"{kept.shared['steps']}: it is left out", flush=True)
            continue
        recipe, model = load_run(place, RECIPES)
        found = settings | {"shares": WAYS[recipe.name]} | measure(model)
        kept.add(found)
        print(found, flush=True)


def prepare(arguments: list[str] | None = None) -> tuple[Record, list[dict], Path]:
    """The record, the settings of its runs, and the folder of the trained models."""
    parser = options(__doc__, RESULTS / "masking.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=SHORT_SEEDS)
    parser.add_argument("--runs", type=Path, default=RUNS_FOLDER, help="trained models")
    parser.add_argument("--steps", type=int, default=SHORT, help="updates of each")
    chosen = parser.parse_args(arguments)
    made_by = command("masking", parser, chosen, "seeds", "steps")
    grid = product(WAYS, chosen.seeds)
    plan = [dict(zip(KEYS, values, strict=True)) for values in grid]
    shared = SHARED | {"steps": chosen.steps}
    kept = Record(chosen.out, shared, KEYS, place, made_by, chosen.fresh)
    return kept, plan, chosen.runs


def place(run: dict) -> list:
    """The paper's way first; of one way, seed by seed."""
    return [list(WAYS).index(run["recipe"]), run["seed"]]


def test_windows() -> Tensor:
    """The chapters of the test, in windows without overlap: (N, 128)."""
    ids = stream("test")
    return ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)


def measure(model: nn.Module, rows: Tensor | None = None) -> dict:
    """What a model knows of the three texts."""
    start = time.process_time()
    rows = test_windows() if rows is None else rows
    found = {name: read(model, rows, **how) for name, how in TEXTS.items()}
    hidden, plain, swapped = found.values()
    gone = swapped["asked"]
    return {
        "places": {name: int(x["asked"].sum()) for name, x in found.items()}
        | {"plain": int(plain["ordinary"].sum())},
        "hidden_accuracy": mean(hidden["right"], hidden["asked"]),
        "hidden_nats": mean(hidden["nats"], hidden["asked"]),
        "plain_named": mean(plain["right"], plain["ordinary"]),
        "plain_nats": mean(plain["nats"], plain["ordinary"]),
        "plain_entropy": mean(plain["entropy"], plain["ordinary"]),
        "swap_found": round(
            area_under_roc(
                swapped["standing"][gone],
                swapped["standing"][swapped["ordinary"] & ~gone],
            ),
            4,
        ),
        "swap_mended": mean(swapped["right"], gone),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


@torch.no_grad()
def read(model: nn.Module, rows: Tensor, **how: float) -> dict[str, Tensor]:
    """A spoilt text, and what the model says at each of its places.

    Returns:
        (N, T) each: `asked` and `ordinary` (places that were spoilt, and those that
        hold text); `right` (the most likely piece is the text's own), `nats` (−log p
        of that), `standing` (−log p of the piece that stands there), `entropy`.
    """
    special = [tokenizer().id_of(piece) for piece in SPECIAL]
    draw = torch.Generator().manual_seed(DRAW)
    mask = tokenizer().id_of(MASK)
    inputs, labels = masked_lm_batch(rows, VOCABULARY, mask, special, draw, **how)
    parts = []
    for seen, ids in zip(inputs.split(BATCH), rows.split(BATCH), strict=True):
        log_p = model(seen).double().log_softmax(-1)
        parts.append(
            {
                "right": log_p.argmax(-1) == ids,
                "nats": -log_p.gather(-1, ids[..., None])[..., 0],
                "standing": -log_p.gather(-1, seen[..., None])[..., 0],
                "entropy": -(log_p.exp() * log_p).sum(-1),
            }
        )
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    ordinary = ~torch.isin(rows, torch.tensor(special))
    return found | {"asked": labels != IGNORED, "ordinary": ordinary}


def mean(values: Tensor, where: Tensor) -> float:
    """Over the places where `where` is true, to four decimals."""
    return round(values[where].double().mean().item(), 4)


def area_under_roc(high: Tensor, low: Tensor) -> float:
    """How often a number of `high` is above one of `low`; equal ones count half."""
    low = low.sort().values
    below = torch.searchsorted(low, high)
    not_above = torch.searchsorted(low, high, right=True)
    return ((below + not_above).double().mean() / 2 / len(low)).item()


if __name__ == "__main__":
    main()
