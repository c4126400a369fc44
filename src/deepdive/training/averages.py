# SPDX-License-Identifier: MIT
"""Is the average of the last weights better than the last weights? Often."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EMA:
    """A running average of a model's weights; give it to `fit` as a callback.

        average ← β·average + (1 − β)·weights,   β = min(decay, step / (step + 9))

    While young it forgets faster, so the first random weights do not linger. It is
    kept in float32 or wider (a bfloat16 average would soon stand still), belongs to
    the checkpoint, and holds the parameters alone: buffers are the model's own.

    Args:
        decay: 0 … 1, 1 excluded; about 1/(1 − decay) updates are remembered.

    Raises:
        TypeError: not a module.  ValueError: decay out of range.

    >>> model = nn.Linear(2, 1)
    >>> average = EMA(model, decay=0.9)
    >>> average({"step": 1})            # `fit` does this after each update
    >>> with average.applied():         # inside, the model has the average's weights
    ...     _ = model(torch.zeros(1, 2))

    Taught in: book/06_transformer_2017.ipynb
    """

    def __init__(self, model: nn.Module, decay: float = 0.999):
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in 0 … 1, 1 excluded, got {decay}")
        self.model, self.decay = model, decay
        self.weights = {
            name: weight.detach().to(_wide(weight), copy=True)
            for name, weight in model.named_parameters()
        }

    @torch.no_grad()
    def __call__(self, record: dict) -> None:
        """Take in the weights after update number `record["step"]`."""
        step = record["step"]
        decay = min(self.decay, step / (step + 9))
        for name, weight in self.model.named_parameters():
            self.weights[name].lerp_(weight.to(self.weights[name].dtype), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside the `with` block the model has the average's weights."""
        current = dict(self.model.named_parameters())
        trained = {name: weight.detach().clone() for name, weight in current.items()}
        try:
            _copy(self.weights, current)
            yield
        finally:
            _copy(trained, current)

    def state_dict(self) -> dict:
        return {"decay": self.decay, "weights": dict(self.weights)}

    def load_state_dict(self, state: dict) -> None:
        if (
            state["decay"] != self.decay
            or state["weights"].keys() != self.weights.keys()
        ):
            raise ValueError(
                f"the average kept has decay {state['decay']} and "
                f"{len(state['weights'])} weights, this one {self.decay} and "
                f"{len(self.weights)}"
            )
        _copy(state["weights"], self.weights)


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, weight in target.items():
        weight.copy_(source[name])
