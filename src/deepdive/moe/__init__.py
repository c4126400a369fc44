# SPDX-License-Identifier: MIT
"""Can a model know more without working more? Routers, experts, and their balance."""

from deepdive.moe.balance import (
    importance_loss,
    load_loss,
    router_z_loss,
    sequence_balance_loss,
    switch_balance_loss,
)
from deepdive.moe.capacity import Capped, drop_overflow
from deepdive.moe.choice import Groups
from deepdive.moe.experts import Experts, TwoLayerExperts
from deepdive.moe.layer import MixtureOfExperts, record_routing
from deepdive.moe.noisy import NoisyTopKRouter
from deepdive.moe.routing import Routing, dense_gates, expert_counts
from deepdive.moe.sigmoid import SigmoidRouter
from deepdive.moe.softmax import SoftmaxTopKRouter, SwitchRouter

__all__ = [
    "Capped",
    "Experts",
    "Groups",
    "MixtureOfExperts",
    "NoisyTopKRouter",
    "Routing",
    "SigmoidRouter",
    "SoftmaxTopKRouter",
    "SwitchRouter",
    "TwoLayerExperts",
    "dense_gates",
    "drop_overflow",
    "expert_counts",
    "importance_loss",
    "load_loss",
    "record_routing",
    "router_z_loss",
    "sequence_balance_loss",
    "switch_balance_loss",
]
