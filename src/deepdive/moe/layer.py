# SPDX-License-Identifier: MIT
"""How does a model know more without working more? Each token visits a few experts.

Source: Shazeer et al. 2017 (arXiv:1701.06538), §2; shared experts: DeepSeekMoE
(arXiv:2401.06066), §3.2.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import NoneType

from torch import Tensor, nn

from deepdive.inputs import check_kind, check_vectors
from deepdive.moe.experts import ExpertStack
from deepdive.moe.routing import Routing


class MixtureOfExperts(nn.Module):
    """A feed-forward layer of which each token uses a part.

        y = Σ gateₑ · expertₑ(x) over the chosen experts  (+ shared(x))

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Args:
        router: gives a `Routing` for (N, d_model); `Capped` limits what experts take.
        shared: a network that every token visits, with weight 1 and outside the
            softmax. n shared experts are one of n times the width.

    Raises:
        ValueError: router and experts differ in number or width; x of another shape.
        TypeError: x of another dtype than the weights.

    Note:
        Padding is routed like any token: it costs work, and counts in the losses
        unless `Routing.rows` leaves it out.

    >>> import torch
    >>> from deepdive.moe import Experts, SoftmaxTopKRouter
    >>> router = SoftmaxTopKRouter(d_model=8, n_experts=4, top_k=2)
    >>> layer = MixtureOfExperts(router, Experts(4, d_model=8, d_expert=16))
    >>> layer(torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])

    Taught in: book/14_mixture_of_experts.ipynb, book/15_deepseek.ipynb
    """

    def __init__(
        self,
        router: nn.Module,
        experts: ExpertStack,
        shared: nn.Module | None = None,
    ):
        super().__init__()
        check_kind("router", router, nn.Module)
        check_kind("experts", experts, ExpertStack)
        check_kind("shared", shared, nn.Module, NoneType)
        ours = router.n_experts, router.d_model
        theirs = experts.n_experts, experts.d_model
        if ours != theirs:
            raise ValueError(
                f"the router has (n_experts, d_model) = {ours}, the experts {theirs}"
            )
        self.router, self.experts, self.shared = router, experts, shared

    def forward(self, x: Tensor) -> Tensor:
        check_vectors("x", x, self.experts.matrices()[0][0].detach())
        rows = x.flatten(0, 1)  # (N, d_model)
        out = self.experts(rows, self.router(rows)).view_as(x)  # (B, T, d_model)
        return out if self.shared is None else out + self.shared(x)


@contextmanager
def record_routing(model: nn.Module) -> Iterator[dict[str, Routing]]:
    """See what every mixture-of-experts layer decided, without changing its code.

    Inside the `with` block the latest `Routing` of each layer is kept under the layer's
    name. Its gradients are alive, so that a balance loss can join the task's loss:

        with record_routing(model) as seen:
            logits = model(tokens)
        loss = task_loss(logits) + 0.01 * sum(map(switch_balance_loss, seen.values()))

    Raises:
        TypeError: not a module.  ValueError: no mixture of experts in it.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    routers = {
        name: layer.router
        for name, layer in model.named_modules()
        if isinstance(layer, MixtureOfExperts)
    }
    if not routers:
        raise ValueError(f"{type(model).__name__} has no mixture of experts to record")
    seen: dict[str, Routing] = {}

    def keeping(name: str):
        def hook(module, inputs, routing):
            seen[name] = routing

        return hook

    handles = [
        router.register_forward_hook(keeping(name)) for name, router in routers.items()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
