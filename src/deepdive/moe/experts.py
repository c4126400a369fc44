# SPDX-License-Identifier: MIT
"""How do many feed-forward networks work on the same tokens without waiting in turn?

Forms with the same result. `dense` asks every expert about every token and lets the
gates, mostly zeros, pick: the definition. `forward` sorts the choices by expert, so
that each expert reads one contiguous block of rows and only what it was chosen for;
where that is faster, in the ways of `deepdive.moe.grouped` (few rows for an expert) and
`deepdive.moe.sorted` (many).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.inputs import check_floats, check_kind, check_sizes
from deepdive.moe.grouped import groupable, grouped
from deepdive.moe.routing import Routing, dense_gates
from deepdive.moe.sorted import SortedExperts, fits


class ExpertStack(nn.Module):
    """E networks whose matrices are stacked, expert first.

        yₙ = Σₖ gatesₙₖ · expert(experts ₙₖ)(xₙ)

    A subclass gives its `matrices` and says in `expert` what one network does.

    Shapes:
        x (N, d_model), a `Routing` of N tokens → (N, d_model)

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(
        self, n_experts: int, d_model: int, d_expert: int, activation: nn.Module
    ):
        super().__init__()
        check_kind("activation", activation, nn.Module)
        self.n_experts, self.d_model, self.d_expert = n_experts, d_model, d_expert
        self.activation = activation

    def matrices(self) -> tuple[Tensor, ...]:
        """The stacked weights, each (E, out, in), in the order `expert` takes them."""
        raise NotImplementedError

    def expert(self, x: Tensor, *matrices: Tensor) -> Tensor:
        """What one expert makes of x: (M, d_model) → (M, d_model)."""
        raise NotImplementedError

    def reset_parameters(self) -> None:
        """Each matrix as in `nn.Linear`: uniform within ±1/√(its input width)."""
        for weight in self.matrices():
            bound = weight.shape[-1] ** -0.5
            nn.init.uniform_(weight, -bound, bound)

    def dense(self, x: Tensor, routing: Routing) -> Tensor:
        """Mix every expert by its gate: clear, and E/K times the work of `forward`."""
        self._check(x, routing)
        gates = dense_gates(routing)  # (N, E)
        out = torch.zeros_like(x, dtype=gates.dtype)
        for e, matrices in enumerate(self._one_by_one()):
            out = out + gates[:, e, None] * self.expert(x, *matrices)
        return out.to(x.dtype)

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        self._check(x, routing)
        if x.is_meta:  # how many tokens an expert gets is a number, and there is none
            return torch.empty_like(x)
        order, sizes = sort_by_expert(routing)
        token = order // routing.experts.shape[1]  # (M,), whose row each choice reads
        gates = routing.gates.flatten().index_select(0, order)[:, None]  # (M, 1)
        return self._mix(x, token, gates, sizes)

    def _mix(self, x: Tensor, token: Tensor, gates: Tensor, sizes: list[int]) -> Tensor:
        """One expert after the other, each on its block of the sorted choices."""
        rows = x.index_select(0, token)  # (M, d_model), gathered once: one backward
        out = torch.zeros_like(x, dtype=torch.promote_types(x.dtype, gates.dtype))
        blocks = [part.split(sizes) for part in (rows, token, gates)]
        for *block, matrices in zip(*blocks, self._one_by_one(), strict=True):
            x_e, token_e, gate_e = block
            if len(x_e):
                weighted = self.expert(x_e, *matrices) * gate_e
                out.index_add_(0, token_e, weighted.to(out.dtype))
        return out.to(x.dtype)

    def _one_by_one(self):
        """Every expert's matrices. Unbinding once, not indexing E times, matters: the
        gradient of an indexed stack is a whole stack of zeros, per expert."""
        return zip(*(weight.unbind() for weight in self.matrices()), strict=True)

    def _check(self, x: Tensor, routing: Routing) -> None:
        check_floats("x", x)
        check_kind("routing", routing, Routing)
        dtype = self.matrices()[0].dtype
        if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"x is {x.dtype}, the experts' weights are {dtype}")
        want = (routing.experts.shape[0], self.d_model)
        if tuple(x.shape) != want or routing.n_experts != self.n_experts:
            raise ValueError(
                f"x {tuple(x.shape)} and a routing of {want[0]} tokens to "
                f"{routing.n_experts} experts do not fit {self.n_experts} experts of "
                f"width {self.d_model}"
            )

    def extra_repr(self) -> str:
        sizes = "n_experts", "d_model", "d_expert"
        return ", ".join(f"{name}={getattr(self, name)}" for name in sizes)


class FeedForwardExperts(ExpertStack):
    """Experts whose matrices are one or two that read x, and last one that writes.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def _mix(self, x: Tensor, token: Tensor, gates: Tensor, sizes: list[int]) -> Tensor:
        *readers, down = self.matrices()
        known = Experts.expert, TwoLayerExperts.expert  # a subclass may do otherwise
        tensors = x, gates, down, *readers
        if type(self).expert in known and groupable(token, *tensors):
            return grouped(self.activation, sizes, token, *tensors)
        if type(self).expert in known and fits(self.activation, *tensors):
            return SortedExperts.apply(self.activation, sizes, token, *tensors)
        return super()._mix(x, token, gates, sizes)


class Experts(FeedForwardExperts):
    """E gated feed-forward networks (`GatedFeedForward`), SwiGLU unless told otherwise.

        expertₑ(x) = downₑ (activation(gateₑ x) ⊙ upₑ x)

    Shapes:
        x (N, d_model), a `Routing` of N tokens → (N, d_model)
        gate, up (E, d_expert, d_model), down (E, d_model, d_expert): row e of `gate`
        is what a Hugging Face checkpoint calls `experts.{e}.gate_proj.weight`, and
        what `transformers` holds in memory as `gate_up_proj` is gate and up,
        concatenated along axis 1.

    Raises:
        ValueError: a size below 1; x or a routing of other sizes.

    Source: Jiang et al. 2024 (arXiv:2401.04088), §2.1; DeepSeekMoE (arXiv:2401.06066).

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(
        self,
        n_experts: int,
        d_model: int,
        d_expert: int,
        activation: nn.Module | None = None,
    ):
        check_sizes(n_experts=n_experts, d_model=d_model, d_expert=d_expert)
        activation = nn.SiLU() if activation is None else activation
        super().__init__(n_experts, d_model, d_expert, activation)
        self.gate = nn.Parameter(torch.empty(n_experts, d_expert, d_model))
        self.up = nn.Parameter(torch.empty(n_experts, d_expert, d_model))
        self.down = nn.Parameter(torch.empty(n_experts, d_model, d_expert))
        self.reset_parameters()

    def matrices(self) -> tuple[Tensor, ...]:
        return self.gate, self.up, self.down

    def expert(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(self.activation(F.linear(x, gate)) * F.linear(x, up), down)


class TwoLayerExperts(FeedForwardExperts):
    """E plain feed-forward networks (`FeedForward` without bias), ReLU unless told.

        expertₑ(x) = downₑ activation(upₑ x)

    Shapes:
        x (N, d_model), a `Routing` of N tokens → (N, d_model)
        up (E, d_expert, d_model), down (E, d_model, d_expert)

    Raises:
        ValueError: a size below 1; x or a routing of other sizes.

    Source: Shazeer et al. 2017, §2; Fedus et al. 2021 (Switch).

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(
        self,
        n_experts: int,
        d_model: int,
        d_expert: int,
        activation: nn.Module | None = None,
    ):
        check_sizes(n_experts=n_experts, d_model=d_model, d_expert=d_expert)
        activation = nn.ReLU() if activation is None else activation
        super().__init__(n_experts, d_model, d_expert, activation)
        self.up = nn.Parameter(torch.empty(n_experts, d_expert, d_model))
        self.down = nn.Parameter(torch.empty(n_experts, d_model, d_expert))
        self.reset_parameters()

    def matrices(self) -> tuple[Tensor, ...]:
        return self.up, self.down

    def expert(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(self.activation(F.linear(x, up)), down)


def sort_by_expert(routing: Routing) -> tuple[Tensor, list[int]]:
    """Put the N·K choices in the order of their experts; dropped ones fall away.

    Shapes:
        → order (M,) of the flattened choices, M ≤ N·K, and how many each expert has

    Note:
        The E counts are read back from the device: the price of blocks of any size.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    n_experts = routing.n_experts
    expert = routing.experts.flatten()  # (N·K,)
    if routing.kept is not None:
        expert = expert.masked_fill(~routing.kept.flatten(), n_experts)  # the last
    order = expert.argsort(stable=True)
    sizes = expert.bincount(minlength=n_experts + 1)[:n_experts].tolist()
    return order[: sum(sizes)], sizes
