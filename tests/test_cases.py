# SPDX-License-Identifier: MIT
"""Faults that other projects met in public, and what is right instead.

One test for each case, named after the symptom and reduced to the smallest input that
shows it. The numbers were computed outside this package.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from compare import close
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from deepdive.attention import MultiHeadAttention
from deepdive.cache import GrowingCache
from deepdive.configs import (
    DEEPSEEK_V2,
    BertConfig,
    DeepSeekV3Config,
    GptConfig,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    TransformerConfig,
)
from deepdive.decoding import (
    draw,
    greedy,
    probabilities,
    scale_by_temperature,
    temperature,
    top_p,
)
from deepdive.decoding.steps import CachedStep
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
    Experts,
    MixtureOfExperts,
    NoisyTopKRouter,
    SoftmaxTopKRouter,
    dense_gates,
    importance_loss,
    load_loss,
    record_routing,
    switch_balance_loss,
)
from deepdive.objectives import label_smoothed, masked_lm_batch
from deepdive.positions import (
    RelativeBias,
    Rotary,
    half_split,
    interleaved,
    relative_bucket,
)
from deepdive.recurrent import BahdanauAttention

KERNELS = [equation, fused, tiled]
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
V = 29


def small_tiles(q, k, v, **how):
    """`tiled`, in tiles of two: a few words fill several of them."""
    return tiled(q, k, v, **how, block_size=2)


every_kernel = pytest.mark.parametrize(
    "kernel", [*KERNELS, small_tiles], ids=lambda k: k.__name__
)


def normal(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def random(module, seed=0, size=0.4):
    """In float64, eval mode, with all weights random."""
    module, generator = module.double().eval(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for x in module.parameters():
            x.normal_(std=size, generator=generator)
    return module


def column(*numbers):
    """Values of width 1: (1, 1, S, 1)."""
    return torch.tensor(numbers, dtype=torch.float64).view(1, 1, -1, 1)


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


DECODERS = {
    "gpt": lambda: Gpt(GptConfig(V, 12, 2, 3, 20, 16)),
    "llama": lambda: Llama(LlamaConfig(V, 16, 2, 4, 2, 20, 16)),
    "window": lambda: Llama(LlamaConfig(V, 16, 2, 4, 2, 20, 16, window=2)),
    "mixtral": lambda: Mixtral(MixtralConfig(V, 16, 2, 4, 1, 10, 4, max_seq_len=16)),
    "deepseek": lambda: DeepSeek(
        DeepSeekV3Config(
            V, 12, 2, 3, 7, 5, 4, 2, 3, 20, 1, 6, 6, 1, 2, 3, 2, max_seq_len=16
        )
    ),
}
decoders = pytest.mark.parametrize("name", DECODERS)

# ── A. Attention and masks ───────────────────────────────────────────────────────────


@every_kernel
def test_a_row_that_may_see_nothing_does_not_poison_the_batch(kernel):
    """B01: one wholly masked row turned into NaN, and through the backward pass all
    weights with it. It is zero, and every gradient is that of the other rows."""
    keep = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    qkv = [normal(i, 1, 1, 3, 4).requires_grad_() for i in range(3)]
    out = kernel(*qkv, mask=keep)
    assert (out[..., 2, :] == 0).all()
    q, k, v = qkv
    seen = sdpa(q[..., :2, :], k, v, attn_mask=keep[:2])
    close(out[..., :2, :], seen)
    for row in (slice(2), slice(3)):  # whether or not the loss reads the empty row
        got = torch.autograd.grad(out[..., row, :].sum(), qkv, retain_graph=True)
        expected = torch.autograd.grad(seen.sum(), qkv, retain_graph=True)
        for a, b in zip(got, expected, strict=True):
            close(a, b)


@every_kernel
def test_nor_does_a_row_that_a_bias_of_minus_infinity_hides(kernel):
    """B01 by addition: −∞ on every score of a row is the same mask."""
    keep = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    bias = zeros(3, 3).masked_fill(~keep, -torch.inf)
    qkv = [normal(i, 1, 1, 3, 4).requires_grad_() for i in range(3)]
    out = kernel(*qkv, bias=bias)
    close(out, kernel(*qkv, mask=keep))
    for grad in torch.autograd.grad(out.sum(), qkv):
        assert grad.isfinite().all()


def test_an_empty_source_does_not_poison_the_first_attention_either():
    """B01, where the softmax is Bahdanau's: a source without a word gives zeros."""
    attention = random(BahdanauAttention(4, 6, 5))
    query, words = normal(0, 2, 4).requires_grad_(), normal(1, 2, 3, 6)
    keep = torch.tensor([[1, 1, 0], [0, 0, 0]]).bool()
    out = attention(query, words, keep)
    out.sum().backward()
    assert (out[1] == 0).all() and query.grad.isfinite().all() and query.grad[0].any()
    assert all(x.grad.isfinite().all() for x in attention.parameters())


@every_kernel
@pytest.mark.parametrize("form", ["rule", "tensor"])
def test_a_causal_mask_shows_the_past_and_not_the_future(kernel, form):
    """B02: a mask with True = hide was given where True = may see, and every word read
    the future alone. Without scores each word takes the mean of itself and the past."""
    rule = Causal()
    mask = rule if form == "rule" else rule.tensor(4, 4)
    none = zeros(1, 1, 4, 4)
    out = kernel(none, none, torch.eye(4, dtype=torch.float64)[None, None], mask=mask)
    past = torch.ones(4, 4, dtype=torch.float64).tril()
    close(out[0, 0], past / past.sum(1, keepdim=True))


def test_our_masks_are_the_opposite_of_torchs_layer_and_the_same_as_its_function():
    """B02 where two conventions meet: `nn.MultiheadAttention` hides where True."""
    ours, theirs = (
        MultiHeadAttention(6, 2).double(),
        nn.MultiheadAttention(6, 2, bias=False, batch_first=True),
    )
    theirs = random(theirs)
    q, k, v = theirs.in_proj_weight.chunk(3)
    weights = q, k, v, theirs.out_proj.weight
    with torch.no_grad():
        for name, x in zip("qkvo", weights, strict=True):
            getattr(ours, f"{name}_proj").weight.copy_(x)
    x, may_see = normal(1, 2, 5, 6), Causal().tensor(5, 5)
    close(ours(x, mask=may_see), theirs(x, x, x, attn_mask=~may_see)[0])
    q, k, v = normal(2, 3, 1, 2, 5, 4)
    close(equation(q, k, v, may_see), sdpa(q, k, v, attn_mask=may_see))


@every_kernel
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float64])
def test_a_mask_of_zeros_and_ones_is_not_added_to_the_scores(kernel, dtype):
    """B04: a 0/1 mask was added as +0/+1, so the future was barely discouraged and
    nothing complained. Only booleans are a mask; numbers are refused."""
    none, v = zeros(1, 1, 3, 1), column(0, 1, 2)
    mask = torch.ones(3, 3).tril()
    with pytest.raises(TypeError, match="mask must be a rule or a bool tensor"):
        kernel(none, none, v, mask=mask.to(dtype))
    out = kernel(none, none, v, mask=mask.bool())
    close(out.flatten(), [0, 0.5, 1.0])


# ── B. Positions ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pairing", "score"), [(interleaved, 1.190051), (half_split, -3.456429)]
)
def test_angles_are_laid_out_as_the_pairs_are_turned(pairing, score):
    """B06: angles in one order and a rotation in the other: it trained, but distance
    was gone. Scores depend on the distance, lengths are kept, position 0 turns none."""
    rotary = Rotary(4, pairing=pairing).double()
    q, k = (torch.tensor(x).double() for x in ([1.0, 2, 3, 4], [4.0, 3, 2, 1]))

    def turned(x, position):
        return rotary(torch.tensor([position]))(x.view(1, 1, 1, 4)).flatten()

    for m, n in ((3, 1), (10, 8)):
        assert abs(turned(q, m) @ turned(k, n) - score) < 1e-5
    assert abs(turned(q, 5).square().sum() - 30) < 1e-5
    assert turned(q, 0) @ turned(k, 0) == 20


# ── C. The 2017 model ────────────────────────────────────────────────────────────────


def test_smoothed_labels_are_finite_and_padding_costs_nothing():
    """B08: the loss was infinite where a probability is 0, failed on a batch without
    padding, and counted padded rows. ln 5 per real word, and no gradient from padding.
    """
    logits = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    loss = label_smoothed(logits, torch.tensor([2, 1, 0]), pad=0, eps=0.4)
    loss.mean.backward()
    assert abs(loss.mean.item() - math.log(5)) < 1e-12
    assert int(loss.count) == 2 and (logits.grad[2] == 0).all()
    assert logits.grad[:2].all()
    hard = torch.zeros(3, 5)
    hard[:, 3] = -1e4
    for targets in ([2, 1, 0], [2, 1, 4], [3, 3, 3], [0, 0, 0]):
        targets = torch.tensor(targets)
        loss = label_smoothed(hard, targets, pad=0, eps=0.4)
        assert loss.mean.isfinite()
        expected = F.cross_entropy(
            hard, targets, ignore_index=0, label_smoothing=0.4, reduction="sum"
        )
        close(loss.total, expected, 1e-2)


ENCODERS = {
    "transformer": lambda: Transformer(TransformerConfig(V, V, 12, 2, 3, 20)),
    "bert": lambda: Bert(BertConfig(V, 12, 2, 3, 20, 16)),
    "t5": lambda: T5(T5Config(V, 12, 2, 3, 4, 20)),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_padding_changes_neither_length_nor_words_nor_does_eval(name):
    """B09: in eval mode a stock encoder cut off padded columns, and gave other numbers
    than in training. The shape stays, real words are as without padding."""
    model = random(ENCODERS[name]())
    encode = getattr(model, "encode", model)
    words = torch.tensor([[5, 6, 7]])
    longer = torch.tensor([[5, 6, 7, 9, 3]])
    keep = torch.tensor([[1, 1, 1, 0, 0]]).bool()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            model.eval()
            alone, padded = encode(words), encode(longer, keep=keep)
            model.train()
            training = encode(longer, keep=keep)
        assert padded.shape == (1, 5, 12)
        close(padded[:, :3], alone)
        close(training, padded)


# ── D. BERT ──────────────────────────────────────────────────────────────────────────


def test_hidden_words_are_hidden_in_the_papers_proportions():
    """B11: [MASK] was never written, or 2 % of words were random in the place of 10 %,
    or padding was chosen. 15 % chosen; of these 80 % [MASK], 10 % random, 10 % kept."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (400, 500), generator=generator)
    ids[:, 0], ids[:, -2], ids[:, -1] = 1, 2, 0  # [CLS] … [SEP] [PAD]
    inputs, labels = masked_lm_batch(ids, 1000, 4, [0, 1, 2, 3], generator)
    chosen = labels != -100
    assert not chosen[:, 0].any() and not chosen[:, -2:].any()
    assert (labels[chosen] == ids[chosen]).all()
    assert (inputs[~chosen] == ids[~chosen]).all()
    n = chosen.sum().item()
    hidden = ((inputs == 4) & chosen).sum().item() / n
    kept = ((inputs == ids) & chosen).sum().item() / n
    assert abs(n / ids[:, 1:-2].numel() - 0.15) < 0.005
    assert abs(hidden - 0.8) < 0.012 and abs(kept - 0.1) < 0.012
    assert inputs[chosen & (inputs != 4)].min() >= 5  # no other special word is drawn


# ── E. Caches and sampling ───────────────────────────────────────────────────────────


@decoders
@torch.no_grad()
def test_a_cache_neither_restarts_the_positions_nor_leaks(name):
    """B13: the second cached step failed, or counted positions from 0 again, or a
    chunk's mask was cut top-left, or a later call without a cache was shifted."""
    model = random(DECODERS[name]())
    tokens = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    whole = model(tokens)
    for cuts in ((3, 1, 1), (3, 2), (1, 1, 1, 1, 1), (1, 4)):
        caches = model.new_caches()
        parts = [model(chunk, caches) for chunk in tokens.split(cuts, 1)]
        close(torch.cat(parts, 1), whole, 1e-11, str(cuts))
    assert torch.equal(model(tokens), whole)


@decoders
@torch.no_grad()
def test_a_left_padded_prompt_answers_as_it_does_alone(name):
    """B15: positions counted from the padding, so every shorter prompt of a batch got
    other logits. They count real words, cached or not, and the greedy text is one."""
    model = random(DECODERS[name]())
    alone = torch.tensor([[5, 6, 7]])
    batch = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    together = model(batch, keep=keep)
    assert together.isfinite().all()
    close(together[:1, 2:], model(alone), 1e-11)
    step = CachedStep(model, model.new_caches(), keep)
    text = greedy(CachedStep(model, model.new_caches()), alone, 6)
    assert greedy(step, batch, 6).rows()[0] == text.rows()[0]


@pytest.mark.parametrize(
    ("probs", "p", "expected"),
    [
        ([0.5, 0.41, 0.09], 0.9, [0.549451, 0.450549, 0]),
        ([0.09, 0.5, 0.41], 0.9, [0, 0.549451, 0.450549]),
        ([0.5, 0.41, 0.09], 0.5, [1, 0, 0]),
        ([0.5, 0.41, 0.09], 0.01, [1, 0, 0]),
        ([0.5, 0.41, 0.09], 1.0, [0.5, 0.41, 0.09]),
    ],
)
def test_top_p_keeps_the_word_that_reaches_p(probs, p, expected):
    """B17: the word that carries the sum past p was dropped, and with a small p all
    were. The set is the smallest that reaches p; it is never empty."""
    close(probabilities(torch.tensor(probs).log(), top_p(p)), expected, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("logits", [[1.0, 3, 2], [0.0, 3, -2], [-6e4, 6e4, 0]])
@pytest.mark.parametrize("t", [0.0, 1e-8, 1e-30])
def test_temperature_zero_is_the_most_probable_word(logits, dtype, t):
    """B18: dividing by 0 gave NaN, by an epsilon infinity in float16, and the drawing
    failed. The limit of a falling temperature is the most probable word."""
    logits = torch.tensor([logits], dtype=dtype)
    scaled = scale_by_temperature(logits, t)
    assert scaled.tolist()[0][1] == 0 and not scaled.isnan().any()
    close(probabilities(logits, temperature(t)), [[0, 1, 0]])
    assert all(int(draw(logits, temperature(t))) == 1 for _ in range(20))


# ── F. T5 ────────────────────────────────────────────────────────────────────────────


def test_distances_fall_into_the_released_models_buckets():
    """B20: a port's table was off: the sign turned, the half for keys to the right
    missing, or no end at the last bucket."""
    at = torch.arange(10)
    table = relative_bucket(at[None] - at[:, None], bidirectional=True)
    assert table[0].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    assert table[9].tolist() == [8, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    both = {-128: 15, -64: 14, -20: 10, -16: 10, -15: 9, -8: 8, 0: 0, 8: 24, 12: 25,
            16: 26, 64: 30, 91: 31, 1000: 31, -1000: 15}  # fmt: skip
    past = {-1000: 31, -91: 29, -64: 26, -20: 17, -16: 16, -15: 15, -8: 8, 0: 0, 8: 0,
            1000: 0}  # fmt: skip
    for bidirectional, buckets in ((True, both), (False, past)):
        got = relative_bucket(torch.tensor(list(buckets)), bidirectional)
        assert got.tolist() == list(buckets.values())


@torch.no_grad()
def test_t5s_bias_is_that_of_the_new_words_place_under_a_cache():
    """B22: with one new query the bias was left out, or made as if it stood at 0: the
    first word was right and the later ones drifted."""
    model = random(T5(T5Config(V, 12, 2, 3, 4, 20)))
    memory, tgt = normal(0, 1, 6, 12), torch.tensor([[0, 7, 9, 4]])
    caches = model.new_caches()
    steps = [model.decode(tgt[:, t : t + 1], memory, None, caches) for t in range(4)]
    close(torch.cat(steps, 1), model.decode(tgt, memory), 1e-11)
    bias = RelativeBias(1, bidirectional=False)
    bias.table.weight.copy_(torch.arange(32.0)[:, None])
    assert bias(torch.tensor([3]), torch.arange(4)).flatten().tolist() == [3, 2, 1, 0]


# ── G. Grouped-query attention ───────────────────────────────────────────────────────


@every_kernel
@pytest.mark.parametrize("T", [1, 40])
def test_neighbouring_heads_share_a_key_value_head(kernel, T):
    """B23: heads 0 1 2 3 read key/value heads 0 1 0 1; shapes agreed and imported
    weights gave rubbish. They read 0 0 1 1, and 6 heads cannot share 4."""
    v = torch.stack((zeros(3, 2), zeros(3, 2) + 1))[None]
    out = kernel(zeros(1, 4, T, 2), zeros(1, 2, 3, 2), v)
    assert out[0, :, -1, 0].tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        kernel(zeros(1, 6, T, 2), zeros(1, 4, 3, 2), zeros(1, 4, 3, 2))


def test_the_cache_holds_the_shared_heads_once():
    """B23's twin: keys were repeated before they were stored, and nothing was saved."""
    layer, cache = MultiHeadAttention(12, 4, 2).double(), GrowingCache()
    layer(normal(0, 3, 5, 12), mask=Causal(), cache=cache)
    assert [tuple(x.shape) for x in cache.entries] == [(3, 2, 5, 3)] * 2
    assert cache.nbytes == 2 * 3 * 2 * 5 * 3 * 8
    with pytest.raises(ValueError, match="n_kv_heads"):
        MultiHeadAttention(12, 6, 4)


# ── H. Tiles ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5, 16])
def test_a_last_tile_that_is_not_full_adds_no_keys(block_size):
    """B24: right only where the tile divides the length; zeros that fill the last tile
    score 0 and add 1 each to the sum. 15/5 = 3, not 15/8."""
    v = column(1, 2, 3, 4, 5)
    out = tiled(zeros(1, 1, 1, 2), zeros(1, 1, 5, 2), v, block_size=block_size)
    close(out.flatten(), [3.0])
    q, k, v = normal(0, 3, 1, 2, 7, 8)
    for causal in (False, True):
        expected = sdpa(q, k, v, is_causal=causal)
        mask = Causal() if causal else None
        close(tiled(q, k, v, mask, block_size=block_size), expected)


@every_kernel
def test_more_queries_than_keys_align_at_the_end(kernel):
    """B26: two libraries align a causal mask at opposite corners, and rows without a
    key gave NaN. Here it is bottom-right, as the masks' docstring says."""
    q, k, v = zeros(1, 1, 5, 1), zeros(1, 1, 2, 1), column(10, 20)
    assert kernel(q, k, v, mask=Causal()).flatten().tolist() == [0, 0, 0, 10, 15]


# ── I. Mixture of experts ────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("E", "K"), [(4, 2), (1, 1), (4, 4)])
def test_a_fresh_router_without_noise_divides_by_nothing(E, K):
    """B27: without noise its scale is 0, and the load became NaN. In evaluation the
    load is the count; at a tie the gates are 1/K; one expert is perfectly balanced."""
    router = NoisyTopKRouter(8, E, K)
    layer = MixtureOfExperts(router, Experts(E, 8, 5)).double()
    x = normal(0, 1, 6, 8)
    for training in (False, True):
        layer.train(training)
        with record_routing(layer) as seen:
            out = layer(x)
        (routing,) = seen.values()
        losses = [importance_loss(routing), load_loss(routing)]
        losses.append(switch_balance_loss(routing))
        assert out.isfinite().all() and all(loss.isfinite() for loss in losses)
        close(routing.gates.sum(-1), torch.ones(6, dtype=torch.float64))
        if E == K:
            assert load_loss(routing) == 0
        if E == 1:
            assert importance_loss(routing) == 0
        if not training:
            assert torch.equal(layer(x), out) and routing.chances is None
            close(routing.gates, torch.full((6, K), 1 / K, dtype=torch.float64))


# ── J. Latent attention ──────────────────────────────────────────────────────────────


@torch.no_grad()
def test_the_compressed_cache_is_compressed():
    """B29: expanded keys and values were cached, 60 numbers for a word in the place of
    12, or the rotary key was left out of the count. d_c + d_R, and the scale is
    1/√(d_h + d_R)."""
    sizes = dict(kv_lora_rank=8, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5)
    layer, cache = random(LatentAttention(16, 4, **sizes)), GrowingCache()
    assert layer.scale == 10**-0.5
    x, turn = normal(0, 2, 6, 16), Rotary(4, pairing=interleaved)

    def step(a, b, cache=None):
        return layer(x[:, a:b], Causal(), turn(torch.arange(a, b)), cache)

    parts = [step(0, 4, cache), step(4, 5, cache), step(5, 6, cache)]
    close(torch.cat(parts, 1), step(0, 6), 1e-11)
    assert sum(entry.numel() for entry in cache.entries) == 2 * 6 * 12
    assert cache.nbytes == 2 * 6 * 12 * 8
    assert DEEPSEEK_V2.kv_lora_rank + DEEPSEEK_V2.qk_rope_head_dim == 576


# ── K. DeepSeekMoE ───────────────────────────────────────────────────────────────────


def test_deepseeks_gates_are_not_made_to_sum_to_one():
    """B31: the chosen gates were divided by their sum, which DeepSeekMoE does not do
    and Mixtral does. Softmax over all experts, kept where chosen; shared experts
    stand outside with weight 1."""
    x = torch.tensor([[2.0, 1, 0, -1]], dtype=torch.float64)
    expected = {False: [[0.6439, 0.2369, 0, 0]], True: [[0.7311, 0.2689, 0, 0]]}
    for normalise, gates in expected.items():
        router = SoftmaxTopKRouter(4, 4, 2, normalise).double()
        router.weight = nn.Parameter(torch.eye(4, dtype=torch.float64))
        close(dense_gates(router(x)).detach(), gates, 5e-5)
    shared = nn.Linear(4, 4).double()
    layer = MixtureOfExperts(router, Experts(4, 4, 3).double(), shared)
    alone = MixtureOfExperts(router, layer.experts)
    close(layer(x[None]), alone(x[None]) + shared(x[None]))


# ── Added ────────────────────────────────────────────────────────────────────────────


def for_half_split(weight, head_dim):
    """Rows of q or k in the order of interleaved pairs, as half-split pairs."""
    pairs = weight.unflatten(0, (-1, head_dim // 2, 2))  # (heads, D/2, 2, d_model)
    return pairs.transpose(1, 2).flatten(0, 2)


@torch.no_grad()
def test_one_pairings_weights_are_not_the_others():
    """B41: weights stored for interleaved pairs, turned by halves: it runs. The same
    logits need the same weights in the other order."""
    config = LlamaConfig(V, 16, 2, 4, 2, 20, 16)
    right = random(Llama(config, interleaved))
    wrong, moved = (Llama(config, half_split).double() for _ in range(2))
    weights = right.state_dict()
    wrong.load_state_dict(weights)
    for name, x in weights.items():
        if "q_proj" in name or "k_proj" in name:
            weights[name] = for_half_split(x, 4)
    moved.load_state_dict(weights)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    close(moved(tokens), right(tokens), 1e-11)
    assert (wrong(tokens) - right(tokens)).abs().max() > 0.1


SENTENCE = (
    "The old lighthouse keeper counted the waves every evening, because his "
    "grandmother had told him that the seventh one always brings a letter from "
    "somebody who is far away."
)


@pytest.mark.weights
@torch.no_grad()
def test_fluent_text_is_no_proof_of_the_right_pairing():
    """B41 on the packaged SmolLM2: with the wrong pairing it writes English, at twice
    the perplexity. (On another sentence of 31 tokens it was 48 and 132.)"""
    from deepdive.pretrained import smollm2

    model, tokenizer = smollm2()
    ids = tokenizer.encode(SENTENCE).ids
    assert ids.shape == (1, 31)

    def perplexity():
        return F.cross_entropy(model(ids)[0, :-1], ids[0, 1:]).exp().item()

    assert abs(perplexity() - 98) < 1  # `transformers` agrees: test_packaged_decoders
    model.rotary.pairing = half_split
    assert 150 < perplexity() < 300


@kernels
def test_padding_and_nothing_to_see_together_stay_finite(kernel):
    """B01 and B15 at once: padded queries before a left-padded text see nothing."""
    keep = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    qkv = [normal(i, 2, 2, 4, 3).requires_grad_() for i in range(3)]
    for rule in (Causal(keep=keep), Causal(window=1, keep=keep), Everyone(keep)):
        out = kernel(*qkv, mask=rule)
        assert (out[1] == 0).all() and out[0, :, 2:].all()
        for grad in torch.autograd.grad(out.square().sum(), qkv):
            assert grad.isfinite().all() and (grad[1] == 0).all()
