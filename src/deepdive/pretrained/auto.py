# SPDX-License-Identifier: MIT
"""Which of the book's decoders lies in this folder? Its `config.json` says so."""

from pathlib import Path

import torch
from torch import nn

from deepdive.pretrained.deepseek import load_deepseek
from deepdive.pretrained.gpt import load_gpt
from deepdive.pretrained.huggingface import read_config
from deepdive.pretrained.llama import load_llama
from deepdive.pretrained.mixtral import load_mixtral

LOADERS = {
    "gpt2": load_gpt,
    "llama": load_llama,
    "mistral": load_llama,
    "mixtral": load_mixtral,
    "deepseek_v2": load_deepseek,
    "deepseek_v3": load_deepseek,
}


def load(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> nn.Module:
    """Read a decoder of any family from a folder in Hugging Face's layout.

    Args:
        ignoring: tensors whose names begin so are left out.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: another `model_type`, or what the family's own loader refuses.

    Taught in: book/12_grouped_query_attention.ipynb
    """
    kind = read_config(folder).get("model_type")
    if kind not in LOADERS:
        known = ", ".join(LOADERS)
        raise ValueError(
            f"{folder}/config.json: model_type {kind!r} is no decoder that this book "
            f"builds (known: {known})"
        )
    return LOADERS[kind](folder, dtype, ignoring)
