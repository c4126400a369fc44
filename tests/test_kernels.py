# SPDX-License-Identifier: MIT
"""Kernels against torch's own, against each other, and against laws of attention."""

import pytest
import torch
import torch.nn.functional as F
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from deepdive.kernels import attention_weights, equation, fused, tiled
from deepdive.kernels.fused import FEW
from deepdive.masks import Causal, Everyone

KERNELS = [equation, fused, tiled]
B, H, T, S, D = 2, 4, 3, 5, 6


def draw(seed, *shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype) for s in shapes]


def qkv(seed=0, T=T, S=S, G=H, Dv=D, dtype=torch.float64):
    return draw(seed, (B, H, T, D), (B, G, S, D), (B, G, S, Dv), dtype=dtype)


def masks(T, S):
    """Every kind of mask a kernel may be given, some with rows that see nothing."""
    random = torch.rand(B, H, T, S, generator=torch.Generator().manual_seed(3)) < 0.5
    keep = torch.ones(B, S).bool()
    keep[0, S // 2 :] = False
    return {
        "none": None,
        "bool (T, S)": random[0, 0],
        "bool (B, H, T, S)": random,
        "bool (S,)": random[0, 0, 0],
        "bool (B, 1, 1, S)": keep[:, None, None],
        "everyone": Everyone(),
        "padding": Everyone(keep),
        "causal": Causal(),
        "window": Causal(window=2),
        "prefix": Causal(prefix=2),
        "causal padding": Causal(keep=keep),
        "nothing": torch.zeros(T, S).bool(),
    }


MASKS = list(masks(1, 1))
LENGTHS = [(3, 5), (5, 3), (4, 4), (1, 5), (4, 1)]

# ── Outside reference ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("G", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, "bool (B, H, T, S)", "bool (T, S)"])
def test_equation_is_torchs(seed, scale, G, mask):
    q, k, v = qkv(seed, G=G, Dv=7)
    mask = masks(T, S)[mask or "none"]
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=scale, enable_gqa=True
    )
    close(equation(q, k, v, mask, scale=scale), expected)


@pytest.mark.parametrize("shape", [(B, H, T, S), (H, T, S), (1, S), (B, 1, T, 1)])
def test_bias_is_torchs_float_mask(shape):
    q, k, v = qkv()
    (bias,) = draw(9, shape)
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=bias.expand(B, H, T, S)
    )
    for kernel in KERNELS:
        close(kernel(q, k, v, bias=bias), expected)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("T, S", LENGTHS)
@pytest.mark.parametrize("G, Dv", [(4, D), (2, D), (1, 3)])
def test_fused_is_the_equation(name, T, S, G, Dv):
    q, k, v = qkv(1, T, S, G, Dv)
    mask = masks(T, S)[name]
    for bias in [None, *draw(2, (H, T, S))]:
        close(fused(q, k, v, mask, bias), equation(q, k, v, mask, bias))


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("T, S", [(3, 5), (5, 3), (4, 4), (1, 5)])
def test_gradients_of_fused_are_the_equations(name, T, S):
    grads = []
    for kernel in (fused, equation):
        inputs = [x.requires_grad_() for x in qkv(4, T, S, G=2)]
        bias = draw(5, (H, T, S))[0].requires_grad_()
        kernel(*inputs, masks(T, S)[name], bias).square().sum().backward()
        grads.append([x.grad for x in (*inputs, bias)])
    for ours, theirs in zip(*grads, strict=True):
        assert ours.isfinite().all()
        close(ours, theirs, 1e-10)


@pytest.mark.parametrize("name", ["none", "causal", "bool (T, S)", "nothing"])
@pytest.mark.parametrize("biased", [True, False])
def test_gradcheck(name, biased):
    inputs = [x[:1, :2].requires_grad_() for x in qkv(6, T=2, S=3)]
    if biased:
        inputs.append(draw(7, (2, 2, 3))[0].requires_grad_())
    mask = masks(2, 3)[name]
    assert torch.autograd.gradcheck(
        lambda q, k, v, b=None: equation(q, k, v, mask, b), inputs
    )


@pytest.mark.parametrize("name", [name for name in MASKS if "T" not in name])
@pytest.mark.parametrize("T", [FEW, FEW + 1])
@pytest.mark.parametrize("G", [1, 2])
def test_folded_or_not_the_numbers_are_the_same(name, T, G):
    """Up to FEW queries, H/G query heads are laid below one another."""
    q, k, v = qkv(10, T=T, S=20, G=G)
    mask = masks(T, 20)[name]
    for bias in [None, *draw(11, (T, 20)), *draw(12, (B, H, T, 20))]:
        close(fused(q, k, v, mask, bias), equation(q, k, v, mask, bias))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("T, Dv", [(1, 64), (FEW, 64), (FEW + 1, 64), (1, 32)])
@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
def test_keys_and_values_are_never_copied(kernel, T, Dv, mask):
    """Written H/G times they would be the largest tensors of a decoding step."""
    q, k, v = draw(13, (1, 16, T, 64), (1, 1, 512, 64), (1, 1, 512, Dv))
    with Largest() as made, torch.no_grad():
        kernel(q, k, v, mask)
    assert made.largest < 16 * min(k.numel(), v.numel())


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any operation wrote into memory of its own."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            size = out.untyped_storage().nbytes() // out.element_size()
            self.largest = max(self.largest, size)
        return out


# ── Laws ─────────────────────────────────────────────────────────────────────────────

seeds = st.integers(0, 2**31)
law = settings(max_examples=25, deadline=None, derandomize=True)


@law
@given(seeds, st.sampled_from(MASKS))
def test_rows_sum_to_one_or_see_nothing(seed, name):
    q, k, _ = qkv(seed)
    weights = attention_weights(q, k, masks(T, S)[name])
    rows = weights.sum(-1)
    assert (weights >= 0).all()
    nothing = (weights == 0).all(-1)
    close(rows, torch.where(nothing, 0.0, 1.0).double())
    assert nothing.any() or name not in ("nothing",)
    assert name not in ("none", "everyone") or not nothing.any()


@law
@given(seeds, st.floats(-50, 50), st.sampled_from(KERNELS))
def test_a_constant_added_to_a_row_changes_nothing(seed, shift, kernel):
    q, k, v = qkv(seed)
    bias, rows = draw(seed, (B, H, T, S), (B, H, T, 1))
    close(kernel(q, k, v, bias=bias + shift * rows), kernel(q, k, v, bias=bias), 1e-11)


@law
@given(seeds, st.permutations(range(S)), st.sampled_from(KERNELS))
def test_keys_and_values_are_a_set(seed, order, kernel):
    q, k, v = qkv(seed)
    mask = masks(T, S)["bool (B, H, T, S)"]
    moved = kernel(q, k[:, :, order], v[:, :, order], mask[..., order])
    close(moved, kernel(q, k, v, mask))


@law
@given(seeds, st.permutations(range(T)), st.sampled_from(KERNELS))
def test_queries_do_not_meet_each_other(seed, order, kernel):
    q, k, v = qkv(seed)
    close(kernel(q[:, :, order], k, v), kernel(q, k, v)[:, :, order])


@law
@given(seeds, st.sampled_from(["none", "causal", "padding"]), st.sampled_from(KERNELS))
def test_an_output_lies_among_the_values(seed, name, kernel):
    q, k, v = qkv(seed)
    out = kernel(q, k, v, masks(T, S)[name])
    assert (out <= v.amax(2, keepdim=True) + 1e-12).all()
    assert (out >= v.amin(2, keepdim=True) - 1e-12).all()


@law
@given(seeds, st.sampled_from(KERNELS))
def test_what_is_blocked_is_not_read(seed, kernel):
    q, k, v = qkv(seed)
    mask = masks(T, S)["padding"]
    before = kernel(q, k, v, mask)
    k[0, :, S // 2 :], v[0, :, S // 2 :] = 1e6, -1e6
    assert torch.equal(kernel(q, k, v, mask), before)


# ── Cases that went wrong in public ──────────────────────────────────────────────────


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("as_bias", [False, True], ids=["mask", "bias of −inf"])
def test_a_row_that_sees_nothing_is_zero_and_harmless(kernel, as_bias):
    q, k, v = [x.requires_grad_() for x in draw(0, *[(1, 1, 3, 4)] * 3)]
    keep = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 0]]).bool()
    added = torch.zeros(3, 3).double().masked_fill(~keep, -torch.inf)
    out = kernel(q, k, v, bias=added) if as_bias else kernel(q, k, v, keep)
    assert (out[0, 0, 2] == 0).all()
    close(out[:, :, :2], equation(q[:, :, :2], k, v, keep[:2]))
    out[..., :2, :].sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "mask", [Causal(), Causal().tensor(4, 4)], ids=["rule", "bool"]
)
def test_true_means_may_attend(kernel, mask):
    zero, v = torch.zeros(1, 1, 4, 4), torch.eye(4)[None, None]
    expected = torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]
    close(kernel(zero, zero, v, mask)[0, 0], expected, 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
def test_a_mask_of_numbers_is_refused(kernel, dtype):
    q, k, v = qkv(T=3, S=3)
    with pytest.raises(TypeError, match=str(dtype)):
        kernel(q, k, v, torch.ones(3, 3).tril().to(dtype))


@pytest.mark.parametrize("kernel", KERNELS)
def test_key_value_heads_are_shared_by_neighbours(kernel):
    q, k = torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 1, 2)
    v = torch.stack([torch.zeros(1, 2), torch.ones(1, 2)])[None]
    assert kernel(q, k, v)[0, :, 0, 0].tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="6 query heads cannot share 4"):
        kernel(*(torch.zeros(1, n, 1, 2) for n in (6, 4, 4)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_more_queries_than_keys_align_bottom_right(kernel):
    q, k = torch.zeros(1, 1, 5, 1), torch.zeros(1, 1, 2, 1)
    v = torch.tensor([10.0, 20.0]).view(1, 1, 2, 1)
    assert kernel(q, k, v, Causal()).flatten().tolist() == [0, 0, 0, 10, 15]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_newest_token_sees_everything(kernel):
    q, k, v = qkv(T=1)
    close(kernel(q, k, v, Causal()), kernel(q, k, v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("T, S", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_ask_or_nothing_to_read(kernel, T, S):
    for mask in (None, Causal(), Everyone()):
        out = kernel(*qkv(T=T, S=S), mask)
        assert out.shape == (B, H, T, D) and (out == 0).all()


# ── Half precision ───────────────────────────────────────────────────────────────────


def plain(q, k, v, mask):
    """The formula, typed as it stands, in the dtype of its input."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask.tensor(*scores.shape[-2:]), -torch.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
@pytest.mark.parametrize("seed", range(3))
def test_no_worse_than_twice_plain_torch(kernel, dtype, mask, seed):
    q, k, v = draw(seed, *[(2, 2, 16, 32)] * 3, dtype=torch.float32)
    inputs = [x.to(dtype) for x in (q, k, v)]
    right = plain(*(x.double() for x in inputs), mask)
    out = kernel(*inputs, mask)
    ours = (out.double() - right).abs().max()
    theirs = (plain(*inputs, mask).double() - right).abs().max()
    assert out.dtype == dtype and ours <= 2 * theirs


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "dtype, size", [(torch.float32, 1e4), (torch.bfloat16, 1e4), (torch.float16, 100.0)]
)
def test_large_inputs_give_no_nan(kernel, dtype, size):
    for name in MASKS:
        inputs = [x.sign() * size for x in qkv(8, T=S, dtype=torch.float32)]
        inputs = [x.to(dtype).requires_grad_() for x in inputs]
        out = kernel(*inputs, masks(S, S)[name])
        out.float().sum().backward()
        assert out.isfinite().all(), name
        assert all(not x.grad.isnan().any() for x in inputs), name
    # the largest score of all: every factor at the limit, and a wide head
    same = torch.full((1, 1, 4, 64), size, dtype=dtype)
    assert (kernel(same, same, same, Causal()) == size).all()


# ── A reader's own rule ──────────────────────────────────────────────────────────────


class Chunks(Causal):
    """Causal, and within chunks of two only."""

    def allowed(self, query, key):
        return super().allowed(query, key) & (query // 2 == key // 2)


class Others(Everyone):
    """Everyone but oneself."""

    def allowed(self, query, key):
        return query != key


@pytest.mark.parametrize("rule", [Chunks(), Others()], ids=["chunks", "others"])
@pytest.mark.parametrize("T, S", [(4, 4), (1, 5), (3, 5)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_rule_of_ones_own_is_obeyed(kernel, rule, T, S):
    q, k, v = qkv(T=T, S=S)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=rule.tensor(T, S))
    close(kernel(q, k, v, mask=rule), expected)


@pytest.mark.parametrize("Dv", [D - 2, D + 3])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("G", [H, 2])
@pytest.mark.parametrize("mask", [None, "causal", "padding"])
def test_many_queries_with_values_of_another_width(mask, G, scale, Dv):
    q, k, v = qkv(T=FEW + 4, S=FEW + 4, G=G, Dv=Dv)
    rule = None if mask is None else masks(FEW + 4, FEW + 4)[mask]
    expected = equation(q, k, v, mask=rule, scale=scale)
    close(fused(q, k, v, mask=rule, scale=scale), expected)
