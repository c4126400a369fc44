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
from deepdive.dependence import WindowedAttention, WordConvolution
from deepdive.fading import AttentionReader, CellReader
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.inference import (
    Float32Linear,
    Int8Linear,
    JoinedAttention,
    JoinedFeedForward,
    JoinedLatentAttention,
    LeanBlock,
    LeanRMSNorm,
)
from deepdive.inference.experts import PackedExperts
from deepdive.kernels import equation, fused, tiled
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Causal, Everyone
from deepdive.models.transformer2017 import Transformer
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, half_split, interleaved
from deepdive.pretrained import (
    load_deepseek,
    load_gpt,
    load_llama,
    load_masked_lm,
    load_mixtral,
    load_t5,
)
from deepdive.recurrent import (
    BahdanauAttention,
    ElmanCell,
    GruCell,
    LstmCell,
    TiedHead,
    unroll,
)
from deepdive.recurrent.alignment import MaskedSoftmax

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from wide_reference import randomise

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

HALVES = [torch.bfloat16, torch.float16]
halves = pytest.mark.parametrize("dtype", HALVES, ids=["bfloat16", "float16"])
V = 61


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(seed, *shape):
    return torch.randn(shape, generator=seeded(seed))


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
DEEPSEEK = SHARED | {
    "intermediate_size": 40, "moe_intermediate_size": 16, "num_key_value_heads": 4,
    "kv_lora_rank": 16, "q_lora_rank": 12, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
# Their class, its sizes, and how this book reads its folder.
MODELS = {
    "bert": ("Bert", "ForMaskedLM", SHARED | {"intermediate_size": 64}, load_masked_lm),
    "gpt": (
        "GPT2",
        "LMHeadModel",
        {"vocab_size": V, "n_positions": 48, "n_embd": 32, "n_layer": 2, "n_head": 4,
         "bos_token_id": 0, "eos_token_id": 0},
        load_gpt,
    ),
    "t5": (
        "T5",
        "ForConditionalGeneration",
        {"vocab_size": V, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2,
         "num_heads": 4, "dropout_rate": 0.0, "decoder_start_token_id": 0},
        load_t5,
    ),
    "llama": (
        "Llama",
        "ForCausalLM",
        SHARED | {"num_key_value_heads": 2, "intermediate_size": 64},
        load_llama,
    ),
    "mixtral": (
        "Mixtral",
        "ForCausalLM",
        SHARED | {"num_key_value_heads": 2, "intermediate_size": 40,
                  "num_local_experts": 4},
        load_mixtral,
    ),
    "deepseek v2": (
        "DeepseekV2",
        "ForCausalLM",
        DEEPSEEK | {"topk_method": "group_limited_greedy"},
        load_deepseek,
    ),
    "deepseek v3": ("DeepseekV3", "ForCausalLM", DEEPSEEK, load_deepseek),
}  # fmt: skip
SEEDS = 4


@halves
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_models_err_at_most_twice_as_much_as_transformers(name, dtype, tmp_path):
    kind, head, sizes, load = MODELS[name]
    off = {"ours": 0.0, "theirs": 0.0}
    for seed in range(SEEDS):
        build = getattr(transformers, kind + head)
        start = build(getattr(transformers, kind + "Config")(**sizes))
        for x in randomise(start, seed).parameters():
            x.copy_(x.to(dtype))
        start.save_pretrained(tmp_path)
        low, exact = (
            build.from_pretrained(tmp_path, dtype=each, attn_implementation="eager")
            for each in (dtype, torch.float64)
        )
        for each in (low, exact):  # the faster way knows no float64
            each.config._experts_implementation = "eager"
        tokens = torch.randint(1, V, (3, 20), generator=seeded(seed))
        if name == "t5":
            call, words = (tokens, tokens[:, :9]), {"decoder_input_ids": tokens[:, :9]}
        else:
            call, words = (tokens,), {}
        true, got = exact(tokens, **words).logits, load(tmp_path, dtype)(*call)
        assert got.dtype == dtype
        off["ours"] += error(got, true) ** 2
        off["theirs"] += error(low(tokens, **words).logits, true) ** 2
    assert off["ours"] ** 0.5 <= 2 * off["theirs"] ** 0.5
    assert off["theirs"] > 0


@halves
@pytest.mark.parametrize("residual", [post_norm, pre_norm])
@torch.no_grad()
def test_the_2017_model_errs_at_most_twice_as_much_as_plain_pytorch(residual, dtype):
    """Norms, maps and tables are torch's own: plain are attention and network."""
    off = {"ours": 0.0, "plain": 0.0}
    config = TransformerConfig(V, V, 32, 2, 4, 64)
    for seed in range(SEEDS):
        low = randomise(Transformer(config, residual), seed).to(dtype)
        plain = copy.deepcopy(low)
        for part in list(plain.modules()):
            if isinstance(part, MultiHeadAttention):
                part.kernel = plainly
            if isinstance(part, Block):
                network = part.feedforward
                part.feedforward = nn.Sequential(network.up, nn.ReLU(), network.down)
        src = torch.randint(1, V, (3, 20), generator=seeded(seed))
        true = copy.deepcopy(plain).double()(src, src[:, :9])
        off["ours"] += error(low(src, src[:, :9]), true) ** 2
        off["plain"] += error(plain(src, src[:, :9]), true) ** 2
    assert 0 < off["ours"] ** 0.5 <= 2 * off["plain"] ** 0.5


@halves
@pytest.mark.parametrize(
    ("cell", "kind"), [(ElmanCell, nn.RNN), (GruCell, nn.GRU), (LstmCell, nn.LSTM)]
)
@torch.no_grad()
def test_recurrent_cells_err_at_most_twice_as_much_as_torchs(cell, kind, dtype):
    """And with them the recurrent models. Torch's plain ones: for bfloat16 some
    processors have a kernel of their own, which rounds less often."""
    off = {"ours": 0.0, "torch": 0.0}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        low, theirs = cell(16, 24).to(dtype), kind(16, 24, batch_first=True).to(dtype)
        theirs.weight_ih_l0.copy_(low.x_proj.weight)
        theirs.weight_hh_l0.copy_(low.h_proj.weight)
        theirs.bias_ih_l0.copy_(low.x_proj.bias)
        theirs.bias_hh_l0.copy_(low.h_proj.bias)
        x = normal(seed, 3, 20, 16).to(dtype)
        true = copy.deepcopy(theirs).double()(x.double())[0]
        off["ours"] += error(low.read(unroll(low, x)), true) ** 2
        with torch.backends.mkldnn.flags(enabled=False):
            off["torch"] += error(theirs(x)[0], true) ** 2
    assert off["ours"] ** 0.5 <= 2 * off["torch"] ** 0.5


# ── Large finite input ───────────────────────────────────────────────────────────────

SIZES = {torch.float32: 1e4, torch.bfloat16: 1e4, torch.float16: 100}
sizes = pytest.mark.parametrize("dtype", SIZES, ids=["float32", "bfloat16", "float16"])
D = 16


def large(dtype, *shape, seed=0):
    """Random, all as large as allowed, or all alike: three rows of a batch."""
    x = normal(seed, *shape).clamp(-1, 1)
    x[0] = x[0].sign()
    x[1] = 1.0
    return (x * SIZES[dtype]).to(dtype)


def nobody():
    """A rule under which the first row of the batch sees nothing."""
    keep = torch.ones(3, 5).bool()
    keep[0] = False
    return Causal(keep=keep)


@sizes
@kernels
@pytest.mark.parametrize("mask", [None, Causal(), Everyone(), nobody()])
def test_kernels_stay_finite(kernel, mask, dtype):
    qkv = [large(dtype, 3, 4, 5, 8, seed=i).requires_grad_() for i in range(3)]
    bias = large(dtype, 4, 5, 5, seed=3)
    for added in (None, bias):
        out = kernel(*qkv, mask, added)
        assert out.isfinite().all()
        for grad in torch.autograd.grad(out.float().mean(), qkv):
            assert not grad.isnan().any()


def turn(T, width, pairing=half_split):
    return Rotary(width, pairing=pairing)(torch.arange(T))


def mla():
    return LatentAttention(D, 2, 8, 6, 4, 5, 7)


def latent(m, x):
    return m(x, nobody(), turn(5, 4, interleaved))


def joined_attention(m, x):
    return m(x, mask=nobody(), rotate=turn(5, 8))


def block(residual, feedforward, cross=False):
    parts = [
        MultiHeadAttention(D, 2),
        feedforward,
        RMSNorm(D),
        nn.LayerNorm(D),
        residual,
    ]
    more = (MultiHeadAttention(D, 2), RMSNorm(D)) if cross else ()
    return Block(*parts, *more)


def mixture_of(router):
    return moe.MixtureOfExperts(
        router, moe.Experts(4, D, 8), FeedForward(D, 8, nn.ReLU())
    )


def routed(m, x):
    routing = m(x.flatten(0, 1))
    assert routing.probabilities.isfinite().all() and routing.logits.isfinite().all()
    return routing.gates


def experts(m, x):
    router = moe.SoftmaxTopKRouter(D, 4, 2).to(x.dtype)
    x = x.flatten(0, 1)
    return torch.stack((m(x, router(x)), m.dense(x, router(x))))


def plain_call(m, x):
    return m(x)


VECTORS = {
    RMSNorm: (lambda: RMSNorm(D), plain_call),
    FeedForward: (lambda: FeedForward(D, 20, nn.GELU()), plain_call),
    GatedFeedForward: (lambda: GatedFeedForward(D, 20, nn.SiLU()), plain_call),
    MultiHeadAttention: (
        lambda: MultiHeadAttention(D, 2, 1),
        lambda m, x: m(x, mask=nobody(), rotate=turn(5, 8)),
    ),
    LatentAttention: (mla, latent),
    Block: (
        lambda: block(post_norm, FeedForward(D, 20, nn.ReLU()), cross=True),
        lambda m, x: m(x, x, Everyone(nobody().keep), mask=nobody()),
    ),
    Stack: (
        lambda: Stack(block(pre_norm, GatedFeedForward(D, 9, nn.SiLU())) for _ in "ab"),
        lambda m, x: m(x, mask=nobody()),
    ),
    JoinedAttention: (
        lambda: JoinedAttention(MultiHeadAttention(D, 2, 1)),
        joined_attention,
    ),
    JoinedFeedForward: (
        lambda: JoinedFeedForward(GatedFeedForward(D, 9, nn.SiLU())),
        plain_call,
    ),
    JoinedLatentAttention: (lambda: JoinedLatentAttention(mla()), latent),
    Int8Linear: (lambda: Int8Linear(nn.Linear(D, 24)), plain_call),
    Float32Linear: (lambda: Float32Linear(nn.Linear(D, 24)), plain_call),
    LeanRMSNorm: (lambda: LeanRMSNorm(RMSNorm(D)), plain_call),
    LeanBlock: (
        lambda: LeanBlock(block(pre_norm, GatedFeedForward(D, 9, nn.SiLU()))),
        lambda m, x: m(x, mask=nobody()),
    ),
    moe.MixtureOfExperts: (
        lambda: mixture_of(moe.SoftmaxTopKRouter(D, 4, 2)),
        plain_call,
    ),
    moe.Capped: (lambda: moe.Capped(moe.SwitchRouter(D, 4), 1.0), routed),
    moe.NoisyTopKRouter: (lambda: moe.NoisyTopKRouter(D, 4, 2), routed),
    moe.SoftmaxTopKRouter: (lambda: moe.SoftmaxTopKRouter(D, 4, 2), routed),
    moe.SwitchRouter: (lambda: moe.SwitchRouter(D, 4), routed),
    moe.SigmoidRouter: (lambda: moe.SigmoidRouter(D, 4, 2), routed),
    moe.Experts: (lambda: moe.Experts(4, D, 8), experts),
    moe.TwoLayerExperts: (lambda: moe.TwoLayerExperts(4, D, 8), experts),
    PackedExperts: (lambda: PackedExperts(moe.Experts(4, D, 8)), experts),
    ElmanCell: (lambda: ElmanCell(D, 6), unroll),
    GruCell: (lambda: GruCell(D, 6), unroll),
    LstmCell: (lambda: LstmCell(D, 6), unroll),
    BahdanauAttention: (
        lambda: BahdanauAttention(D, D, 7),
        lambda m, x: m(x[:, 0], x, nobody().keep),
    ),
    MaskedSoftmax: (MaskedSoftmax, lambda m, x: m(x[:, 0], torch.zeros(3, D).bool())),
    TiedHead: (lambda: TiedHead(nn.Embedding(9, 6), D), plain_call),
    CellReader: (lambda: CellReader(GruCell(D, 6)), plain_call),
    AttentionReader: (lambda: AttentionReader(MultiHeadAttention(D, 2)), plain_call),
    WordConvolution: (lambda: WordConvolution(D, 3), plain_call),
    WindowedAttention: (lambda: WindowedAttention(D, 3), plain_call),
}


@sizes
@pytest.mark.parametrize("kind", VECTORS, ids=lambda kind: kind.__name__)
def test_layers_stay_finite(kind, dtype):
    """Trained and not; gradients too where float16's range is not what ends them."""
    build, call = VECTORS[kind]
    for seed in range(3):
        torch.manual_seed(seed)
        layer, x = build().to(dtype), large(dtype, 3, 5, D, seed=seed)
        for training in (True, False):
            out = call(layer.train(training), x)
            assert out.isfinite().all()
            weights = [w for w in layer.parameters() if w.requires_grad]
            if dtype != torch.float16 and weights and out.requires_grad:
                loss = out.float().mean()
                for grad in torch.autograd.grad(loss, weights, allow_unused=True):
                    assert grad is None or not grad.isnan().any()


def modules():
    """Every module class of the package that can be built."""
    found = set()
    for each in pkgutil.walk_packages(deepdive.__path__, "deepdive."):
        if ".widgets" in each.name or each.name.endswith("__main__"):
            continue
        for kind in vars(importlib.import_module(each.name)).values():
            if inspect.isclass(kind) and issubclass(kind, nn.Module):
                found.add(kind)
    return {kind for kind in found if kind.__module__.startswith("deepdive.")}


READS_IDS = {"tokens", "src", "tgt", "positions", "queries", "ids", "batch"}


def test_no_layer_that_takes_vectors_is_left_out():
    """What reads ids is tested as a model; base classes are not built."""
    for kind in modules() - set(VECTORS):
        names = list(inspect.signature(kind.forward).parameters)  # self, and then?
        base = any(issubclass(other, kind) for other in modules() - {kind})
        assert base or names[1] in READS_IDS, kind.__name__
