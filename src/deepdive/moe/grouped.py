# SPDX-License-Identifier: MIT
"""What do many small products cost? Mostly the calls, so make one call of them.

Taught in: book/14_mixture_of_experts.ipynb
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
