# SPDX-License-Identifier: MIT
"""Where does the code run, and is the run repeatable?"""

import random

import numpy as np
import torch


def best_device() -> torch.device:
    """The fastest device at hand: CUDA, then Apple's MPS, then the CPU.

    Note:
        The chapters compute on the CPU, so that their numbers repeat everywhere; MPS,
        besides, has no float64. Recipes and cells headed “On a GPU” use this function.
    """
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators with one number.

    Raises:
        ValueError: seed is negative or above 2³² − 1 (NumPy's limit).
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must lie in 0 … 2³² − 1, got {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
