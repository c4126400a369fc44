# SPDX-License-Identifier: MIT
"""How do the names of a published T5 checkpoint map onto this book's parts?

Taught in: book/09_t5.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import T5Config
from deepdive.models.t5 import T5
from deepdive.pretrained.huggingface import (
    Renamed,
    check_supported,
    load_into,
    read_config,
    read_tensors,
    renamed,
    unfilled,
)

_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "num_layers": "n_layers",
    "num_heads": "n_heads",
    "d_kv": "head_dim",
    "d_ff": "d_ff",
    "relative_attention_num_buckets": "n_buckets",
    "relative_attention_max_distance": "max_distance",
    "layer_norm_epsilon": "norm_eps",
}
_OPTIONAL = {"relative_attention_max_distance"}  # older files leave it at 128

_SUPPORTED = {
    "model_type": ("t5",),
    "feed_forward_proj": ("relu", "gated-gelu"),
    "is_encoder_decoder": (True,),
}

_BIAS = ".block.0.layer.0.SelfAttention.relative_attention_bias"


def _names() -> dict:
    """Both halves: attention, in the decoder also to the encoder, then the network."""
    names: dict = {"shared": "token", "lm_head": "output"}
    for half, n in (("encoder", 1), ("decoder", 2)):
        names[f"{half}.embed_tokens"] = "token"
        names[f"{half}.final_layer_norm"] = f"{half}_norm"
        names[half + _BIAS] = f"{half}_bias.table"
        theirs, ours = f"{half}.block.{{}}.layer.", f"{half}.{{}}."
        sublayers = {"0.SelfAttention": "attention", "1.EncDecAttention": "cross"}
        for place, sublayer in list(sublayers.items())[:n]:
            part = "cross_attention" if sublayer == "cross" else sublayer
            for letter in "qkvo":
                names[f"{theirs}{place}.{letter}"] = f"{ours}{part}.{letter}_proj"
            names[f"{theirs}{place[0]}.layer_norm"] = f"{ours}{sublayer}_norm"
        for layer, part in {
            "wi": "up",
            "wi_0": "gate",
            "wi_1": "up",
            "wo": "down",
        }.items():
            names[f"{theirs}{n}.DenseReluDense.{layer}"] = f"{ours}feedforward.{part}"
        names[f"{theirs}{n}.layer_norm"] = f"{ours}feedforward_norm"
    # The first release stored a table here that its code never read.
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias"
    return names | {unread: None}


def load_t5(folder: str | Path, dtype: torch.dtype = torch.float32) -> T5:
    """Read a T5, 1.0 or 1.1, from a folder in Hugging Face's layout, in eval mode.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this T5 does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Note:
        A 1.1 file without an output layer has the embedding in its place, as a copy.

    Taught in: book/09_t5.ipynb
    """
    settings = read_config(folder)
    needed = _SIZES.keys() - _OPTIONAL
    check_supported(folder, settings, _SUPPORTED, needed=sorted(needed))
    decoders = settings.get("num_decoder_layers") or settings["num_layers"]
    if decoders != settings["num_layers"]:
        raise ValueError(
            f"{folder}/config.json: {settings['num_layers']} encoder and {decoders} "
            "decoder layers; this T5 has as many of both"
        )
    model = unfilled(lambda: T5(t5_config(settings)))
    given = t5_names(read_tensors(folder))
    if not model.config.tied and "token.weight" in given.tensors:
        given.tensors.setdefault("output.weight", given.tensors["token.weight"])
    return load_into(model, given, folder, dtype)


def t5_config(settings: Mapping[str, Any]) -> T5Config:
    """The sizes of a `config.json` under this book's names.

    A tied output layer reads what is scaled by d_model^−½. Files of version 5 of
    `transformers` say so by a name of its own, older ones by the tie.
    """
    sizes = {ours: settings[name] for name, ours in _SIZES.items() if name in settings}
    tied = settings.get("tie_word_embeddings", True)
    return T5Config(
        **sizes,
        gated=settings.get("feed_forward_proj", "relu") == "gated-gelu",
        tied=settings.get("scale_decoder_outputs", tied),
    )


def t5_names(tensors: Mapping[str, Tensor]) -> Renamed:
    """Hugging Face's names → this book's."""
    return renamed(tensors, _names())
