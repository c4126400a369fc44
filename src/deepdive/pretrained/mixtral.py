# SPDX-License-Identifier: MIT
"""How do the names of a Mixtral checkpoint map onto this book's parts?

Taught in: book/14_mixture_of_experts.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import MixtralConfig
from deepdive.models.mixtral import Mixtral
from deepdive.pretrained.huggingface import (
    Renamed,
    check_supported,
    load_into,
    read_config,
    read_tensors,
    renamed,
    rope,
    unfilled,
)
from deepdive.pretrained.llama import BLOCK, LAYER, SHARED_NAMES, SHARED_SIZES

_SIZES = SHARED_SIZES | {
    "num_key_value_heads": "n_kv_heads",
    "intermediate_size": "d_expert",
    "num_local_experts": "n_experts",
    "num_experts_per_tok": "top_k",
}

# What this book's Mixtral computes; any other value would be another function.
_SUPPORTED = {
    "model_type": ("mixtral",),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "partial_rotary_factor": (None, 1.0),
    "layer_types": (None,),  # layers with and without a window, in turn
}

_THEIRS, _OURS = LAYER + "block_sparse_moe.", BLOCK + "feedforward."

_NAMES = SHARED_NAMES | {
    _THEIRS + "gate": _OURS + "router",
    _THEIRS + "experts.{}.w1.weight": _OURS + "experts.gate[{}]",
    _THEIRS + "experts.{}.w2.weight": _OURS + "experts.down[{}]",  # w2 is the last one
    _THEIRS + "experts.{}.w3.weight": _OURS + "experts.up[{}]",
}


def load_mixtral(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> Mixtral:
    """Read a Mixtral from a folder in Hugging Face's layout, in eval mode.

    Args:
        ignoring: tensors whose names begin so are left out.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this Mixtral does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    settings = read_config(folder)
    check_supported(folder, settings, _SUPPORTED, needed=("model_type", *_SIZES))
    config = mixtral_config(settings, folder)
    model = unfilled(lambda: Mixtral(config))
    given = mixtral_names(read_tensors(folder), ignoring)
    return load_into(model, given, folder, dtype)


def mixtral_config(
    settings: Mapping[str, Any], folder: str | Path = ""
) -> MixtralConfig:
    """The sizes of a `config.json` under this book's names.

    Args:
        folder: named in the message where the rotary positions are not known.
    """
    base, scaling = rope(folder, settings, base=1e6)
    return MixtralConfig(
        **{ours: settings[theirs] for theirs, ours in _SIZES.items()},
        head_dim=settings.get("head_dim"),
        rope_base=base,
        rope_scaling=scaling,
        window=settings.get("sliding_window"),
        tied=settings.get("tie_word_embeddings", False),
    )


def mixtral_names(
    tensors: Mapping[str, Tensor], ignoring: tuple[str, ...] = ()
) -> Renamed:
    """Hugging Face's names → this book's; the experts of a layer become one stack."""
    return renamed(tensors, _NAMES, prefix="model.", ignoring=ignoring)
