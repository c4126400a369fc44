# SPDX-License-Identifier: MIT
"""Prepared copies compute what the model computes: joined exactly, 8-bit nearly."""

import copy

import pytest
import torch
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
from deepdive.decoding import CachedStep
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
