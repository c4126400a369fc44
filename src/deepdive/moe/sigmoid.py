# SPDX-License-Identifier: MIT
"""Can experts be balanced without a loss? DeepSeek-V3: by a bias on the choice."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.inputs import check_kind
from deepdive.moe.choice import Groups, check_choice, choose
from deepdive.moe.router import Router, wide_dtype
from deepdive.moe.routing import Routing


class SigmoidRouter(Router):
    """DeepSeek-V3's router: independent scores, and a bias that steers only the choice.

        s = sigmoid(W x);  chosen = the K largest s + b
        gates = s of the chosen / their sum · routed_scale

    Nothing is differentiated with respect to b; `update_bias` moves it after each step.

    Args:
        normalise_gates: divide the chosen scores by their sum.
        routed_scale: factor on the gates; 2.5 in DeepSeek-V3.
        groups: a limit on the choice; their scores include b.

    Source: DeepSeek-V3 (arXiv:2412.19437), §2.1.2; Wang et al. 2024 (arXiv:2408.15664).

    Note:
        `selection_bias` stays float32 when the model becomes half precision: steps of
        0.001 would be lost. The released code adds 1e-20 to the sum, so that it is
        never zero, and so does this one; the report does not write it.

    Taught in: book/15_deepseek.ipynb
    """

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        top_k: int,
        normalise_gates: bool = True,
        routed_scale: float = 1.0,
        groups: Groups | None = None,
    ):
        super().__init__(d_model, n_experts, top_k)
        check_choice(n_experts, top_k, routed_scale, groups)
        self.normalise_gates = normalise_gates
        self.routed_scale, self.groups = routed_scale, groups
        bias = torch.empty(n_experts, dtype=torch.float32)
        self.register_buffer("selection_bias", bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As `nn.Linear`; the bias starts at zero."""
        super().reset_parameters()
        nn.init.zeros_(self.selection_bias)

    def forward(self, x: Tensor) -> Routing:
        logits = self.logits(x)
        scores = logits.sigmoid()
        experts = choose(scores + self.selection_bias, self.top_k, self.groups)
        gates = scores.gather(1, experts)  # without the bias
        if self.normalise_gates:
            gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)
        probabilities = F.logsigmoid(logits).softmax(-1)  # s / Σ s, never 0/0
        return Routing(experts, gates * self.routed_scale, logits, probabilities)

    @torch.no_grad()
    def update_bias(self, load: Tensor, speed: float) -> None:
        """Make the overloaded experts harder to choose, and the idle ones easier.

            bᵢ ← bᵢ + speed · sign(mean load − loadᵢ)

        Args:
            load: how often each expert was chosen in the last step (`expert_counts`),
                summed over all processes; (E,).
            speed: γ, 0.001 in DeepSeek-V3, and 0 at the end of its training.

        Raises:
            ValueError: load is not (E,), or speed is negative or not finite.
        """
        check_kind("load", load, Tensor)
        if load.is_complex() or load.dtype == torch.bool:
            raise TypeError(f"load must hold counts, got {load.dtype}")
        if tuple(load.shape) != (self.n_experts,):
            raise ValueError(
                f"load must be (E = {self.n_experts},), got {tuple(load.shape)}"
            )
        if not 0 <= speed < math.inf:
            raise ValueError(f"speed must be finite and ≥ 0, got {speed}")
        load = load.to(self.selection_bias)
        self.selection_bias += speed * (load.mean() - load).sign()

    def _apply(self, fn, recurse: bool = True):
        """Move with the module, but keep the bias in float32 or wider."""
        before = self.selection_bias
        super()._apply(fn, recurse)
        after, wide = self.selection_bias, wide_dtype(self.weight.dtype)
        if after.dtype != wide:
            source = after if before.is_meta else before
            self.selection_bias = source.to(after.device, wide)
        return self
