# SPDX-License-Identifier: MIT
"""A folder's tensors arrive under our names, whole, in one copy, or not at all."""

import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from deepdive.configs import LinearScaling, Llama3Scaling, YarnScaling
from deepdive.pretrained.huggingface import (
    check_supported,
    load_into,
    piece,
    read_config,
    read_tensors,
    renamed,
    rope,
    transposed,
    unfilled,
)


class Experts(nn.Module):
    """Three stacked matrices, and a table of integers."""

    def __init__(self, n_experts=3, d_model=4, d_ff=6):
        super().__init__()
        self.up = nn.Parameter(torch.randn(n_experts, d_ff, d_model))
        self.register_buffer("load", torch.zeros(n_experts, dtype=torch.long))


class Toy(nn.Module):
    """Everything a checkpoint can make difficult, in a few numbers."""

    def __init__(self, tied=True):
        super().__init__()
        self.token = nn.Embedding(7, 4)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(4, 4) for _ in range(3))
        self.experts = Experts()
        self.head = nn.Linear(4, 7, bias=False)
        if tied:
            self.head.weight = self.token.weight


NAMES = {
    "wte": "token",
    "lm_head": "head",
    "c_attn": [
        (f"{name}_proj", piece(i, 3, after=transposed)) for i, name in enumerate("qkv")
    ],
    "experts.{}.up.weight": "experts.up[{}]",
    "experts.load": "experts.load",
    "experts.{}.mask": None,
}


def a_file(seed=0, tied=True):
    """What a checkpoint of `Toy` holds, with random numbers."""
    g = torch.Generator().manual_seed(seed)
    tensors = {
        f"experts.{e}.up.weight": torch.randn(6, 4, generator=g) for e in (2, 0, 1)
    }
    tensors |= {
        "model.wte.weight": torch.randn(7, 4, generator=g),
        "model.c_attn.weight": torch.randn(4, 12, generator=g),
        "model.c_attn.bias": torch.randn(12, generator=g),
        "experts.load": torch.tensor([5, 6, 7]),
        "experts.1.mask": torch.ones(3),
    }
    if not tied:
        tensors["lm_head.weight"] = torch.randn(7, 4, generator=g)
    return tensors


def load(tensors, tied=True, dtype=torch.float64):
    return load_into(
        unfilled(lambda: Toy(tied)), renamed(tensors, NAMES, "model."), "toy", dtype
    )


# ---------------------------------------------------------------------- the good case


@pytest.mark.parametrize("seed", range(3))
def test_every_number_arrives_where_it_belongs(seed):
    file = a_file(seed, tied=False)
    model = load(file, tied=False)
    x = torch.randn(5, 4, dtype=torch.float64)
    together = x @ file["model.c_attn.weight"].double() + file["model.c_attn.bias"]
    ours = torch.cat([model.q_proj(x), model.k_proj(x), model.v_proj(x)], -1)
    assert torch.allclose(ours, together, rtol=0, atol=1e-12)
    for e in range(3):
        assert torch.equal(model.experts.up[e], file[f"experts.{e}.up.weight"].double())
    assert model.experts.load.tolist() == [5, 6, 7]
    assert torch.equal(model.head.weight, file["lm_head.weight"].double())
    assert not model.training
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())
    assert all(p.is_contiguous() for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_dtype_asked_for_is_the_dtype_of_every_weight(dtype):
    model = load(a_file(), dtype=dtype)
    assert {p.dtype for p in model.parameters()} == {dtype}
    assert model.experts.load.dtype == torch.long
    with pytest.raises(ValueError, match=r"floating-point type, got torch\.int8"):
        load(a_file(), dtype=torch.int8)


def test_building_unfilled_draws_no_random_numbers():
    before = torch.get_rng_state()
    model = unfilled(lambda: nn.TransformerEncoderLayer(8, 2))
    start = nn.init.trunc_normal_  # draws until all lie inside its bounds
    unfilled(lambda: start(torch.empty(30, 30), std=0.02, a=-0.04, b=0.04))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.is_meta for p in model.parameters())
    assert not nn.Linear(3, 3).weight.is_meta


def test_a_table_that_no_file_holds_is_not_left_empty():
    def build():
        model = Toy()
        table = torch.arange(5.0)
        model.experts.register_buffer("table", table, persistent=False)
        return model

    given_ = renamed(a_file(), NAMES, "model.")
    with pytest.raises(ValueError, match=r"experts\.table is computed, not loaded"):
        load_into(unfilled(build), given_, "toy")
    model = load_into(build(), renamed(a_file(), NAMES, "model."), "toy")
    assert model.experts.table.tolist() == [0, 1, 2, 3, 4]


def test_a_loaded_model_does_not_change_with_its_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.ones(1000, 4), "bias": torch.ones(1000)}, path)
    tensors = read_tensors(tmp_path)
    given_ = renamed(tensors, {"weight": "weight", "bias": "bias"})
    model = load_into(nn.Linear(4, 1000), given_, path)
    with path.open("r+b") as file:
        file.seek(-8000, os.SEEK_END)
        file.write(bytes(8000))
    assert tensors["weight"].min() == 0  # a view of the file, as its reader says
    assert model.weight.min() == 1 and model.bias.min() == 1
    assert given_.tensors == {}


PEAK = r"""
import re, sys, torch
from torch import nn
from deepdive.pretrained.huggingface import load_into, read_tensors, renamed, unfilled

def peak():
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) / 1024

before = peak()
given = renamed(read_tensors(sys.argv[1]), {"{}": "{}"})
build = lambda: nn.Sequential(*(nn.Linear(2048, 1024, bias=False) for _ in range(16)))
model = load_into(unfilled(build), given, "x", torch.bfloat16)
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_needed_once_not_twice(tmp_path):
    """128 MiB of float32 on disk, 64 in bfloat16; a random start would add 128."""
    weights = {f"{i}.weight": torch.zeros(1024, 2048) for i in range(16)}
    save_file(weights, tmp_path / "model.safetensors")
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    grown = float(subprocess.check_output(command, text=True))
    # 64 MiB of weights, the file's own pages (128 MiB) once, and a margin.
    assert 64 <= grown < 64 + 128 + 40, grown


# --------------------------------------------------------------------------- renaming


@settings(deadline=None, max_examples=50)
@given(
    st.permutations(range(12)), st.integers(1, 3), st.integers(1, 4), st.integers(0, 99)
)
def test_stacks_do_not_depend_on_the_order_of_the_file(order, rows, columns, seed):
    torch.manual_seed(seed)
    parts = [torch.randn(rows, columns) for _ in order]
    file = {f"l.3.experts.{e}.w1.weight": parts[e] for e in order}
    got = renamed(file, {"l.{}.experts.{}.w1.weight": "blocks.{}.gate[{}]"})
    assert list(got.tensors) == ["blocks.3.gate"]
    assert torch.equal(got.tensors["blocks.3.gate"], torch.stack(parts))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_pieces_laid_together_are_the_whole(of, size, width):
    whole = torch.randn(of * size, width)
    assert torch.equal(torch.cat([piece(i, of)(whole) for i in range(of)]), whole)
    assert torch.equal(transposed(transposed(whole)), whole)


def test_the_first_rule_decides_and_exact_numbers_are_possible():
    rules = {"b.{}.layer.0.norm": "blocks.{}.first", "b.{}.layer.{}.norm": None}
    file = {f"b.7.layer.{i}.norm.weight": torch.full((1,), float(i)) for i in (0, 1)}
    got = renamed(file | {"b.7.layer.0.normal.weight": torch.ones(1)}, rules)
    assert {n: t.item() for n, t in got.tensors.items()} == {"blocks.7.first.weight": 0}
    assert got.unknown == ["b.7.layer.0.normal.weight"]
    assert renamed(file, {}, ignoring=("b.7.",)).unknown == []
    assert renamed({"a1b": torch.ones(1)}, {"a.b": "c"}).unknown == ["a1b"]


# ------------------------------------------------------------------------------- ties


def test_a_tied_weight_may_come_once_or_twice_and_stays_tied():
    once = load(a_file())
    file = a_file()
    file["lm_head.weight"] = file["model.wte.weight"].clone()
    twice = load(file)
    del file["model.wte.weight"]
    other = load(file)
    for model in (once, twice, other):
        assert model.head.weight is model.token.weight
        assert torch.equal(model.token.weight, once.token.weight)
    file = a_file(tied=False)
    with pytest.raises(ValueError, match=r"head\.weight and token\.weight differ"):
        load(file)
    assert load(file, tied=False).head.weight is not load(file, False).token.weight


def test_two_names_for_one_part_must_agree():
    file = {"a.w": torch.ones(2), "b.w": torch.ones(2)}
    rules = {"a.w": "weight", "b.w": "weight"}
    assert renamed(file, rules).faults == []
    file["b.w"] = torch.zeros(2)
    assert renamed(file, rules).faults == ["a.w and b.w differ, but both are weight"]
    file["b.w"] = torch.ones(3, dtype=torch.float64)
    assert renamed(file, rules).faults


# ------------------------------------------------------------------------ what is off


def test_one_error_lists_all_and_leaves_the_model_as_it_was():
    file = a_file()
    file["model.c_attn.weight"] = torch.ones(4, 13)
    file["model.c_attn.bias"] = torch.ones(15)
    file["experts.load"] = torch.ones(3)
    file["surplus"] = file["wte.bias"] = torch.ones(1)
    del file["experts.1.up.weight"], file["model.wte.weight"]
    model = Toy()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError) as error:
        load_into(model, renamed(file, NAMES, "model."), "some/folder")
    message = str(error.value)
    for part in (
        "some/folder does not fit Toy:",
        "model.c_attn.weight is (4, 13): cannot be cut into 3 equal parts",
        "experts.up lacks parts; it has only 0, 2",
        "unknown (2): surplus, wte.bias",
        "missing (5): experts.up, k_proj.weight, q_proj.weight, token.weight, v_proj",
        "wrong shape (3): q_proj.bias is (5,), expected (4,), k_proj.bias",
        "wrong type (1): experts.load is torch.float32, expected torch.int64",
    ):
        assert part in message, message
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_integers_are_no_weights_and_experts_have_one_shape():
    file = a_file()
    file["model.wte.weight"] = torch.ones(7, 4, dtype=torch.int8)
    file["experts.1.up.weight"] = torch.ones(6, 5)
    with pytest.raises(ValueError) as error:
        load(file)
    assert "token.weight is torch.int8, expected torch.float32" in str(error.value)
    assert "parts of experts.up have shapes [(6, 4), (6, 5)]" in str(error.value)


def test_a_config_is_refused_with_all_its_reasons(tmp_path):
    supported = {"hidden_act": ("silu",), "bias": (False, None)}
    check_supported(tmp_path, {"hidden_act": "silu", "width": 3}, supported, ["width"])
    wrong = {"hidden_act": "relu", "bias": True, "quantization_config": {"bits": 4}}
    with pytest.raises(ValueError) as error:
        check_supported(tmp_path, wrong, supported, ["width"])
    for part in ("hidden_act = 'relu' (supported: 'silu')", "bias = True",
                 "quantization_config = {'bits': 4}", "width is missing"):  # fmt: skip
        assert part in str(error.value)


def test_files_that_are_absent_or_damaged_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_config(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"'model\.safetensors'"):
        read_tensors(tmp_path)
    for text in ("{", "[1]", "\x00"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config\.json (is damaged|must hold)"):
            read_config(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for text in ('{"weight_map": {}}', "{}", '{"weight_map": [1]}'):
        index.write_text(text)
        with pytest.raises(ValueError, match="no weight_map"):
            read_tensors(tmp_path)
    for name in ("a", "b"):
        save_file({"w": torch.ones(1), name: torch.ones(1)}, tmp_path / name)
    index.write_text(json.dumps({"weight_map": {"w": "a", "b": "b"}}))
    with pytest.raises(ValueError, match="holds twice: w"):
        read_tensors(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    save_file({"w": torch.ones(1)}, outside)
    index.write_text(json.dumps({"weight_map": {"w": f"../{outside.name}"}}))
    with pytest.raises(FileNotFoundError, match=r"\.\./.*-outside"):
        read_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"w": "a"}}))
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(ValueError, match="a is damaged"):
        read_tensors(tmp_path)


# ------------------------------------------------------------------- rotary positions

YARN = {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
        "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}  # fmt: skip
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("default", {}, None),
        ("linear", {"factor": 2.0}, LinearScaling(2.0)),
        ("yarn", YARN, YarnScaling(40, 4096, mscale=0.707, mscale_all_dim=0.707)),
        ("llama3", LLAMA3, Llama3Scaling()),
    ],
)
def test_rotary_settings_old_and_new(kind, values, expected):
    new = {"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **values}}
    old = {"rope_theta": 5e5, "rope_scaling": {"type": kind, **values}}
    assert rope("x", new) == rope("x", old) == (5e5, expected)
    assert rope("x", {"rope_scaling": None}, base=7) == (7.0, None)
    assert rope("x", {}) == (10_000.0, None)


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"type": "dynamic", "factor": 2.0}, "'dynamic'"),
        ({"rope_type": "yarn", "factor": 2.0}, "original_max_seq_len"),
        ({"rope_type": "linear", "factor": 2.0, "short": 1}, "short = 1"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "0.5"),
        ({"rope_type": "yarn", **YARN, "truncate": False}, "truncate = False"),
        ({"rope_type": "yarn", **YARN, "attention_factor": 1.2}, "attention_factor"),
        ({"rope_type": "linear", "factor": -1.0}, "factor"),
    ],
)
def test_rotary_settings_that_are_not_computed_are_refused(scaling, named):
    with pytest.raises(ValueError, match=r"rotary|factor") as error:
        rope("x", {"rope_scaling": scaling})
    assert named in str(error.value)


# --------------------------------------------------- folders that transformers wrote


@pytest.fixture(scope="module")
def transformers():
    os.environ["HF_HUB_OFFLINE"] = "1"
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    return library


def test_gpt2s_fused_and_transposed_matrices_compute_the_same(transformers, tmp_path):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=11, n_embd=8, n_head=2, n_layer=2, n_positions=6,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(config)
    theirs.save_pretrained(tmp_path)
    rules = {
        "h.{}.attn.c_attn": [
            (f"{{}}.{n}", piece(i, 3, after=transposed)) for i, n in enumerate("qkv")
        ],
        "h.{}.mlp.c_fc": [("{}.up", transposed)],
    }
    got = renamed(read_tensors(tmp_path), rules, "transformer.").tensors
    x = torch.randn(3, 8)
    for i, block in enumerate(theirs.transformer.h):
        expected = block.attn.c_attn(x).split(8, dim=-1)
        for name, values in zip("qkv", expected, strict=True):
            ours = nn.functional.linear(
                x, got[f"{i}.{name}.weight"], got[f"{i}.{name}.bias"]
            )
            assert torch.allclose(ours, values, rtol=0, atol=1e-6)
        up = nn.functional.linear(x, got[f"{i}.up.weight"], got[f"{i}.up.bias"])
        assert torch.allclose(up, block.mlp.c_fc(x), rtol=0, atol=1e-6)


def test_mixtrals_experts_stand_in_their_order(transformers, tmp_path):
    config = transformers.MixtralConfig(
        vocab_size=11, hidden_size=8, intermediate_size=6, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, num_local_experts=12,
    )  # fmt: skip
    theirs = transformers.MixtralForCausalLM(config)
    theirs.save_pretrained(tmp_path, max_shard_size="5kB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    expert = "model.layers.{}.block_sparse_moe.experts.{}."
    rules = {
        expert + "w1.weight": "blocks.{}.gate[{}]",
        expert + "w3.weight": "blocks.{}.up[{}]",
    }
    got = renamed(read_tensors(tmp_path), rules)
    assert got.faults == []
    for i, layer in enumerate(theirs.model.layers):
        both = torch.cat([got.tensors[f"blocks.{i}.{n}"] for n in ("gate", "up")], 1)
        assert torch.equal(both, layer.mlp.experts.gate_up_proj)  # (E, 2 d_ff, d_model)
