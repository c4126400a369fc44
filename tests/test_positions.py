# SPDX-License-Identifier: MIT
"""Each position scheme against its formula, its law and somebody else's code."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek
from transformers.models.llama import modeling_llama as llama
from transformers.models.t5.modeling_t5 import T5Attention

from deepdive.configs import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    TransformerConfig,
    YarnScaling,
)
from deepdive.models.transformer2017 import Transformer
from deepdive.positions import (
    Alibi,
    LearnedPositions,
    NoPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    half_split,
    interleaved,
    magnitude,
    relative_bucket,
    token_positions,
    yarn_temperature,
)
from tests.compare import close

PAIRINGS = [half_split, interleaved]
ids = {"ids": lambda f: getattr(f, "__name__", str(f))}


def turn(x, positions, **how):
    """Rotate x (T, D) at integer positions (T,)."""
    return Rotary(x.shape[-1], **how)(positions)(x[None, None])[0, 0]


# ── Sinusoids ────────────────────────────────────────────────────────────────────────


def test_sinusoids_against_the_formula_number_by_number():
    table = SinusoidalPositions(6)(torch.arange(4))
    for p in range(4):
        for i in range(3):
            angle = p / 10_000 ** (2 * i / 6)
            assert table[p, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[p, 2 * i + 1].item() == pytest.approx(
                math.cos(angle), abs=1e-6
            )


def test_a_shift_turns_every_sinusoid_pair_by_a_fixed_angle():
    """PE(p + k) is PE(p) turned, by an angle that does not depend on p (§3.5)."""
    table = SinusoidalPositions(8)(torch.arange(30)).double().unflatten(-1, (4, 2))
    theta = 10_000 ** (-torch.arange(4).double() / 4)
    for k in (1, 5):
        cos, sin = (k * theta).cos(), (k * theta).sin()
        s, c = table[:-k, :, 0], table[:-k, :, 1]
        close(table[k:, :, 0], s * cos + c * sin, 1e-5)
        close(table[k:, :, 1], c * cos - s * sin, 1e-5)


def test_no_positions_leave_a_model_blind_to_order_and_sinusoids_do_not():
    config = TransformerConfig(9, 9, d_model=8, n_layers=2, n_heads=2, d_ff=16)
    src, order = torch.tensor([[3, 1, 4, 5, 8]]), [2, 4, 0, 1, 3]
    for positions, blind in ((NoPositions(8), True), (SinusoidalPositions(8), False)):
        model = Transformer(config, src_positions=positions).double()
        rows, moved = model.encode(src), model.encode(src[:, order])
        assert torch.allclose(moved, rows[:, order], rtol=0, atol=1e-12) is blind


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_no_positions_are_zeros_of_the_shape_of_the_others(shape):
    positions = torch.arange(6)[: shape[-1]].expand(shape)
    out = NoPositions(4)(positions)
    assert not out.any() and out.shape == SinusoidalPositions(4)(positions).shape


# ── Rotary ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pairing", PAIRINGS, **ids)
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 60), st.integers(0, 60), st.integers(0, 300))
def test_scores_depend_on_the_distance_alone(pairing, half, m, n, shift):
    torch.manual_seed(half)
    q, k = torch.randn(2, 2 * half, dtype=torch.float64)

    def score(m, n):
        at = [torch.tensor([p]) for p in (m, n)]
        q_, k_ = (
            turn(x[None], p, pairing=pairing) for x, p in zip((q, k), at, strict=True)
        )
        return (q_ @ k_.mT).item()

    assert score(m, n) == pytest.approx(score(m + shift, n + shift), abs=2e-4)


@pytest.mark.parametrize(
    ("pairing", "expected"), [(interleaved, 1.190051), (half_split, -3.456429)], **ids
)
def test_known_scores(pairing, expected):
    q, k = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([[4.0, 3, 2, 1]])

    def score(m, n):
        q_ = turn(q, torch.tensor([m]), pairing=pairing)
        return (q_ @ turn(k, torch.tensor([n]), pairing=pairing).mT).item()

    assert score(3, 1) == pytest.approx(expected, abs=1e-4)
    assert score(10, 8) == pytest.approx(expected, abs=1e-4)
    assert score(0, 0) == 20
    turned = turn(q, torch.tensor([5]), pairing=pairing)
    assert turned.square().sum().item() == pytest.approx(30, abs=1e-4)


def test_the_turn_is_by_plus_p_theta():
    x = torch.tensor([[1.0, 0.0]])
    turned = turn(x, torch.tensor([1]))
    close(turned, torch.tensor([[math.cos(1), math.sin(1)]]), 1e-6)


def test_the_pairings_are_one_another_with_the_width_permuted():
    x = torch.randn(3, 10)
    at = torch.tensor([0, 4, 9])
    to_halves = torch.arange(10).view(5, 2).T.flatten()  # 0 2 4 … 1 3 5 …
    close(
        turn(x, at, pairing=interleaved)[:, to_halves],
        turn(x[:, to_halves], at, pairing=half_split),
        1e-6,
    )


def test_half_split_equals_transformers_llama():
    config = LlamaConfig(hidden_size=48, num_attention_heads=3)
    q, k = torch.randn(2, 3, 7, 16), torch.randn(2, 1, 7, 16)
    at = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 9, 1, 0, 700, 4095, 2]])
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, at)
    their_q, their_k = llama.apply_rotary_pos_emb(q, k, cos, sin)
    rotate = Rotary(16)(at)
    close(rotate(q), their_q, 1e-6)
    close(rotate(k), their_k, 1e-6)


def test_interleaved_equals_transformers_deepseek():
    q, k = torch.randn(2, 3, 7, 16), torch.randn(2, 1, 7, 16)
    at = torch.arange(7)
    angles = at[:, None] * Rotary(16).frequencies()
    cis = torch.polar(torch.ones_like(angles), angles)
    their_q, their_k = deepseek.apply_rotary_emb(q, k, cis[None])
    rotate = Rotary(16, pairing=interleaved)(at)
    close(rotate(q), their_q, 1e-6)
    close(rotate(k), their_k, 1e-6)


def test_angles_are_float32_in_half_precision():
    """In bfloat16 itself 2,049 would be 2,048: neighbours would stand still."""
    x = torch.randn(2, 8)
    at = torch.tensor([2048, 2049])
    for dtype in (torch.bfloat16, torch.float16):
        got = turn(x.to(dtype), at)
        assert got.dtype == dtype
        close(got.float(), turn(x.to(dtype).float(), at), 0.03)


# ── Reading further than trained ─────────────────────────────────────────────────────

SCALINGS = {
    "linear": (LinearScaling(4.0), {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        YarnScaling(4.0, 2048),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 2048,
        },
    ),
    "yarn, a long text": (  # the slowest pairs lie beyond the middle of the width
        YarnScaling(4.0, 131_072),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 131_072,
        },
    ),
    "yarn, DeepSeek": (
        YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=0.707),
        {
            "rope_type": "yarn",
            "factor": 40.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.707,
        },
    ),
    "llama3": (
        Llama3Scaling(),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
}


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("case", SCALINGS.values(), ids=SCALINGS.keys())
def test_scaled_frequencies_equal_transformers(case, head_dim, base):
    ours, theirs = case
    config = LlamaConfig(
        hidden_size=head_dim,
        num_attention_heads=1,
        max_position_embeddings=131_072,
        rope_parameters={"rope_theta": base, **theirs},
    )
    expected, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, "cpu")
    got = Rotary(head_dim, base, scaling=ours).frequencies()
    torch.testing.assert_close(got, expected, rtol=3e-7, atol=0)
    assert magnitude(ours) == pytest.approx(factor)


def test_ntk_slows_the_slowest_by_the_factor_and_the_fastest_not_at_all():
    plain, scaled = (
        Rotary(64, scaling=s).frequencies() for s in (None, NTKScaling(8.0))
    )
    assert scaled[0] == plain[0]
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(8, rel=1e-5)
    assert ((plain / scaled).diff() > 0).all()


def test_linear_scaling_reads_position_p_as_p_over_s():
    x = torch.randn(1, 16)
    slow = turn(x, torch.tensor([12]), scaling=LinearScaling(4.0))
    close(slow, turn(x, torch.tensor([3])), 1e-6)


def test_yarn_sharpens_the_scores():
    """cos and sin carry √(1/t), so a score carries 1/t = (0.1 ln s + 1)²."""
    x = torch.randn(1, 16)
    turned = turn(x, torch.tensor([3]), scaling=YarnScaling(16.0, 1024))
    grown = (turned.square().sum() / x.square().sum()).item()
    assert grown == pytest.approx((0.1 * math.log(16) + 1) ** 2, rel=1e-5)
    assert yarn_temperature(0.5) == 1


# ── Biases ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 20), (8, 64)])
def test_buckets_equal_transformers(bidirectional, sizes):
    distance = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, *sizes)
    assert torch.equal(relative_bucket(distance, bidirectional, *sizes), theirs)


def test_known_buckets():
    distance = torch.arange(10)[None] - torch.arange(10)[:, None]
    bucket = relative_bucket(distance, bidirectional=True)
    assert bucket[0].tolist() == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]
    assert bucket[9].tolist() == [8, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    far = torch.tensor([-1000, -128, -64, -20, -16, -15, -8, 8, 12, 16, 64, 91, 1000])
    both = [15, 15, 14, 10, 10, 9, 8, 24, 25, 26, 30, 31, 31]
    assert relative_bucket(far, bidirectional=True).tolist() == both
    back = [31, 31, 26, 17, 16, 15, 8, 0, 0, 0, 0, 0, 0]
    assert relative_bucket(far, bidirectional=False).tolist() == back


def test_a_bias_looks_from_the_query_to_the_key():
    bias, at = RelativeBias(n_heads=1, bidirectional=True), torch.arange(10)
    with torch.no_grad():
        bias.table.weight.copy_(torch.arange(32.0)[:, None])
    row = bias(at, at)[0, 0, 0].tolist()
    assert row == [0, 17, 18, 19, 20, 21, 22, 23, 24, 24]


def test_a_cached_query_gets_the_row_of_its_own_position():
    bias = RelativeBias(n_heads=3, bidirectional=False)
    at = torch.arange(4)
    close(bias(at[3:], at), bias(at, at)[:, :, 3:])
    assert relative_bucket(at - 3, bidirectional=False).tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize("H", [1, 2, 8, 16, 3, 6, 12, 20])
def test_alibi_slopes(H):
    """The power-of-two rule, and for other H every second slope of the next one."""
    power = 2 ** int(math.log2(H))
    first = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    next_ = [2 ** (-8 * (h + 1) / (2 * power)) for h in range(2 * power)]
    close(Alibi(H).slopes(), (first + next_[::2])[:H], 1e-7)
    bias = Alibi(H)(torch.tensor([4]), torch.arange(5))
    assert bias.shape == (1, H, 1, 5)
    close(bias[0, 0, 0], [-first[0] * d for d in (4, 3, 2, 1, 0)], 1e-6)


# ── Where tokens stand ───────────────────────────────────────────────────────────────


def test_positions_count_real_tokens():
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    assert token_positions(5, 0, keep).tolist() == [
        [0, 0, 0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 1, 1, 1, 1],
    ]
    assert token_positions(2, 3, keep).tolist() == [[1, 2], [3, 4], [1, 1]]
    assert token_positions(2, 3).tolist() == [3, 4]
    with pytest.raises(ValueError, match=r"keep must be \(B, 7\)"):
        token_positions(4, 3, keep)


# ── Refusals ─────────────────────────────────────────────────────────────────────────

REFUSED = {
    "odd width": (lambda: Rotary(7), ValueError, "7"),
    "base": (lambda: Rotary(8, base=0.0), ValueError, "0.0"),
    "pairing a word": (lambda: Rotary(8, pairing="half"), TypeError, "half"),
    "scaling a word": (lambda: Rotary(8, scaling="yarn"), TypeError, "yarn"),
    "float positions": (lambda: Rotary(8)(torch.zeros(3)), TypeError, "float32"),
    "other width": (
        lambda: Rotary(8)(torch.arange(3))(torch.zeros(1, 1, 3, 6)),
        ValueError,
        r"\(1, 1, 3, 6\)",
    ),
    "other length": (
        lambda: Rotary(8)(torch.arange(3))(torch.zeros(1, 1, 4, 8)),
        ValueError,
        r"\(1, 1, 4, 8\)",
    ),
    "odd sinusoids": (lambda: SinusoidalPositions(5), ValueError, "5"),
    "no width": (lambda: NoPositions(0), ValueError, "0"),
    "nothing of floats": (
        lambda: NoPositions(4)(torch.ones(2)),
        TypeError,
        "float32",
    ),
    "sinusoid of floats": (
        lambda: SinusoidalPositions(4)(torch.ones(2)),
        TypeError,
        "float32",
    ),
    "few buckets": (lambda: RelativeBias(2, True, n_buckets=2), ValueError, "2"),
    "short distance": (
        lambda: RelativeBias(2, False, 32, max_distance=16),
        ValueError,
        "16",
    ),
    "no heads": (lambda: Alibi(0), ValueError, "0"),
    "queries of two axes": (
        lambda: Alibi(2)(torch.zeros(1, 2).long(), torch.arange(2)),
        ValueError,
        r"\(1, 2\)",
    ),
    "beyond the table": (
        lambda: LearnedPositions(4, 2)(torch.tensor([4])),
        ValueError,
        "0 … 3",
    ),
    "factor": (lambda: LinearScaling(0.0), ValueError, "0.0"),
    "llama3 order": (
        lambda: Llama3Scaling(low_freq_factor=4.0),
        ValueError,
        "must be below",
    ),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_refused(case):
    call, error, message = case
    with pytest.raises(error, match=message):
        call()
