# SPDX-License-Identifier: MIT
"""Can position live inside the dot product? Queries and keys are turned."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.configs import (
    RopeScaling,
)
from deepdive.inputs import check_floats
from deepdive.positions.angles import (
    check_base,
    check_positions,
    check_width,
    frequencies,
)
from deepdive.positions.scaling import magnitude, scaled


def interleaved(x: Tensor) -> Tensor:
    """The partner of each number when neighbours are pairs: (a, b) → (−b, a).

    Numbers 2i and 2i + 1 turn together (RoFormer, DeepSeek, Meta's own Llama
    files and GGUF's).

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
            made for one still give fluent English with the other, and worse (SmolLM2).
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
        check_width("head_dim", head_dim)
        check_base(base)
        if not callable(pairing):
            raise TypeError(f"pairing must be half_split or interleaved, got {pairing}")
        if scaling is not None and not isinstance(scaling, RopeScaling):
            raise TypeError(f"scaling must be one of configs' rules, got {scaling!r}")
        self.head_dim, self.base = head_dim, base
        self.pairing, self.scaling = pairing, scaling

    def frequencies(self, device=None) -> Tensor:
        """θ, the angle per position of each pair: (D/2,) float32."""
        theta = frequencies(self.head_dim, self.base, device)
        return theta if self.scaling is None else scaled(self.scaling, theta, self.base)

    def forward(self, positions: Tensor) -> Callable[[Tensor], Tensor]:
        check_positions(positions)
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
        self.check(x)
        cos, sin = self.angles(x.dtype)
        return x * cos + self.pairing(x) * sin

    def check(self, x: Tensor) -> None:
        """x must be floats of the positions and the width that this was made for."""
        check_floats("x", x)
        T, D = self.cos.shape[-2:]
        B = len(self.cos) if self.cos.dim() == 4 else 1
        if x.dim() != 4 or tuple(x.shape[-2:]) != (T, D) or B not in (1, len(x)):
            raise ValueError(
                f"rotary was made for {T} positions of width {D} in {B} rows, got "
                f"{tuple(x.shape)}"
            )

    def angles(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The cosines and sines in another dtype, made once."""
        if dtype not in self._made:
            self._made[dtype] = self.cos.to(dtype), self.sin.to(dtype)
        return self._made[dtype]


def _check_pairs(x: Tensor) -> None:
    check_floats("x", x)
    if x.shape[-1] % 2:
        raise ValueError(f"x must be (…, D) with D even, got {tuple(x.shape)}")
