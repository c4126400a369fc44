# SPDX-License-Identifier: MIT
"""How close does a mixture of experts come to a dense layer of the same work?

The whole layer, router included, forward and in training. Live: `transformers`' Mixtral
layer with our weights, its loop over the experts and its grouped products (the default
where its models are loaded). Ours: as built, and for reading also with packed matrices.

    python benchmarks/speed/experts.py

The limit is a gated network of K times an expert's width, which computes other numbers
with as many operations, but reads K/E of the weights, and has K/E of the gradients.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.feedforward import GatedFeedForward
from deepdive.inference.experts import PackedExperts, packable
from deepdive.moe import Experts, MixtureOfExperts, SoftmaxTopKRouter
from deepdive.timing import Goal, Row, installed, main

NAMED = {
    "LLMs-from-scratch": "forward 0.93, training 5.5 × transformers' loop (November "
    "2026, two-core x86 machine, torch 2.13; not run here)"
}


def forward(N: int, d_model: int, d_expert: int, E: int = 32, K: int = 4) -> Row:
    """A layer that reads N words."""
    layer, x = mixture(N, d_model, d_expert, E, K)
    dense = GatedFeedForward(d_model, K * d_expert, nn.SiLU())
    ways = {name: part(theirs, x) for name, theirs in peers(layer, K).items()}
    goals = [Goal("sorted", "dense, equal work", 0.75)]
    ways["sorted"] = part(layer, x)
    if packable(layer.experts):
        packed = MixtureOfExperts(layer.router, PackedExperts(layer.experts))
        ways["packed"] = part(packed, x)
        goals.append(Goal("packed", "dense, equal work", 0.75))
    if "transformers, loop" in ways:
        best = "packed" if "packed" in ways else "sorted"
        goals.append(Goal(best, "transformers, loop", 1.35))
        goals.append(Goal(best, "transformers, grouped", 1.0))
    return Row(
        name="mixture of experts, forward",
        sizes=f"{N} words, {K} of {E} experts, {d_model} × {d_expert}",
        ways=ways,
        goals=tuple(goals),
        limits={"dense, equal work": part(dense, x)},
        named=NAMED,
    )


def training(N: int, d_model: int, d_expert: int, E: int = 32, K: int = 4) -> Row:
    """Forward and backward, with new gradients of all weights and of x."""
    layer, x = mixture(N, d_model, d_expert, E, K)
    dense = GatedFeedForward(d_model, K * d_expert, nn.SiLU())
    ways = {name: trained(theirs, x) for name, theirs in peers(layer, K).items()}
    ways["sorted"] = trained(layer, x)
    goals = [Goal("sorted", "dense, equal work", 0.7)]
    if "transformers, loop" in ways:
        goals.append(Goal("sorted", "transformers, loop", 5.8))
        goals.append(Goal("sorted", "transformers, grouped", 1.0))
    return Row(
        name="mixture of experts, training",
        sizes=f"{N} words, {K} of {E} experts, {d_model} × {d_expert}",
        ways=ways,
        goals=tuple(goals),
        limits={"dense, equal work": trained(dense, x)},
        named=NAMED,
    )


def mixture(
    N: int, d_model: int, d_expert: int, E: int, K: int
) -> tuple[MixtureOfExperts, Tensor]:
    """A layer with a softmax router, and words for it."""
    torch.manual_seed(0)
    router = SoftmaxTopKRouter(d_model, E, K)
    layer = MixtureOfExperts(router, Experts(E, d_model, d_expert))
    return layer, torch.randn(1, N, d_model)


def peers(layer: MixtureOfExperts, K: int) -> dict[str, nn.Module]:
    """`transformers`' layer with the same weights, in its two forms."""
    if not installed("transformers"):
        return {}
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    ours, made = layer.experts, {}
    for name, form in (("loop", "eager"), ("grouped", "grouped_mm")):
        config = MixtralConfig(
            hidden_size=ours.d_model,
            intermediate_size=ours.d_expert,
            num_local_experts=ours.n_experts,
            num_experts_per_tok=K,
            experts_implementation=form,
        )
        theirs = MixtralSparseMoeBlock(config)
        with torch.no_grad():
            theirs.gate.weight.copy_(layer.router.weight)
            theirs.experts.gate_up_proj.copy_(torch.cat([ours.gate, ours.up], 1))
            theirs.experts.down_proj.copy_(ours.down)
        made[f"transformers, {name}"] = theirs
    return made


def part(layer: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A call of the layer."""
    return lambda: layer(x)


def trained(layer: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """A call that gives the gradient of the mean square at x, and makes all others."""
    x = x.clone().requires_grad_()

    def call() -> Tensor:
        layer.zero_grad()
        x.grad = None
        with torch.enable_grad():
            layer(x).square().mean().backward()
        return x.grad

    return call


FULL = (
    lambda: forward(1024, 256, 256),
    lambda: forward(1024, 512, 256),
    lambda: training(1024, 256, 256),
    lambda: training(1024, 512, 256),
)
QUICK = (lambda: forward(128, 64, 32), lambda: training(128, 64, 32))

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
