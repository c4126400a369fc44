# SPDX-License-Identifier: MIT
"""The ladder of equivalences: every variant becomes the one before it at some setting.

Random shapes, in float64: lengths that no tile divides, T ≠ S, every number of
key/value heads. That a whole model is somebody else's stands in the models' own tests.
"""

import copy
import itertools
from functools import cache

import pytest
import torch
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import softmax

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, pre_norm
from deepdive.cache import GrowingCache, PreallocatedCache
from deepdive.configs import (
    BertConfig,
    DeepSeekV2Config,
    DeepSeekV3Config,
    GptConfig,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
    MixtralConfig,
    NTKScaling,
    T5Config,
    TransformerConfig,
    YarnScaling,
)
from deepdive.decoding import (
    CachedStep,
    UncachedStep,
    beam_search,
    greedy,
    speculative,
)
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.kernels import equation, fused, tiled
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import Bert
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.moe import (
    Capped,
    Experts,
    Groups,
    MixtureOfExperts,
    NoisyTopKRouter,
    SigmoidRouter,
    SoftmaxTopKRouter,
    SwitchRouter,
    TwoLayerExperts,
)
from deepdive.norms import RMSNorm
from deepdive.positions import (
    Alibi,
    RelativeBias,
    Rotary,
    half_split,
    interleaved,
)
from deepdive.recurrent import (
    BahdanauAttention,
    Decoder,
    Encoder,
    GruCell,
    LstmCell,
    Seq2Seq,
)

KERNELS = [equation, fused, tiled]
V = 23
seeds = st.integers(0, 10**6)
lengths = st.integers(1, 9)


def some(examples):
    return settings(max_examples=examples, deadline=None)


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def ids(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(V, shape, generator=generator)


def random(module, seed, size=0.5):
    """The same module in float64 with all weights random, biases and norms too."""
    module = module.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in module.parameters():
            x.normal_(std=size, generator=generator)
    return module


@st.composite
def heads(draw):
    """(H, G): G is any divisor of H."""
    G = draw(st.integers(1, 4))
    return G * draw(st.integers(1, 4)), G


@st.composite
def masks(draw, B, T, S):
    """No mask, a rule with or without padding, or any tensor that broadcasts."""
    kind = draw(st.sampled_from(["none", "everyone", "causal", "tensor"]))
    seed = draw(seeds)
    if kind == "none":
        return None
    if kind == "tensor":
        shape = draw(st.sampled_from([(S,), (T, S), (B, 1, 1, S), (B, 1, T, S)]))
        return normal(seed, *shape) < 0.4
    keep = normal(seed, B, S) < 0.8 if draw(st.booleans()) else None
    if kind == "everyone":
        return Everyone(keep)
    window = draw(st.none() | st.integers(1, S + 2) | st.just(max(S - 1, 1)))
    return Causal(window, draw(st.integers(0, S + 1)), keep=keep)


# ── Heads: MHA, GQA, MQA ─────────────────────────────────────────────────────────────


def plainly(layer, x, context, mask):
    """Heads one by one, each with a key/value head of its own in the weights."""
    H, D = layer.n_heads, layer.head_dim
    q, k, v = layer.q_proj(x), layer.k_proj(context), layer.v_proj(context)
    heads = []
    for i in range(H):
        own = slice(i * D, (i + 1) * D)
        scores = q[..., own] @ k[..., own].mT / D**0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        heads.append(softmax(scores, -1) @ v[..., own])
    return layer.o_proj(torch.cat(heads, -1))


@some(25)
@given(seeds, heads(), lengths, lengths, st.booleans(), st.sampled_from(KERNELS))
def test_grouped_heads_are_many_heads_that_repeat_them(seed, HG, T, S, causal, kernel):
    """Any G, G = H and G = 1 among them, is MHA whose key/value weights repeat."""
    (H, G), D = HG, 3
    shared = random(MultiHeadAttention(10, H, G, D, kernel=kernel), seed)
    whole = MultiHeadAttention(10, H, head_dim=D, kernel=kernel).double()
    weights = shared.state_dict()
    for name in ("k_proj.weight", "v_proj.weight"):
        per_head = weights[name].view(G, D, 10)
        weights[name] = per_head.repeat_interleave(H // G, 0).flatten(0, 1)
    whole.load_state_dict(weights)
    x, context = normal(seed, 2, T, 10), normal(seed + 1, 2, S, 10)
    causal = causal and T <= S
    mask = Causal() if causal else None
    got = shared(x, context, mask=mask)
    close(got, whole(x, context, mask=mask), 1e-10)
    allowed = torch.ones(T, S).tril(S - T).bool() if causal else None
    close(got, plainly(whole, x, context, allowed), 1e-10)


@some(15)
@given(seeds, st.integers(1, 5), lengths, lengths)
def test_one_kv_head_is_the_multi_query_attention_of_its_paper(seed, H, T, S):
    """Shazeer's einsums: keys and values have no head axis at all."""
    layer = random(MultiHeadAttention(10, H, 1, 4), seed)
    x, context = normal(seed, 2, T, 10), normal(seed + 1, 2, S, 10)
    W_q, W_o = layer.q_proj.weight.view(H, 4, 10), layer.o_proj.weight.view(10, H, 4)
    q = torch.einsum("btm,hdm->bhtd", x, W_q)
    k, v = context @ layer.k_proj.weight.T, context @ layer.v_proj.weight.T
    weights = softmax(torch.einsum("bhtd,bsd->bhts", q, k) / 2, -1)
    out = torch.einsum("bhts,bsd,mhd->btm", weights, v, W_o)
    close(layer(x, context), out, 1e-10)


@some(10)
@given(seeds, st.integers(1, 4), lengths, lengths)
def test_as_many_kv_heads_as_heads_is_torchs_multi_head_attention(seed, H, T, S):
    theirs = nn.MultiheadAttention(3 * H, H, bias=False, batch_first=True)
    theirs = random(theirs, seed)
    ours = MultiHeadAttention(3 * H, H, n_kv_heads=H).double()
    q, k, v = theirs.in_proj_weight.chunk(3)
    with torch.no_grad():
        for layer, weight in zip(
            (ours.q_proj, ours.k_proj, ours.v_proj, ours.o_proj),
            (q, k, v, theirs.out_proj.weight),
            strict=True,
        ):
            layer.weight.copy_(weight)
    x, context = normal(seed, 2, T, 3 * H), normal(seed + 1, 2, S, 3 * H)
    close(ours(x, context), theirs(x, context, context)[0], 1e-10)


# ── The latent: MLA ──────────────────────────────────────────────────────────────────


@some(25)
@given(
    seeds,
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(0, 6),
    st.tuples(st.integers(1, 7), st.integers(1, 5), st.integers(0, 2), lengths),
    st.none() | st.integers(1, 5),
    st.sampled_from(KERNELS),
)
def test_expanded_is_absorbed(seed, H, T, seen, widths, q_rank, kernel):
    """Keys and values of every head, or none of them: the same numbers."""
    d_c, d_h, half_rope, d_v = widths
    sizes = (9, H, d_c, d_h, 2 * half_rope, d_v, q_rank)
    layer, S = random(LatentAttention(*sizes, kernel=kernel), seed), seen + T
    x, rotate = normal(seed, 2, S, 9), None
    if half_rope:
        turn = Rotary(2 * half_rope, pairing=interleaved)
        rotate = turn(torch.arange(S))
    q, latent = layer.queries(x, rotate)[:, :, seen:], layer.latent(x, rotate)
    expanded = layer.expanded(q, latent, Causal())
    close(layer.absorbed(q, latent, Causal()), expanded, 1e-10)


@some(20)
@given(seeds, st.integers(1, 4), lengths, st.booleans(), st.sampled_from(KERNELS))
def test_a_full_latent_is_multi_head_attention(seed, H, T, cached, kernel):
    """No rotary part, the norm an identity, rank d_model: W_K = W_UK W_DKV."""
    d_model, D = 8, 3
    mha = random(MultiHeadAttention(d_model, H, head_dim=D, kernel=kernel), seed)
    mla = LatentAttention(
        d_model, H, d_model, D, 0, D, norm=nn.Identity, kernel=kernel
    ).double()
    down = torch.linalg.qr(normal(seed, d_model, d_model)).Q * 1.5
    with torch.no_grad():
        mla.kv_down.weight.copy_(down)
        mla.k_up.weight.copy_(mha.k_proj.weight @ down.inverse())
        mla.v_up.weight.copy_(mha.v_proj.weight @ down.inverse())
        mla.q_up.weight.copy_(mha.q_proj.weight)
        mla.o_proj.weight.copy_(mha.o_proj.weight)
    x = normal(seed, 2, T, d_model)
    expected = mha(x, mask=Causal())
    if cached:  # one by one: the absorbed way
        memory = GrowingCache()
        steps = [mla(x[:, t : t + 1], Causal(), cache=memory) for t in range(T)]
        close(torch.cat(steps, 1), expected, 1e-10)
    else:
        close(mla(x, Causal()), expected, 1e-10)


# ── Experts ──────────────────────────────────────────────────────────────────────────

ROUTERS = {
    "softmax": lambda d, E, K: SoftmaxTopKRouter(d, E, K),
    "softmax, as they are": lambda d, E, K: SoftmaxTopKRouter(d, E, K, False),
    "noisy": NoisyTopKRouter,
    "sigmoid": lambda d, E, K: SigmoidRouter(d, E, K),
    "switch": lambda d, E, K: SwitchRouter(d, E),
}


def network(experts, e):
    """Expert e as the feed-forward network that it is."""
    gated = isinstance(experts, Experts)
    kind = GatedFeedForward if gated else FeedForward
    layer = kind(experts.d_model, experts.d_expert, experts.activation, bias=False)
    layer.double()
    with torch.no_grad():
        for name in ("gate", "up", "down") if gated else ("up", "down"):
            getattr(layer, name).weight.copy_(getattr(experts, name)[e])
    return layer


def mixture(router, kind, seed, shared=None):
    experts = kind(router.n_experts, router.d_model, 7)
    return random(MixtureOfExperts(router, experts, shared), seed)


@pytest.mark.parametrize("kind", [Experts, TwoLayerExperts])
@pytest.mark.parametrize("router", ROUTERS)
@some(5)
@given(seed=seeds, T=lengths)
def test_one_expert_is_its_feed_forward_network(router, kind, seed, T):
    layer = mixture(ROUTERS[router](6, 1, 1), kind, seed)
    x = normal(seed, 2, T, 6)
    close(layer(x), network(layer.experts, 0)(x), 1e-10)


@pytest.mark.parametrize("kind", [Experts, TwoLayerExperts])
@pytest.mark.parametrize("router", ["softmax", "noisy", "softmax, as they are"])
@some(5)
@given(seed=seeds, T=lengths, E=st.integers(2, 6))
def test_all_experts_chosen_is_the_dense_mixture(router, kind, seed, T, E):
    """Σ softmax(W x)ₑ · FFNₑ(x): nothing is sparse any more."""
    layer = mixture(ROUTERS[router](6, E, E), kind, seed)
    x = normal(seed, 2, T, 6)
    gates = softmax(x @ layer.router.weight.T, -1)
    dense = sum(gates[..., e, None] * network(layer.experts, e)(x) for e in range(E))
    close(layer(x), dense, 1e-10)


@some(20)
@given(seeds, lengths, st.integers(1, 6), st.data())
def test_sorting_by_expert_is_asking_every_expert(seed, T, E, data):
    """`forward` is `dense`, for any K, with and without a shared expert."""
    K = data.draw(st.integers(1, E))
    router = SoftmaxTopKRouter(6, E, K, data.draw(st.booleans()), 1.5)
    shared = GatedFeedForward(6, 5, nn.SiLU()) if data.draw(st.booleans()) else None
    layer = mixture(router, Experts, seed, shared)
    x = normal(seed, 2, T, 6)
    rows = x.flatten(0, 1)
    dense = layer.experts.dense(rows, layer.router(rows)).view_as(x)
    close(layer(x), dense if shared is None else dense + shared(x), 1e-10)


@some(10)
@given(seeds, lengths)
def test_all_groups_open_or_room_for_all_is_no_limit(seed, T):
    limits = {
        "groups": lambda r: SoftmaxTopKRouter(6, 6, 4, groups=Groups(3, 3, 1)),
        "room": lambda r: Capped(r, 1.5),
    }
    free = mixture(SoftmaxTopKRouter(6, 6, 4), Experts, seed)
    x = normal(seed, 2, T, 6)
    for name, limit in limits.items():
        layer = copy.deepcopy(free)
        weight, layer.router = layer.router.weight, limit(layer.router)
        getattr(layer.router, "router", layer.router).weight = weight
        close(layer(x), free(x), 1e-12, name)


# ── Kernels: the formula, tiles, torch's own ─────────────────────────────────────────


@st.composite
def kernel_calls(draw):
    (H, G), B = draw(heads()), draw(st.integers(1, 3))
    T, S = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    D, Dv, seed = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(seeds)
    q, k, v = normal(seed, B, H, T, D), normal(seed + 1, B, G, S, D), None
    v = normal(seed + 2, B, G, S, D if draw(st.booleans()) else Dv)
    bias = None
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(T, S), (H, 1, S), (1, H, T, S), (B, H, T, S)]))
        bias = normal(seed + 3, *shape)
    scale = draw(st.sampled_from([None, 1.0, 0.3]))
    return (q, k, v), draw(masks(B, T, S)), bias, scale


def run(kernel, qkv, mask, bias, scale, **how):
    """Output and gradients, bias included."""
    leaves = [
        x.clone().requires_grad_() for x in (*qkv, *([bias] * (bias is not None)))
    ]
    q, k, v, *rest = leaves
    out = kernel(q, k, v, mask, rest[0] if rest else None, scale, **how)
    weight = normal(5, *out.shape)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


@some(150)
@given(kernel_calls(), st.integers(1, 21))
def test_tiled_is_the_equation_is_fused_gradients_too(call, block_size):
    expected = run(equation, *call)
    names = ("out", "dq", "dk", "dv", "dbias")
    for kernel, how in ((fused, {}), (tiled, {"block_size": block_size})):
        for name, got, want in zip(
            names, run(kernel, *call, **how), expected, strict=False
        ):
            close(got, want, 1e-9, f"{kernel.__name__} {name}")


@some(25)
@given(seeds, heads(), st.integers(1, 12), st.integers(1, 12), st.data())
def test_masks_that_block_nothing_are_no_mask(seed, HG, T, S, data):
    """Everyone, a prefix of all, and a window of all beside plain causal."""
    (H, G), extra = HG, data.draw(st.integers(0, 3))
    keep = normal(seed, 2, S) < 1 if data.draw(st.booleans()) else None
    q, k = normal(seed, 2, H, T, 3), normal(seed + 1, 2, G, S, 3)
    v = normal(seed + 2, 2, G, S, 3)
    for kernel in KERNELS:
        whole, causal = (
            kernel(q, k, v, Everyone(keep)),
            kernel(q, k, v, Causal(keep=keep)),
        )
        if keep is None:
            close(whole, kernel(q, k, v), 1e-11)
        wide = Causal(window=S + extra, keep=keep)
        close(kernel(q, k, v, wide), causal, 1e-11, "window")
        if T <= S:  # otherwise the first queries stand before the prefix begins
            prefix = Causal(prefix=S + extra, keep=keep)
            close(kernel(q, k, v, prefix), whole, 1e-11, "prefix")
        one = Causal(prefix=1, keep=keep)
        close(kernel(q, k, v, one), causal, 1e-11, "a prefix of one")


# ── Positions ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pairing", [half_split, interleaved])
@some(20)
@given(
    seed=seeds,
    half=st.integers(1, 6),
    i=st.integers(0, 60),
    j=st.integers(0, 60),
    shift=st.integers(0, 60),
)
def test_turned_scores_depend_on_the_distance_alone(pairing, seed, half, i, j, shift):
    """And turning changes no length. Angles are float32: 1e-4 is all there is."""
    rotary = Rotary(2 * half, pairing=pairing)
    q, k = normal(seed, 1, 1, 1, 2 * half), normal(seed + 1, 1, 1, 1, 2 * half)

    def score(t, s):
        return (rotary(torch.tensor([t]))(q) * rotary(torch.tensor([s]))(k)).sum()

    close(score(i + shift, j + shift), score(i, j), 1e-4)
    close(score(i, i), (q * k).sum(), 1e-5)
    turned = rotary(torch.tensor([i]))(q)
    close(turned.norm(), q.norm(), 1e-5)


@some(10)
@given(seeds, st.integers(1, 6), st.sampled_from([half_split, interleaved]))
def test_a_scaling_of_one_is_no_scaling(seed, half, pairing):
    x, at = normal(seed, 1, 2, 9, 2 * half), torch.arange(9)
    plain = Rotary(2 * half, pairing=pairing)(at)(x)
    for scaling in (
        LinearScaling(1.0),
        NTKScaling(1.0),
        YarnScaling(1.0, 4),
        Llama3Scaling(1.0, original_max_seq_len=4),
    ):
        got = Rotary(2 * half, pairing=pairing, scaling=scaling)(at)(x)
        close(got, plain, 1e-5, str(scaling))


class Flat(Alibi):
    """ALiBi whose slopes are all 0."""

    def slopes(self, device=None):
        return torch.zeros(self.n_heads, device=device)


@some(20)
@given(seeds, st.integers(1, 4), lengths, lengths, st.sampled_from(KERNELS))
def test_a_bias_of_zero_is_none(seed, H, T, S, kernel):
    """ALiBi without slopes, and T5's empty table, leave plain attention."""
    layer = random(MultiHeadAttention(8, H, head_dim=3, kernel=kernel), seed)
    x, context = normal(seed, 2, T, 8), normal(seed + 1, 2, S, 8)
    at = torch.arange(S - T, S), torch.arange(S)
    table = RelativeBias(H, bidirectional=True).double()
    with torch.no_grad():
        table.table.weight.zero_()
    expected = layer(x, context, mask=Causal())
    for bias in (Flat(H)(*at).double(), table(*at)):
        close(layer(x, context, mask=Causal(), bias=bias), expected, 1e-11)


@some(15)
@given(seeds, st.integers(1, 4), lengths, st.sampled_from(KERNELS))
def test_t5s_scale_of_one_hides_in_the_queries(seed, H, T, kernel):
    """scale = 1 with W_Q/√D, or scale = 1/√D outright: plain attention."""
    plain = random(MultiHeadAttention(8, H, head_dim=5, kernel=kernel), seed)
    x = normal(seed, 2, T, 8)
    close(copy_with(plain, scale=5**-0.5)(x), plain(x), 1e-11)
    t5 = copy_with(plain, scale=1.0)
    with torch.no_grad():
        t5.q_proj.weight.mul_(5**-0.5)
    close(t5(x), plain(x), 1e-11)


def copy_with(layer, **values):
    layer = copy.deepcopy(layer)
    for name, value in values.items():
        setattr(layer, name, value)
    return layer


# ── Blocks and encoders ──────────────────────────────────────────────────────────────

SUBLAYERS = {
    "mha": lambda: (MultiHeadAttention(8, 4, 2), FeedForward(8, 9, nn.GELU())),
    "mla": lambda: (
        LatentAttention(8, 2, 4, 3, 0, 3),
        GatedFeedForward(8, 9, nn.SiLU()),
    ),
    "moe": lambda: (
        MultiHeadAttention(8, 1),
        MixtureOfExperts(SoftmaxTopKRouter(8, 3, 2), Experts(3, 8, 5)),
    ),
}


@pytest.mark.parametrize("name", SUBLAYERS)
@some(4)
@given(seed=seeds, T=lengths)
def test_a_pre_norm_block_that_adds_nothing_is_the_identity(name, seed, T):
    attention, feedforward = SUBLAYERS[name]()
    norms = RMSNorm(8), nn.LayerNorm(8)
    block = random(Block(attention, feedforward, *norms, pre_norm), seed)
    x = normal(seed, 2, T, 8)
    assert not torch.equal(block(x, mask=Causal()), x)
    with torch.no_grad():
        for key, weight in block.named_parameters():
            if "o_proj" in key or "down" in key:
                weight.zero_()
    assert torch.equal(block(x, mask=Causal()), x)


def orderless():
    """Encoders whose positions say nothing, as functions of ids."""
    bert = random(Bert(BertConfig(V, 12, 2, 3, 20, 16)), 1)
    t5 = random(T5(T5Config(V, 12, 2, 3, 4, 20, n_buckets=8, max_distance=12)), 2)
    sizes = TransformerConfig(V, V, 12, 2, 3, 20)
    transformer = random(Transformer(sizes), 3)
    transformer.src_positions = Nowhere()
    with torch.no_grad():
        bert.embeddings.position.weight.zero_()
        t5.encoder_bias.table.weight.zero_()
    return {"bert": bert, "t5": t5.encode, "transformer": transformer.encode}


class Nowhere(nn.Module):
    """All positions alike."""

    def forward(self, positions):
        return torch.zeros(*positions.shape, 12)


@torch.no_grad()
@some(15)
@given(seeds, st.integers(2, 9), st.booleans(), st.randoms(use_true_random=False))
def test_without_positions_shuffled_words_give_shuffled_rows(seed, T, padded, rng):
    order = torch.tensor(rng.sample(range(T), T))
    tokens = ids(seed, 2, T)
    keep = torch.ones(2, T).bool()
    if padded:
        keep[1, T // 2 :] = False
    for name, encode in ORDERLESS().items():
        whole = encode(tokens, keep=keep)[:, order]
        got = encode(tokens[:, order], keep=keep[:, order])
        close(got, whole, 1e-10, name)


ORDERLESS = cache(orderless)

# ── Caches: token by token is all at once ────────────────────────────────────────────

DEEPSEEK = dict(
    vocab_size=V, d_model=12, n_layers=2, n_heads=3, kv_lora_rank=5,
    qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=3, d_ff=20, n_dense_layers=1,
    d_expert=6, n_experts=6, top_k=2, n_groups=3, top_groups=2, max_seq_len=40,
)  # fmt: skip
LLAMA = LlamaConfig(V, 12, 2, 6, 2, 20, max_seq_len=40, head_dim=4)
MIXTRAL = MixtralConfig(V, 12, 2, 4, 2, 10, n_experts=4, max_seq_len=40, head_dim=4)


def replaced(config, **values):
    return type(config)(**{**vars(config), **values})


def seq2seq(cell, attention):
    """A recurrent reader and writer, with or without Bahdanau's attention."""
    encoder = Encoder(nn.Embedding(V, 5), cell(5, 6))
    d_context = 6 if attention else 0
    head = nn.Linear(6 + d_context, V)
    look = BahdanauAttention(6, 6, 4) if attention else None
    return Seq2Seq(
        encoder, Decoder(nn.Embedding(V, 5), cell(5 + d_context, 6), head, look)
    )


DECODERS = {
    "gpt": lambda: Gpt(GptConfig(V, 12, 2, 3, 20, 40)),
    "llama": lambda: Llama(LLAMA),
    "llama, interleaved, YaRN": lambda: Llama(
        replaced(LLAMA, rope_scaling=YarnScaling(4.0, 6)), interleaved
    ),
    "llama, window 3": lambda: Llama(replaced(LLAMA, window=3)),
    "llama, window 1": lambda: Llama(replaced(LLAMA, window=1)),
    "mixtral": lambda: Mixtral(MIXTRAL),
    "mixtral, window 4": lambda: Mixtral(replaced(MIXTRAL, window=4)),
    "deepseek v2": lambda: DeepSeek(DeepSeekV2Config(q_lora_rank=None, **DEEPSEEK)),
    "deepseek v3": lambda: DeepSeek(DeepSeekV3Config(q_lora_rank=7, **DEEPSEEK)),
}
PAIRS = {
    "t5": lambda: T5(T5Config(V, 12, 2, 3, 4, 20, n_buckets=8, max_distance=12)),
    "t5 1.1": lambda: T5(T5Config(V, 12, 2, 3, 4, 20, 8, 12, gated=True, tied=False)),
    "transformer": lambda: Transformer(TransformerConfig(V, V, 12, 2, 3, 20)),
    "gru": lambda: seq2seq(GruCell, attention=False),
    "gru, attention": lambda: seq2seq(GruCell, attention=True),
    "lstm, attention": lambda: seq2seq(LstmCell, attention=True),
}
FAMILIES = DECODERS | PAIRS
WITH_CACHES = [name for name in FAMILIES if "gru" not in name and "lstm" not in name]


@cache
def model(name):
    return random(FAMILIES[name](), 7, 0.4)


def source(name, seed, B):
    """What a decoder reads beside the target: nothing, or an encoded source."""
    if name in DECODERS:
        return {}
    src, keep = ids(seed, B, 6), torch.arange(6) < 6 - torch.arange(B)[:, None] % 5
    return {"memory": model(name).encode(src, keep), "memory_keep": keep}


def rows(beside, which):
    return {name: x[which] for name, x in beside.items()}


def read(name, tokens, caches=None, keep=None, **beside):
    """Logits of tokens, which stand behind those that the caches have seen."""
    one = model(name)
    if name not in WITH_CACHES:  # it remembers a state alone, and asks for its own keep
        keep = None if keep is None else keep[:, -tokens.shape[1] :]
        return one.decode(tokens, caches=caches, tgt_keep=keep, **beside)
    how = {"caches": caches, "keep": keep, **beside}
    return (one if name in DECODERS else one.decode)(tokens, **how)


def new_caches(name, capacity=None, spare=0):
    """Growing or preallocated; windowed ones keep `spare` more, to go back."""
    if name in DECODERS:
        return model(name).new_caches(capacity, spare)
    caches = model(name).new_caches()
    if capacity is not None and name in WITH_CACHES:
        for layer in caches:
            layer.own = PreallocatedCache(capacity)
    return caches


def in_chunks(name, tokens, cuts, caches, keep=None, **beside):
    """The logits of one chunk after another, side by side."""
    ends = [*cuts, tokens.shape[1]]
    parts = [
        read(
            name,
            tokens[:, a:b],
            caches,
            None if keep is None else keep[:, :b],
            **beside,
        )
        for a, b in itertools.pairwise([0, *ends])
    ]
    return torch.cat(parts, 1)


@st.composite
def texts(draw, least=1):
    """Seed, batch, length, and where to cut: any chunking, one by one among them."""
    seed, B, T = draw(seeds), draw(st.integers(1, 3)), draw(st.integers(least, 11))
    if draw(st.booleans()):
        return seed, B, T, list(range(1, T))
    cuts = draw(st.sets(st.integers(1, max(T - 1, 1)), max_size=4))
    return seed, B, T, sorted(cuts - {T})


def left_padded(seed, B, T):
    """keep (B, T): each row has 1 … T real tokens, at the end."""
    real = 1 + normal(seed, B).abs().mul(1000).long() % T
    return torch.arange(T) >= T - real[:, None]


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
@some(20)
@given(text=texts(), padded=st.booleans(), preallocated=st.booleans())
def test_in_chunks_is_all_at_once(name, text, padded, preallocated):
    """Every family, in any chunks, left-padded or not; padding's own rows too."""
    seed, B, T, cuts = text
    tokens, beside = ids(seed, B, T), source(name, seed, B)
    keep = left_padded(seed, B, T) if padded else None
    whole = read(name, tokens, keep=keep, **beside)
    caches = new_caches(name, T + 2 if preallocated else None)
    close(in_chunks(name, tokens, cuts, caches, keep, **beside), whole, 1e-10)
    assert caches.seen == T
    assert torch.equal(read(name, tokens, keep=keep, **beside), whole)  # no leak


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
@some(8)
@given(text=texts())
def test_a_left_padded_row_is_the_row_alone(name, text):
    seed, B, T, cuts = text
    tokens, beside = ids(seed, B, T), source(name, seed, B)
    keep = left_padded(seed, B, T)
    together = in_chunks(name, tokens, cuts, new_caches(name), keep, **beside)
    for b in range(B):
        alone = read(name, tokens[b : b + 1, keep[b]], **rows(beside, slice(b, b + 1)))
        close(together[b : b + 1, keep[b]], alone, 1e-10, f"row {b}")


@pytest.mark.parametrize("name", WITH_CACHES)
@torch.no_grad()
@some(8)
@given(text=texts(2), data=st.data(), preallocated=st.booleans())
def test_truncated_is_never_read(name, text, data, preallocated):
    """Read on from token n with other words, as if the old ones had never been."""
    seed, B, T, cuts = text
    n = data.draw(st.integers(0, T - 1))
    first, second = ids(seed, B, T), ids(seed + 1, B, T)
    beside = source(name, seed, B)
    caches = new_caches(name, T if preallocated else None, spare=11)
    in_chunks(name, first, cuts, caches, **beside)
    caches.truncate(n)
    tokens = torch.cat((first[:, :n], second[:, n:]), 1)
    whole = read(name, tokens, **beside)
    close(read(name, tokens[:, n:], caches, **beside), whole[:, n:], 1e-10)


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
@some(8)
@given(text=texts(2), data=st.data(), preallocated=st.booleans())
def test_reordered_is_reading_the_reordered_batch(name, text, data, preallocated):
    seed, B, T, _ = text
    which = st.lists(st.integers(0, B - 1), min_size=1, max_size=4).map(torch.tensor)
    which, n = data.draw(which), data.draw(st.integers(1, T - 1))
    tokens, beside = ids(seed, B, T), source(name, seed, B)
    caches = new_caches(name, T if preallocated else None)
    read(name, tokens[:, :n], caches, **beside)
    caches.reorder(which)
    beside = rows(beside, which)
    got = read(name, tokens[which, n:], caches, **beside)
    close(got, read(name, tokens[which], **beside)[:, n:], 1e-10)


@torch.no_grad()
@some(10)
@given(texts(), st.integers(0, 3))
def test_a_window_as_long_as_the_text_is_no_window(text, extra):
    seed, B, T, cuts = text
    tokens = ids(seed, B, T)
    for build, config, plain in (
        (Llama, LLAMA, model("llama")),
        (Mixtral, MIXTRAL, model("mixtral")),
    ):
        narrow = build(replaced(config, window=T + extra)).double().eval()
        narrow.load_state_dict(plain.state_dict())
        close(narrow(tokens), plain(tokens), 1e-11)
        caches, parts = narrow.new_caches(), []
        for a, b in itertools.pairwise([0, *cuts, T]):
            parts.append(narrow(tokens[:, a:b], caches))
        close(torch.cat(parts, 1), plain(tokens), 1e-10)


# ── Decoding ─────────────────────────────────────────────────────────────────────────


def step(name, seed, B, cached=True):
    beside = source(name, seed, B)
    if name not in WITH_CACHES:
        one, keep = model(name), beside.pop("memory_keep")
        return one.start(ids(seed, B, 6), keep)
    call = model(name) if name in DECODERS else model(name).decode
    if not cached:
        return UncachedStep(call, **beside)
    return CachedStep(call, new_caches(name, spare=9), **beside)


@pytest.mark.parametrize("name", FAMILIES)
@some(4)
@given(seed=seeds, B=st.integers(1, 3), T=st.integers(1, 4), max_new=st.integers(1, 7))
def test_one_beam_is_greedy(name, seed, B, T, max_new):
    prompt, stop = ids(seed, B, T), [0, 1, 2]
    found = beam_search(step(name, seed, B), prompt, max_new, 1, stop, alpha=0.0)
    assert found.rows() == greedy(step(name, seed, B), prompt, max_new, stop).rows()


@pytest.mark.parametrize("name", WITH_CACHES)
@some(6)
@given(seed=seeds, T=st.integers(1, 4), max_new=st.integers(1, 7), n=st.integers(1, 4))
def test_greedy_speculation_is_greedy(name, seed, T, max_new, n):
    """Whatever the draft is worth: itself, or another family altogether."""
    prompt, stop = ids(seed, 1, T), [0, 1]
    expected = greedy(step(name, seed, 1, cached=False), prompt, max_new, stop)
    for draft in (name, "gpt", "llama"):
        got = speculative(
            step(name, seed, 1), step(draft, seed, 1), prompt, max_new, n, stop=stop
        )
        assert got.rows() == expected.rows()
        if draft == name:  # then every draft is taken
            assert got.rounds == -(-len(expected.rows()[0]) // (n + 1))
