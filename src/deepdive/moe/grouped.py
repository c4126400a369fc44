# SPDX-License-Identifier: MIT
"""What do many small products cost? Mostly the calls, so make one call of them.

Taught in: book/14_mixture_of_experts.ipynb
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEW = 32  # rows of an expert, on average: up to here `grouped` was faster in all cases


def grouped(
    activation: nn.Module,
    sizes: list[int],
    token: Tensor,
    x: Tensor,
    gates: Tensor,
    down: Tensor,
    *readers: Tensor,
) -> Tensor:
    """What `SortedExperts` computes, all experts' products of one kind in one call.

    Shapes:
        as those of `SortedExperts`

    Note:
        Against `SortedExperts` on blocks of 32 rows and fewer, experts of 64 × 32 to
        256 × 256, torch 2.13, one AMD EPYC thread: forward 1.1 to 2.6 times as fast,
        with backward 1.2 to 2.7. On blocks of 128 rows 0.7 to 1.05 and 0.9 to 1.3.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    ends = torch.tensor(sizes, device=x.device).cumsum(0).to(torch.int32)  # (E,)
    rows = x.index_select(0, token)  # (M, d_model)
    first, *second = (F.grouped_mm(rows, w.transpose(1, 2), offs=ends) for w in readers)
    h = activation(first) * gates
    for product in second:
        h = h * product
    y = F.grouped_mm(h, down.transpose(1, 2), offs=ends)
    return torch.zeros_like(x).index_add(0, token, y)


def groupable(token: Tensor, *tensors: Tensor) -> bool:
    """Can `grouped` compute this, and does it pay?

    torch's call takes rows of a multiple of 16 bytes; elsewhere than on a CPU, and for
    other dtypes than float32, it was not measured.

    Shapes:
        token (M,); tensors: x, gates and then the stacks of matrices, E of each

    Taught in: book/14_mixture_of_experts.ipynb
    """
    stack = tensors[-1]
    if len(token) > FEW * len(stack) or not hasattr(F, "grouped_mm"):
        return False
    if torch.is_autocast_enabled(stack.device.type):
        return False
    kinds = {(x.dtype, x.device.type) for x in tensors}
    stacks = [x for x in tensors if x.dim() == 3]
    aligned = all(
        x.is_contiguous() and x.shape[-1] % 4 == 0 and x.data_ptr() % 16 == 0
        for x in stacks
    )
    return kinds == {(torch.float32, "cpu")} and aligned
