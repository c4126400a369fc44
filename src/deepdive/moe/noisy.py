# SPDX-License-Identifier: MIT
"""How did a layer first choose among thousands of experts? With noise, in 2017."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.inputs import check_floats, check_sizes
from deepdive.moe.choice import choose
from deepdive.moe.router import Router, wide_product
from deepdive.moe.routing import Routing


class NoisyTopKRouter(Router):
    """The router of 2017: noise before the choice, softmax over the chosen after it.

        hᵢ = (W_g x)ᵢ + ε · softplus((W_noise x)ᵢ),  ε ~ N(0, 1), in training only
        gates = softmax over the K largest h

    Both matrices start at zero: every expert is equally likely at first.

    Source: Shazeer et al. 2017 (arXiv:1701.06538), §2.1 and appendix A.

    >>> router = NoisyTopKRouter(d_model=8, n_experts=4, top_k=2).eval()
    >>> router(torch.ones(1, 8)).gates.tolist()  # a tie
    [[0.5, 0.5]]

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, d_model: int, n_experts: int, top_k: int):
        super().__init__(d_model, n_experts, top_k)
        self.noise = nn.Parameter(torch.empty(n_experts, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Zeros (appendix A)."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.noise)

    def forward(self, x: Tensor) -> Routing:
        clean = logits = self.logits(x)
        chances = None
        if self.training:
            scale = F.softplus(wide_product(x, self.noise)).clamp_min(LEAST_NOISE)
            logits = clean + torch.randn_like(clean) * scale
            chances = chance_of_choice(clean, logits, scale, self.top_k)
        experts = choose(logits, self.top_k)
        gates = logits.gather(1, experts).softmax(-1)  # (N, K)
        return Routing(experts, gates, logits, logits.softmax(-1), chances)


LEAST_NOISE = 1e-6  # softplus reaches 0 in float32, and the chances divide by it


def chance_of_choice(clean: Tensor, noisy: Tensor, scale: Tensor, top_k: int) -> Tensor:
    """How likely is each expert to be chosen, if its noise alone is drawn again?

        Pᵢ = Φ((cleanᵢ − the K-th largest noisy logit of the others) / scaleᵢ)

    Unlike a count it has a gradient, which is what the load loss needs.

    Shapes:
        clean, noisy, scale (N, E) → (N, E)

    Source: Shazeer et al. 2017, appendix A, equations 8 to 10.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    for name, logits in (("clean", clean), ("noisy", noisy), ("scale", scale)):
        check_floats(name, logits)
        if logits.dim() != 2 or logits.shape != clean.shape:
            raise ValueError(
                f"{name} must be (N, E), as clean, got {tuple(logits.shape)} and "
                f"{tuple(clean.shape)}"
            )
    check_sizes(top_k=top_k)
    if top_k > clean.shape[1]:
        raise ValueError(f"top_k {top_k} is more than {clean.shape[1]} experts")
    if top_k == clean.shape[1]:
        return torch.ones_like(clean)  # all are chosen, whatever the noise
    best = noisy.topk(top_k + 1, dim=-1).values  # (N, K + 1)
    last_in, first_out = best[:, -2:-1], best[:, -1:]
    # Without a chosen expert, the first one left out moves up to place K.
    rival = torch.where(noisy >= last_in, first_out, last_in)  # (N, E)
    return torch.special.ndtr((clean - rival) / scale)
