# SPDX-License-Identifier: MIT
"""How much memory does a computation need at its fullest moment?

Not what it makes in all, and not what it leaves: the most that it holds at one time.
"""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_memory(call: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensors that a call holds at one time, beyond those before it.

        max over the call's operations of Σ nbytes of the storages that live then

    Each storage counts once and whole, from the operation that makes it until nobody
    holds it any more: a view takes nothing, work in place takes nothing, and what the
    call returns counts to the end.

    Args:
        device: "cuda" asks CUDA's own allocator, which rounds each tensor up to 512
            bytes and sees what an operation needs inside. Elsewhere the storages are
            followed, on the meta device too, where nothing is computed.

    Raises:
        TypeError: no function.

    Note:
        Followed are the tensors that operations take and return, not the work space
        inside one operation, nor numbers that torch did not make (NumPy's). On the meta
        device torch takes its fused attention apart, so `fused` needs more there.

    >>> x = torch.ones(1000)                       # there before: not counted
    >>> peak_memory(lambda: (x + 1) + (x + 2))     # two sums, and the sum of both
    12000

    Taught in: book/13_flash_attention.ipynb
    """
    if not callable(call):
        raise TypeError(f"call must be a function without arguments, got {call!r}")
    gc.collect()  # what is garbage by now is not freed in the meantime
    if torch.device(device).type == "cuda":
        return _peak_of_cuda(call, device)
    with Following() as found:
        call()
    return found.most


class Following(TorchDispatchMode):
    """Inside, every storage is counted from the operation that makes it to its end.

    Attributes:
        held, most: bytes, now and at the fullest moment so far.

    Taught in: book/13_flash_attention.ipynb
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = self.most = 0
        self.sizes: dict[int, int] = {}  # of what was made here and lives
        self.ends: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before = {id(s): s.nbytes() for s in _storages((args, kwargs))}
        out = function(*args, **kwargs)
        for storage in _storages(out):
            key, size = id(storage), storage.nbytes()
            self.held += size - before.get(key, self.sizes.get(key, 0))
            if key not in before:
                self.ends[key] = weakref.ref(storage, partial(self._end, key))
            if key not in before or key in self.sizes:
                self.sizes[key] = size
            before[key] = size
        self.most = max(self.most, self.held)
        return out

    def _end(self, key: int, _: weakref.ref) -> None:
        self.held -= self.sizes.pop(key)
        del self.ends[key]


def _storages(tree: Any) -> list[UntypedStorage]:
    """Where the numbers lie of all tensors in a tuple, list or dict of them."""
    tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [x.untyped_storage() for x in tensors if x.layout == torch.strided]


def _peak_of_cuda(call: Callable[[], Any], device: torch.device | str) -> int:
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
