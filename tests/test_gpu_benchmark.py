# SPDX-License-Identifier: MIT
"""What can be known of the GPU's benchmark without one: it runs, and loses nothing."""

import importlib.util
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from compare import close

from deepdive.configs import LlamaConfig
from deepdive.models.llama import Llama

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch):
    """The script, with few and short rounds and time enough for all of them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("benchmark_gpu", FOLDER / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_gpu", module)  # dataclasses look there
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROUNDS", 2)
    monkeypatch.setattr(module, "LEAST", 0.0)
    monkeypatch.setattr(module, "QUICK", replace(module.QUICK, seconds=(900,) * 4))
    yield module
    sys.modules.pop("record", None)


def rows(content, part, **settings):
    """Those rows of a part that have these settings."""
    found = content["parts"][part]["rows"]
    return [row for row in found if settings.items() <= row.items()]


def measured(gpu):
    return gpu.measure(CPU, gpu.QUICK, lambda content: None)


def test_all_parts_run_on_a_processor(gpu, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--quick", "--out", str(out)])
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["command"] == "python benchmarks/gpu.py --device cpu --quick"
    assert content["machine"]["torch"] == torch.__version__
    assert list(content["parts"]) == ["machine", "attention", "decoding", "training"]
    assert not any("error" in part for part in content["parts"].values())
    for name in ("torch, flash", "fused", "tiled"):
        found = rows(content, "attention", kernel=name)
        assert [row["equal"] for row in found[:2]] == [True, True]
        ways = [(row["T"], row["batch"], row["what"]) for row in found[2:]]
        assert ways == [(T, 64 // T, way) for T in (16, 32)
                        for way in ("forward", "backward")]  # fmt: skip
    (why,) = {row["error"] for row in rows(content, "attention", kernel="triton")}
    assert "Triton needs a GPU" in why or "triton is not installed" in why
    ways = [row["way"] for row in rows(content, "decoding", batch=2)]
    assert ways == ["as built", "prepared", "transformers"]
    measured = [r for p in content["parts"] for r in rows(content, p) if "ms" in r]
    assert all(0 < r["lowest_ms"] <= r["ms"] <= r["highest_ms"] for r in measured)
    assert len(measured) == 3 + 3 * 4 + 2 * 3 + 2
    said = capsys.readouterr().out
    assert all(part in said for part in content["parts"])


def test_the_whole_takes_under_five_minutes(gpu):
    assert sum(gpu.Sizes().seconds) <= 270  # and some for importing


def test_a_kernel_with_other_numbers_is_not_timed(gpu, monkeypatch):
    def wrong(q, k, v):
        return 1.1 * gpu.fused(q, k, v, mask=gpu.Causal())

    def undefined(q, k, v):
        return wrong(q, k, v) * torch.nan

    kernels = {"wrong": wrong, "NaN": undefined}
    monkeypatch.setattr(gpu, "KERNELS", kernels)
    content = measured(gpu)
    for name in kernels:
        found = rows(content, "attention", kernel=name)
        assert [row["equal"] for row in found] == [False, False]


def test_a_model_with_other_logits_is_an_error(gpu, monkeypatch):
    def prepared(model):
        other = Llama(model.config).bfloat16().eval()
        return other.requires_grad_(False)

    monkeypatch.setattr(gpu, "for_inference", prepared)
    content = measured(gpu)
    for row in rows(content, "decoding", way="prepared"):
        assert "the logits differ by" in row["error"]
    assert len(rows(content, "decoding", way="prepared")) == 2
    assert all("ms" in row for row in rows(content, "decoding", way="as built"))


def test_an_error_loses_nothing_else(gpu, monkeypatch, tmp_path):
    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(gpu, "tiled", broken)
    monkeypatch.setitem(gpu.KERNELS, "fused", broken)
    monkeypatch.setattr(gpu, "decoding", broken)  # a whole part
    monkeypatch.setattr(gpu, "Gpt", broken)
    out = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--quick", "--out", str(out)])
    content = json.loads(out.read_text(encoding="utf-8"))
    assert "illegal memory" in content["parts"]["decoding"]["error"]
    assert all("illegal" in row["error"] for row in rows(content, "training"))
    assert all(
        "illegal" in row["error"] for row in rows(content, "attention", kernel="fused")
    )
    assert all("ms" in row for row in rows(content, "machine"))
    assert sum("ms" in row for row in rows(content, "attention")) == 2 * 4


def test_what_is_kept_after_each_part(gpu):
    kept = []
    gpu.measure(CPU, gpu.QUICK, lambda content: kept.append(len(content["parts"])))
    assert kept == [1, 2, 3, 4]


def test_what_no_time_is_left_for_is_listed(gpu):
    content = gpu.measure(CPU, replace(gpu.QUICK, seconds=(0,) * 4), lambda _: None)
    every = [row for part in content["parts"] for row in rows(content, part)]
    assert every and all("s were spent" in row["skipped"] for row in every)
    part = gpu.Part("one", 900, CPU)
    slow = iter([0.0, 2000.0])  # a call that takes longer than the part may

    part._seconds = lambda call, repeats: next(slow) + 1000
    found = part.row(partial(part.timed, int), what="slow")
    assert "one call takes 1e+03 s" in found["skipped"] and part.rows[0] is not found


def test_a_model_too_large_for_the_memory_is_skipped(gpu, monkeypatch):
    free = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    cuda, config = torch.device("cuda", 0), gpu.LLAMA_3_8B
    with pytest.raises(gpu.NoRoomError, match=r"31\.\d GiB, 1\.0 GiB are free"):
        gpu._need_room(config, replace(gpu.Sizes(), batches=(1,)), cuda)
    small = replace(gpu.Sizes(), batches=(1,))
    gpu._need_room(gpu.SMOLLM2_135M, small, cuda)
    free = 39 * 10**9  # its weights alone would find room
    gpu._need_room(config, replace(small, context=0), cuda)
    with pytest.raises(gpu.NoRoomError):
        gpu._need_room(config, gpu.Sizes(), cuda)


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_the_peer_is_the_same_model_step_by_step(gpu, tied):
    torch.manual_seed(0)
    config = LlamaConfig(31, 24, 2, 4, 2, 40, 64, rope_base=500.0, tied=tied)
    model = Llama(config).eval()
    for x in model.parameters():
        torch.nn.init.normal_(x, std=0.3)
    tokens = torch.randint(31, (2, 12))
    theirs = gpu.peer(model)
    assert theirs.model.norm.weight.data_ptr() == model.norm.weight.data_ptr()
    expected = model(tokens)[:, -1:]
    for step in (gpu.ours_step(model, tokens), gpu.peer_step(theirs, tokens)):
        for _ in range(3):  # always the same token, behind the same others
            close(step(), expected, 1e-4)


def test_weights_are_made_in_half_precision(gpu):
    torch.manual_seed(0)
    with gpu.made_in(torch.bfloat16, CPU):
        made = Llama(gpu.TINY_LLAMA).eval()
    assert {x.dtype for x in made.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    again = Llama(gpu.TINY_LLAMA).eval()
    again.load_state_dict(made.state_dict())
    tokens = torch.randint(97, (1, 60))
    close(made(tokens), again.bfloat16()(tokens), 0)  # angles too


def test_without_a_gpu_it_says_how_to_try(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="--device cpu --quick"):
        gpu.main([])


def test_rows_are_lines(gpu):
    found = [{"a": "@row 1"}, {"b": 2.5}]
    content = {"head": "–", "parts": {"x": {"seconds": 1, "rows": found}}}
    text = gpu.as_text(content)
    assert json.loads(text) == content and '   {"b": 2.5}\n' in text
