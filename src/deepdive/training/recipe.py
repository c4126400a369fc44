# SPDX-License-Identifier: MIT
"""Is this the same run? What it depends on, flat and comparable.

Functions cannot be compared, what they return can: a schedule is known by its factors,
the data by its first batch.

Taught in: book/06_transformer_2017.ipynb
"""

import hashlib
from functools import partial

import torch
from torch import Tensor

NUMBERS = ("clip", "accumulate", "precision")  # of an `Update`


def describe(update, schedule, callbacks, steps: int) -> dict[str, str | float]:
    """All that two halves of one run must share, by name."""
    loss, optimiser = update.loss, update.optimiser
    recipe = {name: str(getattr(update, name)) for name in NUMBERS}
    recipe["loss"] = call_name(loss)
    recipe["callbacks"] = ", ".join(
        type(c).__name__ for c in callbacks if hasattr(c, "state_dict")
    )
    recipe["optimiser"] = type(optimiser).__name__
    for i, group in enumerate(optimiser.param_groups):
        for name, value in group.items():
            if name != "params":
                recipe[f"optimiser group {i} {name}"] = str(value)
        recipe[f"optimiser group {i} size"] = str(len(group["params"]))
    for name, weight in update.model.state_dict().items():
        if isinstance(weight, Tensor):
            recipe[f"weight {name}"] = f"{tuple(weight.shape)} {weight.dtype}"
    if schedule is not None:
        for step in sorted({2**i for i in range(steps.bit_length())}):
            recipe[f"schedule({step})"] = float(schedule(step))
    if not hasattr(update.batches, "state_dict"):
        recipe["batches(0)"] = digest(update.batches(0))
    return recipe


def call_name(call) -> str:
    """A function's name; of a partial one with the arguments it was given.

    >>> call_name(partial(print, 1, sep=" "))
    "print(1, sep=' ')"
    """
    if not isinstance(call, partial):
        return getattr(call, "__name__", type(call).__name__)
    given = [repr(x) for x in call.args]
    given += [f"{name}={x!r}" for name, x in sorted(call.keywords.items())]
    return f"{call_name(call.func)}({', '.join(given)})"


def differences(then: dict, now: dict) -> list[str]:
    """What two recipes disagree in, in words.

    A run that is made longer looks at more points of its schedule: only the points
    that both have are compared, and whether there is a schedule at all.
    """
    found = []
    for name in {**then, **now}:
        old, new = then.get(name, "absent"), now.get(name, "absent")
        further = name.startswith("schedule(") and name != "schedule(1)"
        if old != new and not (further and "absent" in (old, new)):
            found.append(f"{name}: {old} then, {new} now")
    return found


def digest(batch) -> str:
    """A short number for whatever a batch is made of."""
    sha = hashlib.sha256()

    def take(part) -> None:
        if isinstance(part, Tensor):
            flat = part.detach().cpu().contiguous().reshape(-1)
            sha.update(f"{part.dtype} {tuple(part.shape)}".encode())
            sha.update(flat.view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            for key, value in part.items():
                sha.update(str(key).encode())
                take(value)
        elif isinstance(part, list | tuple):
            for value in part:
                take(value)
        elif isinstance(part, str | int | float | bool | None):
            sha.update(repr(part).encode())
        else:
            sha.update(type(part).__name__.encode())

    take(batch)
    return sha.hexdigest()[:12]
