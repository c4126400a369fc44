# SPDX-License-Identifier: MIT
"""Can the same numbers be had without ever writing down the (T, S) matrix of scores?

Yes: a softmax can be kept up to date while the keys arrive tile by tile, if three
things are remembered for each query: the largest score so far, the sum of the
exponentials, and the weighted sum of the values. A tile is made, used and forgotten,
so memory grows with T + S, not with T · S. The gradient makes every tile again.

Source: Milakov & Gimelshein 2018 (the running softmax); Dao et al. 2022, Algorithms 1
and 4; Dao 2023, Algorithm 1 (queries in the outer loop, keys in the inner one).

Taught in: book/13_flash_attention.ipynb
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd.function import once_differentiable

from deepdive.kernels.contract import check_inputs
from deepdive.kernels.equation import shared_product
from deepdive.masks import Causal, Everyone, Rule

# Queries, and keys, of a tile. With T = S = 4096, 6 heads of 64, causal, one x86
# thread, tiles of 64, 128, 256 and 512 ran 5.2, 8.0, 9.5 and 8.2 times as fast as the
# formula; with 96 heads and T = 1024 it was 11.2, 11.1, 8.1 and 4.5 times, because the
# tile of all heads leaves the cache.
BLOCK = 128


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | Rule | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    block_size: int = BLOCK,
) -> Tensor:
    """The same as `equation`, a tile at a time, in memory that grows with T + S.

    Shapes:
        q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) → (B, H, T, Dv)

    Args:
        block_size: queries, and keys, of a tile; the last ones may be smaller.

    Raises:
        ValueError, TypeError: as `equation`, and for a block size below 1.

    Note:
        A mask that is a rule is asked for tiles only. What `Causal` blocks wholly is
        never computed. Half precision is computed in float32, autocast or not.

        The gradient is made from q, k, v, out and one number for each query, the
        logarithm of its sum of exponentials; it can't be differentiated once more.
        Beside scores of 10⁷ and more, float32 has no digits left for that logarithm,
        and among equal scores so large the gradient is too big, though finite.

    >>> q = k = torch.zeros(1, 1, 5, 2)            # all scores equal …
    >>> v = torch.tensor([1.0, 2, 3, 4, 5]).view(1, 1, 5, 1)
    >>> tiled(q, k, v, block_size=4).flatten().tolist()      # … so each takes the mean
    [3.0, 3.0, 3.0, 3.0, 3.0]

    Taught in: book/13_flash_attention.ipynb
    """
    check_inputs({"q": q, "k": k, "v": v}, mask, bias, scale)
    plan = make_plan(q, k, mask, bias, scale, block_size)
    with no_autocast(q.device.type):
        return _Tiled.apply(q, k, v, bias, plan)


# ── The running softmax ──────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class State:
    """What is remembered of the keys seen so far, for each query.

        m = max scores,   l = Σ exp(scores − m),   acc = Σ exp(scores − m) v

    Shapes:
        m and l (…, T, 1), acc (…, T, Dv)

    Taught in: book/13_flash_attention.ipynb
    """

    m: Tensor
    l: Tensor
    acc: Tensor


def update(state: State, scores: Tensor, v: Tensor) -> State:
    """Take in one more tile of keys and values.

        m′ = max(m, max scores),   p = exp(scores − m′),   α = exp(m − m′)
        l′ = α l + Σ p,            acc′ = α acc + p v

    Shapes:
        scores (B, H, T, S), v (B, G, S, Dv)

    Source: Milakov & Gimelshein 2018, Algorithm 3; Dao 2023, Algorithm 1.

    Note:
        Where no key has been seen, m is −∞, and 0 stands in for it: −∞ − (−∞) is NaN.

    Taught in: book/13_flash_attention.ipynb
    """
    m = torch.maximum(state.m, scores.amax(dim=-1, keepdim=True))
    anchor = m.masked_fill(m == -torch.inf, 0.0)
    p = (scores - anchor).exp_()  # in place: one tile less at a time
    shrink = (state.m - anchor).exp()
    return State(
        m,
        state.l * shrink + p.sum(dim=-1, keepdim=True),
        state.acc * shrink + shared_product(p, v.to(p.dtype)),
    )


def finish(state: State) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each query's sum of exponentials.

    out = acc / l,   lse = m + ln l;   both 0 where no key was seen
    """
    nothing = state.l == 0
    l = state.l.masked_fill(nothing, 1.0)
    return state.acc / l, state.m.masked_fill(nothing, 0.0) + l.log()


# ── Forward: queries in the outer loop, keys in the inner one ────────────────────────


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: "Plan",
    watch: Callable[[slice, slice, Tensor, State], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of checked input.

    Shapes:
        q (B, H, T, D), k (B, G, S, D), v (B, G, S, Dv) → (B, H, T, Dv), (B, H, T, 1)

    Args:
        watch: is shown every tile when it has been taken in.
    """
    memory = _counting.get() or Traffic()
    (B, H, T, _), Dv = q.shape, v.shape[-1]
    out = q.new_empty(B, H, T, Dv)
    lse = q.new_empty(B, H, T, 1, dtype=plan.dtype)
    for rows in plan.queries():
        q_tile = memory.load(q[:, :, rows]).to(plan.dtype) * plan.scale
        state = State(
            m=q_tile.new_full((*q_tile.shape[:3], 1), -torch.inf),
            l=q_tile.new_zeros(*q_tile.shape[:3], 1),
            acc=q_tile.new_zeros(*q_tile.shape[:3], Dv),
        )
        for keys in plan.keys(rows):
            k_tile, v_tile = memory.load(k[:, :, keys]), memory.load(v[:, :, keys])
            scores = plan.scores(q_tile, k_tile, rows, keys)
            state = update(state, scores, v_tile)
            if watch is not None:
                watch(rows, keys, scores, state)
        tile_out, tile_lse = finish(state)
        memory.store(out[:, :, rows], tile_out)
        memory.store(lse[:, :, rows], tile_lse)
    return out, lse


# ── Backward: every tile is made again ───────────────────────────────────────────────


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    plan: "Plan",
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The gradients of q, k, v and, where one is given, of bias.

        p = exp(scores − lse),   dv = pᵀ dout,   dp = dout vᵀ
        ds = p ∘ (dp − δ),       dq = ds k · scale,   dk = dsᵀ q · scale,   dbias = ds
        δ = Σ dout ∘ out, one number for each query

    Source: Dao et al. 2022, Algorithm 4 and appendix B.2.

    Shapes:
        as in `forward`
    """
    G = k.shape[1]
    dq = torch.empty_like(q)
    dk, dv = (torch.zeros_like(x, dtype=plan.dtype) for x in (k, v))
    d_bias = None if bias is None else torch.zeros_like(bias, dtype=plan.dtype)
    d_out = d_out.to(plan.dtype)
    delta = (d_out * out).sum(dim=-1, keepdim=True)  # (B, H, T, 1)
    for rows in plan.queries():
        q_tile = q[:, :, rows].to(plan.dtype) * plan.scale
        d_rows, dq_tile = d_out[:, :, rows], torch.zeros_like(q_tile)
        for keys in plan.keys(rows):
            k_tile, v_tile = (x[:, :, keys].to(plan.dtype) for x in (k, v))
            scores = plan.scores(q_tile, k_tile, rows, keys)
            # No weight is above 1, but a rounded lse would say so. In place, here and
            # below, with a sum of its own for each dq: 1.08 × as fast (0.92 … 1.24;
            # torch 2.13, T = 4096, 6 heads of 64, causal, one x86 thread).
            p = scores.sub_(lse[:, :, rows]).clamp_(max=0.0).exp_()
            dp = shared_product(d_rows, v_tile.mT)
            ds = dp.sub_(delta[:, :, rows]).mul_(p)
            dq_tile += shared_product(ds, k_tile)
            dk[:, :, keys] += product_over_queries(ds, q_tile, G)
            dv[:, :, keys] += product_over_queries(p, d_rows, G)
            if d_bias is not None:
                place = crop(d_bias, rows, keys)
                place += ds.sum_to_size(place.shape)
        dq[:, :, rows] = dq_tile * plan.scale
    return dq, dk.to(k.dtype), dv.to(v.dtype), d_bias


def product_over_queries(a: Tensor, b: Tensor, G: int) -> Tensor:
    """aᵀ b, summed over the H/G query heads that share a key/value head.

    Shapes:
        a (B, H, T, N), b (B, H, T, M) → (B, G, N, M)
    """
    rows = a.shape[1] // G * a.shape[2]  # not −1, which an empty batch leaves open
    a, b = (x.reshape(x.shape[0], G, rows, x.shape[-1]) for x in (a, b))
    return a.mT @ b


class _Tiled(torch.autograd.Function):
    """Forward and backward, tied together for autograd."""

    @staticmethod
    def forward(ctx, q, k, v, bias, plan):
        out, lse = forward(q, k, v, plan)
        ctx.plan = plan
        # Mask and bias are here to be found out if they are changed in between.
        mask = plan.mask if isinstance(plan.mask, Tensor) else None
        ctx.save_for_backward(q, k, v, out, lse, bias, mask)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, d_out):
        q, k, v, out, lse, bias, _ = ctx.saved_tensors
        wanted = bias if ctx.needs_input_grad[3] else None
        with no_autocast(q.device.type):
            dq, dk, dv, d_bias = backward(q, k, v, out, lse, d_out, ctx.plan, wanted)
        if d_bias is not None:
            d_bias = d_bias.to(bias.dtype)
        return dq, dk, dv, d_bias, None


def no_autocast(device: str):
    """Autocast would round the scores, and may be on in one direction only."""
    if is_autocast_available(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


# ── Tiles: which there are, and what stands in one ───────────────────────────────────


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a tile of scores depends on, apart from its own queries and keys."""

    T: int
    S: int
    mask: Tensor | Rule | None
    bias: Tensor | None
    scale: float
    dtype: torch.dtype
    block_size: int

    def queries(self) -> Iterator[slice]:
        """All tiles of queries."""
        return tiles(0, self.T, self.T, self.block_size)

    def keys(self, rows: slice) -> Iterator[slice]:
        """The tiles of keys of which these queries may see any, as far as is known."""
        first, last = seen(self.mask, *self.positions(rows), self.S)
        return tiles(first, last, self.S, self.block_size)

    def positions(self, rows: slice) -> tuple[int, int]:
        """The same queries counted on the keys' axis: the last one stands at S − 1."""
        return rows.start + self.S - self.T, rows.stop + self.S - self.T

    def scores(self, q: Tensor, k: Tensor, rows: slice, keys: slice) -> Tensor:
        """One tile; q has been scaled.  (B, H, rows, keys)"""
        scores = shared_product(q, k.to(q.dtype).mT)
        if self.bias is not None:
            scores = scores + crop(self.bias, rows, keys)
        if isinstance(self.mask, Tensor):
            return scores.masked_fill(~crop(self.mask, rows, keys), -torch.inf)
        t0, t1 = self.positions(rows)
        if sees_all(self.mask, t0, t1, keys.start, keys.stop):
            return scores
        allowed = self.mask.tile(t0, t1, keys.start, keys.stop, device=q.device)
        return scores.masked_fill(~allowed, -torch.inf)


def make_plan(q, k, mask, bias, scale, block_size: int = BLOCK) -> Plan:
    """The plan of a call whose tensors have been checked."""
    if not isinstance(block_size, int) or isinstance(block_size, bool):
        raise TypeError(f"block_size must be an integer, got {block_size!r}")
    if block_size < 1:
        raise ValueError(f"block_size must be ≥ 1, got {block_size}")
    dtype = torch.promote_types(q.dtype, torch.float32)
    if bias is not None:
        dtype = torch.promote_types(dtype, bias.dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return Plan(q.shape[2], k.shape[2], mask, bias, scale, dtype, block_size)


def tiles(first: int, last: int, length: int, size: int) -> Iterator[slice]:
    """The tiles, laid from 0 on, that hold any of first … last − 1.

    >>> [(tile.start, tile.stop) for tile in tiles(5, 9, 10, 4)]
    [(4, 8), (8, 10)]
    """
    for start in range(first // size * size, last, size):
        yield slice(start, min(start + size, length))


def seen(mask, t0: int, t1: int, S: int) -> tuple[int, int]:
    """Outside first … last − 1, queries t0 … t1 − 1 see no key; no tile is asked.

    Only for the rules of `deepdive.masks` themselves: who derives a rule from one of
    them may change what it allows.

    >>> seen(Causal(window=3), 4, 6, 8)
    (2, 6)
    """
    if type(mask) is not Causal:
        return 0, S
    first = 0 if mask.window is None else t0 - mask.window + 1
    last = t1
    if t0 < mask.prefix and t1 > 0:  # the prefix sees all of itself
        first, last = 0, max(t1, mask.prefix)
    return max(first, 0), min(last, S)


def sees_all(mask, t0: int, t1: int, s0: int, s1: int) -> bool:
    """True when nothing of a tile is blocked, as far as is known without asking."""
    if mask is None:
        return True
    if type(mask) not in (Causal, Everyone) or mask.keep is not None:
        return False
    if type(mask) is Everyone:
        return True
    return s1 - 1 <= t0 and (mask.window is None or s0 > t1 - 1 - mask.window)


def crop(x: Tensor, rows: slice, keys: slice) -> Tensor:
    """A tile of a mask or bias that broadcasts to (B, H, T, S): a view, not widened.

    Shapes:
        x broadcasts to (B, H, T, S) → the part for these rows and keys
    """
    x = x[(None,) * (4 - x.dim())]
    rows = rows if x.shape[2] > 1 else slice(None)
    keys = keys if x.shape[3] > 1 else slice(None)
    return x[:, :, rows, keys]


# ── What a tile costs, and what it looks like ────────────────────────────────────────


@dataclass
class Traffic:
    """Bytes between slow memory (a GPU's main memory) and fast memory (on the chip).

    Taught in: book/13_flash_attention.ipynb
    """

    read: int = 0
    written: int = 0

    def load(self, tile: Tensor) -> Tensor:
        """Count a tile that comes in."""
        self.read += tile.nbytes
        return tile

    def store(self, place: Tensor, tile: Tensor) -> None:
        """Count a tile that goes out, in the dtype of its place."""
        self.written += place.nbytes
        place.copy_(tile)

    @property
    def total(self) -> int:
        return self.read + self.written


# Whoever counts in one thread or task is not disturbed by another.
_counting: ContextVar[Traffic | None] = ContextVar("counting", default=None)


@contextmanager
def count_bytes() -> Iterator[Traffic]:
    """Count what `tiled` moves, forward, while the context is open.

    Counted, in the dtype of the input: each tile of q once; the tiles of k and v once
    for each tile of queries that may see them, for all H/G query heads of a key/value
    head together; out once. And one number for each query, in float32 or wider, the
    log-sum-exp.
    Not counted: scores and running sums, which stay in fast memory; a mask or bias that
    is a tensor; the backward pass; what this computer's own caches do.

    >>> with count_bytes() as traffic:
    ...     _ = tiled(*torch.zeros(3, 1, 1, 4, 2), block_size=2)
    >>> traffic.read, traffic.written  # q and twice k and v; out and four sums, 4 bytes
    (160, 48)

    Note:
        Where two are open, the inner one counts.

    Taught in: book/13_flash_attention.ipynb
    """
    traffic = Traffic()
    token = _counting.set(traffic)
    try:
        yield traffic
    finally:
        _counting.reset(token)


def equation_bytes(
    B: int,
    H: int,
    T: int,
    S: int,
    D: int,
    G: int | None = None,
    Dv: int | None = None,
    itemsize: int = 4,
) -> int:
    """What `equation` would move, were each of its three steps one kernel of a GPU.

        scores = q kᵀ · scale      reads q and k, writes B H T S numbers
        weights = softmax(scores)  reads and writes B H T S numbers
        out = weights v            reads B H T S numbers and v, writes out

    Every operand is read once, however large; scores and weights are float32 or wider.
    A mask and a bias are not counted, nor are T and S cut short by a causal one.

    Args:
        G: key/value heads, H unless given.  Dv: width of v, D unless given.
        itemsize: bytes of a number of q, k, v and out.

    Source: Dao et al. 2022, Algorithm 0.

    >>> equation_bytes(B=1, H=1, T=4, S=4, D=2)
    384

    Taught in: book/13_flash_attention.ipynb
    """
    G, Dv = H if G is None else G, D if Dv is None else Dv
    ends = H * T * (D + Dv) + G * S * (D + Dv)
    between = 4 * H * T * S
    return B * (ends * itemsize + between * max(itemsize, 4))


@dataclass(frozen=True)
class TileStep:
    """The state of one head's queries after one more tile of keys.

    Shapes:
        scores (t, s), −∞ where blocked; m and l (t,); acc (t, Dv), t and s of this tile

    Taught in: book/13_flash_attention.ipynb
    """

    queries: range
    keys: range
    scores: Tensor
    m: Tensor
    l: Tensor
    acc: Tensor

    @property
    def out(self) -> Tensor:
        """acc / l: the output, had these been all the keys.  (t, Dv)"""
        return finish(State(self.m[:, None], self.l[:, None], self.acc))[0]


def online_softmax_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_size: int = BLOCK,
    mask: Tensor | Rule | None = None,
    scale: float | None = None,
) -> list[TileStep]:
    """`tiled` on one head, with its state after every tile.

    Shapes:
        q (T, D), k (S, D), v (S, Dv); mask as in `tiled`

    Note:
        A tile that is skipped has no step.

    >>> q = k = v = torch.tensor([[0.0], [1.0]])
    >>> for step in online_softmax_steps(q, k, v, block_size=1, mask=Causal()):
    ...     print(step.queries, step.keys, step.m.tolist())
    range(0, 1) range(0, 1) [0.0]
    range(1, 2) range(0, 1) [0.0]
    range(1, 2) range(1, 2) [1.0]

    Taught in: book/13_flash_attention.ipynb
    """
    for name, x in {"q": q, "k": k, "v": v}.items():
        if isinstance(x, Tensor) and x.dim() != 2:
            raise ValueError(f"{name} must be (length, width), got {tuple(x.shape)}")
    q, k, v = (x[None, None] if isinstance(x, Tensor) else x for x in (q, k, v))
    check_inputs({"q": q, "k": k, "v": v}, mask, None, scale)
    steps: list[TileStep] = []

    def watch(rows: slice, keys: slice, scores: Tensor, state: State) -> None:
        m, l, acc = state.m[0, 0, :, 0], state.l[0, 0, :, 0], state.acc[0, 0]
        queries, held = range(rows.start, rows.stop), range(keys.start, keys.stop)
        steps.append(TileStep(queries, held, scores[0, 0], m, l, acc))

    with torch.no_grad(), no_autocast(q.device.type):
        forward(q, k, v, make_plan(q, k, mask, None, scale, block_size), watch)
    return steps
