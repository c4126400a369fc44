# SPDX-License-Identifier: MIT
"""What do all routers share? One score per expert, computed with care.

Taught in: book/14_mixture_of_experts.ipynb
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.inputs import check_sizes


class Router(nn.Module):
    """What all routers share: one row of weights per expert.

        logits = W x, in float32 or wider, under autocast too

    Shapes:
        x (N, d_model) → a `Routing` of N tokens

    Raises:
        ValueError: sizes that do not fit; x of another shape.
        TypeError: a size that is no integer; x that holds no floats.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, d_model: int, n_experts: int, top_k: int):
        super().__init__()
        check_sizes(d_model=d_model, n_experts=n_experts, top_k=top_k)
        if top_k > n_experts:
            raise ValueError(f"top_k {top_k} is more than n_experts {n_experts}")
        self.d_model, self.n_experts, self.top_k = d_model, n_experts, top_k
        self.weight = nn.Parameter(torch.empty(n_experts, d_model))

    def reset_parameters(self) -> None:
        """As `nn.Linear`: uniform within ±1/√d_model."""
        bound = self.d_model**-0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def logits(self, x: Tensor) -> Tensor:
        """How well each expert suits each token: (N, d_model) → (N, E)."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            raise TypeError(f"x must be a tensor of floats, got {kind}")
        if x.dim() != 2 or x.shape[1] != self.d_model:
            raise ValueError(
                f"x must be (N, d_model = {self.d_model}), got {tuple(x.shape)}"
            )
        return wide_product(x, self.weight)  # (N, E)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, n_experts={self.n_experts}, top_k={self.top_k}"


def wide_product(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ in float32 or wider: a choice between experts is not made on rounded scores.

    Shapes:
        x (N, d_model), weight (E, d_model) → (N, E)
    """
    wide = wide_dtype(torch.promote_types(x.dtype, weight.dtype))
    device = "cpu" if x.is_meta else x.device.type  # autocast knows no meta device
    with torch.autocast(device, enabled=False):
        return F.linear(x.to(wide), weight.to(wide))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Float32, or wider where the input is."""
    return torch.promote_types(dtype, torch.float32)
