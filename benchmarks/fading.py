# SPDX-License-Identifier: MIT
"""How much of a far word is left in a state: before training, after it, and in scores?

Four models of equal size learn the text of `deepdive.recipes.recurrent_grammar`, three
seeds each. Of each, before its training and after it:

- agreement of the verb with its noun, 1 to 33 words apart;
- nats a word on new text, beside the dice's own entropy and a table of word pairs;
- the influence ‖∂h_t/∂x_k‖ of every word on the state that guesses the verb, in 24
  sentences of five clauses, as a share of the sum over all words.

    python benchmarks/fading.py --fresh        three seeds, about 4 minutes of one core
    python benchmarks/fading.py --runs FOLDER  keeps the trained models there

Without --fresh, runs that the results file holds already are not made again. A model
that FOLDER holds already is measured, not trained again.
"""

import tempfile
from pathlib import Path

import torch
from record import RESULTS, Record, command, options
from torch import Tensor, nn

from deepdive.device import seed_everything
from deepdive.fading import influence
from deepdive.recipes import RECIPES, load_run, run_recipe
from deepdive.recipes import recurrent_grammar as rg
from deepdive.training import read_log

SENTENCES, CLAUSES = 24, 5
STEPS = {recipe.name.removeprefix("grammar-"): recipe.steps for recipe in rg.FADING}
KEYS = ("model", "seed", "steps")


def main() -> None:
    """Train what is missing, measure it, and write the results after each run."""
    kept, plan, folder = prepare()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as passing:
        for settings in kept.missing(plan):
            name, seed = f"grammar-{settings['model']}", settings["seed"]
            models = folder or Path(passing)
            kept.add(measure(name, seed, models / f"{name}-{seed}"))


def prepare(
    arguments: list[str] | None = None,
) -> tuple[Record, list[dict], Path | None]:
    """The record, the settings of its runs, and the folder that keeps the models."""
    parser = options(__doc__, RESULTS / "fading.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="folder of the trained models")
    chosen = parser.parse_args(arguments)
    made_by = command("fading", parser, chosen, "seeds")
    plan = [
        {"model": model, "seed": seed, "steps": steps}
        for seed in chosen.seeds
        for model, steps in STEPS.items()
    ]
    kept = Record(chosen.out, shared(), KEYS, place, made_by, chosen.fresh)
    return kept, plan, chosen.runs


def place(run: dict) -> list:
    """Seed by seed, the models in the order of the recipes."""
    return [run["seed"], list(STEPS).index(run["model"])]


def shared() -> dict:
    """What all runs share."""
    some = rg.texts()
    return {
        "about": "influence of far words, and agreement with a far noun, four models",
        "dtype": "influence in float64, training in float32",
        "entropy": round(some[2], 4),
        "bigram_nats": round(rg.g.bigram_loss(*some[:2]), 4),
        "clauses": list(range(rg.FAR + 1)),
        "words_apart": [4 * n + 1 for n in range(rg.FAR + 1)],
        "clauses_in_training": rg.CLAUSES,
        "learning_columns": ["step", *(f"{n} clauses" for n in (0, 1, 2, rg.CLAUSES))],
        "sentences": SENTENCES,
        "places": (". the NOUN" + " that the noun verb" * CLAUSES).split(),
    }


def measure(name: str, seed: int, folder: Path) -> dict:
    """Train one model from one seed, and look at it before and after."""
    recipe = RECIPES[name]
    result = run_recipe(recipe, folder, seed=seed, progress=False)
    log = read_log(folder / "log.jsonl")
    seed_everything(seed)
    start, trained = recipe.model().eval(), load_run(folder, RECIPES)[1]
    found = {
        "model": name.removeprefix("grammar-"),
        "seed": seed,
        "parameters": sum(p.numel() for p in trained.parameters()),
        "steps": recipe.steps,
        "cpu_seconds": round(log[-1]["cpu_seconds"], 1),
        "nats": round(result["nats"], 4),
        "learning": [
            [line["step"], *(line[f"agreement_{n}"] for n in (0, 1, 2, rg.CLAUSES))]
            for line in log
            if "nats" in line
        ],
        "agreement": [rg.agreement(trained, n) for n in range(rg.FAR + 1)],
    }
    for when, model in (("start", start), ("trained", trained)):
        shares = all_shares(model)
        for what, row in (
            ("mean", shares.mean(0)),
            ("low", shares.amin(0)),
            ("high", shares.amax(0)),
        ):
            found[f"{when}_{what}"] = [float(f"{x:.4g}") for x in row.tolist()]
    print(name, seed, found["nats"], found["agreement"], flush=True)
    return found


def all_shares(model: nn.Module) -> Tensor:
    """Each word's share of the influence on the last state: (SENTENCES, words)."""
    model.double()
    ids, _ = rg.far(CLAUSES, SENTENCES, seed=1)
    read = rg.reader(model)
    rows = [influence(read, rg.vectors(model, row[None])) for row in ids]
    model.float()
    return torch.stack([row / row.sum() for row in rows])


if __name__ == "__main__":
    main()
