# SPDX-License-Identifier: MIT
"""How are experts laid out that will be read only?

A product of a hundred rows and a small matrix spends part of its time on bringing the
matrix into the order in which the processor reads it. Done once, it need not be done
for every batch.

Taught in: book/14_mixture_of_experts.ipynb
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from deepdive.moe.experts import Experts, ExpertStack

FEW = 8  # rows of a block; with fewer, packed matrices were sometimes slower
ROWS = 128  # rows of a block for which the order is chosen; any number can be read


class PackedExperts(ExpertStack):
    """`Experts` with a second copy of their matrices, packed for oneDNN.

        expertₑ(x) = downₑ (activation(gateₑ x) ⊙ upₑ x)

    Where gradients are wanted, under autocast, on other devices, and for blocks of
    fewer than 8 rows it multiplies with the matrices as they are.

    Shapes:
        x (N, d_model), a `Routing` of N tokens → (N, d_model)

    Args:
        experts: float32 on the CPU; their matrices are shared, and packed as they are
            now: pack again after changing them.

    Raises:
        TypeError: not `Experts`, or not float32.  RuntimeError: torch lacks oneDNN.

    Note:
        torch 2.13, one AMD EPYC thread, 32 matrices of 256 × 512 in turn, packed
        against plain: for 1, 4, 8, 32 and 128 rows 0.9, 1.5, 1.4, 1.3 and 1.1 times as
        fast; of 256 × 256: 0.6, 0.9, 1.2, 1.2 and 1.2 times.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    def __init__(self, experts: Experts):
        if type(experts) is not Experts:
            raise TypeError(f"experts must be Experts, got {type(experts).__name__}")
        sizes = experts.n_experts, experts.d_model, experts.d_expert
        super().__init__(*sizes, experts.activation)
        for name in ("gate", "up", "down"):
            setattr(self, name, getattr(experts, name))
        if self.gate.dtype != torch.float32:
            raise TypeError(f"experts must be float32, got {self.gate.dtype}")
        if not can_pack():
            raise RuntimeError("torch has no packed products of oneDNN here")
        self._pack()

    def _pack(self) -> None:
        order = torch.ops.mkldnn._reorder_linear_weight
        with torch.no_grad():
            self._packed = [
                [order(matrix.contiguous(), ROWS) for matrix in stack]
                for stack in self.matrices()
            ]

    def matrices(self) -> tuple[Tensor, ...]:
        return self.gate, self.up, self.down

    def expert(self, x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(self.activation(F.linear(x, gate)) * F.linear(x, up), down)

    def _mix(self, x: Tensor, token: Tensor, gates: Tensor, sizes: list[int]) -> Tensor:
        if not self._readable(x, gates):
            return super()._mix(x, token, gates, sizes)
        out = torch.zeros_like(x)
        blocks = token.split(sizes), gates.split(sizes)
        for token_e, gate_e, matrices, packed in zip(
            *blocks, self._one_by_one(), zip(*self._packed, strict=True), strict=True
        ):
            if not len(token_e):
                continue
            x_e = x.index_select(0, token_e)
            few = len(x_e) < FEW
            gate, up, down = matrices if few else packed
            times = F.linear if few else packed_product
            h = self.activation(times(x_e, gate)) * times(x_e, up)
            out.index_add_(0, token_e, times(h.mul_(gate_e), down))
        return out

    def _readable(self, x: Tensor, gates: Tensor) -> bool:
        """Only for float32 on the CPU, and when nothing is to be learned."""
        tensors = x, gates, *self.matrices()
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return False
        kinds = {(t.dtype, t.device.type) for t in tensors}
        return kinds == {(torch.float32, "cpu")} and not torch.is_autocast_enabled(
            "cpu"
        )

    def __getstate__(self) -> dict:
        """Packed matrices cannot be copied or pickled; they are packed again."""
        return {k: v for k, v in self.__dict__.items() if k != "_packed"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._pack()


def packed_product(x: Tensor, packed: Tensor) -> Tensor:
    """x Wᵀ for a W that oneDNN has packed.

    Shapes:
        x (M, in) float32, W (out, in) → (M, out)
    """
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def packable(experts: ExpertStack) -> bool:
    """Can these experts be packed here, and does `PackedExperts` compute the same?

    Taught in: book/14_mixture_of_experts.ipynb
    """
    if type(experts) is not Experts or experts.gate.dtype != torch.float32:
        return False
    return experts.gate.device.type == "cpu" and can_pack()


@functools.cache
def can_pack() -> bool:
    """Has torch the packed products that its compiler uses, and do they work here?

    Taught in: book/14_mixture_of_experts.ipynb
    """
    x, W = torch.eye(3)[:2], torch.arange(12.0).view(4, 3)
    try:
        found = packed_product(x, torch.ops.mkldnn._reorder_linear_weight(W, ROWS))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.equal(found, x @ W.t())
