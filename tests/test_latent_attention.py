# SPDX-License-Identifier: MIT
"""Is one latent per position as good as all heads' keys and values? MLA's laws."""

import copy

import pytest
import torch
import transformers
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
from wide_reference import randomise, wide

from deepdive.attention import MultiHeadAttention, record
from deepdive.cache import GrowingCache, PreallocatedCache
from deepdive.configs import YarnScaling
from deepdive.inference import Int8Linear
from deepdive.inference.latent import JoinedLatentAttention
from deepdive.kernels import equation
from deepdive.latent_attention import LatentAttention, softmax_scale
from deepdive.masks import Causal
from deepdive.positions import Rotary, half_split, interleaved

SMALL = {
    "d_model": 16,
    "n_heads": 4,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
}


def layer(seed=0, dtype=torch.float64, **sizes) -> LatentAttention:
    torch.manual_seed(seed)
    made = LatentAttention(**{**SMALL, **sizes}).to(dtype)
    with torch.no_grad():
        for x in made.parameters():
            x.copy_(torch.randn_like(x) * (0.5 if x.dim() == 2 else 0.2))
            x.add_(0 if x.dim() == 2 else 1)
    return made


def turn(T, seen=0, width=4, pairing=interleaved):
    return Rotary(width, pairing=pairing)(torch.arange(seen, seen + T))


# Somebody else's


def theirs(kind, seed, scaling=None, **settings):
    rope = {"rope_theta": 10_000.0, "rope_type": "default"}
    if scaling is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "original_max_position_embeddings": scaling.original_max_seq_len,
            "mscale": scaling.mscale,
            "mscale_all_dim": scaling.mscale_all_dim,
        }
    family = {"2": transformers.DeepseekV2Config, "3": transformers.DeepseekV3Config}
    config = family[kind](
        hidden_size=16,
        num_attention_heads=4,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        max_position_embeddings=64,
        rope_parameters=rope,
        **settings,
    )
    config._attn_implementation = "sdpa"
    module = v2 if kind == "2" else v3
    attention = getattr(module, f"DeepseekV{kind}Attention")(config, 0)
    angles = getattr(module, f"DeepseekV{kind}RotaryEmbedding")(config)
    return randomise(attention, seed), angles


def with_weights_of(reference, **sizes) -> LatentAttention:
    """Copied one by one, without the loader: that is tested elsewhere."""
    ours, w = layer(**sizes), reference.state_dict()
    per_head = w["kv_b_proj.weight"].view(4, 6 + 5, 8)
    state = {
        "kv_down.weight": w["kv_a_proj_with_mqa.weight"][:8],
        "k_rope.weight": w["kv_a_proj_with_mqa.weight"][8:],
        "kv_norm.weight": w["kv_a_layernorm.weight"],
        "k_up.weight": per_head[:, :6].reshape(-1, 8),
        "v_up.weight": per_head[:, 6:].reshape(-1, 8),
        "o_proj.weight": w["o_proj.weight"],
    }
    if "q_proj.weight" in w:
        state["q_up.weight"] = w["q_proj.weight"]
    else:
        state["q_down.weight"] = w["q_a_proj.weight"]
        state["q_norm.weight"] = w["q_a_layernorm.weight"]
        state["q_up.weight"] = w["q_b_proj.weight"]
    ours.load_state_dict(state)
    return ours


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("q_lora_rank", [None, 7])
@pytest.mark.parametrize(
    ("kind", "pairing", "more"),
    [
        ("2", interleaved, {}),
        ("3", interleaved, {}),
        ("3", half_split, {"rope_interleave": False}),
    ],
)
def test_equals_transformers(kind, pairing, more, q_lora_rank, seed):
    """≤ 1e-9 in float64, V2's and V3's, with the gradients."""
    reference, angles = theirs(kind, seed, q_lora_rank=q_lora_rank, **more)
    ours = with_weights_of(reference, q_lora_rank=q_lora_rank)
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    xs = [x.clone().requires_grad_() for _ in range(3)]
    position = torch.arange(7)
    with wide(nn.ModuleList([reference, angles])):
        expected, _ = reference(
            hidden_states=xs[0],
            position_embeddings=angles(xs[0], position[None]),
            attention_mask=Causal().tensor(7, 7)[None, None],
        )
    rotate = Rotary(4, pairing=pairing)(position)
    close(ours(xs[1], mask=Causal(), rotate=rotate), expected, 1e-9)
    rows = ours.queries(xs[2], rotate), ours.latent(xs[2], rotate), Causal()
    absorbed = ours.o_proj(ours.absorbed(*rows).transpose(1, 2).flatten(2))
    close(absorbed, expected, 1e-9, "absorbed")

    expected.square().sum().backward()
    ours(xs[1], mask=Causal(), rotate=rotate).square().sum().backward()
    close(xs[1].grad, xs[0].grad, 1e-8, "gradient of x")
    kv = reference.kv_a_proj_with_mqa.weight.grad
    close(ours.kv_down.weight.grad, kv[:8], 1e-8, "gradient of kv_down")
    close(ours.k_rope.weight.grad, kv[8:], 1e-8, "gradient of k_rope")
    up = reference.kv_b_proj.weight.grad.view(4, 11, 8)
    close(ours.k_up.weight.grad, up[:, :6].reshape(-1, 8), 1e-8, "gradient of k_up")
    close(ours.v_up.weight.grad, up[:, 6:].reshape(-1, 8), 1e-8, "gradient of v_up")


@pytest.mark.parametrize("kind", ["2", "3"])
@pytest.mark.parametrize("mscale", [(0.707, 0.707), (1.0, 0.5), (1.0, 1.0)])
def test_yarn_sharpens_the_softmax_scale(kind, mscale):
    yarn = YarnScaling(40.0, 16, mscale=mscale[0], mscale_all_dim=mscale[1])
    reference, angles = theirs(kind, 0, scaling=yarn, q_lora_rank=None)
    scale = softmax_scale(10, yarn)
    assert reference.scaling == pytest.approx(scale, rel=1e-12)
    ours = with_weights_of(reference, scale=scale)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    position = torch.arange(30, 39)
    with wide(nn.ModuleList([reference, angles])):
        expected, _ = reference(
            hidden_states=x,
            position_embeddings=angles(x, position[None]),
            attention_mask=Causal().tensor(9, 9)[None, None],
        )
    rotate = Rotary(4, pairing=interleaved, scaling=yarn)(position)
    close(ours(x, mask=Causal(), rotate=rotate), expected, 1e-9)


# The two ways, the cache

ANY_SHAPE = given(
    st.integers(1, 3),  # B, T, seen, H
    st.integers(1, 5),
    st.integers(0, 12),
    st.integers(1, 4),
    st.tuples(*[st.integers(1, 9)] * 3),  # d_c, d_h, d_v
    st.integers(0, 3),  # half of d_R
    st.none() | st.integers(1, 9),  # q_lora_rank
    st.booleans(),  # padded
    st.integers(0, 99),  # seed
)


@ANY_SHAPE
@settings(max_examples=60, deadline=None)
def test_absorbed_is_expanded(B, T, seen, H, widths, half, q_rank, padded, seed):
    """On any shape, cached or not, with padding or without."""
    torch.manual_seed(seed)
    d_c, d_h, d_v = widths
    one = layer(
        seed,
        n_heads=H,
        kv_lora_rank=d_c,
        qk_nope_head_dim=d_h,
        qk_rope_head_dim=2 * half,
        v_head_dim=d_v,
        q_lora_rank=q_rank,
    )
    x, S = torch.randn(B, seen + T, 16, dtype=torch.float64), seen + T
    rotate = turn(S, width=2 * half) if half else None
    new = turn(T, seen, 2 * half) if half else None
    keep = torch.rand(B, S) < 0.7 if padded else None
    q, latent = one.queries(x[:, seen:], new), one.latent(x, rotate)
    assert latent.shape == (B, 1, S, d_c + 2 * half)
    mask = Causal(keep=keep)
    ways = one.expanded(q, latent, mask), one.absorbed(q, latent, mask)
    close(ways[1], ways[0], 1e-9)
    one.kernel = equation
    close(one.expanded(q, latent, mask), ways[0], 1e-9, "by the formula")


@pytest.mark.parametrize("new_cache", [GrowingCache, lambda: PreallocatedCache(9)])
@pytest.mark.parametrize("cuts", [(1,) * 6, (3, 2, 1), (4, 2), (6,)])
def test_token_by_token_is_all_at_once(new_cache, cuts):
    one, x = layer(), torch.randn(2, 6, 16, dtype=torch.float64)
    whole = one(x, mask=Causal(), rotate=turn(6))
    cache, parts = new_cache(), []
    for part in x.split(cuts, dim=1):
        rotate = turn(part.shape[1], cache.seen)
        parts.append(one(part, mask=Causal(), rotate=rotate, cache=cache))
    close(torch.cat(parts, 1), whole, 1e-10)


def test_b29_the_cache_holds_the_latent_and_the_rotary_key():
    one, cache = layer(), GrowingCache()
    one(torch.zeros(2, 6, 16, dtype=torch.float64), rotate=turn(6), cache=cache)
    (held,) = cache.entries
    assert held.shape == (2, 1, 6, 8 + 4) and cache.nbytes == 2 * 6 * 12 * 8

    with torch.device("meta"):  # DeepSeek-V2's widths
        big, cache = LatentAttention(5120, 128, 512, 128, 64, 128, 1536), GrowingCache()
        big(torch.zeros(1, 1, 5120), cache=cache)
    assert cache.nbytes == 4 * 576


def test_absorbing_reads_the_store_itself():
    """One kernel call, one key head; the values are a view of the keys' memory."""
    one, seen = layer(), {}
    latent = one.latent(torch.randn(1, 9, 16, dtype=torch.float64))
    q = one.queries(torch.randn(1, 2, 16, dtype=torch.float64))

    def kernel(q, k, v, mask=None, bias=None, scale=None):
        seen.update(k=k, v=v, q=q, scale=scale)
        return equation(q, k, v, mask, bias, scale)

    one.kernel = kernel
    one.absorbed(q, latent)
    assert seen["k"].data_ptr() == seen["v"].data_ptr() == latent.data_ptr()
    assert seen["q"].shape == (1, 4, 2, 12) and seen["v"].shape == (1, 1, 9, 8)
    assert seen["scale"] == 10**-0.5  # of d_h + d_R, not of the latent's width


def test_the_cheaper_way_by_counting_multiplications():
    """Counted on what is multiplied, and taken by forward."""
    with torch.device("meta"):
        one = LatentAttention(64, 2, 512, 128, 64, 128)
    assert not any(one.absorbing_is_cheaper(T, T) for T in (1, 2, 100, 10_000))
    longest = max(T for T in range(1, 400) if one.absorbing_is_cheaper(T, 10**6))
    assert longest == 170

    from torch.utils.flop_counter import FlopCounterMode

    for T, S in ((1, 8), (3, 8), (40, 300), (120, 300), (170, 9000), (171, 10**5)):
        counts = []
        for way in (one.expanded, one.absorbed):
            with FlopCounterMode(display=False) as counter, torch.device("meta"):
                one.kernel = equation
                way(torch.empty(1, 2, T, 192), torch.empty(1, 1, S, 576))
            counts.append(counter.get_total_flops())
        assert one.absorbing_is_cheaper(T, S) == (counts[1] < counts[0]), (T, S)

    two, taken = layer(), []
    for name in ("expanded", "absorbed"):
        way = getattr(two, name)
        setattr(two, name, lambda *a, n=name, w=way: (taken.append(n), w(*a))[1])
    cache = GrowingCache()
    two(torch.zeros(1, 8, 16, dtype=torch.float64), cache=cache)
    two(torch.zeros(1, 1, 16, dtype=torch.float64), cache=cache)
    assert taken == ["expanded", "absorbed"]


# Prepared for inference


@ANY_SHAPE
@settings(max_examples=60, deadline=None)
def test_joined_is_the_same_function(B, T, seen, H, widths, half, q_rank, padded, seed):
    """On any shape, with a cache or without, by either way, turned or not."""
    d_c, d_h, d_v = widths
    one = layer(
        seed,
        n_heads=H,
        kv_lora_rank=d_c,
        qk_nope_head_dim=d_h,
        qk_rope_head_dim=2 * half,
        v_head_dim=d_v,
        q_lora_rank=q_rank,
        scale=0.3,
    )
    fast, S = JoinedLatentAttention(one), seen + T
    x = torch.randn(B, S, 16, dtype=torch.float64)
    rotate = turn(S, width=2 * half) if half else None
    new = turn(T, seen, 2 * half) if half else None
    keep = torch.rand(B, S) < 0.7 if padded else None
    whole = one(x, Causal(keep=keep), rotate)
    close(fast(x, Causal(keep=keep), rotate), whole, 1e-10)
    close(fast(x, Causal(keep=keep)), one(x, Causal(keep=keep)), 1e-10, "not turned")
    close(fast.queries(x, rotate), one.queries(x, rotate), 1e-12)
    close(fast.latent(x, rotate), one.latent(x, rotate), 1e-12)
    rows = one.queries(x, rotate), one.latent(x, rotate), Causal(keep=keep)
    close(fast.absorbed(*rows), one.absorbed(*rows), 1e-10, "absorbed")
    caches = [PreallocatedCache(S), GrowingCache()]
    for cache, each in zip(caches, (fast, one), strict=True):
        if seen:
            before = turn(seen, width=2 * half) if half else None
            each(x[:, :seen], Causal(), before, cache)
        out = each(x[:, seen:], Causal(keep=keep), new, cache)
        close(out, whole[:, seen:], 1e-9)
    close(caches[0].entries[0], caches[1].entries[0], 1e-12, "what is kept")


def test_joined_reads_x_once_and_takes_no_further_memory():
    one = layer(q_lora_rank=7)
    fast = JoinedLatentAttention(one)
    assert [name for name, m in fast.named_modules() if isinstance(m, nn.Linear)] == [
        "k_up", "v_up", "o_proj", "q_up", "down",
    ]  # fmt: skip
    assert fast.down.weight.shape == (7 + 8 + 4, 16)
    for name in ("k_up", "v_up", "o_proj", "q_up"):
        assert getattr(fast, name) is getattr(one, name)
    plain = layer()
    fast = JoinedLatentAttention(plain)
    assert fast.down.weight.shape == (4 * 10 + 8 + 4, 16)
    for before, after in ((one, JoinedLatentAttention(one)), (plain, fast)):
        numbers = [sum(x.numel() for x in m.parameters()) for m in (before, after)]
        assert numbers[0] == numbers[1]
    before = copy.deepcopy(plain.state_dict())
    fast.down.weight.data.zero_()
    assert all(torch.equal(x, before[n]) for n, x in plain.state_dict().items())
    assert JoinedLatentAttention(layer(scale=0.3)).scale == 0.3


def test_joined_equals_transformers():
    reference, angles = theirs("2", 0, q_lora_rank=7)
    ours = JoinedLatentAttention(with_weights_of(reference, q_lora_rank=7))
    x, position = torch.randn(2, 7, 16, dtype=torch.float64), torch.arange(7)
    with wide(nn.ModuleList([reference, angles])):
        expected, _ = reference(
            hidden_states=x,
            position_embeddings=angles(x, position[None]),
            attention_mask=Causal().tensor(7, 7)[None, None],
        )
    rotate = Rotary(4, pairing=interleaved)(position)
    close(ours(x, mask=Causal(), rotate=rotate), expected, 1e-9)


def test_joined_keeps_dtypes_and_takes_layouts():
    one = layer(dtype=torch.float32, q_lora_rank=7)
    x = torch.randn(2, 6, 16)
    exact = one(x, Causal(), turn(6)).detach()
    fast, cache = JoinedLatentAttention(one), GrowingCache()
    with torch.autocast("cpu", torch.bfloat16):
        out = [fast(x[:, :5], Causal(), turn(5), cache)]
        out.append(fast(x[:, 5:], Causal(), turn(1, 5), cache))
    assert cache.entries[0].dtype == torch.bfloat16
    size = float(exact.abs().max())
    close(torch.cat(out, 1).float(), exact, 0.2 * size)
    low = JoinedLatentAttention(copy.deepcopy(one).bfloat16())
    assert low(x.bfloat16(), Causal(), turn(6)).dtype == torch.bfloat16
    for name in ("down", "q_up", "o_proj"):
        setattr(fast, name, Int8Linear(getattr(fast, name)))
    with torch.no_grad():
        close(fast(x, Causal(), turn(6)), exact, 0.05 * size)


def test_joined_is_recorded_as_the_layer_itself():
    one, x = layer(), torch.randn(2, 5, 16, dtype=torch.float64)
    with record(one) as expected:
        one(x, Causal(), turn(5))
    fast = JoinedLatentAttention(one)
    with record(fast) as seen:
        fast(x, Causal(), turn(5))
    close(seen[""], expected[""], 1e-12)


# The ladder, and why the rotary key stands apart


def test_a_full_latent_without_norm_and_rotation_is_multi_head_attention():
    torch.manual_seed(1)
    plain = MultiHeadAttention(16, 4).double()
    one = layer(kv_lora_rank=16, qk_nope_head_dim=4, qk_rope_head_dim=0, v_head_dim=4)
    one.kv_norm = nn.Identity()
    mixed = one.kv_down.weight.detach()  # any invertible W_DKV will do
    with torch.no_grad():
        one.q_up.weight.copy_(plain.q_proj.weight)
        one.k_up.weight.copy_(plain.k_proj.weight @ mixed.inverse())
        one.v_up.weight.copy_(plain.v_proj.weight @ mixed.inverse())
        one.o_proj.weight.copy_(plain.o_proj.weight)
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    close(one(x, mask=Causal()), plain(x, mask=Causal()), 1e-10)
    rows = one.queries(x), one.latent(x), Causal()
    heads = one.absorbed(*rows).transpose(1, 2).flatten(2)
    close(one.o_proj(heads), plain(x, mask=Causal()), 1e-10, "absorbed")
    made = LatentAttention(16, 4, 16, 4, 0, 4, norm=nn.Identity)
    assert isinstance(made.kv_norm, nn.Identity) and made.k_rope is None


def test_a_rotated_compressed_key_cannot_be_absorbed():
    """Score = cₜᵀ M cₛ with one M for all positions? Fitted: yes without the turn."""
    torch.manual_seed(0)
    D, d_c = 4, 6
    W_Q, W_UK = torch.randn(2, D, d_c, dtype=torch.float64)
    asks, keys = torch.randn(2, 60, d_c, dtype=torch.float64)  # latents
    q, k = (asks @ W_Q.T)[None, None], (keys @ W_UK.T)[None, None]
    rotate = turn(60)
    scores = {
        "plain": q @ k.transpose(-1, -2),
        "turned": rotate(q) @ rotate(k).transpose(-1, -2),
    }
    pairs = torch.einsum("ti,sj->tsij", asks, keys).flatten(2)  # (60, 60, d_c²)

    def misfit(score, where):
        """The share of the scores that the best single M leaves unexplained."""
        A, b = pairs[where], score[0, 0][where]
        M = torch.linalg.lstsq(A, b[:, None]).solution
        return ((A @ M)[:, 0] - b).norm() / b.norm()

    all_pairs = torch.ones(60, 60, dtype=torch.bool)
    distance = torch.arange(60)[:, None] - torch.arange(60)
    assert misfit(scores["plain"], all_pairs) < 1e-10
    assert misfit(scores["turned"], all_pairs) > 0.3
    assert misfit(scores["turned"], distance == 1) < 1e-5  # a matrix per distance …
    M = [W_Q.T @ _turned_by(n) @ W_UK for n in (0, 1, 2)]
    assert (M[0] - M[1]).norm() > 1 and (M[1] - M[2]).norm() > 1  # … and all differ


def _turned_by(n: int) -> torch.Tensor:
    """R with (R_t q)·(R_s k) = qᵀ R_{s−t} k, by turning the unit vectors."""
    eye = torch.eye(4, dtype=torch.float64)[None, :, None]  # (1, 4, 1, 4)
    return Rotary(4, pairing=interleaved)(torch.tensor([n]))(eye)[0, :, 0].T


def test_scores_depend_on_the_distance_alone():
    one, x = layer(), torch.randn(1, 6, 16, dtype=torch.float64)
    here, there = (one(x, mask=Causal(), rotate=turn(6, n)) for n in (0, 1000))
    close(here, there, 1e-4)  # float32 angles at position 1000
    assert (here - one(x, mask=Causal())).abs().max() > 1e-2


# Around it


def test_record_sees_the_weights_of_both_ways():
    one, x = layer(), torch.randn(2, 5, 16, dtype=torch.float64)
    with record(one) as whole:
        one(x, mask=Causal(), rotate=turn(5))
    full, cache = whole[""], GrowingCache()
    one(x[:, :4], mask=Causal(), rotate=turn(4), cache=cache)
    with record(one) as last:
        one(x[:, 4:], mask=Causal(), rotate=turn(1, 4), cache=cache)
    assert full.shape == (2, 4, 5, 5) and last[""].shape == (2, 4, 1, 5)
    close(last[""], full[:, :, 4:], 1e-10)
    close(full.sum(-1), torch.ones(2, 4, 5, dtype=torch.float64), 1e-12)


@pytest.mark.parametrize("way", ["expanded", "absorbed", "joined"])
def test_low_precision_errs_at_most_twice_as_much_as_plain_pytorch(way):
    """Plain: the same steps with torch's functions, keys and values of every head."""
    exact = layer(1, d_model=64, kv_lora_rank=32, qk_nope_head_dim=16, v_head_dim=16)
    with torch.no_grad():
        for x in exact.parameters():
            x.mul_(0.3 if x.dim() == 2 else 1)
    low = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict(low.state_dict())  # the same rounded weights
    x = torch.randn(4, 24, 64).bfloat16()
    mask = Causal()

    def run(one, x):
        joined = way == "joined"
        made = JoinedLatentAttention(one) if joined else one
        rows = *made.asked_and_kept(x, turn(24)), mask
        heads = getattr(made, "absorbed" if joined else way)(*rows)
        return one.o_proj(heads.transpose(1, 2).flatten(2))

    def plain(one, x):
        q, latent = one.queries(x, turn(24)), one.latent(x, turn(24))
        c, r = latent[:, 0, :, :32], latent[..., 32:]
        k = one.k_up(c).view(4, 24, 4, 16).transpose(1, 2)
        v = one.v_up(c).view(4, 24, 4, 16).transpose(1, 2)
        k = torch.cat((k, r.expand(-1, 4, -1, -1)), -1)
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return one.o_proj(out.transpose(1, 2).flatten(2))

    true = run(exact, x.double())
    close(plain(exact, x.double()), true, 1e-9)

    def error(y):
        return (y.double() - true).square().mean().sqrt()

    with torch.no_grad():
        assert error(run(low, x)) <= 2 * error(plain(low, x))


def test_autocast_keeps_one_dtype_in_the_cache():
    one, cache = layer(dtype=torch.float32), GrowingCache()
    x = torch.randn(1, 6, 16)
    exact = one(x, mask=Causal(), rotate=turn(6))
    with torch.autocast("cpu", torch.bfloat16):
        first = one(x[:, :5], mask=Causal(), rotate=turn(5), cache=cache)
        last = one(x[:, 5:], mask=Causal(), rotate=turn(1, 5), cache=cache)
    assert cache.entries[0].dtype == torch.bfloat16
    close(
        torch.cat((first, last), 1).float(),
        exact,
        0.2 * float(exact.detach().abs().max()),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_input_stays_finite(dtype):
    one = layer(dtype=dtype)
    size = 100 if dtype == torch.float16 else 1e4
    x = torch.randn(1, 4, 16).clamp(-1, 1).mul(size).to(dtype)
    q, latent = one.queries(x, turn(4)), one.latent(x, turn(4))
    nobody = Causal(keep=torch.zeros(1, 4, dtype=torch.bool))
    for mask in (Causal(), nobody):
        for way in (one.expanded, one.absorbed, JoinedLatentAttention(one).absorbed):
            assert way(q, latent, mask).isfinite().all()
    for made in (one, JoinedLatentAttention(one)):
        assert not made(x, mask=nobody, rotate=turn(4)).any()
        assert not made.absorbed(q, latent, nobody).any()


@pytest.mark.parametrize(
    "sizes",
    [{name: 0} for name in SMALL if name != "qk_rope_head_dim"]
    + [{"q_lora_rank": 0}, {"qk_rope_head_dim": 3}, {"qk_rope_head_dim": -2}],
)
def test_wrong_sizes_are_named(sizes):
    (name, value), *_ = sizes.items()
    with pytest.raises(ValueError, match=rf"{name} must be .* got {value}"):
        LatentAttention(**{**SMALL, **sizes})


@pytest.mark.parametrize("prepare", [lambda one: one, JoinedLatentAttention])
def test_wrong_input_is_refused_before_the_cache_changes(prepare):
    one, cache = prepare(layer()), GrowingCache()
    x = torch.zeros(1, 3, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="d_model = 16"):
        one(torch.zeros(1, 3, 15, dtype=torch.float64), cache=cache)
    with pytest.raises(TypeError, match="float32"):
        one(x.float(), cache=cache)
    with pytest.raises(TypeError, match="tensor"):
        one([[0.0]], cache=cache)
    with pytest.raises(ValueError, match="nothing to rotate"):
        prepare(layer(qk_rope_head_dim=0))(x, rotate=turn(3), cache=cache)
    with pytest.raises(ValueError, match="made for 2 positions of width 4"):
        one(x, rotate=turn(2), cache=cache)
    with pytest.raises(ValueError, match="made for 3 positions of width 6"):
        one(x, rotate=turn(3, width=6), cache=cache)
    with pytest.raises(TypeError, match="cache must be"):
        one(x, rotate=turn(3), cache=[])
    assert cache.seen == 0
    with pytest.raises(TypeError, match="mask must be"):
        one(x, mask=torch.ones(3, 3))
    assert one(x).isfinite().all()


def test_only_latent_attention_is_joined():
    with pytest.raises(TypeError, match="must be a LatentAttention, got Multi"):
        JoinedLatentAttention(MultiHeadAttention(16, 4))
