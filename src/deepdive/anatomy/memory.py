# SPDX-License-Identifier: MIT
"""How many bytes does autograd keep for the way back?"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def measured_activation_bytes(model: nn.Module, run: Callable[[nn.Module], Any]) -> int:
    """Bytes that a forward pass keeps for the backward pass, the parameters left out.

    Each storage counts once and whole, however many views of it are kept. The input
    counts where a layer keeps it.

    Args:
        run: the forward pass, such as `lambda model: model(tokens)`.

    Raises:
        TypeError: not a model, or `run` cannot be called.

    >>> layer = nn.Linear(4, 2)
    >>> x = torch.ones(3, 4)
    >>> measured_activation_bytes(layer, lambda layer: layer(x))   # x: 3 · 4 · 4 bytes
    48

    Taught in: book/13_flash_attention.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if not callable(run):
        raise TypeError(f"run must be a function of the model, got {run!r}")
    weights = {id(p.untyped_storage()): p.untyped_storage() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no id comes back

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if id(storage) not in weights:
            kept[id(storage)] = storage
        return x

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        run(model)
    return sum(storage.nbytes() for storage in kept.values())
