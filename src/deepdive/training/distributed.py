# SPDX-License-Identifier: MIT
"""How do many processes act as one? They agree on numbers, and one of them writes.

`torchrun` starts the same program several times, on one machine or on many, and tells
each copy its number. `fit` asks here which copy it is; what each then does of an update
is said in `shares`, how the weights themselves can be divided in `sharding`.

Taught in: book/06_transformer_2017.ipynb
"""

import hashlib
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

PATIENCE = timedelta(hours=1)  # the others wait while the first judges and writes


class World(NamedTuple):
    """The processes that train together: which is this one, and of how many?

    Where there is one alone, each method gives back what it was given.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Is this the process that writes and speaks?"""
        return self.rank == 0

    def summed(self, *numbers: float) -> list[float]:
        """Each number, added up over all processes."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return sums.tolist()

    def gathered(self, value: Any) -> list:
        """What each process says, in their order; for small things."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def told(self, value: Any) -> Any:
        """What the first process says; its tensors arrive on the CPU."""
        if self.size == 1:
            return value
        tensors: list[Tensor] = []
        frame = [_framed(value, tensors) if self.first else None]
        dist.broadcast_object_list(frame)
        for tensor in tensors:
            _broadcast(tensor.detach().cpu().contiguous())
        return value if self.first else _filled(frame[0])

    def by_first(self, call: Callable[[], Any]) -> Any:
        """What a call gives in the first process, the only one to make it.

        Raises:
            Exception: the first process's, in every process: none waits in vain.
        """
        if self.size == 1:
            return call()
        value = error = None
        if self.first:
            try:
                value = call()
            except Exception as caught:
                error = caught
        if (error := self.told(error)) is not None:
            raise error
        return self.told(value)


def join() -> World:
    """Become one of the processes that torchrun started; without it, stay alone.

    Each process of a machine takes a GPU of its own there, which is then its "cuda".
    `fit` joins by itself; join before it where a model is to go to that GPU.

    Raises:
        ValueError: the program has formed a group itself, for GPUs only.

    Taught in: book/06_transformer_2017.ipynb
    """
    if not dist.is_available():
        return World()
    if not dist.is_initialized():
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return World()
        gpus, place = torch.cuda.device_count(), int(os.environ["LOCAL_RANK"])
        if place < gpus:
            torch.cuda.set_device(place)
        backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    if "cpu:" not in dist.get_backend_config():
        raise ValueError(
            f"the processes can exchange GPU tensors only ({dist.get_backend_config()})"
            f': say init_process_group("cpu:gloo,cuda:nccl")'
        )
    return World(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """End what `join` began."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def own_seed(state: Tensor, rank: int) -> int:
    """A seed for another process's random numbers, from the first's generator.

    Shapes:
        state (N,) bytes, as `torch.get_rng_state` gives them
    """
    digest = hashlib.sha256(state.numpy().tobytes() + str(rank).encode()).digest()
    return int.from_bytes(digest[:4], "big")


class _Kept(NamedTuple):
    """Stands for a tensor that is sent by itself."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def _framed(value: Any, tensors: list[Tensor]) -> Any:
    """The same without its tensors, which are listed in order."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return _Kept(tuple(value.shape), value.dtype)
    if isinstance(value, dict):
        return {key: _framed(x, tensors) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_framed(x, tensors) for x in value)
    return value


def _filled(value: Any) -> Any:
    """The whole again, its tensors received in the same order."""
    if isinstance(value, _Kept):
        return _broadcast(torch.empty(value.shape, dtype=value.dtype))
    if isinstance(value, dict):
        return {key: _filled(x) for key, x in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_filled(x) for x in value)
    return value


def _broadcast(tensor: Tensor) -> Tensor:
    """From the first to all, as bytes: every dtype can be sent so."""
    if tensor.numel():
        dist.broadcast(tensor.reshape(-1).view(torch.uint8), 0)
    return tensor
