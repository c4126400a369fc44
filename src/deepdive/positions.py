# SPDX-License-Identifier: MIT
"""How does a model know the order of its words? One class per answer.

Three places take an answer: the embedding (a vector is added: sinusoidal, learned), the
queries and keys (they are turned: rotary), and the scores (a number is added: T5's
relative bias, ALiBi). Angles and distances are computed in float32 whatever the model's
dtype: float16 cannot tell position 2,048 from 2,049.
"""

import math
from collections.abc import Callable
from functools import singledispatch

import torch
from torch import Tensor, nn

from deepdive.configs import (
    LinearScaling,
    Llama3Scaling,
    NTKScaling,
    RopeScaling,
    YarnScaling,
)
from deepdive.inputs import check_floats, check_ids, check_kind, check_sizes

# Added to the embedding


class SinusoidalPositions(nn.Module):
    """Sines and cosines of falling frequency, added to the word's vector.

        PE(p, 2i) = sin(p / base^(2i/d)),   PE(p, 2i + 1) = cos(p / base^(2i/d))

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model), float32

    Raises:
        ValueError: d_model is odd or below 2.  TypeError: positions are no integers.

    Source: Vaswani et al. 2017, §3.5.

    >>> SinusoidalPositions(4)(torch.tensor([0]))
    tensor([[0., 1., 0., 1.]])

    Taught in: book/04_positions.ipynb
    """

    def __init__(self, d_model: int, base: float = 10_000.0):
        super().__init__()
        _check_width("d_model", d_model)
        _check_base(base)
        self.d_model, self.base = d_model, base

    def forward(self, positions: Tensor) -> Tensor:
        _check_positions(positions)
        theta = _frequencies(self.d_model, self.base, positions.device)
        angles = positions[..., None] * theta  # (…, T, d/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


class LearnedPositions(nn.Embedding):
    """A trained vector for each position, added to the word's vector.

    Shapes:
        positions (T,) or (B, T) integers → (T, d_model) or (B, T, d_model)

    Raises:
        ValueError: a position lies outside the table, where no vector was learned.
        TypeError: the positions are not whole numbers of 32 or 64 bits.

    Source: BERT (Devlin et al. 2018, §3) and GPT learn theirs; Vaswani et al. 2017,
    Table 3 row E, found them as good as sinusoids.

    Taught in: book/04_positions.ipynb
    """

    def __init__(self, max_seq_len: int, d_model: int):
        check_sizes(max_seq_len=max_seq_len, d_model=d_model)
        super().__init__(max_seq_len, d_model)

    def forward(self, positions: Tensor) -> Tensor:
        check_ids("position", positions, self.num_embeddings)
        return super().forward(positions)

    def first(self, T: int) -> Tensor:
        """The vectors of positions 0 … T − 1, in order: (T, d_model).

        Raises:
            ValueError: T is more than the table has rows.
        """
        check_kind("T", T, int)
        if not 0 <= T <= self.num_embeddings:
            raise ValueError(
                f"{T} positions were asked of a learned table of {self.num_embeddings}"
            )
        return self.weight[:T]


# Turning queries and keys


def interleaved(x: Tensor) -> Tensor:
    """The partner of each number when neighbours are pairs: (a, b) → (−b, a).

    Numbers 2i and 2i + 1 turn together (RoFormer, Meta's Llama files, GGUF, DeepSeek).

    >>> interleaved(torch.tensor([1., 2., 3., 4.]))
    tensor([-2.,  1., -4.,  3.])

    Taught in: book/11_rope.ipynb
    """
    _check_pairs(x)
    pairs = x.unflatten(-1, (-1, 2))  # (…, D/2, 2)
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)


def half_split(x: Tensor) -> Tensor:
    """The partner of each number when the halves are pairs: (a, b) → (−b, a).

    Numbers i and i + D/2 turn together (Hugging Face's Llama files).

    >>> half_split(torch.tensor([1., 2., 3., 4.]))
    tensor([-3., -4.,  1.,  2.])

    Taught in: book/11_rope.ipynb
    """
    _check_pairs(x)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


Pairing = Callable[[Tensor], Tensor]


class Rotary(nn.Module):
    """Turn each pair of numbers in q and k by an angle that grows with the position.

        (x₁, x₂) at position p  ↦  (x₁ cos pθ − x₂ sin pθ,  x₁ sin pθ + x₂ cos pθ)

    with θᵢ = base^(−2i/D) for pair i. The product of a turned query and a turned key
    depends on their distance alone. The turn is by +pθ, and a forward pass computes the
    angles once: `rotary(positions)` gives a function for all its queries and keys.

    Shapes:
        positions (T,) or (B, T) integers → rotate: x (B, H, T, D) → (B, H, T, D)

    Args:
        pairing: which two numbers form a pair, `half_split` or `interleaved`. Weights
            made for one give fluent nonsense with the other.
        scaling: one of `deepdive.configs`' rules for reading further than trained.

    Raises:
        ValueError: head_dim is odd or below 2, or base is not above 0.
        TypeError: positions are no integers, or scaling is none of the known rules.

    Source: RoFormer (Su et al. 2021, arXiv:2104.09864), §3.2.

    Taught in: book/11_rope.ipynb
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10_000.0,
        pairing: Pairing = half_split,
        scaling: RopeScaling | None = None,
    ):
        super().__init__()
        _check_width("head_dim", head_dim)
        _check_base(base)
        if not callable(pairing):
            raise TypeError(f"pairing must be half_split or interleaved, got {pairing}")
        if scaling is not None and not isinstance(scaling, RopeScaling):
            raise TypeError(f"scaling must be one of configs' rules, got {scaling!r}")
        self.head_dim, self.base = head_dim, base
        self.pairing, self.scaling = pairing, scaling

    def frequencies(self, device=None) -> Tensor:
        """θ, the angle per position of each pair: (D/2,) float32."""
        theta = _frequencies(self.head_dim, self.base, device)
        return theta if self.scaling is None else scaled(self.scaling, theta, self.base)

    def forward(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        _check_positions(positions)
        angles = positions[..., None] * self.frequencies(positions.device)
        if angles.dim() == 3:
            angles = angles[:, None]  # (B, 1, T, D/2), for every head
        if self.pairing is interleaved:
            angles = angles.repeat_interleave(2, dim=-1)  # (…, T, D)
        else:
            angles = torch.cat((angles, angles), dim=-1)  # (…, T, D)
        size = magnitude(self.scaling)
        return Rotation(angles.cos() * size, angles.sin() * size, self.pairing)


class Rotation:
    """One forward pass's turn: the same angles for every layer's queries and keys.

    Shapes:
        x (B, H, T, D) → (B, H, T, D), in x's dtype

    Taught in: book/11_rope.ipynb
    """

    def __init__(self, cos: Tensor, sin: Tensor, pairing: Pairing):
        self.cos, self.sin, self.pairing = cos, sin, pairing
        self._made: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor) -> Tensor:
        check_floats("x", x)
        T, D = self.cos.shape[-2:]
        B = len(self.cos) if self.cos.dim() == 4 else 1
        if x.dim() != 4 or tuple(x.shape[-2:]) != (T, D) or B not in (1, len(x)):
            raise ValueError(
                f"rotary was made for {T} positions of width {D} in {B} rows, got "
                f"{tuple(x.shape)}"
            )
        if x.dtype not in self._made:
            self._made[x.dtype] = self.cos.to(x.dtype), self.sin.to(x.dtype)
        cos, sin = self._made[x.dtype]
        return x * cos + self.pairing(x) * sin


@singledispatch
def scaled(scaling: RopeScaling, theta: Tensor, base: float) -> Tensor:
    """The angles per position after a rule for longer texts: (D/2,) → (D/2,).

    Taught in: book/11_rope.ipynb
    """
    raise TypeError(f"no rule for {type(scaling).__name__}")


@scaled.register
def _(scaling: LinearScaling, theta: Tensor, base: float) -> Tensor:
    # θ / s: Chen et al. 2023 (arXiv:2306.15595), equation 4.
    return theta / scaling.factor


@scaled.register
def _(scaling: NTKScaling, theta: Tensor, base: float) -> Tensor:
    # base · s^(D/(D−2)): the slowest pair is slowed by s, the fastest not at all
    # (YaRN, arXiv:2309.00071, §3.1).
    D = 2 * theta.numel()
    if D == 2:
        return theta
    return _frequencies(D, base * scaling.factor ** (D / (D - 2)), theta.device)


@scaled.register
def _(scaling: YarnScaling, theta: Tensor, base: float) -> Tensor:
    # A ramp over the pairs, from kept (fast) to divided (slow): YaRN, §3.2.
    n = theta.numel()

    def pair_that_turns(times: float) -> float:
        """The pair, from the fastest on, with so many turns in the trained text."""
        turns = scaling.original_max_seq_len / (times * 2 * math.pi)
        return n * math.log(turns) / math.log(base)

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), 2 * n - 1)
    index = torch.arange(n, dtype=torch.float32, device=theta.device)
    divided = ((index - low) / max(high - low, 0.001)).clamp(0, 1)
    return theta / scaling.factor * divided + theta * (1 - divided)


@scaled.register
def _(scaling: Llama3Scaling, theta: Tensor, base: float) -> Tensor:
    # Turns within the trained length decide: below `low` divided, above `high` kept.
    turns = scaling.original_max_seq_len * theta / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * theta / scaling.factor + kept * theta


def magnitude(scaling: RopeScaling | None) -> float:
    """The factor on cos and sin that YaRN adds (its √(1/t), §3.3); 1 for other rules.

    DeepSeek gives two factors, of which this is the quotient: 1 where they are equal.

    Taught in: book/11_rope.ipynb
    """
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.mscale and scaling.mscale_all_dim:
        return temperature(scaling.factor, scaling.mscale) / temperature(
            scaling.factor, scaling.mscale_all_dim
        )
    return temperature(scaling.factor)


def temperature(factor: float, mscale: float = 1.0) -> float:
    """0.1 · mscale · ln(factor) + 1: how much longer texts sharpen the scores.

    Taught in: book/11_rope.ipynb
    """
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


# Added to the scores


class RelativeBias(nn.Module):
    """T5's: a learned number per head for each bucket of distances.

        bias[h, t, s] = table[bucket(s − t), h]

    Near distances have a bucket each, farther ones share, logarithmically, and all
    beyond `max_distance` are one. The first layer of a stack holds the table; all of
    the stack's layers add it.

    Shapes:
        queries (T,), keys (S,) integer positions → (1, H, T, S)

    Args:
        bidirectional: half of the buckets for keys to the right (the encoder); without
            it every key to the right counts as distance 0 (the decoder).

    Raises:
        ValueError: a count is out of range.  TypeError: positions are no integers.

    Source: Raffel et al. 2019, §2.1; the formula is that of the released code.

    Taught in: book/09_t5.ipynb
    """

    def __init__(
        self,
        n_heads: int,
        bidirectional: bool,
        n_buckets: int = 32,
        max_distance: int = 128,
    ):
        super().__init__()
        check_sizes(n_heads=n_heads)
        _check_buckets(bidirectional, n_buckets, max_distance)
        self.bidirectional = bidirectional
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.table = nn.Embedding(n_buckets, n_heads)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = _distances(queries, keys)
        bucket = relative_bucket(
            distance, self.bidirectional, self.n_buckets, self.max_distance
        )
        return self.table(bucket).permute(2, 0, 1)[None]  # (1, H, T, S)


def relative_bucket(
    distance: Tensor, bidirectional: bool, n_buckets: int = 32, max_distance: int = 128
) -> Tensor:
    """The bucket of each distance, key minus query.

    Shapes:
        distance (…) integers → (…) integers in 0 … n_buckets − 1

    >>> relative_bucket(torch.tensor([-128, -8, -1, 0, 1, 8, 1000]), True).tolist()
    [15, 8, 1, 0, 17, 24, 31]

    Taught in: book/09_t5.ipynb
    """
    _check_positions(distance)
    _check_buckets(bidirectional, n_buckets, max_distance)
    offset = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        offset = (distance > 0) * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = n_buckets // 2
    # float32, as the released code has it: at the borders a wider type rounds elsewhere
    log = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (log * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return offset + torch.where(distance < exact, distance, far)


class Alibi(nn.Module):
    """Each head subtracts its own multiple of the distance; nothing is learned.

        bias[h, t, s] = −m_h · |t − s|,   m_h = 2^(−8h/H) for h = 1 … H, H a power of 2

    Shapes:
        queries (T,), keys (S,) integer positions → (1, H, T, S) float32

    Raises:
        ValueError: n_heads below 1.  TypeError: positions are no integers.

    Source: Press et al. 2021 (arXiv:2108.12409), §3; for other H the released code
    takes every second slope of the next power of two, as here.

    >>> Alibi(8).slopes()
    tensor([0.5000, 0.2500, 0.1250, 0.0625, 0.0312, 0.0156, 0.0078, 0.0039])

    Taught in: book/11_rope.ipynb
    """

    def __init__(self, n_heads: int):
        super().__init__()
        check_sizes(n_heads=n_heads)
        self.n_heads = n_heads

    def slopes(self, device=None) -> Tensor:
        """m, one for each head: (H,) float32."""
        H = self.n_heads
        power = 2 ** math.floor(math.log2(H))
        slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
        slopes += [2 ** (-4 * h / power) for h in range(1, 2 * (H - power) + 1, 2)]
        return torch.tensor(slopes, dtype=torch.float32, device=device)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = _distances(queries, keys).abs()
        return (-self.slopes(distance.device)[:, None, None] * distance)[None]


# Where a padded or cached batch stands


def token_positions(T: int, seen: int, keep: Tensor | None = None, device=None):
    """The positions of T new tokens after `seen` older ones.

        with padding: position = number of real tokens up to and with this one, − 1

    Shapes:
        keep (B, seen + T) bool or None → (B, T) or (T,) int64; padding gets 0 or more

    Raises:
        ValueError: keep covers another number of tokens.

    Taught in: book/10_kv_cache.ipynb
    """
    check_sizes(0, T=T, seen=seen)
    if keep is None:
        return torch.arange(seen, seen + T, device=device)
    check_kind("keep", keep, Tensor)
    if keep.dtype != torch.bool:
        raise TypeError(f"keep must be bool, True = a real token, got {keep.dtype}")
    if keep.dim() != 2 or keep.shape[1] != seen + T:
        raise ValueError(
            f"keep must be (B, {seen + T}), {seen} tokens seen and {T} new, got "
            f"{tuple(keep.shape)}"
        )
    return (keep.long().cumsum(1) - 1).clamp(min=0)[:, seen:]


def _frequencies(width: int, base: float, device) -> Tensor:
    """base^(−2i/width), i = 0 … width/2 − 1, in float32."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return 1.0 / base**exponents


def _distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Key minus query: (T,), (S,) → (T, S)."""
    for name, x in (("queries", queries), ("keys", keys)):
        _check_positions(x)
        if x.dim() != 1:
            raise ValueError(f"{name} must be (length,), got {tuple(x.shape)}")
    return keys[None, :] - queries[:, None]


def _check_positions(positions: Tensor) -> None:
    if not isinstance(positions, Tensor) or positions.dtype not in (
        torch.int32,
        torch.int64,
    ):
        got = getattr(positions, "dtype", type(positions).__name__)
        raise TypeError(f"positions must be a tensor of whole numbers, got {got}")


def _check_pairs(x: Tensor) -> None:
    check_floats("x", x)
    if x.shape[-1] % 2:
        raise ValueError(f"x must be (…, D) with D even, got {tuple(x.shape)}")


def _check_buckets(bidirectional: bool, n_buckets: int, max_distance: int) -> None:
    check_sizes(n_buckets=n_buckets, max_distance=max_distance)
    exact = n_buckets // (4 if bidirectional else 2)
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"n_buckets {n_buckets} must be large enough, and max_distance "
            f"{max_distance} above {max(exact, 1)}"
        )


def _check_width(name: str, width: int) -> None:
    if not isinstance(width, int) or width < 2 or width % 2:
        raise ValueError(f"{name} must be even and ≥ 2, got {width}")


def _check_base(base: float) -> None:
    if not (base > 0 and math.isfinite(base)):
        raise ValueError(f"base must be finite and > 0, got {base}")
