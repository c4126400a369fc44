# SPDX-License-Identifier: MIT
"""Half precision: no worse than twice plain PyTorch's error, and never NaN.

The yardstick of a kernel or layer is its formula written in that precision; that of a
model, `transformers` (or torch's own module) with the same weights in that precision.
Both are measured against the float64 result of the same rounded weights and input.
"""

import copy
import importlib
import inspect
import os
import pkgutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import deepdive
from deepdive import moe
from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Stack, post_norm, pre_norm
from deepdive.configs import TransformerConfig
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.kernels import equation, fused, tiled
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import MaskedLM
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, half_split, interleaved
from deepdive.pretrained.bert import bert_config
from deepdive.pretrained.deepseek import deepseek_config, deepseek_names
from deepdive.pretrained.gpt import gpt_config, gpt_names
from deepdive.pretrained.huggingface import load_into
from deepdive.pretrained.llama import llama_config, llama_names
from deepdive.pretrained.mixtral import mixtral_config, mixtral_names
from deepdive.pretrained.t5 import t5_config, t5_names
from deepdive.recurrent import (
    BahdanauAttention,
    Decoder,
    ElmanCell,
    Encoder,
    GruCell,
    LstmCell,
    Seq2Seq,
    TiedHead,
    unroll,
)
from deepdive.recurrent.alignment import MaskedSoftmax

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # noqa: E402

transformers.logging.set_verbosity_error()

HALVES = [torch.bfloat16, torch.float16]
halves = pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])
V = 61


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator)


def error(got: Tensor, exact: Tensor) -> float:
    """Root of the mean squared difference."""
    return (got.double() - exact).square().mean().sqrt().item()


# ── Kernels ──────────────────────────────────────────────────────────────────────────


def small_tiles(*call):
    return tiled(*call, block_size=7)


KERNELS = [equation, fused, tiled, small_tiles]
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)


def plainly(q, k, v, mask=None, bias=None, scale=None):
    """softmax(q kᵀ · scale + bias) v, each step rounded to the dtype of the input."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.to(q.dtype)
    if mask is not None:
        allowed = mask.tensor(q.shape[2], k.shape[2])
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ v


@halves
@kernels
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    G=st.sampled_from([1, 2, 4]),
    T=st.sampled_from([1, 5, 24]),
    Dv=st.sampled_from([16, 12]),
    causal=st.booleans(),
    biased=st.booleans(),
)
def test_kernels_err_at_most_twice_as_much_as_the_formula(
    kernel, dtype, seed, G, T, Dv, causal, biased
):
    """Output and gradients."""
    shapes = (2, 4, T, 16), (2, G, 24, 16), (2, G, 24, Dv)
    qkv = [normal(seed + i, *shape).to(dtype) for i, shape in enumerate(shapes)]
    bias = normal(seed + 3, 4, T, 24).to(dtype) if biased else None
    mask = Causal() if causal else None
    pull = normal(seed + 4, 2, 4, T, Dv).to(dtype)

    def run(function, wide=False):
        leaves = [(x.double() if wide else x).detach().requires_grad_() for x in qkv]
        added = bias.double() if wide and biased else bias
        out = function(*leaves, mask, added)
        grads = torch.autograd.grad(out, leaves, pull.to(out.dtype))
        return [out.detach(), *grads]

    exact, rough = run(plainly, wide=True), run(plainly)
    for name, got, plain, true in zip(
        ("out", "dq", "dk", "dv"), run(kernel), rough, exact, strict=True
    ):
        assert got.dtype == dtype
        assert error(got, true) <= 2 * error(plain, true) + 1e-7, name


@halves
@kernels
def test_kernels_err_at_most_twice_as_much_as_torchs_own(kernel, dtype):
    """A stricter yardstick than the formula: torch's kernel sums in float32, too."""
    off = {"ours": 0.0, "torch": 0.0}
    for seed in range(5):
        q, k, v = (normal(3 * seed + i, 2, 4, 40, 16).to(dtype) for i in range(3))
        exact = plainly(*(x.double() for x in (q, k, v)), Causal())
        off["ours"] += error(kernel(q, k, v, Causal()), exact)
        off["torch"] += error(sdpa(q, k, v, is_causal=True), exact)
    assert off["ours"] <= 2 * off["torch"]


# ── Layers ───────────────────────────────────────────────────────────────────────────


def rms_norm(layer, x):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], layer.weight, layer.eps)


def ffn(layer, x):
    up = x @ layer.up.weight.T + layer.up.bias
    return up.relu() @ layer.down.weight.T + layer.down.bias


def swiglu(layer, x):
    gate = x @ layer.gate.weight.T
    inner = gate * gate.sigmoid() * (x @ layer.up.weight.T)
    return inner @ layer.down.weight.T


def heads(layer, x):
    def split(y, n):
        return y.unflatten(-1, (n, -1)).transpose(1, 2)

    q, k, v = (
        split(part(x), n)
        for part, n in (
            (layer.q_proj, layer.n_heads),
            (layer.k_proj, layer.n_kv_heads),
            (layer.v_proj, layer.n_kv_heads),
        )
    )
    return layer.o_proj(plainly(q, k, v).transpose(1, 2).flatten(2))


def mixture(layer, x):
    """Every expert on every token, gates from a softmax in the input's precision."""
    logits = x @ layer.router.weight.to(x.dtype).T
    value, chosen = logits.topk(layer.router.top_k)
    gates = torch.zeros_like(logits).scatter(-1, chosen, value.softmax(-1))
    out = torch.zeros_like(x)
    for e in range(layer.experts.n_experts):
        gate = x @ layer.experts.gate[e].T
        inner = gate * gate.sigmoid() * (x @ layer.experts.up[e].T)
        out = out + gates[..., e, None] * (inner @ layer.experts.down[e].T)
    return out


def gru(layer, x):
    x, h, out = layer.x_proj(x), x.new_zeros(len(x), layer.d_hidden), []
    for t in range(x.shape[1]):
        a, b = x[:, t].chunk(3, -1), layer.h_proj(h).chunk(3, -1)
        r, z = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
        n = torch.tanh(a[2] + r * b[2])
        h = (1 - z) * n + z * h
        out.append(h)
    return torch.stack(out, 1)


LAYERS = {
    "rms norm": (lambda: RMSNorm(32), rms_norm),
    "feed-forward": (lambda: FeedForward(32, 64, nn.ReLU()), ffn),
    "gated": (lambda: GatedFeedForward(32, 64, nn.SiLU()), swiglu),
    "attention": (lambda: MultiHeadAttention(32, 4, 2), heads),
    "experts": (
        lambda: moe.MixtureOfExperts(
            moe.SoftmaxTopKRouter(32, 4, 2), moe.Experts(4, 32, 24)
        ),
        mixture,
    ),
    "gru": (lambda: GruCell(32, 16), gru),
}


@halves
@pytest.mark.parametrize("name", LAYERS)
@torch.no_grad()
def test_layers_err_at_most_twice_as_much_as_their_formula(name, dtype):
    build, plain = LAYERS[name]
    off = {"ours": 0.0, "plain": 0.0}
    for seed in range(6):
        torch.manual_seed(seed)
        low = build().to(dtype)
        exact = copy.deepcopy(low).double()
        x = normal(seed, 3, 20, 32).to(dtype)
        run = unroll if name == "gru" else type(low).__call__
        true = plain(exact, x.double())
        assert error(run(exact, x.double()), true) < 1e-9  # the formula is the layer's
        got = run(low, x)
        assert got.dtype == dtype
        off["ours"] += error(got, true) ** 2
        off["plain"] += error(plain(low, x), true) ** 2
    assert off["ours"] ** 0.5 <= 2 * off["plain"] ** 0.5


# ── Models ───────────────────────────────────────────────────────────────────────────

SHARED = {"vocab_size": V, "hidden_size": 32, "num_hidden_layers": 2,
          "num_attention_heads": 4, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
DEEPSEEK = SHARED | dict(
    intermediate_size=40, moe_intermediate_size=16, num_key_value_heads=4,
    kv_lora_rank=16, q_lora_rank=12, qk_nope_head_dim=8, qk_rope_head_dim=4,
    v_head_dim=8, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
    first_k_dense_replace=1, n_group=4, topk_group=2,
)  # fmt: skip


def hugging_face(kind, head="ForCausalLM", **sizes):
    config = getattr(transformers, kind + "Config")(**sizes)
    return getattr(transformers, kind + head)(config)


def bert(theirs):
    from deepdive.pretrained.bert import masked_lm_names

    config = bert_config(theirs.config.to_dict())
    return MaskedLM(config), masked_lm_names(theirs.state_dict())


MODELS = {
    "gpt": (
        lambda: hugging_face("GPT2", "LMHeadModel", vocab_size=V, n_positions=48,
                             n_embd=32, n_layer=2, n_head=4, bos_token_id=0,
                             eos_token_id=0),
        lambda m: (Gpt(gpt_config(m.config.to_dict())), gpt_names(m.state_dict())),
    ),
    "llama": (
        lambda: hugging_face("Llama", **SHARED, num_key_value_heads=2,
                             intermediate_size=64),
        lambda m: (Llama(llama_config(m.config.to_dict())),
                   llama_names(m.state_dict())),
    ),
    "mixtral": (
        lambda: hugging_face("Mixtral", **SHARED, num_key_value_heads=2,
                             intermediate_size=40, num_local_experts=4),
        lambda m: (Mixtral(mixtral_config(m.config.to_dict())),
                   mixtral_names(m.state_dict())),
    ),
    "deepseek v2": (
        lambda: hugging_face("DeepseekV2", **DEEPSEEK,
                             topk_method="group_limited_greedy"),
        lambda m: (DeepSeek(deepseek_config(m.config.to_dict())),
                   deepseek_names(m.state_dict())),
    ),
    "deepseek v3": (
        lambda: hugging_face("DeepseekV3", **DEEPSEEK),
        lambda m: (DeepSeek(deepseek_config(m.config.to_dict())),
                   deepseek_names(m.state_dict())),
    ),
}  # fmt: skip
