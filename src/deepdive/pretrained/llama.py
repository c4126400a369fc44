# SPDX-License-Identifier: MIT
"""How do the names of a Llama or Mistral checkpoint map onto this book's parts?

Taught in: book/08_gpt.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import LlamaConfig
from deepdive.models.llama import Llama
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

# What Mixtral's files share with Llama's: all but the feed-forward network.
SHARED_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
}
_SIZES = SHARED_SIZES | {"intermediate_size": "d_ff"}

# What this book's Llama computes; any other value would be another function.
_SUPPORTED = {
    "model_type": ("llama", "mistral"),
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "partial_rotary_factor": (None, 1.0),
    "layer_types": (None,),  # layers with and without a window, in turn
}

LAYER, BLOCK = "layers.{}.", "blocks.{}."

SHARED_NAMES = {
    "embed_tokens": "token",
    "norm": "norm",
    "lm_head": "output",
    LAYER + "input_layernorm": BLOCK + "attention_norm",
    LAYER + "self_attn.q_proj": BLOCK + "attention.q_proj",
    LAYER + "self_attn.k_proj": BLOCK + "attention.k_proj",
    LAYER + "self_attn.v_proj": BLOCK + "attention.v_proj",
    LAYER + "self_attn.o_proj": BLOCK + "attention.o_proj",
    LAYER + "post_attention_layernorm": BLOCK + "feedforward_norm",
    # A table that older files store: the angles per position.
    LAYER + "self_attn.rotary_emb.inv_freq": None,
}

_NAMES = SHARED_NAMES | {
    LAYER + "mlp.gate_proj": BLOCK + "feedforward.gate",
    LAYER + "mlp.up_proj": BLOCK + "feedforward.up",
    LAYER + "mlp.down_proj": BLOCK + "feedforward.down",
}


def load_llama(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> Llama:
    """Read a Llama or Mistral from a folder in Hugging Face's layout, in eval mode.

    Args:
        ignoring: tensors whose names begin so are left out.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this Llama does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Note:
        Such files are made for half-split pairs, the default of `Llama`.

    Taught in: book/11_rope.ipynb, book/12_grouped_query_attention.ipynb
    """
    settings = read_config(folder)
    check_supported(folder, settings, _SUPPORTED, needed=("model_type", *_SIZES))
    config = llama_config(settings, folder)
    model = unfilled(lambda: Llama(config))
    given = llama_names(read_tensors(folder), ignoring)
    return load_into(model, given, folder, dtype)


def llama_config(settings: Mapping[str, Any], folder: str | Path = "") -> LlamaConfig:
    """The sizes of a `config.json` under this book's names.

    Args:
        folder: named in the message where the rotary positions are not known.
    """
    mistral = settings["model_type"] == "mistral"
    base, scaling = rope(folder, settings)
    return LlamaConfig(
        **{ours: settings[theirs] for theirs, ours in _SIZES.items()},
        n_kv_heads=settings.get("num_key_value_heads", 8 if mistral else None)
        or settings["num_attention_heads"],
        head_dim=settings.get("head_dim"),
        rope_base=base,
        rope_scaling=scaling,
        window=settings.get("sliding_window", 4096) if mistral else None,
        tied=settings.get("tie_word_embeddings", False),
    )


def llama_names(
    tensors: Mapping[str, Tensor], ignoring: tuple[str, ...] = ()
) -> Renamed:
    """Hugging Face's names → this book's, with or without `model.` in front."""
    return renamed(tensors, _NAMES, prefix="model.", ignoring=ignoring)
