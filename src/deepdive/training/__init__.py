# SPDX-License-Identifier: MIT
"""How does a model learn? One loop, which receives the model and knows none."""

from deepdive.training.averages import EMA
from deepdive.training.checkpoints import load_checkpoint
from deepdive.training.distributed import join, leave
from deepdive.training.fit import fit
from deepdive.training.log import read_log
from deepdive.training.optimisers import adamw
from deepdive.training.schedules import constant, cosine, inverse_sqrt, linear, noam
from deepdive.training.sharding import sharded, whole

__all__ = [
    "EMA",
    "adamw",
    "constant",
    "cosine",
    "fit",
    "inverse_sqrt",
    "join",
    "leave",
    "linear",
    "load_checkpoint",
    "noam",
    "read_log",
    "sharded",
    "whole",
]
