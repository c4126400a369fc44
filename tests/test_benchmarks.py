# SPDX-License-Identifier: MIT
"""Each benchmark can be started, says how, and keeps runs that can be made again."""

import importlib.util
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from deepdive.configs import LlamaConfig
from deepdive.data import PairBatch
from deepdive.models.llama import Llama
from deepdive.recipes import g2p as recipes
from deepdive.recipes.spelling import Errors, pronunciations, split

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SHARED = [FOLDER / "record.py", FOLDER / "trainings.py"]  # what the scripts import
SCRIPTS = sorted(set(FOLDER.glob("*.py")) - set(SHARED))
KEEPING = ("fading", "norm_order", "positions")  # a record, run by run


@pytest.fixture
def load(monkeypatch):
    """Import a file of the folder as Python does when it is started, without main."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def imported(name):
        path = FOLDER / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield imported
    for shared in SHARED:
        sys.modules.pop(shared.stem, None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_its_command_and_does_nothing_when_imported(path, load, capsys):
    before = {p: p.stat().st_mtime_ns for p in FOLDER.rglob("*.json")}
    module = load(path.stem)
    command = rf"^    python benchmarks/{path.stem}\.py\b"
    assert re.search(command, module.__doc__ or "", re.MULTILINE)
    assert "__main__" in path.read_text(encoding="utf-8")
    assert not any(capsys.readouterr())
    assert before == {p: p.stat().st_mtime_ns for p in FOLDER.rglob("*.json")}


SPEED = sorted((FOLDER / "speed").glob("*.py"))


@pytest.mark.parametrize("path", SPEED, ids=lambda path: path.stem)
def test_a_script_of_rows_can_be_started_and_is_quiet_until_then(path, capsys):
    spec = importlib.util.spec_from_file_location(f"speed_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command = rf"^    python benchmarks/speed/{path.stem}\.py$"
    assert re.search(command, module.__doc__ or "", re.MULTILINE)
    assert "__main__" in path.read_text(encoding="utf-8")
    assert all(map(callable, module.FULL)) and all(map(callable, module.QUICK))
    assert module.FULL and module.QUICK
    assert not any(capsys.readouterr())


def made(module, arguments, out):
    """A record filled with runs in which nothing was measured."""
    kept, plan, *_ = module.prepare([*arguments, "--out", str(out)])
    for settings in kept.missing(plan):
        kept.add(settings | {"cpu_seconds": 30})
    return kept, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", KEEPING)
def test_the_command_of_a_record_makes_the_runs_it_holds(name, load, tmp_path):
    module, out = load(name), tmp_path / "a.json"
    made(module, [], out)
    _, content = made(module, ["--seeds", "11", "10"], out)
    assert content["command"] == (
        f"OMP_NUM_THREADS=1 python benchmarks/{name}.py --fresh; "
        f"OMP_NUM_THREADS=1 python benchmarks/{name}.py --seeds 11 10"
    )
    planned = []
    for command in content["command"].split("; "):
        words = shlex.split(command.split(".py", 1)[1])
        other = ["--out", str(tmp_path / "b.json")]
        planned += module.prepare([*words, *other])[1]
    keys = module.KEYS
    held = [{key: run[key] for key in keys} for run in content["runs"]]
    assert len(held) == len(planned) and all(run in held for run in planned)
    assert all(run["time"].endswith("Z") for run in content["runs"])
    assert content["cpu_minutes"] == len(held) / 2
    assert content["machine"]["time"] >= content["runs"][0]["time"]


@pytest.mark.parametrize("name", KEEPING)
def test_a_finished_run_is_not_made_again_and_that_is_said(
    name, load, tmp_path, capsys
):
    module, out = load(name), tmp_path / "a.json"
    made(module, ["--seeds", "5"], out)
    capsys.readouterr()
    before = out.read_text(encoding="utf-8")
    kept, plan, *_ = module.prepare(["--seeds", "5", "--out", str(out)])
    assert kept.missing(plan) == []
    n = len(plan)
    assert f"{n} of {n} runs are in a.json already" in capsys.readouterr().out
    kept, plan, *_ = module.prepare(["--seeds", "5", "--out", str(out), "--fresh"])
    assert kept.missing(plan) == plan and not capsys.readouterr().out
    assert out.read_text(encoding="utf-8") == before  # until a run is added
    kept.add(plan[0])
    assert len(json.loads(out.read_text(encoding="utf-8"))["runs"]) == 1


def test_numbers_are_sorted_as_numbers(load, tmp_path):
    order = load("norm_order")
    _, content = made(order, ["--depths", "12", "2", "6", "--seeds", "10", "9"],
                      tmp_path / "a.json")  # fmt: skip
    assert [run["depth"] for run in content["runs"][::16]] == [2, 6, 12]
    assert [run["seed"] for run in content["runs"][:4]] == [9, 10, 9, 10]
    places = load("positions")
    _, content = made(places, ["--seeds", "10", "9"], tmp_path / "b.json")
    found = [(run["seed"], run["model"]) for run in content["runs"]]
    assert found == [(seed, model) for seed in (9, 10) for model in places.MODELS]


def test_runs_of_other_settings_are_not_mixed(load, tmp_path, monkeypatch):
    module, out = load("positions"), tmp_path / "a.json"
    made(module, ["--seeds", "0", "--steps", "7"], out)
    with pytest.raises(ValueError, match=r"other values of steps: choose --fresh"):
        module.prepare(["--seeds", "1", "--out", str(out)])
    monkeypatch.setattr(sys.modules["record"], "machine", lambda: {"torch": "0"})
    kept, plan, *_ = module.prepare(["--steps", "7", "--out", str(out)])
    with pytest.raises(ValueError, match="another machine or with other versions"):
        kept.missing(plan)
    kept, plan, *_ = module.prepare(["--steps", "7", "--seeds", "0", "--out", str(out)])
    assert kept.missing(plan) == []  # nothing to add: nothing to mix


def test_a_run_without_its_command_is_refused(load, tmp_path):
    module, out = load("norm_order"), tmp_path / "a.json"
    _, content = made(module, ["--depths", "2"], out)
    del content["runs"][3]["command"]
    out.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ValueError, match=r"does not say its command: choose --fresh"):
        module.prepare(["--out", str(out)])


def test_a_write_that_fails_leaves_the_old_file(load, tmp_path, monkeypatch):
    record, out = load("record"), tmp_path / "new" / "a.json"
    record.write(out, "“1”")
    assert out.read_bytes() == "“1”".encode()
    assert list(out.parent.iterdir()) == [out]

    def full(self, text, encoding):
        with self.open("w", encoding=encoding) as file:
            file.write(text[:1])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="no space"):
        record.write(out, "“2”")
    assert out.read_bytes() == "“1”".encode()


# trainings of hours


def test_a_run_is_made_once_from_where_it_stopped(load, tmp_path, monkeypatch):
    trainings, made = load("trainings"), []

    def run(recipe, place, **how):
        made.append((recipe, place, how))
        place.mkdir()
        (place / "result.json").write_text("“1”", encoding="utf-8")

    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(trainings, "run_recipe", run)
    asked = "the recipe", tmp_path / "run", 3, 70
    assert [trainings.ended(*asked) for _ in range(2)] == ["“1”", "“1”"]
    how = {"seed": 3, "steps": 70, "progress": False}
    assert made == [("the recipe", tmp_path / "run", how)]
    assert set(used) == {1}


@pytest.mark.parametrize("script", ["austen", "g2p", "three_tasks"])
def test_a_command_line_names_one_run_or_all(script, load):
    chosen, runs = load("trainings").chosen, load(script).RUNS
    assert chosen(runs, []) == runs
    for name, seed, *_ in runs:
        found = chosen(runs, [name, str(seed)])
        assert found and all(run[:2] == (name, seed) for run in found)
    assert chosen([("a", 1e-3), ("a", 8e-3)], ["a", "0.008"]) == [("a", 8e-3)]
    for wrong in (["a", "7"], [runs[0][0]], [runs[0][0], "x"]):
        with pytest.raises(SystemExit, match="is none of"):
            chosen(runs, wrong)


# g2p: the race of chapter 6


@pytest.fixture
def race(load, tmp_path, monkeypatch):
    """The script, with folders in which nothing was run yet."""
    module = load("g2p")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "RUNS_FOLDER", tmp_path / "runs")
    monkeypatch.setattr(module, "RESULT", tmp_path / "results" / "g2p.json")
    return module


def said(word, wrong=0):
    """Its first pronunciation, the first so many phonemes replaced."""
    return ("?",) * wrong + pronunciations()[word][0][wrong:]


def test_words_are_judged_by_their_length_the_ends_together(race):
    wrong = {"mice": 1, "responsibility": 2, "at": 1, "cat": 0}
    wrong |= {"responsibilities": 3, "knowledgeable": 9, "late": 0}
    written = [said(word, n) for word, n in wrong.items()]
    assert race.by_length([*wrong], written) == [
        {"letters": 3, "per": 1 / 5, "wer": 1 / 2, "phonemes": 5, "words": 2},
        {"letters": 4, "per": 1 / 6, "wer": 1 / 2, "phonemes": 6, "words": 2},
        {"letters": 13, "per": 1.0, "wer": 1.0, "phonemes": 9, "words": 1},
        {"letters": 14, "per": 5 / 29, "wer": 1.0, "phonemes": 29, "words": 2},
    ]


def test_words_with_a_relative_are_judged_apart(race, monkeypatch):
    monkeypatch.setattr(race, "has_relative", {"cat", "late"}.__contains__)
    words = ["cat", "mice", "late"]
    written = [said("cat", 1), said("mice", 2), said("late")]
    assert race.by_relatives(words, written) == {
        "with": Errors(1 / 6, 1 / 2, 6, 2)._asdict(),
        "without": Errors(2 / 3, 1.0, 3, 1)._asdict(),
    }


def test_a_curve_holds_the_judged_updates_in_pairs(race, tmp_path):
    lines = [{"step": 1, "loss": 3.0}, {"step": 500, "per": 0.5, "wer": 0.75}]
    lines += [{"step": 501, "loss": 2.0}, {"step": 700, "per": 0.25, "wer": 0.5}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "log.jsonl").write_text(text, encoding="utf-8")
    assert race.curve(tmp_path) == [
        {"pairs": 64_000, "per": 0.5, "wer": 0.75},
        {"pairs": 89_600, "per": 0.25, "wer": 0.5},
    ]


def test_the_long_run_is_judged_on_the_words_of_the_test(race, monkeypatch):
    asked, loaded = [], []

    def spell(model, words, beams=1):
        """One beam writes each fourth word wrong, four beams none."""
        asked.append((model, words, beams))
        return [said(w, int(beams == 1 and i % 4 == 0)) for i, w in enumerate(words)]

    def load_run(place, recipes):
        loaded.append(place)
        return recipes["g2p-gru"], "the model"

    last = {"step": 20_000, "cpu_seconds": 7.5}
    monkeypatch.setattr(race, "spell", spell)
    monkeypatch.setattr(race, "load_run", load_run)
    monkeypatch.setattr(race, "read_log", lambda path: [{"step": 1}, last])
    found = race.judge("g2p-gru")
    assert loaded == [race.RUNS_FOLDER / "g2p-gru-seed-0"]
    test, trained = split().test, asked.pop()
    assert asked == [("the model", test, 1), ("the model", test, 4)]
    assert len(set(trained[1])) == 2_000 and set(trained[1]) <= set(split().train)
    assert trained[::2] == ("the model", 1)
    assert found["pairs"] == 2_560_000 and found["cpu_seconds_as_run"] == 7.5
    assert found["test"]["greedy"]["wer"] == 1 / 4
    assert 1 / 50 < found["test"]["greedy"]["per"] < 1 / 10  # a phoneme of a word
    assert found["test"]["beam4"] == {"per": 0.0, "wer": 0.0}
    assert found["on_training_words"]["wer"] == 1 / 4
    assert [row["letters"] for row in found["by_length"]] == list(range(3, 15))
    for rows in (found["by_length"], found["by_relatives"].values()):
        assert sum(row["words"] for row in rows) == 5_000
        assert sum(row["wer"] * row["words"] for row in rows) == pytest.approx(1_250)


SIZES = [(2 + i % 3, 2 + i, 3 + 2 * i % 5) for i in range(8)]  # pairs, letters, sounds


def few_words(seed):
    """Eight batches of various sizes, without padding."""
    return lambda i: PairBatch(
        torch.full((B := SIZES[i][0], S := SIZES[i][1]), 3),
        torch.full((B, T := SIZES[i][2] + 1), 4),
        torch.ones(B, S, dtype=torch.bool),
        torch.ones(B, T, dtype=torch.bool),
    )


@pytest.fixture
def cost(race, monkeypatch):
    def of(name):
        few = replace(race.RECIPES[name], batches=few_words)
        monkeypatch.setattr(race, "RECIPES", {name: few})
        chain, flops = race.update_cost(name)
        return chain, flops

    return of


def test_what_an_update_of_the_transformer_costs(cost):
    """Twice rows × in × out for a map; backward that again for both its factors."""
    d, ff, V = 128, 512, len(recipes.PHONEMES)

    def forward(S, T):
        encoder = S * (4 * d * d + 2 * d * ff) + 2 * S * S * d
        own = T * (4 * d * d + 2 * d * ff) + 2 * T * T * d
        cross = (2 * T + 2 * S) * d * d + 2 * T * S * d
        return 2 * (3 * (encoder + own + cross) + T * d * V)

    flops = sum(3 * forward(S, T) for _, S, T in SIZES) / 8
    assert cost("g2p") == (3 * 6 + 6 + 2 * 10 + 1, flops)


def test_what_an_update_of_the_gru_costs(cost):
    """The same; but nothing flows back into the zeros that a reading starts from."""
    d, r, w, V = 128, 240, 392, len(recipes.PHONEMES)

    def forward(S, T):
        reader = 2 * S * 3 * r * (d + r)  # from both sides
        writer = T * (3 * w * (d + w) + w * d + d * V)
        return 2 * (reader + 2 * r * w + writer)

    flops = sum(3 * forward(S, T) - 2 * 2 * 3 * r * r for _, S, T in SIZES) / 8
    chain = sum(S + 1 + T + 2 for _, S, T in SIZES) / 8
    assert cost("g2p-gru") == (round(chain), flops)


def test_what_an_update_of_the_gru_with_attention_costs(cost):
    """Looking costs products with the words, and four waits a sound in place of one."""
    d, r, w, a, V = 128, 176, 338, 128, len(recipes.PHONEMES)

    def forward(S, T):
        reader = 2 * S * 3 * r * (d + r) + S * 2 * r * a
        look = w * a + S * a + S * 2 * r
        step = 3 * w * (d + 2 * r + w) + (w + 2 * r) * d + d * V
        return 2 * (reader + r * w + T * (look + step))

    flops = sum(3 * forward(S, T) - 2 * 2 * 3 * r * r for _, S, T in SIZES) / 8
    chain = sum(S + 1 + 4 * T + 2 for _, S, T in SIZES) / 8
    assert cost("g2p-gru-attention") == (round(chain), flops)


def ended(race):
    """Every trial and run with a result."""
    for place in [race.trial(n, r) for n in race.MODELS for r in race.RATES] + [
        race.folder(name, seed) for name, seed, _ in race.RUNS
    ]:
        place.mkdir(parents=True)
        (place / "result.json").write_text('{"per": 0.5, "wer": 0.5}', encoding="utf-8")


@pytest.mark.parametrize(
    "name", ["g2p-gru-seed-0", "g2p-no-dropout-seed-0", "g2p-seed-2", "tune-g2p-0.008"]
)
def test_nothing_is_measured_before_all_runs_have_ended(race, name, monkeypatch):
    ended(race)
    assert race.unfinished() == []
    (race.RUNS_FOLDER / name / "result.json").unlink()
    monkeypatch.setattr(race, "speeds", lambda: pytest.fail("minutes were spent"))
    with pytest.raises(SystemExit, match=f"before these end: {name}$"):
        race.measure()
    assert not race.RESULT.exists()


def test_weights_are_published_last(race, monkeypatch):
    ended(race)
    (race.folder("g2p", 3)).mkdir()  # begun, but not on the list
    done = []
    monkeypatch.setattr(race, "speeds", lambda: {n: [2.0, 9, 4] for n in race.MODELS})
    monkeypatch.setattr(race, "update_cost", lambda name: (7, 1.5))
    monkeypatch.setattr(race, "judge", lambda name: {"of": name})
    monkeypatch.setattr(race, "curve", lambda place: [place.name])
    monkeypatch.setattr(
        race, "publish", lambda *paths: done.append((race.RESULT.is_file(), *paths))
    )
    race.measure()
    shelf = race.ROOT / "weights"
    assert done == [(True, race.folder(name, 0), shelf) for name in race.MODELS]
    found = json.loads(race.RESULT.read_text(encoding="utf-8"))
    assert {"processor", "torch", "time", "threads"} <= found["machine"].keys()
    assert found["words"] == {"train": 117_899, "dev": 2_000, "test": 5_000}
    assert found["models"].keys() == set(race.MODELS)
    one = found["models"]["g2p"]
    assert one["long"] == {"of": "g2p"} and one["pairs_per_cpu_second"] == 4.0
    assert [(r["seed"], *r["curve"]) for r in one["runs"]] == [
        (seed, f"g2p-seed-{seed}") for seed in (0, 1, 2)
    ]
    assert one["tried_rates"]["0.002"] == {"per": 0.5, "wer": 0.5}
    assert {what: runs[0]["curve"] for what, runs in found["switched_off"].items()} == {
        what: [f"{name}-seed-0"] for what, name in race.OFF.items()
    }


def test_a_failure_while_measuring_leaves_results_and_weights_alone(race, monkeypatch):
    ended(race)
    race.RESULT.parent.mkdir()
    race.RESULT.write_text("old", encoding="utf-8")
    monkeypatch.setattr(race, "speeds", lambda: {n: [1.0] for n in race.MODELS})
    monkeypatch.setattr(race, "update_cost", lambda name: (7, 1.5))
    monkeypatch.setattr(race, "curve", lambda place: [])
    monkeypatch.setattr(race, "publish", lambda *_: pytest.fail("published"))

    def judge(name):
        if name == "g2p-gru":
            raise ValueError("damaged")
        return {}

    monkeypatch.setattr(race, "judge", judge)
    with pytest.raises(ValueError, match="damaged"):
        race.measure()
    assert race.RESULT.read_text(encoding="utf-8") == "old"


@pytest.fixture
def chat(load):
    """The chat model's benchmark, with a model small enough to measure at once."""
    torch.manual_seed(0)
    sizes = LlamaConfig(30, d_model=8, n_layers=1, n_heads=2, n_kv_heads=1, d_ff=16)
    return load("smollm"), Llama(replace(sizes, max_seq_len=600)).eval()


def test_reading_and_writing_are_measured_apart(chat, monkeypatch):
    """Each for both numbers of threads, which are put back."""
    module, model = chat
    before, used = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    found = list(module.records(model, torch.arange(1, 10)[None], rounds=3, new=5))
    works = [(r["work"], r["threads"], r["pieces"]) for r in found]
    read = [("read", size) for size in (9, 128, 512)]
    assert works == [(w, t, n) for t in (1, 2) for w, n in [*read, ("write", 5)]]
    assert used == [1, 2, before]
    assert all(0 < r["lowest"] <= r["median"] <= r["highest"] for r in found)


def test_what_is_timed_reads_all_and_writes_one_by_one(chat):
    """A prompt goes through at once; then every piece alone, and is forgotten again."""
    module, model = chat
    model = Llama(
        replace(model.config, max_seq_len=9 + 1 + 4)
    ).eval()  # no room for two
    lengths = []
    model.token.register_forward_hook(
        lambda _, ids, out: lengths.append(len(ids[0][0]))
    )
    prompt = torch.arange(1, 10)[None]
    module.reading(model, prompt)()
    assert lengths == [9]
    write = module.writing(model, prompt, 4)
    for _ in range(3):  # each time behind the prompt alone
        lengths.clear()
        write()
        assert lengths == [1, 1, 1, 1]


def test_threads_that_turn_in_a_circle_are_not_measured(chat, monkeypatch):
    module, _ = chat
    monkeypatch.setattr(sys, "argv", ["smollm.py"])
    monkeypatch.delenv(module.POLICY, raising=False)
    monkeypatch.setattr(module, "smollm2", lambda: pytest.fail("minutes were spent"))
    with pytest.raises(SystemExit, match="passive"):
        module.main()
