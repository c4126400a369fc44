# SPDX-License-Identifier: MIT
"""How does a model learn? Guess, measure, step; and write down what happened."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Adafactor

from deepdive.objectives import Loss
from deepdive.training.progress import Progress
from deepdive.training.run import Run
from deepdive.training.schedules import Schedule
from deepdive.training.sharding import is_sharded
from deepdive.training.update import Update


def fit(
    model: nn.Module,
    batches: Callable[[int], Any],
    loss: Callable[[nn.Module, Any], Loss],
    optimiser: torch.optim.Optimizer,
    *,
    steps: int,
    schedule: Schedule | None = None,
    clip: float | None = 1.0,
    accumulate: int = 1,
    precision: torch.dtype | None = None,
    checkpoint: str | os.PathLike | None = None,
    every: int = 100,
    log: str | os.PathLike | None = None,
    progress: bool = True,
    callbacks: Sequence[Callable[[dict], dict | None]] = (),
) -> list[dict]:
    """Train a model up to update number `steps`; killed and called again, go on.

    Updates count from 1, micro-batches from 0: update s reads batches (s − 1)·n …
    s·n − 1, n = `accumulate`, and its gradient is the joined batch's, whatever the
    number of real tokens in each. Under `torchrun` the processes share its work, and
    update, losses and files are the same: see `shares`, and `sharded` for large models.

    Args:
        batches: number of a micro-batch → batch, on the model's device. The same
            number must give the same batch (seed a generator with it): then a resumed
            run needs no memory of the data. Or a callable with `state_dict`.
        loss: model, batch → `Loss(total, count)`, as those of `objectives` are.
        schedule: update → factor on each group's learning rate; see `schedules`.
        clip: largest norm of the gradient; None for no limit.
        precision: None for the weights' own, torch.bfloat16 or torch.float16 for
            autocast (float16 with a `GradScaler`, whose skipped updates are counted).
        checkpoint: a file, written at the start, after each `every` updates and at
            the end. If it exists, the run goes on from it: same recipe, or an error.
        log: a file of JSON lines, one an update; lines after the checkpoint are cut.
        callbacks: called after each update with its record; a dict that one returns
            is added to the record. Those with `state_dict`, such as `EMA`, are kept
            in the checkpoint. Each process calls them; the first's are kept.

    Returns:
        This call's records: step, loss (per token), lr (of the first group), grad_norm
        (before clipping), tokens, updated, cpu_seconds and wall_seconds (since the
        start, kills excluded). An update with no token to guess, or whose float16
        gradient overflowed, leaves the weights: updated is False and the number that
        does not exist None. `read_log` gives the whole run's.

    Raises:
        TypeError, ValueError: an argument is wrong, or a checkpoint of another recipe
            (the message says what differs) or another kind of file is in the way.
        FileExistsError: the log exists and is not this run's.
        FloatingPointError: loss or gradient is not finite, at the update named; the
            last checkpoint stays.

    Note:
        Same seeds, same machine and same number of threads: on the CPU a resumed run
        ends with the same bits. The model is in training mode inside, dropout on.

    Taught in: book/06_transformer_2017.ipynb
    """
    _check(model, batches, loss, optimiser, callbacks)
    _check_numbers(steps, clip, accumulate, precision, every)
    update = Update(model, batches, loss, optimiser, clip, accumulate, precision)
    run = Run(update, schedule, callbacks, checkpoint, log)
    training, records = model.training, []
    try:
        run.begin(steps)
        show = Progress(steps, progress and run.world.first)
        for step in range(run.step + 1, steps + 1):
            model.train()
            records.append(run.advance(step))
            if step % every == 0 or step == steps:
                run.save()
            show(step, records[-1]["loss"])
    finally:
        run.end()
        model.train(training)
    return records


def _check(model, batches, loss, optimiser, callbacks) -> None:
    """Are these the parts of a run, and do they belong together?"""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise TypeError(f"optimiser must be torch's, got {type(optimiser).__name__}")
    parts = {"batches": batches, "loss": loss}
    parts |= {f"callbacks[{i}]": one for i, one in enumerate(callbacks)}
    for name, part in parts.items():
        if not callable(part):
            raise TypeError(f"{name} must be callable, got {type(part).__name__}")
    own = {id(parameter) for parameter in model.parameters()}
    theirs = [id(p) for group in optimiser.param_groups for p in group["params"]]
    if is_sharded(model) and isinstance(optimiser, Adafactor):
        raise ValueError(
            "torch's Adafactor cannot move weights that `sharded` has divided; without "
            "it, each process keeps a copy of the model"
        )
    strangers = sum(one not in own for one in theirs)
    if strangers:
        late = ": make it after `sharded(model)`" if is_sharded(model) else ""
        raise ValueError(
            f"{strangers} of the optimiser's {len(theirs)} parameters are not the "
            f"model's{late}"
        )


def _check_numbers(steps, clip, accumulate, precision, every) -> None:
    """Are these numbers of a run?"""
    for name, n in {"steps": steps, "accumulate": accumulate, "every": every}.items():
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"{name} must be an integer, got {n!r}")
        if n < 1:
            raise ValueError(f"{name} must be ≥ 1, got {n}")
    if clip is not None and not 0 < clip < math.inf:
        raise ValueError(f"clip must be a number above 0, or None, got {clip}")
    if precision not in (None, torch.bfloat16, torch.float16):
        raise ValueError(
            f"precision must be None, torch.bfloat16 or torch.float16, got {precision}"
        )
