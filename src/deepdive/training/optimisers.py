# SPDX-License-Identifier: MIT
"""Which weights are pulled towards zero?"""

import torch
from torch import nn


def adamw(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.1,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> torch.optim.AdamW:
    """AdamW that decays matrices (embeddings too), not biases and gains of norms.

        w ← w − lr·(m̂ / (√v̂ + ε) + weight_decay·w)

    Frozen parameters are left out. The update is one fused pass where torch has it.

    Raises:
        TypeError: not a module.  ValueError: nothing in it can be trained, or torch
            refuses a number.

    Source: Loshchilov and Hutter 2017, algorithm 2.

    Taught in: book/06_transformer_2017.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError(f"{type(model).__name__} has no parameter to train")
    matrices = [p for p in trained if p.dim() >= 2]
    others = [p for p in trained if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    fused = all(p.device.type in ("cpu", "cuda") for p in trained) or None
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)
