# SPDX-License-Identifier: MIT
"""How do the names of a published GPT-2 checkpoint map onto this book's parts?

Taught in: book/08_gpt.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import GptConfig
from deepdive.models.gpt import Gpt
from deepdive.pretrained.huggingface import (
    Renamed,
    check_supported,
    load_into,
    piece,
    read_config,
    read_tensors,
    renamed,
    transposed,
    unfilled,
)

_SIZES = {
    "vocab_size": "vocab_size",
    "n_embd": "d_model",
    "n_layer": "n_layers",
    "n_head": "n_heads",
    "n_positions": "max_seq_len",
    "layer_norm_epsilon": "norm_eps",
}

# What this book's Gpt computes; any other value would be another function.
_SUPPORTED = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),  # one formula, two names
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}

_LAYER, _BLOCK = "h.{}.", "blocks.{}."

_NAMES = {
    "wte": "token",
    "wpe": "position",
    "ln_f": "norm",
    "lm_head": "output",
    _LAYER + "ln_1": _BLOCK + "attention_norm",
    _LAYER + "ln_2": _BLOCK + "feedforward_norm",
    # Every matrix stands the other way round, and q, k, v are one.
    _LAYER + "attn.c_attn": [
        (_BLOCK + f"attention.{part}_proj", piece(i, 3, after=transposed))
        for i, part in enumerate("qkv")
    ],
    _LAYER + "attn.c_proj": [(_BLOCK + "attention.o_proj", transposed)],
    _LAYER + "mlp.c_fc": [(_BLOCK + "feedforward.up", transposed)],
    _LAYER + "mlp.c_proj": [(_BLOCK + "feedforward.down", transposed)],
    # The causal mask and a number for blocked scores: older files store them.
    _LAYER + "attn.bias": None,
    _LAYER + "attn.masked_bias": None,
}


def load_gpt(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> Gpt:
    """Read a GPT-2 from a folder in Hugging Face's layout, in eval mode.

    Args:
        ignoring: tensors whose names begin so are left out, such as a task's head.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this Gpt does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Taught in: book/08_gpt.ipynb
    """
    settings = read_config(folder)
    check_supported(folder, settings, _SUPPORTED, needed=_SIZES)
    model = unfilled(lambda: Gpt(gpt_config(settings)))
    given = gpt_names(read_tensors(folder), ignoring)
    return load_into(model, given, folder, dtype)


def gpt_config(settings: Mapping[str, Any]) -> GptConfig:
    """The sizes of a `config.json` under this book's names."""
    sizes = {ours: settings[theirs] for theirs, ours in _SIZES.items()}
    d_ff = settings.get("n_inner") or 4 * settings["n_embd"]
    return GptConfig(**sizes, d_ff=d_ff)


def gpt_names(tensors: Mapping[str, Tensor], ignoring: tuple[str, ...] = ()) -> Renamed:
    """Hugging Face's names → this book's, with or without `transformer.` in front."""
    return renamed(tensors, _NAMES, prefix="transformer.", ignoring=ignoring)
