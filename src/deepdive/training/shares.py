# SPDX-License-Identifier: MIT
"""What does each of many processes do of an update? A share of its micro-batches.

    gradient = Σ ∇total / Σ count,   both sums over all shares of all processes

An update consists of the same micro-batches however many processes make it, so nothing
of a recipe changes, and the losses are those of one process but for rounding. Only what
is drawn at random on the way, as in dropout, differs: each process draws its own.

With W processes, where W divides the number of an update's micro-batches, number i is
for process i mod W. Any loss is then what it was. Else (mostly there is one) every
micro-batch is divided by rows, r, r + W, r + 2W … for process r. That needs rows to
divide, and a loss that is a sum over rows, as those of `objectives` are; a term that
looks at the whole micro-batch, such as a balance loss, then looks at the rows of one
process.

Taught in: book/06_transformer_2017.ipynb
"""

import dataclasses
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from deepdive.training.distributed import World
from deepdive.training.sharding import asking, is_sharded


class Share(NamedTuple):
    """Micro-batch number `number`, or this process's rows of it.

    `counts` is False where there were fewer rows than processes: then a row of another
    one stands in, so that all make the same calls.
    """

    number: int
    batch: Any
    counts: bool
    last: bool


def shares(
    batches: Callable[[int], Any], numbers: range, world: World
) -> Iterator[Share]:
    """This process's shares of some micro-batches.

    Data with a state is read whole by every process, and so stays at the same place.

    Raises:
        TypeError, ValueError: a batch must be divided, and cannot be.
    """
    entire = len(numbers) % world.size == 0
    mine = [i for i in numbers if not entire or i % world.size == world.rank]
    stateful = hasattr(batches, "state_dict")
    for i in numbers if stateful else mine:
        batch, counts = batches(i), True
        if i not in mine:
            continue
        if not entire:
            batch, counts = rows(batch, world)
        yield Share(i, batch, counts, i == mine[-1])


def rows(batch: Any, world: World) -> tuple[Any, bool]:
    """This process's rows of a batch; and whether they count.

    Args:
        batch: tensors with the same first axis, or tuples, lists, dicts or dataclasses
            of such; None stays.

    Raises:
        TypeError, ValueError: something in the batch has no rows, or not as many.

    >>> import torch
    >>> rows((torch.tensor([4, 5, 6]), None), World(rank=1, size=2))
    ((tensor([5]), None), True)
    """
    lengths: set[int] = set()
    batch = _cut(batch, world, lengths)
    if len(lengths) != 1:
        found = f"tensors of {sorted(lengths)} rows" if lengths else "no tensor"
        raise ValueError(f"there is {found} in a batch {_to_divide(world)}")
    return batch, world.rank < lengths.pop()


def _cut(part: Any, world: World, lengths: set[int]) -> Any:
    """This process's rows of all tensors in a batch; how many rows there were."""
    if part is None:
        return None
    if isinstance(part, Tensor) and part.dim():
        lengths.add(len(part))
        return part[world.rank % max(len(part), 1) :: world.size]
    if isinstance(part, dict):
        return {key: _cut(x, world, lengths) for key, x in part.items()}
    if isinstance(part, tuple | list):
        parts = [_cut(x, world, lengths) for x in part]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in dataclasses.fields(part) if field.init]
        parts = {name: _cut(getattr(part, name), world, lengths) for name in names}
        return dataclasses.replace(part, **parts)
    kind = "a tensor without axes" if isinstance(part, Tensor) else repr(part)[:40]
    raise TypeError(f"{kind} stands in a batch {_to_divide(world)}")


def _to_divide(world: World) -> str:
    return (
        f"that {world.size} processes have to divide by rows: let `accumulate` be a "
        f"multiple of {world.size}, or take another number of processes"
    )


class Together(NamedTuple):
    """How the loss is asked for, so that gradients become means over the processes.

    Attributes:
        ask: batch → loss. What `backward` leaves is the mean over the processes.
        quiet: the context of all shares of an update but the last: where the
            gradients may wait.
    """

    ask: Callable[[Any], Any]
    quiet: Callable[[], AbstractContextManager]


def together(model: nn.Module, loss: Callable, world: World) -> Together:
    """Alone; with a copy of the model in each process (DDP); or with a part (FSDP2).

    Raises:
        ValueError: processes that have no device of their own, or a kind of device
            that cannot exchange gradients.
    """
    if is_sharded(model):
        return Together(partial(asking(model), loss), nullcontext)
    if world.size == 1:
        return Together(partial(loss, model), nullcontext)
    _check_device(next(model.parameters()).device, world)
    from torch.nn.parallel import DistributedDataParallel

    # A parameter that no loss reached is left alone, as in one process.
    copies = DistributedDataParallel(Asked(model, loss), find_unused_parameters=True)
    return Together(copies, copies.no_sync)


class Asked(nn.Module):
    """A model and its loss as one module: DDP serves a module's `forward` alone.

    `never` is a weight that no loss reaches: DDP, told to look for such, warns where it
    finds none.
    """

    def __init__(self, model: nn.Module, loss: Callable):
        super().__init__()
        self.model, self.loss = model, loss
        self.never = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, batch: Any) -> Any:
        return self.loss(self.model, batch)


def _check_device(device, world: World) -> None:
    """CPUs can be shared, GPUs cannot."""
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"several processes train on cpu or cuda, got {device}")
    places = world.gathered((platform.node(), str(device)))
    if device.type == "cuda" and len(set(places)) < world.size:
        raise ValueError(
            f"each process needs a GPU of its own; they have "
            f"{', '.join(f'{gpu} of {node}' for node, gpu in places)}: call "
            f'`training.join()` before the model goes to "cuda", and start no more '
            f"processes than there are GPUs"
        )
