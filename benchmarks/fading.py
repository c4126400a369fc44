# SPDX-License-Identifier: MIT
"""How much of a far word is left in a state: before training, after it, and in scores?

Four models of equal size learn the text of `deepdive.recipes.recurrent_grammar`, three
seeds each. Of each, before its training and after it:

- agreement of the verb with its noun, 1 to 33 words apart;
- nats a word on new text, beside the dice's own entropy and a table of word pairs;
- the influence ‖∂h_t/∂x_k‖ of every word on the state that guesses the verb, in 24
  sentences of five clauses, as a share of the sum over all words.

    python benchmarks/fading.py                three seeds, about 4 minutes of one core
    python benchmarks/fading.py --runs FOLDER  keeps the trained models there

Runs that the folder holds already are not repeated.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from deepdive.commands.bench import machine
from deepdive.device import seed_everything
from deepdive.fading import influence
from deepdive.recipes import RECIPES, load_run, run_recipe
from deepdive.recipes import recurrent_grammar as rg
from deepdive.training import read_log

RESULTS = Path(__file__).parent / "results" / "fading.json"
COMMAND = "OMP_NUM_THREADS=1 python benchmarks/fading.py"
SENTENCES, CLAUSES = 24, 5


def main() -> None:
    """Train what is missing, measure all of it, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="folder of the trained models")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as passing:
        folder = chosen.runs or Path(passing)
        runs = [
            measure(recipe.name, seed, folder / f"{recipe.name}-{seed}")
            for seed in chosen.seeds
            for recipe in rg.FADING
        ]
    write(chosen.out, runs)


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


def write(path: Path, runs: list[dict]) -> None:
    """The runs, and where they were made."""
    some = rg.texts()
    content = {
        "about": "influence of far words, and agreement with a far noun, four models",
        "command": COMMAND,
        "machine": machine(),
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
    lines = ",\n  ".join(json.dumps(run) for run in runs)
    head = json.dumps({**content, "runs": []}, indent=1, ensure_ascii=False)
    text = head.replace('"runs": []', f'"runs": [\n  {lines}\n ]') + "\n"
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
