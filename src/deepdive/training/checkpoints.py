# SPDX-License-Identifier: MIT
"""How does a run survive a kill? All that the next update depends on, in one file.

The file is written beside its place, forced to the disk, then renamed: at any moment
the name holds one whole checkpoint, the old or the new. Reading one runs no code
(`weights_only`).

Taught in: book/06_transformer_2017.ipynb
"""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

FORMAT = "deepdive training 1"


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Put a whole file in place, or leave the place as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself, too, must reach the disk
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def save_checkpoint(path: Path, state: dict) -> None:
    """Replace the checkpoint at `path` by this one, at once or not at all."""
    write_atomically(path, lambda file: torch.save({"format": FORMAT, **state}, file))


def load_checkpoint(path: str | os.PathLike) -> dict:
    """Read a checkpoint of `fit` onto the CPU; its weights are under "model".

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file is something else, or damaged.

    Taught in: book/06_transformer_2017.ipynb
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds here
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"{path} is no checkpoint of `fit`: {reason}") from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} is no checkpoint of `fit` (wanted: {FORMAT!r})")
    return state


def random_state() -> dict:
    """Where every generator of random numbers stands, as tensors and plain numbers."""
    kind, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), *rest],
        "python": random.getstate(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict) -> None:
    """Put every generator where it stood.

    CUDA's only where as many devices are at hand as there were.
    """
    torch.set_rng_state(state["torch"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    cuda = state.get("cuda", [])
    if cuda and torch.cuda.is_available() and torch.cuda.device_count() == len(cuda):
        torch.cuda.set_rng_state_all(cuda)
