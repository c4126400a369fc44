# SPDX-License-Identifier: MIT
"""What if a model is too large for each process to hold a copy? Each holds a part.

FSDP2 (`torch.distributed.fsdp.fully_shard`) divides every weight by its rows among the
processes, its gradient and the optimiser's moments with it. A layer's weights are put
together when it is needed, and dropped again.

Taught in: book/06_transformer_2017.ipynb
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from deepdive.training.distributed import join


def sharded(model: nn.Module, layers: Sequence[nn.Module] | None = None) -> nn.Module:
    """Divide a model's weights among the processes of torchrun; alone, leave it so.

    Make the optimiser and an `EMA` after this: the model has new parameters then.
    `fit` needs nothing else, and its checkpoints are the same as one process's.

    Args:
        model: on the device where it trains. All start from the first process's
            weights.
        layers: modules whose weights are put together one at a time, each called as a
            module; the entries of the model's outermost `nn.ModuleList`s unless given.

    Returns:
        The same model.

    Raises:
        TypeError: not modules.  ValueError: a device that has no FSDP2.

    Note:
        Inside `fit`'s loss the model is used as ever. Elsewhere, as in a callback, run
        it `with whole(model)`. A weight that no loss reaches has the gradient 0 here,
        not none, so that AdamW's decay moves it; and torch's Adafactor, which adds up
        rows and columns, takes no divided weights.

    Taught in: book/06_transformer_2017.ipynb
    """
    parts = {"model": model}
    parts |= {f"layers[{i}]": one for i, one in enumerate(layers or ())}
    for name, one in parts.items():
        if not isinstance(one, nn.Module):
            raise TypeError(f"{name} must be an nn.Module, got {type(one).__name__}")
    layers = _repeated(model) if layers is None else layers
    world = join()
    if world.size == 1:
        return model
    device = next(model.parameters()).device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"a model is divided on cpu or cuda, got one on {device}")
    from torch.distributed import broadcast, init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for tensor in (*model.parameters(), *model.buffers()):
        broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(device.type, (world.size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    if hasattr(model, "set_reduce_scatter_unused_params"):  # torch 2.13
        model.set_reduce_scatter_unused_params(True)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Has FSDP2 divided this model?"""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # slow to import; so only if it is
    return hasattr(fsdp, "FSDPModule") and isinstance(model, fsdp.FSDPModule)


def asking(model: nn.Module) -> Callable[..., Any]:
    """A call of (function, argument) in which a sharded model can be used at will.

    FSDP2 puts the weights outside of all layers together for the model's `forward`
    alone; a loss may also call other methods.
    """
    if "_ask" not in vars(model):
        from torch.distributed.fsdp import register_fsdp_forward_method

        model._ask = lambda call, batch: call(model, batch)
        register_fsdp_forward_method(model, "_ask")

    def ask(call: Callable[..., Any], batch: Any) -> Any:
        with warnings.catch_warnings():
            # It says that logits must not be changed in place. They may be: the
            # gradient enters through what this call returns.
            warnings.filterwarnings("ignore", ".* returned a view tensor")
            return model._ask(call, batch)

    return ask


@contextmanager
def whole(model: nn.Module) -> Iterator[None]:
    """Inside the `with` block every process has all weights, to use, not to change.

    All processes must enter and leave; in between, one may run the model alone. A
    model that is not sharded stays as it is.

    >>> model = nn.Linear(2, 1)
    >>> with whole(model), torch.no_grad():
    ...     _ = model(torch.zeros(1, 2))

    Taught in: book/06_transformer_2017.ipynb
    """
    if not is_sharded(model):
        yield
        return
    with torch.no_grad():  # FSDP2 makes its plans at the first call of the whole
        asking(model)(lambda model, batch: None, None)
    layers = [module for module in model.modules() if is_sharded(module)]
    try:
        for layer in layers:
            layer.set_reshard_after_forward(False, recurse=False)
            layer.unshard()
        yield
    finally:
        for layer in layers:
            layer.reshard()
            layer.set_reshard_after_forward(layer is not model, recurse=False)


def full(state: Any, keep: bool = True) -> Any:
    """A state with its divided tensors made whole, on the CPU.

    Args:
        keep: False gives None: this process only sends its parts.
    """
    if hasattr(state, "full_tensor"):
        whole = state.full_tensor()
        return whole.cpu() if keep else None
    if isinstance(state, dict):
        return {key: full(x, keep) for key, x in state.items()}
    if type(state) in (list, tuple):
        return type(state)(full(x, keep) for x in state)
    return state


def placed(state: Any, like: Any) -> Any:
    """A whole state divided as another is, entry by entry."""
    if hasattr(like, "full_tensor") and isinstance(state, Tensor):
        return divided(state, like)
    if isinstance(state, dict) and isinstance(like, dict):
        return {key: placed(x, like.get(key)) for key, x in state.items()}
    return state


def placed_moments(state: dict, optimiser: torch.optim.Optimizer) -> dict:
    """An optimiser's whole state, each tensor divided as its parameter is."""
    params = [p for group in optimiser.param_groups for p in group["params"]]
    moments = {
        i: {
            name: divided(x, params[i])
            if hasattr(params[i], "full_tensor") and isinstance(x, Tensor) and x.dim()
            else x
            for name, x in its.items()
        }
        for i, its in state["state"].items()
    }
    return {**state, "state": moments}


def divided(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor divided among the processes as another is.

    One of another shape, a sum over rows or columns, stays whole in each.

    Shapes:
        tensor (…), like (…) → (…), of which each process holds some rows
    """
    from torch.distributed.tensor import Replicate, distribute_tensor

    same = tensor.shape == like.shape
    places = like.placements if same else [Replicate()] * len(like.placements)
    return distribute_tensor(tensor.to(like.device), like.device_mesh, places)


def _repeated(model: nn.Module) -> list[nn.Module]:
    """The entries of the outermost lists of modules."""
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [one for child in model.children() for one in _repeated(child)]
