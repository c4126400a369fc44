# SPDX-License-Identifier: MIT
"""One example through the whole book: “cats chase mice”, by every mechanism.

Each function returns a dictionary of all the numbers on the way; `to_json` makes
nested lists of its tensors.
"""

from deepdive.trace.before import recurrence
from deepdive.trace.example import (
    CATS,
    CATS_DAILY,
    CATS_MICE_CHASE,
    NETWORK,
    RECURRENCE,
    TARGET,
    Example,
    Network,
    Recurrence,
    matrix,
)
from deepdive.trace.formula import attention, layer, to_json
from deepdive.trace.model import block, cross, positions, routed
from deepdive.trace.variants import cached, latent, rotary, shared, tiles

__all__ = [
    "CATS",
    "CATS_DAILY",
    "CATS_MICE_CHASE",
    "NETWORK",
    "RECURRENCE",
    "TARGET",
    "Example",
    "Network",
    "Recurrence",
    "attention",
    "block",
    "cached",
    "cross",
    "latent",
    "layer",
    "matrix",
    "positions",
    "recurrence",
    "rotary",
    "routed",
    "shared",
    "tiles",
    "to_json",
]
