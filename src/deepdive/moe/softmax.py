# SPDX-License-Identifier: MIT
"""Softmax before the choice or after it? Switch, Mixtral, DeepSeekMoE, DeepSeek-V2."""

from torch import Tensor

from deepdive.moe.choice import Groups, check_choice, choose
from deepdive.moe.router import Router
from deepdive.moe.routing import Routing


class SoftmaxTopKRouter(Router):
    """Softmax, and the K best: Switch, Mixtral, DeepSeekMoE and DeepSeek-V2.

        p = softmax(W x);  gates = p of the chosen · routed_scale

    With `normalise_gates` they are divided by their sum first, which is the same as a
    softmax over the chosen logits alone: Mixtral's rule. DeepSeekMoE and V2 leave them
    as they are, so they sum to less than 1.

    Args:
        routed_scale: factor on the gates; 16 in DeepSeek-V2.
        groups: a limit on the choice; None lets a token reach every expert.

    Source: Jiang et al. 2024 (arXiv:2401.04088), §2.1; DeepSeekMoE (arXiv:2401.06066),
        equations 3 to 5; DeepSeek-V2 (arXiv:2405.04434), §2.2.

    Note:
        With K = 1, normalised gates are always 1 and the router learns nothing from
        them.

    >>> import torch
    >>> router = SoftmaxTopKRouter(4, n_experts=4, top_k=2, normalise_gates=False)
    >>> _ = router.weight.data.copy_(torch.eye(4))
    >>> [round(g, 4) for g in router(torch.tensor([[2.0, 1, 0, -1]])).gates[0].tolist()]
    [0.6439, 0.2369]

    Taught in: book/14_mixture_of_experts.ipynb, book/15_deepseek.ipynb
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
        self.reset_parameters()

    def forward(self, x: Tensor) -> Routing:
        logits = self.logits(x)
        probabilities = logits.softmax(-1)
        experts = choose(probabilities, self.top_k, self.groups)
        if self.normalise_gates:
            gates = logits.gather(1, experts).softmax(-1)  # never 0/0
        else:
            gates = probabilities.gather(1, experts)
        return Routing(experts, gates * self.routed_scale, logits, probabilities)


class SwitchRouter(SoftmaxTopKRouter):
    """One expert per token; the gate is its probability, so the router has a gradient.

    Source: Fedus et al. 2021 (arXiv:2101.03961), §2.1. The paper also limits what an
        expert takes: `Capped(SwitchRouter(…), 1.25)`.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, d_model: int, n_experts: int):
        super().__init__(d_model, n_experts, top_k=1, normalise_gates=False)
