# SPDX-License-Identifier: MIT
"""Prepared copies compute what the model computes: joined exactly, 8-bit nearly."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepdive.attention import MultiHeadAttention, record
from deepdive.blocks import Block, post_norm
from deepdive.configs import (
    DeepSeekV2Config,
    GptConfig,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    TransformerConfig,
)
from deepdive.decoding import CachedStep
from deepdive.feedforward import FeedForward
from deepdive.inference import (
    Float32Linear,
    Int8Linear,
    JoinedAttention,
    JoinedFeedForward,
    LargePages,
    LeanBlock,
    LeanRMSNorm,
    LeanRotary,
    as_it_is,
    bands,
    fastest,
    for_inference,
    joined,
    rounded_up,
)
from deepdive.inference.experts import PackedExperts
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, half_split, interleaved
from tests.compare import close

V = 31
DEEP = DeepSeekV2Config(
    vocab_size=V, d_model=16, n_layers=2, n_heads=2, q_lora_rank=8, kv_lora_rank=8,
    qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, d_ff=24, n_dense_layers=1,
    d_expert=8, n_experts=4, n_shared_experts=1, top_k=2, n_groups=1, top_groups=1,
    max_seq_len=32,
)  # fmt: skip
DECODERS = {
    "gpt": lambda: Gpt(GptConfig(V, 16, 2, 2, 24, max_seq_len=32, dropout=0.1)),
    "llama": lambda: Llama(LlamaConfig(V, 16, 2, 4, 2, 24, max_seq_len=32)),
    "one head": lambda: Llama(LlamaConfig(V, 16, 2, 4, 1, 24, 32, head_dim=6)),
    "tied": lambda: Llama(LlamaConfig(V, 16, 2, 4, 4, 24, 32, tied=True, window=5)),
    "interleaved": lambda: Llama(LlamaConfig(V, 16, 2, 4, 2, 24, 32), interleaved),
    "mixtral": lambda: Mixtral(
        MixtralConfig(V, 16, 2, 4, 2, d_expert=8, n_experts=4, max_seq_len=32)
    ),
    "deepseek": lambda: DeepSeek(DEEP),
}


def built(name, seed=0):
    """A model in eval mode whose weights are not all alike."""
    torch.manual_seed(seed)
    model = DECODERS[name]().eval()
    for x in model.parameters():
        nn.init.normal_(x, std=0.3)
    return model


def chunks(model, ids):
    """The same logits, read in three parts with caches."""
    caches = model.new_caches()
    return torch.cat([model(part, caches) for part in ids.split([4, 1, 2], 1)], 1)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("seed", [0, 1])
@torch.no_grad()
def test_joined_is_the_same_function(name, seed):
    model = built(name, seed).double()
    fast = for_inference(model)
    ids = torch.randint(V, (3, 7))
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[0, :3] = False  # padded on the left
    close(fast(ids), model(ids), 1e-9)
    close(fast(ids, keep=keep)[keep], model(ids, keep=keep)[keep], 1e-9)
    close(fast.logits(fast.hidden(ids)), model(ids), 1e-9)
    close(chunks(fast, ids), model(ids), 1e-9)
    single = built(name, seed)
    close(for_inference(single)(ids), single(ids), 1e-5)


@torch.no_grad()
def test_encoder_decoders_too():
    torch.manual_seed(0)
    src, tgt = torch.randint(V, (2, 6)), torch.randint(V, (2, 5))
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
    t5 = T5Config(V, **sizes, head_dim=8, gated=True, tied=False)
    for model in (Transformer(TransformerConfig(V, V, **sizes)), T5(t5)):
        model = model.double().eval()
        fast = for_inference(model)
        close(fast(src, tgt), model(src, tgt), 1e-9)
        step = CachedStep(fast.decode, fast.new_caches(), memory=fast.encode(src))
        parts = [step(part) for part in tgt.split([2, 3], 1)]
        close(torch.cat(parts, 1), model(src, tgt), 1e-9)


@pytest.fixture
def all_laid_out(monkeypatch):
    """Small matrices are laid out as well."""
    for module in ("float32", "prepare"):
        monkeypatch.setattr(f"deepdive.inference.{module}.LEAST", 1)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("B", [1, 2, 8, 9])
@torch.no_grad()
def test_laid_out_models_compute_the_same(name, B, all_laid_out):
    """One row, some, many; a text at once, in parts, padded."""
    model = built(name)
    fast = for_inference(model)
    assert any(type(part) is Float32Linear for part in fast.modules())
    assert all(part.bias is None for part in fast.modules() if type(part) is nn.Linear)
    ids = torch.randint(V, (B, 7), generator=torch.Generator().manual_seed(B))
    expected = model(ids)
    tolerance = 1e-5 * expected.abs().max().item()
    close(fast(ids), expected, tolerance)
    close(chunks(fast, ids), expected, tolerance)
    keep = torch.ones(B, 7, dtype=torch.bool)
    keep[0, :3] = False
    close(fast(ids, keep=keep)[keep], model(ids, keep=keep)[keep], tolerance)
    caches, room = fast.new_caches(), fast.new_caches(7)
    for new in ids.split(1, 1):  # one word after another, in caches of both kinds
        one, two = fast(new, caches), fast(new, room)
        close(one, two, tolerance)
    close(one, expected[:, -1:], tolerance)


@torch.no_grad()
def test_laid_out_encoder_decoders_compute_the_same(all_laid_out):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
    t5 = T5Config(V, **sizes, head_dim=8, gated=True, tied=False)
    for model in (Transformer(TransformerConfig(V, V, **sizes)), T5(t5)):
        fast = for_inference(model.eval())
        for B in (1, 3):
            src, tgt = torch.randint(V, (B, 6)), torch.randint(V, (B, 4))
            close(fast(src, tgt), model(src, tgt), 1e-5)
            step = CachedStep(fast.decode, fast.new_caches(), memory=fast.encode(src))
            parts = [step(part) for part in tgt.split([1, 2, 1], 1)]
            close(torch.cat(parts, 1), model(src, tgt), 1e-5)


@settings(max_examples=60, deadline=None)
@given(
    out=st.integers(1, 70), width=st.integers(1, 50),
    shape=st.sampled_from([(), (1,), (1, 1), (2,), (3, 1), (2, 4), (17,), (2, 0)]),
    bias=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
@torch.no_grad()
def test_float32_linear_is_linear(out, width, shape, bias, seed):
    torch.manual_seed(seed)
    linear = nn.Linear(width, out, bias=bias)
    layer = Float32Linear(linear)
    x = torch.randn(*shape, width)
    expected = copy.deepcopy(linear).double()(x.double())
    for made in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        close(made(x).double(), expected, 1e-5)
    for dtype in (torch.bfloat16, torch.float64):
        assert layer(x.to(dtype)).dtype == dtype
    if x.dim() == 3:  # laid out otherwise in memory
        close(layer(x.mT.contiguous().mT).double(), expected, 1e-5)
    whole = layer.bands.transpose(1, 2).flatten(0, 1)
    assert whole[:out].equal(linear.weight) and not whole[out:].any()
    assert len(whole) % 16 == 0 and not layer.state_dict()


def test_which_matrices_are_laid_out(monkeypatch):
    large, small = nn.Linear(256, 256), nn.Linear(255, 256)
    assert type(fastest(large)) is Float32Linear
    assert fastest(small) is small
    wide = nn.Linear(256, 256).double()
    assert fastest(wide) is wide
    meta = nn.Linear(256, 256, device="meta")
    assert fastest(meta) is meta
    monkeypatch.setattr("deepdive.inference.float32.can_pack", lambda: False)
    assert fastest(large) is large
    with pytest.raises(RuntimeError, match="oneDNN"):
        Float32Linear(large)


@torch.no_grad()
def test_large_experts_are_packed_too(all_laid_out):
    kinds = [type(m) for m in for_inference(built("mixtral")).modules()]
    assert kinds.count(PackedExperts) == 2
    kinds = [type(m) for m in for_inference(built("mixtral"), as_it_is).modules()]
    assert kinds.count(PackedExperts) == 0


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 70), min_size=1, max_size=9))
def test_large_pages_hold_what_is_copied(sizes):
    dtypes = torch.float32, torch.int8, torch.float64
    xs = [torch.arange(n).to(dtypes[i % 3]) for i, n in enumerate(sizes)]
    room = LargePages(1 + sum(rounded_up(x.nbytes) for x in xs))
    made = [room.copy(x) for x in xs]
    del room
    for x, y in zip(xs, made, strict=True):
        assert y.equal(x) and y.dtype == x.dtype and y.data_ptr() % 64 == 0
        assert y.untyped_storage().nbytes() == x.nbytes  # a copy is as small
        assert copy.deepcopy(y).equal(x)
        y.zero_()  # is written to nobody else's place
    assert not any(y.any() for y in made)


@torch.no_grad()
def test_bands_lie_one_behind_the_other(all_laid_out):
    model = for_inference(built("llama"))
    parts = [part for part in model.modules() if type(part) is Float32Linear]
    places = [part.bands.data_ptr() for part in parts]
    assert len(parts) == 9 and places == sorted(places)
    room = sum(rounded_up(part.bands.nbytes) for part in parts[:-1])
    assert places[-1] - places[0] == room and places[0] % 2**21 == 0
    ids = torch.randint(V, (1, 1))
    close(copy.deepcopy(model)(ids), model(ids), 0)
    close(pickle.loads(pickle.dumps(model))(ids), model(ids), 0)


def test_there_is_no_gradient_and_no_complaint():
    x = torch.randn(2, 8, requires_grad=True)
    for rows in (x, x[:1]):
        assert not Float32Linear(nn.Linear(8, 4))(rows).requires_grad


@pytest.mark.parametrize("pairing", [half_split, interleaved])
@torch.no_grad()
def test_the_lean_turn_is_the_turn(pairing):
    rotary = Rotary(6, pairing=pairing)
    lean = LeanRotary(rotary)
    for positions in (torch.arange(3, 8), torch.arange(10).view(2, 5)):
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(2, 3, 5, 6, dtype=dtype)
            close(lean(positions)(x), rotary(positions)(x), 1e-6)
    with pytest.raises(ValueError, match="5 positions"):
        lean(torch.arange(5))(torch.zeros(1, 1, 4, 6))
    with pytest.raises(ValueError, match="lean"):
        LeanRotary(Rotary(6, pairing=lambda x: x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@torch.no_grad()
def test_the_lean_norm_is_the_norm(dtype):
    norm = RMSNorm(6, eps=0.01).to(dtype)
    norm.weight.normal_()
    x = torch.randn(2, 3, 6, dtype=dtype)
    close(LeanRMSNorm(norm)(x), norm(x), 1e-6)
    close(LeanRMSNorm(norm)(x.float()), norm(x.float()), 1e-6)


def test_the_model_itself_is_left_as_it_was():
    model = built("tied").train()
    before = copy.deepcopy(model.state_dict())
    fast = for_inference(model)
    assert model.training and not fast.training
    assert str(model) == str(built("tied")) and fast.blocks is not model.blocks
    for name, x in model.state_dict().items():
        close(x, before[name], 0)
    assert all(x.requires_grad for x in model.parameters())
    assert fast.token.weight is model.token.weight  # shared, so memory is not doubled
    assert fast.output.weight is fast.token.weight


def test_what_is_joined_and_what_is_not():
    kinds = {name: for_inference(built(name), Int8Linear) for name in DECODERS}
    found = {n: [type(m) for m in model.modules()] for n, model in kinds.items()}
    assert found["llama"].count(JoinedAttention) == 2
    assert found["llama"].count(JoinedFeedForward) == 2
    assert found["llama"].count(Int8Linear) == 2 * 4 + 1
    assert found["llama"].count(nn.Linear) == 0
    assert found["gpt"].count(Int8Linear) == 2 * 4 + 1
    deep = kinds["deepseek"].blocks[0].attention
    assert type(deep.k_up) is type(deep.v_up) is nn.Linear  # absorbed
    assert type(deep.o_proj) is Int8Linear


@torch.no_grad()
def test_record_sees_the_same_weights():
    model, ids = built("llama"), torch.randint(V, (1, 6))
    with record(model) as expected:
        model(ids)
    fast = for_inference(model)
    with record(fast) as seen:
        fast(ids)
    assert seen.keys() == expected.keys()
    for name, weights in expected.items():
        close(seen[name], weights, 1e-5)


@torch.no_grad()
def test_int8_models_are_close():
    for name in DECODERS:
        model, ids = built(name), torch.randint(V, (2, 7))
        expected = model(ids)
        if name in ("mixtral", "deepseek"):  # a choice of expert may tip
            assert for_inference(model, Int8Linear)(ids).isfinite().all()
            continue
        fast = for_inference(model, Int8Linear)
        close(fast(ids), expected, 0.05 * expected.abs().max().item())
        close(chunks(fast, ids), fast(ids), 1e-3 * expected.abs().max().item())


def after():
    """A post-norm block."""
    parts = MultiHeadAttention(8, 2), FeedForward(8, 9, nn.ReLU()), RMSNorm(8)
    return Block(*parts, RMSNorm(8), post_norm)


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: for_inference("gpt"), TypeError, "str"),
        (lambda: joined(nn.Linear(2, 3), nn.Linear(3, 3)), ValueError, "in_features=3"),
        (
            lambda: joined(nn.Linear(2, 3), nn.Linear(2, 3, bias=False)),
            ValueError,
            "bias=False",
        ),
        (lambda: JoinedAttention(nn.Linear(2, 2)), TypeError, "Linear"),
        (lambda: JoinedFeedForward(nn.Linear(2, 2)), TypeError, "Linear"),
        (lambda: Float32Linear(nn.Identity()), TypeError, "Identity"),
        (lambda: Float32Linear(nn.Linear(2, 2).half()), ValueError, "float16"),
        (lambda: Float32Linear(nn.Linear(2, 2))(torch.ones(3)), ValueError, "3"),
        (lambda: LeanBlock(nn.Identity()), TypeError, "Identity"),
        (lambda: LeanBlock(after()), ValueError, "pre-norm"),
        (lambda: LeanRMSNorm(nn.LayerNorm(2)), TypeError, "LayerNorm"),
        (lambda: LeanRMSNorm(RMSNorm(2))(torch.ones(3)), ValueError, "3"),
        (lambda: LeanRotary(nn.Identity()), TypeError, "Identity"),
        (lambda: LargePages(0), ValueError, "0"),
        (lambda: LargePages(64).copy(torch.ones(17)), ValueError, "68"),
        (lambda: LargePages(64).copy(torch.ones(1, device="meta")), ValueError, "meta"),
        (lambda: bands(torch.ones(2)), ValueError, r"\(2,\)"),
    ],
)
def test_wrong_input_is_refused(call, error, part):
    with pytest.raises(error, match=part):
        call()


@pytest.mark.parametrize(
    "module",
    [
        lambda: Int8Linear(nn.Linear(8, 4)),
        lambda: for_inference(built("llama")).blocks[0],
        lambda: for_inference(built("llama")).blocks[0].attention,
        lambda: for_inference(built("llama")).blocks[0].feedforward,
    ],
)
def test_input_of_another_width_is_refused(module):
    with pytest.raises(ValueError, match=r"\(1, 2, 7\)"):
        module()(torch.zeros(1, 2, 7))
