# SPDX-License-Identifier: MIT
"""Prepared copies compute what the model computes: joined exactly, 8-bit nearly."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepdive.attention import record
from deepdive.configs import (
    DeepSeekV2Config,
    GptConfig,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    TransformerConfig,
)
from deepdive.decoding import CachedStep, greedy
from deepdive.inference import (
    Int8Linear,
    JoinedAttention,
    JoinedFeedForward,
    for_inference,
    joined,
)
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
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


@settings(max_examples=60, deadline=None)
@given(
    out=st.integers(1, 40), width=st.integers(2, 70), rows=st.integers(1, 9),
    big=st.sampled_from([1e-6, 1.0, 1e4]), seed=st.integers(0, 99),
)  # fmt: skip
@torch.no_grad()
def test_int8_is_within_its_rounding(out, width, rows, big, seed):
    """|y − Wx| ≤ ½·sᵢ·Σⱼ|cⱼxⱼ|  +  t/508·sᵢ·(Σⱼ|Qᵢⱼ| + ½ per number), each entry."""
    torch.manual_seed(seed)
    linear = nn.Linear(width, out, bias=bool(seed % 2)).double()
    linear.weight[:, 0] *= 50  # a column that would drown the others
    linear.weight[0] = 0
    x = big * torch.randn(rows, width).double()
    x[:, -1] *= 50  # and a number that would
    layer = Int8Linear(linear)
    c, s = layer.columns.double(), layer.scales.double()
    wide = x * c
    t = wide.abs().amax(-1, keepdim=True) / 127
    of_weights = wide.abs().sum(-1, keepdim=True) * s / 2
    of_inputs = (t / 508 * s) * (layer.rounded.double().abs().sum(-1) + width / 2)
    bound = of_weights + of_inputs
    got = layer(x.float()).double()
    assert got.shape == (rows, out)
    expected = linear(x)
    assert ((got - expected).abs() <= 1.01 * bound + 1e-5 * expected.abs() + 1e-6).all()


@torch.no_grad()
def test_int8_keeps_shape_and_dtype_and_zeros():
    layer = Int8Linear(nn.Linear(8, 3, bias=False))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        out = layer(torch.zeros(2, 5, 8, dtype=dtype))
        assert out.shape == (2, 5, 3) and out.dtype == dtype and (out == 0).all()
    assert layer.weight.shape == (0, 8)  # width and dtype, and no number
    again = Int8Linear(nn.Linear(8, 3, bias=False))
    again.load_state_dict(layer.state_dict())
    x = torch.randn(4, 8)
    close(again(x), layer(x), 0)
    size = sum(x.nbytes for x in Int8Linear(nn.Linear(256, 256)).buffers())
    assert size < 0.27 * 4 * 256 * 256


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


@pytest.mark.parametrize(
    ("call", "error", "part"),
    [
        (lambda: for_inference("gpt"), TypeError, "str"),
        (lambda: Int8Linear(nn.Identity()), TypeError, "Identity"),
        (lambda: Int8Linear(nn.Linear(2, 2, device="meta")), ValueError, "meta"),
        (lambda: Int8Linear(nn.Linear(1, 2)), ValueError, "in_features=1"),
        (lambda: joined(nn.Linear(2, 3), nn.Linear(3, 3)), ValueError, "in_features=3"),
        (
            lambda: joined(nn.Linear(2, 3), nn.Linear(2, 3, bias=False)),
            ValueError,
            "bias=False",
        ),
        (lambda: JoinedAttention(nn.Linear(2, 2)), TypeError, "Linear"),
        (lambda: JoinedFeedForward(nn.Linear(2, 2)), TypeError, "Linear"),
    ],
)
def test_wrong_input_is_refused(call, error, part):
    with pytest.raises(error, match=part):
        call()


def test_weights_that_are_not_finite_are_refused():
    linear = nn.Linear(2, 2)
    linear.weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        Int8Linear(linear)


@pytest.mark.parametrize(
    "module",
    [
        lambda: Int8Linear(nn.Linear(8, 4)),
        lambda: for_inference(built("llama")).blocks[0].attention,
        lambda: for_inference(built("llama")).blocks[0].feedforward,
    ],
)
def test_input_of_another_width_is_refused(module):
    with pytest.raises(ValueError, match=r"\(1, 2, 7\)"):
        module()(torch.zeros(1, 2, 7))


@pytest.fixture(scope="module")
def chat():
    from deepdive.pretrained import smollm2

    return smollm2()


@pytest.mark.weights
@torch.no_grad()
def test_smollm2_in_8_bits_is_as_good(chat):
    from deepdive.tokenizers import chat_prompt

    model, tokenizer = chat
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.encode(chat_prompt(question)).ids
    # A long text: one of forty words moves by several per cent either way.
    long = (Path(__file__).parent.parent / "LICENSE-TEXT").read_text("utf-8")
    text = tokenizer.encode(long).ids[:, :1200]
    nats = []
    for layout in (None, Int8Linear):
        fast = for_inference(model) if layout is None else for_inference(model, layout)
        answer = greedy(
            CachedStep(fast, fast.new_caches(64)), ids, 24, stop=tokenizer.end_ids
        )
        assert tokenizer.decode(answer.rows()[0]) == "The capital of France is Paris."
        logits = fast(text)
        nats.append(nn.functional.cross_entropy(logits[0, :-1], text[0, 1:]).item())
        if layout is None:
            expected = model(text)
            close(logits, expected, 1e-5 * expected.abs().max().item())
    assert abs(nats[1] - nats[0]) < 0.02  # perplexity within 2 %
