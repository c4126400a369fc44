# SPDX-License-Identifier: MIT
"""One training loop: its arithmetic, its files, and what is left after a kill."""

import copy
import io
import json
import math
import os
import random
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from compare import close
from torch import nn

from deepdive.device import seed_everything
from deepdive.objectives import Loss, causal_lm, cross_entropy
from deepdive.training import (
    EMA,
    adamw,
    checkpoints,
    constant,
    cosine,
    fit,
    inverse_sqrt,
    linear,
    load_checkpoint,
    noam,
    read_log,
)

V = 8


pytestmark = pytest.mark.usefixtures("one_thread")


def tiny(seed=0, dropout=0.3, dtype=torch.float32):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(V, 12), nn.Dropout(dropout), nn.LayerNorm(12), nn.Linear(12, V)
    )
    return model.to(dtype)


def ragged(i, B=3, T=6):
    """Micro-batch i: lengths differ, so do the numbers of real tokens."""
    g = torch.Generator().manual_seed(i)
    tokens = torch.randint(0, V, (B, T), generator=g)
    lengths = torch.randint(1, T + 1, (B, 1), generator=g)
    return tokens, torch.arange(T) < lengths


def lm_loss(model, batch):
    tokens, keep = batch
    return causal_lm(model(tokens), tokens, keep)


def train(model, optimiser=None, batches=ragged, loss=lm_loss, **how):
    optimiser = optimiser or adamw(model, lr=0.01)
    return fit(model, batches, loss, optimiser, **{"progress": False} | how)


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# ── The arithmetic of a step ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("n", [2, 5])
def test_accumulated_micro_batches_are_the_joined_batch(dtype, tolerance, n):
    parts = [ragged(i) for i in range(n)]
    parts[0][1][:] = False  # one of them without a real token
    joined = tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))
    models = [tiny(dropout=0, dtype=dtype) for _ in range(3)]
    a, b, by_hand = models
    sgd = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    [ra] = train(a, sgd[0], lambda i: parts[i], steps=1, accumulate=n, clip=0.3)
    [rb] = train(b, sgd[1], lambda i: joined, steps=1, clip=0.3)
    tokens, keep = joined
    real = keep[:, 1:] & keep[:, :-1]
    logits = by_hand(tokens)[:, :-1][real]
    F.cross_entropy(logits, tokens[:, 1:][real]).backward()
    norm = nn.utils.clip_grad_norm_(by_hand.parameters(), 0.3)
    sgd[2].step()
    for x, y, z in zip(*(model.parameters() for model in models), strict=True):
        close(x, y, tolerance)
        close(x, z, tolerance)
    assert ra["tokens"] == rb["tokens"] == int(real.sum())
    assert abs(ra["loss"] - rb["loss"]) < tolerance
    assert abs(ra["grad_norm"] - norm.item()) < tolerance and norm > 0.3


def test_without_clipping_the_norm_is_still_told():
    a, b = tiny(dropout=0), tiny(dropout=0)
    [free] = train(a, torch.optim.SGD(a.parameters(), 1.0), steps=1, clip=None)
    lm_loss(b, ragged(0)).mean.backward()
    gradient = torch.cat([p.grad.flatten() for p in b.parameters()])
    assert abs(free["grad_norm"] - gradient.norm().item()) < 1e-6
    assert (a[0].weight - (b[0].weight - b[0].weight.grad)).abs().max() < 1e-7


def test_update_without_a_token_leaves_the_weights():
    model = tiny(dropout=0)
    optimiser = adamw(model, lr=0.1)
    train(model, optimiser, steps=2)  # momentum that would move them
    before = copy.deepcopy(model)
    nothing = (torch.zeros(2, 4).long(), torch.zeros(2, 4).bool())
    [record] = train(model, optimiser, lambda i: nothing, steps=1)
    assert same(model, before)
    assert record["loss"] is None and not record["updated"] and record["tokens"] == 0


def test_a_real_loss_falls_to_the_entropy_of_its_source():
    """After v comes 2v (¾) or 2v + 1 (¼), mod 8: no model can beat 0.5623 nats."""

    def chain(i, B=32, T=33):
        g = torch.Generator().manual_seed(i)
        tokens = torch.randint(0, V, (B, T), generator=g)
        coins = (torch.rand(B, T, generator=g) < 0.25).long()
        for t in range(1, T):
            tokens[:, t] = (2 * tokens[:, t - 1] + coins[:, t]) % V
        return tokens, torch.ones(B, T).bool()

    model = tiny(dropout=0)
    records = train(
        model, adamw(model, 0.05), chain, steps=150, schedule=linear(5, 150)
    )
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    last = sum(r["loss"] for r in records[-20:]) / 20
    assert records[0]["loss"] > 2 and abs(last - entropy) < 0.01


def test_training_mode_inside_and_as_before_outside():
    model = tiny(dropout=0.5).eval()
    modes = []

    def spy(model, batch):
        modes.append(model.training)
        return lm_loss(model, batch)

    train(model, steps=2, loss=spy, callbacks=[lambda record: model.eval() and None])
    assert modes == [True, True]
    for mode in (False, True):
        train(model.train(mode), steps=1)
        assert model.training is mode


def test_callbacks_add_to_the_record():
    model = tiny()
    records = train(model, steps=3, callbacks=[lambda r: {"twice": 2 * r["step"]}])
    assert [r["twice"] for r in records] == [2, 4, 6]


# ── Precision ────────────────────────────────────────────────────────────────────────


def test_bfloat16_autocast_learns_and_keeps_float32_weights():
    seen = set()

    def spy(model, batch):
        logits = model(batch[0])
        seen.add(logits.dtype)
        return causal_lm(logits, *batch)

    fixed = ragged(3)
    model = tiny(dropout=0)
    records = train(
        model, adamw(model, 0.05), lambda i: fixed, spy, steps=30,
        precision=torch.bfloat16,
    )  # fmt: skip
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert records[-1]["loss"] < 0.5 * records[0]["loss"]


def test_float16_overflow_skips_the_update_and_is_counted(tmp_path):
    model = nn.Linear(4, V)
    start = copy.deepcopy(model)
    x, y = torch.full((1, 4), 50.0), torch.tensor([1])
    trace = []
    records = train(
        model, torch.optim.SGD(model.parameters(), lr=1e-4), lambda i: (x, y),
        lambda model, batch: cross_entropy(model(batch[0]), batch[1]),
        steps=12, precision=torch.float16, log=tmp_path / "log",
        callbacks=[lambda r: trace.append((r["updated"], same(model, start)))],
    )  # fmt: skip
    updated = [r["updated"] for r in records]
    assert updated[0] is False and updated[-1] is True
    skipped = updated.index(True)
    assert trace[:skipped] == [(False, True)] * skipped and trace[skipped] == (
        True,
        False,
    )
    assert [r["step"] for r in records] == list(range(1, 13))
    assert read_log(tmp_path / "log")[0]["grad_norm"] is None  # strict JSON


def test_float16_clips_and_tells_the_unscaled_gradient():
    records, models = [], [tiny(dropout=0), tiny(dropout=0)]
    for model, precision in zip(models, (None, torch.float16), strict=True):
        sgd = torch.optim.SGD(model.parameters(), lr=1.0)
        records += train(model, sgd, steps=1, clip=0.3, precision=precision)
    full, half = records
    assert half["updated"] and full["grad_norm"] > 0.3
    assert abs(half["grad_norm"] / full["grad_norm"] - 1) < 0.01
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        close(a, b, 2e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", [None, torch.bfloat16, torch.float16])
def test_on_a_gpu_a_resumed_run_continues(tmp_path, precision):
    def batches(i):
        return tuple(x.cuda() for x in ragged(i))

    def run(folder, *stops):
        for steps in stops:
            model = tiny().cuda()
            optimiser = adamw(model, 0.01)
            train(
                model, optimiser, batches, steps=steps, every=3, accumulate=2,
                precision=precision, checkpoint=tmp_path / folder,
            )  # fmt: skip
        return model

    assert same(run("a", 7, 12), run("b", 12))


# ── Schedules and the optimiser ──────────────────────────────────────────────────────


def test_noam_is_the_papers_equation():
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert math.isclose(noam(512, 4000)(step), paper, rel_tol=1e-12)
        scaled = inverse_sqrt(4000)(step) / math.sqrt(512 * 4000)
        assert math.isclose(scaled, paper, rel_tol=1e-12)


def torchs(make, steps):
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make(optimiser)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def test_cosine_and_linear_are_torchs():
    """Torch counts from 0, and 20 updates after the peak are its T_max = 20."""
    schedulers = torch.optim.lr_scheduler
    cosines = torchs(lambda o: schedulers.CosineAnnealingLR(o, 20, eta_min=0.1), 21)
    lines = torchs(lambda o: schedulers.LinearLR(o, 1.0, 0.1, 20), 25)
    close(torch.tensor([cosine(5, 25, 0.1)(s) for s in range(5, 26)]), cosines, 1e-6)
    close(torch.tensor([linear(5, 25, 0.1)(s) for s in range(5, 30)]), lines, 1e-6)


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_warmup_rises_in_equal_parts_and_falls_no_lower_than_the_floor(warmup):
    for schedule in (constant(warmup), linear(warmup, 12), cosine(warmup, 12, 0.2)):
        rise = [schedule(s) for s in range(1, warmup + 1)]
        assert rise == [s / warmup for s in range(1, warmup + 1)]
    assert constant(warmup)(10**6) == 1
    assert linear(warmup, 12)(12) == linear(warmup, 12)(99) == 0
    assert cosine(warmup, 12, 0.2)(12) == cosine(warmup, 12, 0.2)(99) == 0.2


@pytest.mark.parametrize("make", [lambda: cosine(3, 10, 0.1), lambda: noam(16, 4)])
def test_fit_walks_a_schedule_as_lambda_lr_does(make):
    schedule, model = make(), tiny()
    groups = [
        {"params": model[0].parameters(), "lr": 0.5},
        {"params": model[3].parameters(), "lr": 0.1},
    ]
    optimiser = torch.optim.SGD(groups)
    second = []
    watch = [lambda record: second.append(optimiser.param_groups[1]["lr"])]
    records = train(model, optimiser, steps=9, schedule=schedule, callbacks=watch)
    expected = torchs(
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda s: schedule(s + 1)), 9
    )
    close(torch.tensor([r["lr"] for r in records]) / 0.5, expected, 1e-6)
    close(torch.tensor(second) / 0.1, expected, 1e-6)
    assert [g["lr"] for g in optimiser.param_groups] == [0.5, 0.1]  # given back


def test_adamw_decays_matrices_only_and_is_torchs():
    model = tiny(dropout=0)
    model[0].weight.requires_grad_(False)
    optimiser = adamw(model, lr=0.01, weight_decay=0.5)
    decayed, free = optimiser.param_groups
    assert [id(p) for p in decayed["params"]] == [id(model[3].weight)]
    assert decayed["weight_decay"] == 0.5 and free["weight_decay"] == 0
    assert {p.dim() for p in free["params"]} == {1} and len(free["params"]) == 3
    assert decayed["fused"]
    twin = copy.deepcopy(model)
    plain = torch.optim.AdamW(
        [
            {"params": [twin[3].weight], "weight_decay": 0.5},
            {"params": [*twin[2].parameters(), twin[3].bias], "weight_decay": 0.0},
        ],
        lr=0.01, fused=False,
    )  # fmt: skip
    for net, step in ((model, optimiser), (twin, plain)):
        for i in range(5):
            step.zero_grad()
            lm_loss(net, ragged(i)).mean.backward()
            step.step()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        close(a, b, 1e-6)


# ── The average of the weights ───────────────────────────────────────────────────────


def test_ema_is_its_formula_and_gives_the_weights_back():
    model = tiny()
    average, history = EMA(model, decay=0.6), []
    watch = [average, lambda r: history.append(model[3].weight.detach().clone())]
    train(model, steps=12, callbacks=watch)
    expected = tiny()[3].weight.detach()
    for step, weight in enumerate(history, start=1):
        decay = min(0.6, step / (step + 9))
        expected = decay * expected + (1 - decay) * weight
    before = copy.deepcopy(model)
    with average.applied():
        close(model[3].weight.detach(), expected, 1e-6)
    assert same(model, before)
    with pytest.raises(RuntimeError, match="inside"), average.applied():
        raise RuntimeError("inside")
    assert same(model, before)


def test_ema_of_bfloat16_weights_moves():
    model = nn.Linear(2, 2).bfloat16()
    nn.init.ones_(model.weight)
    average = EMA(model, decay=0.999)
    nn.init.constant_(model.weight, 2.0)
    for _ in range(100):
        average({"step": 10**6})
    assert abs(average.weights["weight"].mean().item() - (2 - 0.999**100)) < 1e-4


# ── The log ──────────────────────────────────────────────────────────────────────────

FIELDS = {
    "step", "loss", "lr", "grad_norm", "tokens", "updated", "cpu_seconds",
    "wall_seconds",
}  # fmt: skip


def test_log_is_complete_and_readable(tmp_path):
    path = tmp_path / "run" / "log.jsonl"
    records = train(tiny(), steps=7, log=path)
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == records == read_log(path)
    assert [r["step"] for r in records] == [1, 2, 3, 4, 5, 6, 7]
    assert all(r.keys() == FIELDS for r in records)
    assert records == sorted(records, key=lambda r: (r["cpu_seconds"], r["step"]))
    real = [ragged(i)[1] for i in range(7)]
    assert [r["tokens"] for r in records] == [int(k[:, 1:].sum()) for k in real]


def test_a_last_line_cut_short_is_left_out_and_another_is_named(tmp_path):
    path = tmp_path / "log"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [r["step"] for r in read_log(path)] == [1, 2]
    path.write_text('{"step": 1}\nshopping: milk\n')
    with pytest.raises(ValueError, match=r"line 2 .*milk"):
        read_log(path)


def test_somebodys_file_is_never_touched(tmp_path):
    notes = tmp_path / "notes"
    notes.write_text("shopping: milk\n")
    with pytest.raises(FileExistsError, match="notes exists"):
        train(tiny(), steps=2, log=notes, checkpoint=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ValueError, match="notes is no checkpoint"):
        train(tiny(), steps=2, checkpoint=notes)
    train(tiny(), steps=2, checkpoint=tmp_path / "b")
    with pytest.raises(FileExistsError, match="notes exists"):
        train(tiny(), steps=4, log=notes, checkpoint=tmp_path / "b")
    assert notes.read_text() == "shopping: milk\n"


def test_lines_stand_at_once_and_those_after_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "log"

    def stop(record):
        assert len(read_log(path)) == record["step"] - 1
        if record["step"] == 7 and not stopped:
            stopped.append(True)
            raise KeyboardInterrupt

    how = {"steps": 9, "every": 4, "log": path, "checkpoint": tmp_path / "c"}
    stopped = []
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), callbacks=[stop], **how)
    assert len(read_log(path)) == 6
    train(tiny(), callbacks=[stop], **how)
    assert [r["step"] for r in read_log(path)] == list(range(1, 10))


def test_the_log_is_strict_json(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        train(
            tiny(), steps=1, log=tmp_path / "log",
            callbacks=[lambda record: {"valid": math.nan}],
        )  # fmt: skip


# ── Checkpoints ──────────────────────────────────────────────────────────────────────


def test_stopped_and_resumed_is_uninterrupted(tmp_path):
    whole = tiny(1)
    its_average = EMA(whole, 0.9)
    torch.manual_seed(5)
    records = train(
        whole, steps=20, accumulate=2, schedule=cosine(3, 20), callbacks=[its_average]
    )
    for stops in ((7, 8, 13, 20), (20, 20)):
        folder = tmp_path / str(len(stops))
        for steps in stops:
            model = tiny(1)
            average = EMA(model, 0.9)
            torch.manual_seed(5 if steps == stops[0] else 99)
            train(
                model, steps=steps, every=4, accumulate=2, schedule=cosine(3, 20),
                checkpoint=folder / "c", log=folder / "log", callbacks=[average],
            )  # fmt: skip
        assert same(model, whole)
        for name, weight in average.weights.items():
            assert torch.equal(weight, its_average.weights[name]), name
        log = read_log(folder / "log")
        assert [(r["step"], r["loss"]) for r in log] == [
            (r["step"], r["loss"]) for r in records
        ]
        assert log == sorted(log, key=lambda r: r["wall_seconds"])


SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
sys.path.insert(0, sys.argv[1])
from test_training import EMA, adamw, cosine, ragged, tiny, train
from pathlib import Path

folder = Path(sys.argv[2])
model = tiny(seed=1)
average = EMA(model, 0.9)
train(
    model, steps=200, every=3, accumulate=2, schedule=cosine(10, 200),
    checkpoint=folder / "state.pt", log=folder / "log.jsonl", callbacks=[average],
)
"""


def launch(tmp_path, folder):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = os.path.dirname(__file__)
    command = [sys.executable, script, here, folder]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_killed_twice_it_ends_with_the_same_bits(tmp_path):
    """SIGKILL from outside, dropout and accumulation on; a new process goes on."""
    folder = tmp_path / "killed"
    for target in (20, 90):
        process = launch(tmp_path, folder)
        deadline = time.monotonic() + 120
        while lines(folder / "log.jsonl") < target:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.kill()
        process.communicate()
        assert process.returncode != 0 and lines(folder / "log.jsonl") < 200
        state = load_checkpoint(folder / "state.pt")  # whole, whenever it was killed
        assert target - 4 <= state["step"] < 200
    process = launch(tmp_path, folder)
    assert process.communicate()[1] == "" and process.returncode == 0

    model = tiny(seed=1)
    average = EMA(model, 0.9)
    records = train(
        model, steps=200, accumulate=2, schedule=cosine(10, 200), callbacks=[average]
    )
    state = load_checkpoint(folder / "state.pt")
    for name, weight in model.state_dict().items():
        assert torch.equal(state["model"][name], weight), name
    for name, weight in average.weights.items():
        assert torch.equal(state["others"][0]["weights"][name], weight), name
    told = [(r["step"], r["loss"], r["lr"]) for r in read_log(folder / "log.jsonl")]
    assert told == [(r["step"], r["loss"], r["lr"]) for r in records]


@pytest.mark.parametrize("where", ["half written", "before the rename"])
def test_a_crash_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch, where):
    path = tmp_path / "c"
    train(tiny(), steps=5, checkpoint=path)
    old = path.read_bytes()

    class Killed(BaseException):
        pass

    def half(state, file):
        file.write(old[: len(old) // 2])
        raise Killed

    def never(*names):
        raise Killed

    with monkeypatch.context() as patch:
        if where == "half written":
            patch.setattr(checkpoints.torch, "save", half)
        else:
            patch.setattr(checkpoints.os, "replace", never)
        # A kill runs no clean-up either.
        patch.setattr(checkpoints.Path, "unlink", lambda *a, **k: None)
        with pytest.raises(Killed):
            train(tiny(), steps=9, checkpoint=path)
    assert path.read_bytes() == old and load_checkpoint(path)["step"] == 5
    assert (tmp_path / ".c.partial").exists()
    resumed = tiny()
    train(resumed, steps=9, checkpoint=path)  # the remains are no hindrance
    whole = tiny()
    train(whole, steps=9)
    assert same(resumed, whole) and os.listdir(tmp_path) == ["c"]


def test_random_numbers_of_every_kind_go_on(tmp_path):
    drawn = []

    def noisy(model, batch):
        drawn.append((random.random(), np.random.randn(), torch.rand(1).item()))
        return lm_loss(model, batch)

    def run(*stops):
        drawn.clear()
        for steps in stops:
            seed_everything(7 if steps == stops[0] else 99)
            path = tmp_path / f"{stops}"
            train(tiny(), loss=noisy, steps=steps, every=3, checkpoint=path)
        return list(drawn)

    assert run(8) == run(5, 6, 8)
    assert len(set(drawn)) == 8


def test_data_with_a_state_is_kept(tmp_path):
    class Stream:
        """Batches that come one after the other, whatever number is asked for."""

        def __init__(self):
            self.next = 0

        def __call__(self, i):
            self.next += 1
            return ragged(self.next)

        def state_dict(self):
            return {"next": self.next}

        def load_state_dict(self, state):
            self.next = state["next"]

    whole, resumed = tiny(), tiny()
    train(whole, batches=Stream(), steps=9)
    train(tiny(), batches=Stream(), steps=4, checkpoint=tmp_path / "c")
    train(resumed, batches=Stream(), steps=9, checkpoint=tmp_path / "c")
    assert same(whole, resumed)


def test_a_checkpoint_changes_no_number(tmp_path):
    def impure(i):
        return torch.randint(0, V, (2, 5)), torch.ones(2, 5).bool()

    a = tiny()
    train(a, batches=impure, steps=3)
    b = tiny()
    train(b, batches=impure, steps=3, checkpoint=tmp_path / "c")
    assert same(a, b)


def other_loss(model, batch):
    return lm_loss(model, batch)


OTHER = {
    "clip": ({"clip": 0.5}, "clip: 1.0 then, 0.5 now"),
    "accumulate": ({"accumulate": 2}, "accumulate: 1 then, 2 now"),
    "precision": ({"precision": torch.bfloat16}, "None then, torch.bfloat16 now"),
    "no schedule": ({"schedule": None}, r"schedule\(1\): 0.5 then, absent now"),
    "schedule": ({"schedule": cosine(2, 21)}, r"schedule\(4\): "),
    "data": ({"batches": lambda i: ragged(i + 1)}, r"batches\(0\): "),
    "loss": ({"loss": other_loss}, "loss: lm_loss then, other_loss now"),
    "rate": ({"lr": 0.02}, "optimiser group 0 lr: 0.01 then, 0.02 now"),
    "average": ({"callbacks": [EMA(tiny())]}, "callbacks: +then, EMA now"),
    "fewer steps": ({"steps": 3}, "update 5, beyond steps 3"),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_recipe_is_refused_by_name(tmp_path, name):
    change, message = OTHER[name]
    how = {"steps": 8, "schedule": cosine(2, 20), "checkpoint": tmp_path / "c"}
    train(tiny(), **how | {"steps": 5})
    old = (tmp_path / "c").read_bytes()
    model = tiny(seed=9)
    change = dict(change)
    optimiser = adamw(model, change.pop("lr", 0.01))
    before = copy.deepcopy(model)
    with pytest.raises(ValueError, match=message):
        train(model, optimiser, **how | change)
    assert (tmp_path / "c").read_bytes() == old and same(model, before)


def scaled_loss(model, batch, scale):
    loss = lm_loss(model, batch)
    return Loss(loss.total * scale, loss.count)


def test_a_loss_with_other_arguments_is_refused(tmp_path):
    how = {"steps": 2, "checkpoint": tmp_path / "c"}
    train(tiny(), loss=partial(scaled_loss, scale=0.5), **how)
    said = r"loss: scaled_loss\(scale=0.5\) then, scaled_loss\(scale=2.0\) now"
    with pytest.raises(ValueError, match=said):
        train(tiny(), loss=partial(scaled_loss, scale=2.0), **how)


def test_another_model_is_refused_by_name(tmp_path):
    train(tiny(), steps=2, checkpoint=tmp_path / "c")
    wider = nn.Sequential(nn.Embedding(V, 13), nn.Linear(13, V))
    with pytest.raises(ValueError, match=r"weight 0.weight: \(8, 12\) .* \(8, 13\)"):
        train(wider, steps=2, checkpoint=tmp_path / "c")


def test_a_state_that_could_not_be_read_back_is_refused_at_the_start(tmp_path):
    class Odd:
        def __call__(self, record):
            raise AssertionError("no update may happen")

        def state_dict(self):
            return {"generator": np.random.default_rng()}

    with pytest.raises(ValueError, match="no checkpoint"):
        train(tiny(), steps=2, checkpoint=tmp_path / "c", callbacks=[Odd()])
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "opened"),)

    torch.save({"format": checkpoints.FORMAT, "x": Evil()}, tmp_path / "c")
    with pytest.raises(ValueError, match="no checkpoint"):
        load_checkpoint(tmp_path / "c")
    assert not (tmp_path / "opened").exists()
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "absent")


# ── When numbers go wrong ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_not_finite_stops_with_the_update_and_the_checkpoint(tmp_path, kind):
    def broken(model, batch):
        total, count = lm_loss(model, batch)
        if next(calls) == 6:
            total = total * math.nan if kind == "loss" else total + bad(model)
        return Loss(total, count)

    def bad(model):  # √x at 0: the value is 0, its slope is not finite
        return (model[3].weight.sum() * 0).sqrt()

    calls = iter(range(100))
    model = tiny()
    message = rf"{kind}.* nan at update 7.*weights are those of update 6; .*update 4"
    with pytest.raises(FloatingPointError, match=message):
        train(model, steps=9, loss=broken, checkpoint=tmp_path / "c", every=4)
    expected = tiny()
    train(expected, steps=6)
    assert same(model, expected)
    assert load_checkpoint(tmp_path / "c")["step"] == 4


# ── Progress ─────────────────────────────────────────────────────────────────────────


def test_few_lines_without_a_terminal_one_with(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    train(tiny(), steps=50, progress=True)
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 5 and "50/50" in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train(tiny(), steps=50, progress=True)
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.endswith("\n") and "50/50" in err
    train(tiny(), steps=2, progress=False)
    assert capsys.readouterr() == ("", "")


class Terminal(io.TextIOWrapper):
    """A terminal that remembers what it was sent."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("encoding", "term", "columns", "drawn"),
    [
        ("utf-8", "xterm", "60", True),
        ("utf-8", "xterm", "59", False),
        ("utf-8", "dumb", "80", False),
        ("ascii", "xterm", "80", False),
        ("cp1252", "xterm", "80", False),
    ],
)
def test_a_terminal_that_cannot_draw_gets_lines(
    encoding, term, columns, drawn, monkeypatch
):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", columns)
    terminal = Terminal(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stderr", terminal)
    train(tiny(), steps=50, progress=True)
    text = terminal.buffer.getvalue().decode(encoding)
    assert ("\r" in text) == ("█" in text) == ("\x1b" in text) == drawn
    assert text.count("\n") == (1 if drawn else 5) and "50/50" in text


# ── Refusals ─────────────────────────────────────────────────────────────────────────

REFUSED = {
    "no module": ({"model": 3}, TypeError, "int"),
    "no optimiser": ({"optimiser": "adam"}, TypeError, "str"),
    "a list of batches": ({"batches": [1, 2]}, TypeError, "batches .* list"),
    "loss a number": ({"loss": 1.0}, TypeError, "loss .* float"),
    "callback a dict": ({"callbacks": [{}]}, TypeError, r"callbacks\[0\] .* dict"),
    "a mean": ({"loss": lambda m, b: lm_loss(m, b).mean}, TypeError, "got Tensor"),
    "strangers": ({"optimiser": adamw(tiny(), 0.1)}, ValueError, "5 of .* 5"),
    "0 steps": ({"steps": 0}, ValueError, "steps must be ≥ 1, got 0"),
    "1.5 steps": ({"steps": 1.5}, TypeError, "1.5"),
    "True steps": ({"steps": True}, TypeError, "True"),
    "0 accumulated": ({"accumulate": 0}, ValueError, "accumulate .* 0"),
    "every 0": ({"every": 0}, ValueError, "every .* 0"),
    "clip 0": ({"clip": 0.0}, ValueError, "clip .* 0.0"),
    "clip NaN": ({"clip": math.nan}, ValueError, "clip .* nan"),
    "float64": ({"precision": torch.float64}, ValueError, "torch.float64"),
    "a word": ({"precision": "bf16"}, ValueError, "bf16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_work(name):
    change, error, message = REFUSED[name]
    model = change.get("model", tiny())
    how = {"steps": 2, "optimiser": change.get("optimiser", None)}
    if "model" in change:
        how["optimiser"] = adamw(tiny(), 0.1)
    with pytest.raises(error, match=message):
        train(**{"model": model} | how | change)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: constant(-1), ValueError, "≥ 0, got -1"),
        (lambda: inverse_sqrt(0), ValueError, "≥ 1, got 0"),
        (lambda: noam(0, 5), ValueError, "d_model must be ≥ 1, got 0"),
        (lambda: cosine(5, 5), ValueError, "total 5 must be above warmup 5"),
        (lambda: linear(0, 5, 2.0), ValueError, "got 2.0"),
        (lambda: constant(3)(0), ValueError, "step 0"),
        (lambda: inverse_sqrt(3)(0), ValueError, "step 0"),
        (lambda: EMA(tiny(), 1.0), ValueError, "got 1.0"),
        (lambda: EMA([], 0.5), TypeError, "list"),
        (lambda: adamw([], 0.1), TypeError, "list"),
        (lambda: adamw(nn.ReLU(), 0.1), ValueError, "no parameter"),
    ],
)
def test_parts_refuse_too(call, error, message):
    with pytest.raises(error, match=message):
        call()
