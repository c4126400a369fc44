# SPDX-License-Identifier: MIT
"""Chapter 9's table: the same corpus and budget under three objectives.

    python benchmarks/objectives.py                  # ten minutes of one thread
    python benchmarks/objectives.py --draft PATH     # of the seeds that have ended

Judges what `benchmarks/austen.py train` left in runs/austen/, on chapters that no model
has read: a missing piece, a gap of several, the next piece, a page of writing, which
novel a window is from, and what the training cost. The windows, the gaps and the
openings are the same for all. Writes benchmarks/results/objectives.json when two seeds
of each model have ended, and refuses before.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from record import write
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from deepdive.attention import record
from deepdive.data import seeded
from deepdive.decoding import temperature
from deepdive.ngrams import KneserNey, between
from deepdive.recipes import RECIPES, features, gaps, going_on, load_run
from deepdive.recipes.austen import BATCH
from deepdive.recipes.novels import VOCABULARY, stream, tokenizer
from deepdive.timing import machine
from deepdive.training import read_log

ROOT = Path(__file__).resolve().parent.parent
RUNS_FOLDER = ROOT / "runs" / "austen"
RESULT = ROOT / "benchmarks" / "results" / "objectives.json"
MODELS = {"bert": "austen-bert", "gpt": "austen-gpt", "t5": "austen-t5"}
LEAST = 2  # seeds of each model that a claim rests on
SEVERAL = range(2, 6)  # pieces of a longer gap
NAMES = {  # what a way of `gaps.fill` is called in the table
    "at once": "bert",
    "surest first": "bert_surest_first",
    "from left": "gpt",
    "free": "t5",
    "told": "t5_told",
}
WARM = 0.8


def folder(name: str, seed: int) -> Path:
    return RUNS_FOLDER / f"{name}-seed-{seed}"


def seeds(name: str) -> list[int]:
    """Those whose run has ended, with all its updates."""
    found = []
    for seed in range(9):
        place = folder(name, seed)
        if (place / "result.json").is_file():
            what = json.loads((place / "recipe.json").read_text(encoding="utf-8"))
            if what["steps"] == RECIPES[name].steps:
                found.append(seed)
    return found


# ── One model ────────────────────────────────────────────────────────────────────────


def filled(model: nn.Module, test: gaps.Gapped) -> tuple[dict, dict]:
    """Each way's fillings, and how many pieces passed through the model for a window.

    One gap of one piece is the same filled at once or the surest first.
    """
    found, cost = {}, {}
    several = int(test.gone.sum(1).max()) > 1
    for way in gaps.ways(model):
        if way == "surest first" and not several:
            continue
        with gaps.pieces_read(model) as seen:
            found[NAMES[way]] = gaps.fill(model, test, way)
        cost[NAMES[way]] = seen[0] / len(test.ids)
    if "gpt" in found:
        with gaps.pieces_read(model) as seen:
            found["gpt_rerank"] = gaps.rerank_single(model, test, found["gpt"])
        single = sum(end - first == 1 for _, _, first, end in gaps.judged(test.gone))
        cost["gpt_rerank"] = seen[0] / single
    return found, cost


def gap_rows(model: nn.Module, ids: Tensor) -> dict:
    """What a model's ways fill rightly: one gap a window, and the usual six."""
    one, usual = gaps.one_gap(ids), gaps.usual_gaps(ids)
    alone, alone_cost = filled(model, one)
    among, among_cost = filled(model, usual)
    found = {"one": {}, "usual": {}}
    for way, fillings in alone.items():
        found["one"][way] = gaps.judge(one, fillings, (1,))._asdict()
    for way, fillings in among.items():
        by_length = {
            n: gaps.judge(usual, fillings, (n,))._asdict() for n in (1, *SEVERAL)
        }
        several = gaps.judge(usual, fillings, SEVERAL)._asdict()
        found["usual"][way] = {"several": several, "by_length": by_length}
    return found | {"one_cost": alone_cost, "usual_cost": among_cost}


def next_row(model: nn.Module, ids: Tensor) -> dict:
    return going_on.judge_next(going_on.log_p_next(model, ids), ids)._asdict()


def write_row(model: nn.Module, ids: Tensor) -> dict:
    """Twenty texts by each choice, and the first of them to be read."""
    given = going_on.openings(ids)[:, : going_on.OPENING]
    found, first = {}, {}
    for name, choose in {"greedy": None, "sampled": [temperature(WARM)]}.items():
        rows = going_on.go_on(model, given, choose, seeded(0))
        found[name] = going_on.judge_written(rows)._asdict()
        first[name] = tokenizer().decode(rows[0])
    return {"measured": found, "first": first}


def novel_row(read: Callable[[Tensor], Tensor]) -> dict:
    """How well the novel is told from features of a window."""
    parts = features.examples()
    numbers = [read(part.ids) for part in parts]
    return features.probe(*numbers, [part.novels for part in parts])._asdict()


def measured(model: nn.Module, ids: Tensor) -> dict:
    """All that is asked of one trained model."""
    return {
        "gaps": gap_rows(model, ids),
        "next": next_row(model, ids),
        "writing": write_row(model, ids),
        "novels": novel_row(lambda part: features.mean_hidden(model, part)),
    }


# ── What counting alone does ─────────────────────────────────────────────────────────


def counted(ids: Tensor) -> dict:
    """The same questions to counts of the training's chapters."""
    text = stream("train")
    models = {n: KneserNey(text, n, VOCABULARY) for n in range(1, 5)}
    common = int(models[1].probabilities([]).argmax())
    found = {"most_frequent": tokenizer().decode([common])}
    for name, test in {"one": gaps.one_gap(ids), "usual": gaps.usual_gaps(ids)}.items():
        asked = [gap for gap in gaps.judged(test.gone) if gap.end - gap.first == 1]
        found[name] = {"most_frequent": _share([common] * len(asked), test, asked)}
        # Among other gaps only the nearest piece of each side is sure to be there.
        orders = {"bigram": 2, "fourgram": 4} if name == "one" else {"bigram": 2}
        for kind, n in orders.items():
            sides = [
                torch.stack([test.ids[g.window, g.first + at] for g in asked])
                for at in (*range(1 - n, 0), *range(1, n))
            ]
            left, right = torch.stack(sides, 1).split(n - 1, dim=1)
            guesses = between(models[n], left, right).argmax(1).tolist()
            found[name][f"both_sides_{kind}"] = _share(guesses, test, asked)
    found["next"] = {}
    for kind, n in {
        "most_frequent": 1,
        "bigram": 2,
        "trigram": 3,
        "fourgram": 4,
    }.items():
        log_p = torch.stack(
            [
                between(models[n], ids[:, place - 3 : place], ids[:, :0]).log()
                for place in going_on.PLACES
            ],
            dim=1,
        )
        found["next"][kind] = going_on.judge_next(log_p, ids)._asdict()
    return found


def _share(guesses: list[int], test: gaps.Gapped, asked: list[gaps.Gap]) -> float:
    """How often the guess stood in the gap."""
    pairs = zip(guesses, asked, strict=True)
    return sum(test.ids[g.window, g.first] == x for x, g in pairs).item() / len(asked)


# ── What the training cost ───────────────────────────────────────────────────────────


def cost(name: str, chosen: Iterable[int]) -> dict:
    """Weights, operations of an update, what was read, and the seconds as run."""
    recipe = RECIPES[name]
    model, draw = recipe.model(), recipe.batches(0)
    counter = FlopCounterMode(display=False)
    with counter, record(model):  # the counter does not know fused attention
        recipe.loss(model, draw(0)).total.backward()
    with torch.no_grad():  # how many are asked differs from batch to batch
        asked = [int(recipe.loss(model, draw(i)).count) for i in range(20)]
    idle = [x.numel() for x in model.parameters() if x.grad is None]
    logs = [read_log(folder(name, seed) / "log.jsonl") for seed in chosen]
    return {
        "updates": recipe.steps,
        "windows_read": recipe.steps * BATCH,
        "flops_per_update": counter.get_total_flops(),
        "guesses_per_update": round(statistics.fmean(asked)),
        "weights": sum(x.numel() for x in model.parameters()),
        "idle_weights": sum(idle),
        "cpu_seconds_as_run": [log[-1]["cpu_seconds"] for log in logs],
        "dev_loss": [log[-1]["dev_loss"] for log in logs],
    }


# ── The table ────────────────────────────────────────────────────────────────────────


def by_way(models: dict[str, list[dict]], pick: Callable[[dict], dict]) -> dict:
    """Way → one number a seed, of what `pick` finds in a seed's measurements."""
    found: dict[str, list] = {}
    for runs in models.values():
        for run in runs:
            for way, number in pick(run).items():
                found.setdefault(way, []).append(number)
    return found


def share(counts: dict, part: str, of: str = "gaps") -> float:
    return counts[part] / counts[of]


def gap_table(models: dict[str, list[dict]], counts: dict) -> dict:
    """Rows a and b: a missing piece, and gaps of several."""
    one = by_way(models, lambda run: run["gaps"]["one"])
    usual = by_way(models, lambda run: run["gaps"]["usual"])
    one_cost = _first(by_way(models, lambda run: run["gaps"]["one_cost"]))
    usual_cost = _first(by_way(models, lambda run: run["gaps"]["usual_cost"]))
    alone = {way: [share(x, "exact") for x in runs] for way, runs in one.items()}
    by_length = {
        str(n): {"of": next(iter(usual.values()))[0]["by_length"][n]["gaps"]}
        | {"exact": {way: [share(x["by_length"][n], "exact") for x in runs]
                     for way, runs in usual.items() if way != "gpt_rerank" or n == 1}}
        for n in (1, *SEVERAL)
    }  # fmt: skip
    several = {
        way: [x["several"] for x in runs]
        for way, runs in usual.items()
        if way != "gpt_rerank"
    }
    some = next(iter(several.values()))[0]
    return {
        "one_gap": {
            "of": next(iter(one.values()))[0]["gaps"],
            "accuracy": alone | counts["one"],
            "pieces_read": one_cost,
        },
        "single": {
            "of": by_length["1"]["of"],
            "accuracy": by_length["1"]["exact"] | counts["usual"],
        },
        "gaps": {
            "of": some["gaps"],
            "of_pieces": some["pieces"],
            "exact": {w: [share(x, "exact") for x in r] for w, r in several.items()},
            "pieces": {
                w: [share(x, "right", "pieces") for x in r] for w, r in several.items()
            },
            "length": {"t5": [share(x, "length") for x in several.get("t5", [])]},
            "by_length": by_length,
            "pieces_read": {w: usual_cost[w] for w in several},
        },
    }


def _first(found: dict[str, list[float]]) -> dict[str, float]:
    return {way: round(numbers[0], 1) for way, numbers in found.items()}


def next_table(models: dict[str, list[dict]], counts: dict, ids: Tensor) -> dict:
    """Row c: the next piece."""
    keys = "accuracy", "bits_per_byte", "accuracy_by_place", "bits_by_place"
    found = {
        key: {name: [run["next"][key] for run in runs] for name, runs in models.items()}
        | {name: row[key] for name, row in counts["next"].items()}
        for key in keys
    }
    places = list(going_on.PLACES)
    return {"of": len(ids) * len(places), "places": places} | found


def write_table(models: dict[str, list[dict]], ids: Tensor) -> dict:
    """Row d: what is written, and the novel itself."""
    here = going_on.openings(ids)
    opening, rest = here.split([going_on.OPENING, here.shape[1] - going_on.OPENING], 1)
    real = rest[:, : going_on.NEW].tolist()
    table = {"of": len(here), "group": going_on.GROUP, "temperature": WARM}
    for how in ("greedy", "sampled"):
        table[how] = {
            name: {
                key: [run["writing"]["measured"][how][key] for run in runs]
                for key in going_on.Written._fields
            }
            for name, runs in models.items()
        }
    table["text"] = going_on.judge_written(real)._asdict()
    table["examples"] = {
        "opening": tokenizer().decode(opening[0]),
        "text": tokenizer().decode(real[0]),
    } | {name: runs[0]["writing"]["first"] for name, runs in models.items() if runs}
    return table


def novel_table(models: dict[str, list[dict]]) -> dict:
    """Row e: which novel?"""
    labels = features.examples()[2].novels
    table = {"of": len(labels), "learned_from": len(features.examples()[0].novels)}
    table["most_frequent"] = labels.bincount().max().item() / len(labels)
    bag = novel_row(features.bag_of_pieces)
    for key in ("accuracy", "balanced"):
        table[key] = {
            name: [run["novels"][key] for run in runs] for name, runs in models.items()
        } | {"bag_of_pieces": bag[key]}
    table["untrained"] = {}
    for name in models:
        torch.manual_seed(0)
        model = RECIPES[MODELS[name]].model().eval()
        row = novel_row(lambda part, model=model: features.mean_hidden(model, part))
        table["untrained"][name] = {key: row[key] for key in ("accuracy", "balanced")}
    return table


def table(chosen: dict[str, list[int]], ids: Tensor) -> dict:
    """Measure all, and put numbers of one kind side by side."""
    models = {}
    for name, recipe in MODELS.items():
        models[name] = []
        for seed in chosen[name]:
            _, model = load_run(folder(recipe, seed), RECIPES)
            models[name].append(measured(model, ids))
    counts = counted(ids)
    return {
        **gap_table(models, counts),
        "next_piece": next_table(models, counts, ids),
        "writing": write_table(models, ids),
        "novels": novel_table(models),
        "cost": {name: cost(MODELS[name], chosen[name]) for name in MODELS},
        "most_frequent_piece": counts["most_frequent"],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draft", type=Path, help="write here, with what has ended")
    parser.add_argument("--windows", type=int, help="only so many; for a draft")
    wanted = parser.parse_args(arguments)
    chosen = {name: seeds(recipe) for name, recipe in MODELS.items()}
    few = [name for name, found in chosen.items() if len(found) < LEAST]
    if few and not wanted.draft:
        sys.exit(f"{LEAST} seeds are needed of {', '.join(few)}: found {chosen}")
    if wanted.windows and not wanted.draft:
        sys.exit("--windows is for a --draft: the table is of all windows")
    if not any(chosen.values()):
        sys.exit(f"nothing has ended in {RUNS_FOLDER}")
    torch.set_num_threads(1)
    begin, ids = time.process_time(), gaps.test_windows()[: wanted.windows]
    rows = table(chosen, ids)
    result = {
        "command": "python benchmarks/objectives.py",
        "machine": machine(),
        "cpu_minutes": round((time.process_time() - begin) / 60, 1),
        "seeds": chosen,
        "windows": len(ids),
        **rows,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    write(wanted.draft or RESULT, text + "\n")


if __name__ == "__main__":
    main()
