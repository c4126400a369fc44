# SPDX-License-Identifier: MIT
"""How do several small batches make one step? Exactly as one large batch would.

Taught in: book/06_transformer_2017.ipynb
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from deepdive.objectives import Loss
from deepdive.products import fast_products
from deepdive.training.distributed import join
from deepdive.training.shares import shares, together


class Update:
    """One step of the optimiser, from `accumulate` micro-batches. Made by `fit`.

        gradient = Σᵢ ∇totalᵢ / Σᵢ countᵢ

    Totals are added and counts are added; dividing comes last, so micro-batches with
    unequal numbers of real tokens weigh what they should. Several processes add the
    same two sums between them; who does which micro-batch is said in `shares`.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Callable,
        loss: Callable[..., Loss],
        optimiser: torch.optim.Optimizer,
        clip: float | None,
        accumulate: int,
        precision: torch.dtype | None,
    ):
        self.model, self.batches, self.loss = model, batches, loss
        self.optimiser, self.accumulate = optimiser, accumulate
        self.clip = math.inf if clip is None else clip
        self.precision = precision
        self.fast = fast_products(model)
        self.device = next(model.parameters()).device
        half = precision is torch.float16  # its gradients underflow unless scaled up
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=half)
        self.world = join()
        self.ask, self.quiet = together(model, loss, self.world)

    def __call__(self, step: int) -> dict:
        """Update number `step`, and what is to be said of it.

        Raises:
            FloatingPointError: loss or gradient is not finite; the weights are as
                they were.
        """
        self.optimiser.zero_grad(set_to_none=True)
        total, count = self._gradients(step)
        said = {"loss": total / count if count else None, "grad_norm": 0.0}
        said |= {"tokens": count, "updated": False}
        if not count:  # nothing was asked: moving on momentum alone would teach nothing
            return said
        self.scaler.unscale_(self.optimiser)
        norm = nn.utils.clip_grad_norm_(self._trained(), self.clip).item()
        if not (math.isfinite(norm) or self.scaler.is_enabled()):
            raise FloatingPointError(
                f"the gradient's norm is {norm} at update {step} (loss "
                f"{said['loss']:.4g}); the weights are those of update {step - 1}"
            )
        said["grad_norm"] = norm if math.isfinite(norm) else None
        said["updated"] = self._step(step)
        return said

    def _gradients(self, step: int) -> tuple[float, int]:
        """Leave the mean's gradient (times the scaler's factor) in the parameters."""
        total, count, unit, bad = 0.0, 0, None, None
        numbers = range((step - 1) * self.accumulate, step * self.accumulate)
        for i, batch, counts, last in shares(self.batches, numbers, self.world):
            with nullcontext() if last else self.quiet(), self.fast(batch):
                part = self._loss(batch)
                part = part if counts else Loss(part.total * 0, 0)
                value, n = part.total.item(), int(part.count)
                if bad is None and not math.isfinite(value):
                    bad = value, i
                # Any unit gives the same mean; this one keeps float16 in its range.
                unit = self._unit(n) if unit is None else unit
                self.scaler.scale(part.total / (unit / self.world.size)).backward()
            total, count = total + value, count + n
        total, count = self._agreed(step, total, count, bad)
        if count and count != unit:
            for parameter in self._trained():
                parameter.grad.mul_(unit / count)
        return total, count

    def _unit(self, n: int) -> int:
        """By what totals are divided: the tokens of every process's first share."""
        return max(int(*self.world.summed(n)), 1)

    def _agreed(self, step: int, total: float, count: int, bad) -> tuple[float, int]:
        """The sums over all processes; what is wrong in one stops all."""
        total, count = self.world.summed(total, count)
        if not math.isfinite(total):
            value, i = next(b for b in self.world.gathered(bad) if b is not None)
            raise FloatingPointError(
                f"the loss is {value} at update {step} (micro-batch {i}); the "
                f"weights are those of update {step - 1}"
            )
        return total, int(count)

    def _loss(self, batch) -> Loss:
        """The model's loss in the precision asked for."""
        if self.precision is None:
            part = self.ask(batch)
        else:
            with torch.autocast(self.device.type, dtype=self.precision):
                part = self.ask(batch)
        if not isinstance(part, Loss) or not isinstance(part.total, Tensor):
            raise TypeError(
                f"loss must return a `deepdive.objectives.Loss`, the sum and the count "
                f"of tokens, got {type(part).__name__}: a mean cannot be accumulated"
            )
        return part

    def _step(self, step: int) -> bool:
        """Move the weights, unless scaled gradients overflowed: did they move?"""
        before = self.scaler.get_scale()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        after = self.scaler.get_scale()
        if after < 1e-4:  # 30 halvings: no scale would help
            raise FloatingPointError(
                f"float16 gradients overflow at update {step} even when scaled by "
                f"{before:.1e}; the weights are those of the last good update"
            )
        return after >= before

    def _trained(self) -> list[nn.Parameter]:
        """The optimiser's parameters that have a gradient."""
        groups = self.optimiser.param_groups
        return [p for g in groups for p in g["params"] if p.grad is not None]
