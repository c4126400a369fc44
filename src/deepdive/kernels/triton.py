# SPDX-License-Identifier: MIT
"""What does the loop of `tiled` look like as a kernel of a GPU?

Each program has one tile of queries of one head, and walks over the keys: everything
between the loads and the stores stays on the chip.

What to distrust: no GPU was at hand when this was written. The kernel is compiled for
one, and run by Triton's interpreter on the CPU; that says nothing of its speed, nor of
how a GPU rounds. The size of a tile is a common choice, not a measured one. Half
precision is cast to float32 under the interpreter, whose product of bfloat16 tiles is
wrong (3.7.1: by 10⁸) and which cuts bfloat16 off where it should round. Only the
forward pass is a kernel: the gradient is that of `tiled`.

Source: Dao 2023, Algorithm 1; Tillet et al. 2019 (Triton).

Taught in: book/13_flash_attention.ipynb
"""

from __future__ import annotations  # tl.constexpr need not exist where Triton doesn't

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from deepdive.kernels.contract import check_inputs
from deepdive.kernels.tiled import backward, make_plan, no_autocast
from deepdive.masks import Causal, Everyone, Rule

try:
    import triton
    import triton.language as tl
except ImportError:  # an optional extra, which exists for Linux only
    triton = None

jit = triton.jit if triton else lambda function: function
WIDEST = 128  # a head
BLOCK = 64  # queries of a tile, and keys unless the heads are wide


@jit
def _forward(
    q, k, v, out, lse, H, G, T, S, scale, window,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_T: tl.constexpr,
    BLOCK_S: tl.constexpr, CAUSAL: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head; arrays lie in the order of their axes."""
    head = tl.program_id(0).to(tl.int64)  # of all B · H
    shared = head // H * G + head % H // (H // G)  # its key/value head, of all B · G
    low = tl.program_id(1) * BLOCK_T
    rows = low + tl.arange(0, BLOCK_T)
    q_tile = _load(q + head * T * D, rows, T, D, BLOCK_D, CAST)
    m = tl.full([BLOCK_T], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_T], tl.float32)
    acc = tl.zeros([BLOCK_T, BLOCK_D], tl.float32)
    offset = S - T  # on the keys' axis the last query stands at S − 1
    first, last = 0, S
    if CAUSAL:  # what no query of the tile may see is not read
        first = tl.maximum(low + offset - window + 1, 0) // BLOCK_S * BLOCK_S
        last = tl.minimum(low + BLOCK_T + offset, S)
    for start in range(first, last, BLOCK_S):
        keys = start + tl.arange(0, BLOCK_S)
        k_tile = _load(k + shared * S * D, keys, S, D, BLOCK_D, CAST)
        v_tile = _load(v + shared * S * D, keys, S, D, BLOCK_D, CAST)
        # "ieee": float32 as it is, not shortened to tf32
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale
        allowed = (keys < S)[None, :]
        if CAUSAL:
            behind = (rows + offset)[:, None] - keys[None, :]
            allowed = allowed & (behind >= 0) & (behind < window)
        m, l, acc = _update(m, l, acc, tl.where(allowed, scores, float("-inf")), v_tile)
    nothing = l == 0  # no key seen: 0, not NaN
    l = tl.where(nothing, 1.0, l)
    width = tl.arange(0, BLOCK_D)[None, :]
    place = out + head * T * D + rows[:, None] * D + width
    inside = (rows < T)[:, None] & (width < D)
    tl.store(place, (acc / l[:, None]).to(out.dtype.element_ty), mask=inside)
    total = tl.where(nothing, 0.0, m) + tl.log(l)
    tl.store(lse + head * T + rows, total, mask=rows < T)


@jit
def _load(
    matrix, rows, length,
    D: tl.constexpr, BLOCK_D: tl.constexpr, CAST: tl.constexpr,
):  # fmt: skip
    """Rows of a (length, D) matrix; zeros outside it."""
    width = tl.arange(0, BLOCK_D)[None, :]
    inside = (rows < length)[:, None] & (width < D)
    tile = tl.load(matrix + rows[:, None] * D + width, mask=inside, other=0.0)
    if CAST:
        tile = tile.to(tl.float32)
    return tile


@jit
def _update(m, l, acc, scores, v_tile):
    """The running softmax: `tiled.update`, line by line."""
    m_new = tl.maximum(m, tl.max(scores, 1))
    anchor = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp(scores - anchor[:, None])
    shrink = tl.exp(m - anchor)
    l = l * shrink + tl.sum(p, 1)
    mixed = tl.dot(p.to(v_tile.dtype), v_tile, input_precision="ieee")
    return m_new, l, acc * shrink[:, None] + mixed


def triton_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Rule | None = None,
    bias: None = None,
    scale: float | None = None,
) -> Tensor:
    """The same as `equation`, by one kernel of a GPU, for causal attention or all.

    Shapes:
        q (B, H, T, D), k and v (B, G, S, D) → (B, H, T, D), D ≤ 128

    Raises:
        ImportError: Triton is not installed; it exists for Linux only.
        ValueError, TypeError: as `equation`; and for a bias, a mask other than None,
            `Everyone()` and `Causal(window)`, float64, v of another width than k, and
            tensors on the CPU without the interpreter.

    Note:
        Without a GPU, set TRITON_INTERPRET=1 before Python starts. Tensors that do not
        lie in memory in the order of their axes are copied.

    Taught in: book/13_flash_attention.ipynb
    """
    check_inputs({"q": q, "k": k, "v": v}, mask, bias, scale)
    check_supported(q, v, mask, bias)
    if triton is None:
        raise ImportError(
            "triton is not installed; it exists for Linux only: pip install "
            "'deepdive[triton]'. kernels.tiled computes the same anywhere."
        )
    if not q.is_cuda and not interpreted():
        raise ValueError(
            f"q lies on {q.device}: Triton needs a GPU, or TRITON_INTERPRET=1 set "
            "before Python starts"
        )
    return _Triton.apply(q, k, v, make_plan(q, k, mask, None, scale))


def check_supported(q: Tensor, v: Tensor, mask, bias) -> None:
    """Of what the other kernels do, refuse what this one doesn't."""
    if bias is not None:
        raise ValueError(f"this kernel adds no bias, got one of {tuple(bias.shape)}")
    known = mask is None or type(mask) in (Causal, Everyone)
    if not known or getattr(mask, "keep", None) is not None:
        what = "padding (keep)" if known else type(mask).__name__
        raise ValueError(f"mask must be None, Everyone() or Causal(window), got {what}")
    if getattr(mask, "prefix", 0):
        raise ValueError(f"this kernel knows no prefix, got prefix = {mask.prefix}")
    if q.dtype == torch.float64:
        raise TypeError("float32 and the half precisions only, got torch.float64")
    if q.shape[-1] > WIDEST or v.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"heads must be at most {WIDEST} wide, and v as wide as q, got q "
            f"{q.shape[-1]} and v {v.shape[-1]}"
        )


def interpreted() -> bool:
    """True when Triton runs kernels on the CPU, which it decides when one is read."""
    return not isinstance(_forward, triton.JITFunction)


def keys_of_a_tile(width: int) -> int:
    """Fewer where heads are wide, or float32 would need 180 kB of fast memory."""
    return BLOCK if width <= 64 else BLOCK // 2


class _Triton(torch.autograd.Function):
    """Triton's forward pass with the backward pass of `tiled`."""

    @staticmethod
    def forward(ctx, q, k, v, plan):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (B, H, T, D), (_, G, S, _) = q.shape, k.shape
        cast = interpreted() and q.dtype != torch.float32
        out = torch.empty_like(q, dtype=torch.float32 if cast else q.dtype)
        lse = q.new_empty(B, H, T, 1, dtype=torch.float32)
        causal = type(plan.mask) is Causal
        window = (plan.mask.window if causal else None) or S + T
        width = max(16, triton.next_power_of_2(D))  # `tl.dot` asks for 16
        grid = (B * H, triton.cdiv(T, BLOCK))
        if out.numel():
            with torch.cuda.device_of(q):
                _forward[grid](
                    q, k, v, out, lse, H, G, T, S, plan.scale, window, D, width,
                    BLOCK, keys_of_a_tile(width), causal, cast,
                )  # fmt: skip
        out = out.to(q.dtype)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out):
        with no_autocast(d_out.device.type):
            dq, dk, dv, _ = backward(*ctx.saved_tensors, d_out, ctx.plan)
        return dq, dk, dv, None
