# SPDX-License-Identifier: MIT
"""Many processes train the model that one would: DDP, FSDP2, kills, what goes wrong.

Two processes on the CPU, started by torchrun as on the command line. What they train
stands in `together.py`.
"""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn

from deepdive.recipes import RECIPES, load_run, run_recipe
from deepdive.training import join, load_checkpoint, read_log, sharded, whole
from deepdive.training.distributed import World, _filled, _framed
from deepdive.training.shares import rows, shares
from tests import together
from tests.compare import close

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parent.parent
WAYS = ("copies", "sharded")
# A key's bias adds the same to all scores of a query and so changes nothing: its
# gradient is rounding alone, which Adam makes whole steps of.
MEANINGLESS = "k_proj.bias"


def torchrun(*arguments, processes=2, cwd=ROOT):
    """Run a module in several processes; (exit status, stdout, stderr)."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    words = ["--nproc-per-node", processes, "--master-addr", "127.0.0.1"]
    words += ["--master-port", port, "-m", *arguments]
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *map(str, words)],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **loopback},
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:  # one waits for another
        process.terminate()  # torchrun then ends its processes
        process.communicate()
        raise
    return process.returncode, out, err


def trained(folder, *names):
    """What two processes made of some trainings."""
    status, _, err = torchrun("tests.together", folder, *names)
    assert status == 0, err[-3000:]
    return [read(folder, name) for name in names]


def read(folder, name):
    return torch.load(Path(folder, f"{name}.pt"))


def same_training(got, one, tolerance=1e-5):
    """Same records, weights, average, and what the average answers."""
    assert got["failed"] == [None] * len(got["failed"])
    assert got["all records"][0] == got["all records"][-1]  # one and the same in all
    for a, b in zip(got["records"], one["records"], strict=True):
        assert a["step"] == b["step"] and a["tokens"] == b["tokens"]
        assert abs(a["loss"] - b["loss"]) < tolerance
        assert abs(a["grad_norm"] - b["grad_norm"]) < 10 * tolerance
        assert a["updated"] == b["updated"] and a["lr"] == b["lr"]
    for kind in ("weights", "average"):
        assert got[kind].keys() == one[kind].keys()
        for name, weight in one[kind].items():
            if MEANINGLESS not in name and "idle" not in name:
                close(got[kind][name], weight, 10 * tolerance, name)
    if "probe" in one:
        close(got["probe"], one["probe"], 10 * tolerance)


# ── The same losses ──────────────────────────────────────────────────────────────────


def test_two_processes_train_what_one_does(tmp_path):
    """Rows with unequal numbers of tokens; one micro-batch has a row for one only."""
    one = together.train("gpt")
    for result in trained(tmp_path, "gpt-copies", "gpt-sharded"):
        same_training(result, one)
    assert len({r["tokens"] for r in one["records"]}) > 3
    assert len(together.texts(2).tokens) == 1


EXACT = "gpt 3", "gpt 4", "parts", "transformer", "transformer 2"
EXACT += "stream", "idle", "other start"
ROUGH = {"float16": 2e-3, "bfloat16": 1e-2}
WRONG = "words", "nan loss", "nan gradient", "other data"
ONCE = ("words 2", "adafactor")
DROPOUT = "dropout-copies", "dropout-copies-files=d-steps=3", "dropout-copies-files=d"
RESUMED = (
    "gpt-copies-files=copies then one-steps=4",
    "gpt-sharded-files=one then sharded-steps=9",
    "gpt-sharded-files=sharded then copies-steps=4",
    "gpt-copies-files=sharded then copies-steps=9",
)
RECIPE = "recipe-sharded-run", "recipe-copies-somebody"


@pytest.fixture(scope="module")
def all_trained(tmp_path_factory):
    """Many trainings by two processes, in one start."""
    folder = tmp_path_factory.mktemp("trained")
    both = [f"{name}-{way}" for name in (*EXACT, *ROUGH, *WRONG, *ONCE) for way in WAYS]
    together.train("gpt", steps=4, **together.files(folder / "one then sharded"))
    (folder / "somebody").mkdir()
    (folder / "somebody" / "thesis.txt").write_text("mine")
    trained(folder, *both, *DROPOUT, *RESUMED, *RECIPE)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", (*EXACT, *ROUGH, "words 2"))
def test_every_kind_of_training_is_the_same(all_trained, name, way):
    result, one = read(all_trained, f"{name}-{way}"), together.train(name)
    same_training(result, one, ROUGH.get(name, 1e-5))
    if (name, way) == ("idle", "copies"):  # no gradient, so no decay either
        start = together.TRAININGS[name].model().state_dict()
        assert torch.equal(result["weights"]["idle.weight"], start["idle.weight"])


@pytest.mark.slow
def test_each_process_drops_others_and_a_resumed_run_the_same(all_trained):
    first, _, resumed = (read(all_trained, name) for name in DROPOUT)
    assert not torch.equal(*first["noise"])
    assert [r["loss"] for r in resumed["records"]] == first["all records"][0][3:]
    for name, weight in first["weights"].items():
        assert torch.equal(resumed["weights"][name], weight), name
    assert all(map(torch.equal, resumed["noise"], first["noise"]))


# ── Kills, and other numbers of processes ────────────────────────────────────────────


def log_of(folder):
    return [(r["step"], r["tokens"]) for r in read_log(folder / "log.jsonl")]


def losses_of(folder):
    return torch.tensor([r["loss"] for r in read_log(folder / "log.jsonl")])


def same_run(folder, result, whole, one):
    """A run in two parts has the log and the end of one in a single part."""
    assert log_of(folder) == log_of(whole)
    close(losses_of(folder), losses_of(whole), 1e-5)
    for kind in ("weights", "average"):
        for name, weight in one[kind].items():
            if MEANINGLESS not in name:
                close(result[kind][name], weight, 1e-4, name)


@pytest.mark.slow
def test_another_number_of_processes_goes_on(all_trained, tmp_path):
    one = together.train("gpt", steps=9, **together.files(tmp_path))
    folder = all_trained / "copies then one"
    result = together.train("gpt", steps=9, **together.files(folder))
    assert len(result["records"]) == 5
    same_run(folder, result, tmp_path, one)
    for name in RESUMED[1::2]:
        folder = all_trained / name.split("=")[1].removesuffix("-steps")
        same_run(folder, read(all_trained, name), tmp_path, one)


@pytest.mark.slow
def test_killed_in_two_processes_and_gone_on_with_by_one(tmp_path):
    """SIGKILL in one of them, between two checkpoints; the other must not wait."""
    one = together.train("gpt", steps=9, **together.files(tmp_path / "whole"))
    folder, name = tmp_path / "killed", "gpt-sharded-files=killed-killed=5"
    status, _, err = torchrun("tests.together", tmp_path, name)
    assert status != 0 and "exitcode: -9" in err
    assert load_checkpoint(folder / "c.pt")["step"] == 4
    result = together.train("gpt", steps=9, **together.files(folder))
    same_run(folder, result, tmp_path / "whole", one)


# ── What goes wrong ──────────────────────────────────────────────────────────────────

SAID = {
    "words": "TypeError: 'a list of words' stands in a batch that 2 processes have to",
    "nan loss": "FloatingPointError: the loss is nan at update 4 (micro-batch 3); the "
    "weights are those of update 3",
    "nan gradient": "FloatingPointError: the gradient's norm is nan at update 4",
    "other data": "ValueError: process 1 has another recipe than process 0: batches(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_one_stops_all_with_the_same_words(all_trained, name, way):
    failed = read(all_trained, f"{name}-{way}")["failed"]
    assert failed[0] == failed[1] and failed[0].startswith(SAID[name])
    if "nan" in name:  # in one process just so
        assert together.train(name)["failed"] == failed[:1]


@pytest.mark.slow
def test_adafactor_takes_copies_only(all_trained):
    same_training(read(all_trained, "adafactor-copies"), together.train("adafactor"))
    failed = read(all_trained, "adafactor-sharded")["failed"]
    assert "Adafactor cannot move weights" in failed[0] and failed[0] == failed[1]


# ── The command ──────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_command_speaks_once_and_ends_with_the_same_model(tmp_path):
    result = run_recipe(RECIPES["grammar"], tmp_path / "one", 6, progress=False)
    arguments = ["grammar", "--steps", "6", "--device", "cpu", "--out", "two"]
    status, out, err = torchrun("deepdive", "train", *arguments, cwd=tmp_path)
    assert status == 0, err[-3000:]
    assert out.splitlines()[:-2] == [f"{n} {x:.4g}" for n, x in result.items()]
    assert err.count("Preparing") == 1 and err.count("6/6") == 1
    assert "Warning" not in err
    same_folders(tmp_path / "one", tmp_path / "two")


def same_folders(*folders):
    """Two runs of one recipe left the same things behind."""
    close(losses_of(folders[1]), losses_of(folders[0]), 1e-5)
    models = [load_run(folder, RECIPES)[1] for folder in folders]
    for a, b in zip(*(model.state_dict().items() for model in models), strict=True):
        if MEANINGLESS not in a[0]:
            close(b[1], a[1], 1e-4, a[0])
    files = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert files[0] == files[1]
    claims = [json.loads((f / "recipe.json").read_text()) for f in folders]
    assert claims[0] == claims[1]


@pytest.mark.slow
def test_a_divided_recipe_is_judged_and_kept_whole(all_trained, tmp_path):
    result = run_recipe(RECIPES["grammar"], tmp_path, 6, progress=False)
    for its in read(all_trained, RECIPE[0])["result"]:
        assert its.keys() == result.keys()
        for name, value in result.items():
            assert abs(its[name] - value) < 1e-5, name
    same_folders(tmp_path, all_trained / "run")


@pytest.mark.slow
def test_a_folder_of_somebody_stops_every_process(all_trained):
    failed = read(all_trained, RECIPE[1])["failed"]
    assert failed[0] == failed[1] and "holds something else (thesis.txt)" in failed[0]
    names = [path.name for path in (all_trained / "somebody").iterdir()]
    assert names == ["thesis.txt"]


# ── Shares ───────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Pair:
    a: torch.Tensor
    b: torch.Tensor | None = None
    name: str = dataclasses.field(default="kept", init=False)


class Named(NamedTuple):
    x: torch.Tensor
    rest: dict


def test_the_rows_of_all_processes_are_the_batch():
    x = torch.arange(10).view(5, 2)
    for size in (1, 2, 3, 5, 7):
        seen = []
        for rank in range(size):
            batch = Named(x, {"pair": Pair(x[:, 0]), "none": None, "list": [x, (x,)]})
            got, counts = rows(batch, World(rank, size))
            assert type(got) is Named and got.rest["none"] is None and len(got.x)
            assert torch.equal(got.rest["pair"].a, got.x[:, 0])
            assert torch.equal(got.rest["list"][1][0], got.x)
            assert got.rest["pair"].name == "kept"
            seen += got.x.tolist() if counts else []
            assert counts == (rank < 5)
        assert sorted(seen) == x.tolist()


def test_micro_batches_stay_whole_where_processes_divide_them():
    asked = []

    def batches(i):
        asked.append(i)
        return torch.full((4, 1), i)

    mine = [list(shares(batches, range(8, 12), World(rank, 2))) for rank in (0, 1)]
    assert [[s.number for s in part] for part in mine] == [[8, 10], [9, 11]]
    assert sorted(asked) == [8, 9, 10, 11]  # each is made once
    assert all(len(s.batch) == 4 and s.counts for part in mine for s in part)
    assert [s.last for s in mine[0]] == [False, True]
    parts = list(shares(batches, range(3), World(1, 2)))
    assert [(s.number, len(s.batch)) for s in parts] == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.zeros(2), 3), TypeError, "^3 stands in a batch that 2 processes"),
        ((torch.tensor(3),), TypeError, "a tensor without axes .* multiple of 2"),
        ([torch.zeros(2), "text"], TypeError, "'text' stands"),
        ((torch.zeros(2), torch.zeros(3)), ValueError, r"tensors of \[2, 3\] rows"),
        ({"a": None}, ValueError, "no tensor in a batch"),
    ],
)
def test_a_batch_without_rows_is_named(batch, error, message):
    with pytest.raises(error, match=message):
        rows(batch, World(1, 2))


# ── Alone ────────────────────────────────────────────────────────────────────────────


def test_alone_nothing_is_asked_of_anybody():
    world = join()
    assert world == World(0, 1) and world.first
    assert world.summed(1, 2.5) == [1, 2.5] and world.gathered("a") == ["a"]
    assert world.told("b") == "b" and world.by_first(lambda: "c") == "c"
    with pytest.raises(ZeroDivisionError):
        world.by_first(lambda: 1 / 0)
    model = nn.Linear(2, 2)
    weight = model.weight
    assert sharded(model) is model and model.weight is weight
    with whole(model):
        assert model.weight is weight
    with pytest.raises(TypeError, match=r"layers\[0\] must be .* int"):
        sharded(model, layers=[3])
    with pytest.raises(TypeError, match=r"model must be .* str"):
        sharded("model")


def test_what_is_sent_is_framed_without_its_tensors():
    x, y = torch.zeros(2, dtype=torch.bool), torch.ones(())
    value = {"a": [x, (1, y)], "b": "text", "c": None}
    tensors = []
    frame = _framed(value, tensors)
    assert [t is u for t, u in zip(tensors, (x, y), strict=True)] == [True, True]
    assert frame["b"] == "text" and frame["a"][1][0] == 1
    assert frame["a"][0].shape == (2,) and frame["a"][0].dtype is torch.bool
    assert _filled({"b": ["text", (None,)]}) == {"b": ["text", (None,)]}


def test_sharded_needs_torchrun(capsys):
    from deepdive.commands import main

    with pytest.raises(SystemExit):
        main(["train", "grammar", "--sharded"])
    assert "torchrun must start the processes" in capsys.readouterr().err


def test_importing_the_loop_imports_no_fsdp():
    """That takes half a second, which a run of one process has no use for."""
    code = "import sys, deepdive.training, deepdive.recipes.runs"
    code += "\nassert 'torch.distributed.fsdp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
