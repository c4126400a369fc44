# SPDX-License-Identifier: MIT
"""Each benchmark can be started, says how, and keeps runs that can be made again."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
SHARED = [FOLDER / "record.py"]  # what the scripts import
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
    sys.modules.pop("record", None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_its_command_and_does_nothing_when_imported(path, load, capsys):
    before = {p: p.stat().st_mtime_ns for p in FOLDER.rglob("*.json")}
    module = load(path.stem)
    command = rf"^    python benchmarks/{path.stem}\.py\b"
    assert re.search(command, module.__doc__ or "", re.MULTILINE)
    assert "__main__" in path.read_text(encoding="utf-8")
    assert not any(capsys.readouterr())
    assert before == {p: p.stat().st_mtime_ns for p in FOLDER.rglob("*.json")}


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
