# SPDX-License-Identifier: MIT
"""A real chat model of 135 million weights: how does a GGUF file become a `Llama`?

Taught in: book/08_gpt.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deepdive.configs import LlamaConfig
from deepdive.models.llama import Llama
from deepdive.positions import interleaved
from deepdive.pretrained.files import find
from deepdive.pretrained.gguf import read_gguf, tokenizer_from_gguf
from deepdive.pretrained.huggingface import load_into, renamed, unfilled
from deepdive.tokenizers import Tokenizer

_SIZES = {
    "llama.vocab_size": "vocab_size",
    "llama.embedding_length": "d_model",
    "llama.block_count": "n_layers",
    "llama.attention.head_count": "n_heads",
    "llama.feed_forward_length": "d_ff",
    "llama.context_length": "max_seq_len",
}
_EPS = "llama.attention.layer_norm_rms_epsilon"

_LAYER, _BLOCK = "blk.{}.", "blocks.{}."

_NAMES = {
    "token_embd": "token",
    "output_norm": "norm",
    "output": "output",
    _LAYER + "attn_norm": _BLOCK + "attention_norm",
    _LAYER + "attn_q": _BLOCK + "attention.q_proj",
    _LAYER + "attn_k": _BLOCK + "attention.k_proj",
    _LAYER + "attn_v": _BLOCK + "attention.v_proj",
    _LAYER + "attn_output": _BLOCK + "attention.o_proj",
    _LAYER + "ffn_norm": _BLOCK + "feedforward_norm",
    _LAYER + "ffn_gate": _BLOCK + "feedforward.gate",
    _LAYER + "ffn_up": _BLOCK + "feedforward.up",
    _LAYER + "ffn_down": _BLOCK + "feedforward.down",
}


def smollm2() -> tuple[Llama, Tokenizer]:
    """SmolLM2-135M-Instruct, a small model that answers, and its tokenizer.

    Thirty Llama layers with 9 query heads on 3 key/value heads (Ben Allal et al. 2025,
    arXiv:2502.02737). The file's 4-bit weights become float32: 540 MB.

    Raises:
        WeightsMissing: the file is not on this machine; the message says what to do.

    Note:
        It was trained on conversations: `chat_prompt` lays one out.

    Taught in: book/12_grouped_query_attention.ipynb
    """
    (path,) = find("smollm2").glob("*.gguf")
    metadata, _ = read_gguf(path)
    model = llama_from_gguf(path)
    return model, tokenizer_from_gguf(metadata)


def llama_from_gguf(path: str | Path, dtype: torch.dtype = torch.float32) -> Llama:
    """Read a Llama from a GGUF file, in eval mode.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds another kind of model, or its tensors do
            not fit; one message lists every unknown, missing and wrongly shaped one.

    Note:
        GGUF keeps q and k in the order of interleaved pairs, so that is what the model
        turns. With half-split pairs it would still write fluent English, and worse.

    Taught in: book/11_rope.ipynb
    """
    metadata, tensors = read_gguf(path)
    config = gguf_config(metadata, path, tied="output.weight" not in tensors)
    model = unfilled(lambda: Llama(config, pairing=interleaved))
    return load_into(model, renamed(tensors, _NAMES), path, dtype)


def gguf_config(
    metadata: Mapping[str, Any], path: str | Path = "", tied: bool = False
) -> LlamaConfig:
    """The sizes in a GGUF file's settings under this book's names.

    Args:
        path: named in the message where a setting is missing or not computed here.
        tied: whether the file leaves the output layer to the embedding.
    """
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"{path}: architecture {kind!r}; only 'llama' is read")
    if missing := [key for key in (*_SIZES, _EPS) if key not in metadata]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    sizes = {ours: metadata[theirs] for theirs, ours in _SIZES.items()}
    head_dim = metadata.get("llama.attention.key_length")
    head_dim = head_dim or sizes["d_model"] // sizes["n_heads"]
    computed = {  # any other value would be another function
        "llama.rope.dimension_count": head_dim,
        "llama.attention.value_length": head_dim,
        "llama.rope.scaling.type": "none",
        "llama.expert_count": 0,
    }
    for key, value in computed.items():
        if metadata.get(key, value) != value:
            raise ValueError(f"{path}: {key} = {metadata[key]!r} is not computed here")
    return LlamaConfig(
        **sizes,
        n_kv_heads=metadata.get("llama.attention.head_count_kv", sizes["n_heads"]),
        head_dim=metadata.get("llama.attention.key_length"),
        rope_base=float(metadata.get("llama.rope.freq_base", 10_000.0)),
        norm_eps=float(f"{metadata[_EPS]:.6g}"),  # 1e-5 was rounded to float32
        tied=tied,
    )
