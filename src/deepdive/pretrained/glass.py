# SPDX-License-Identifier: MIT
"""Two trained Llamas small enough for any test, on Carroll and on Machado de Assis."""

import json

import numpy as np
import torch

from deepdive.configs import LlamaConfig
from deepdive.models.llama import Llama
from deepdive.positions import interleaved
from deepdive.pretrained.files import find
from deepdive.pretrained.huggingface import load_into, renamed, transposed, unfilled
from deepdive.tokenizers import Tokenizer, glassllm_tokenizer

_LANGUAGES = ("en", "pt")

_SIZES = {
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "n_layers": "n_layers",
    "n_heads": "n_heads",
    "n_kv_heads": "n_kv_heads",
    "max_len": "max_seq_len",
    "rope_base": "rope_base",
    "eps": "norm_eps",
}

_BLOCK = "blocks.{}."

_NAMES = {  # every matrix is (in, out) there
    "E": "token.weight",
    "norm_f.gamma": "norm.weight",
    _BLOCK + "norm1.gamma": _BLOCK + "attention_norm.weight",
    _BLOCK + "norm2.gamma": _BLOCK + "feedforward_norm.weight",
} | {
    _BLOCK + theirs: [(_BLOCK + ours + ".weight", transposed)]
    for theirs, ours in (
        ("attn.W_Q", "attention.q_proj"),
        ("attn.W_K", "attention.k_proj"),
        ("attn.W_V", "attention.v_proj"),
        ("attn.W_O", "attention.o_proj"),
        ("ffn.W1", "feedforward.gate"),
        ("ffn.W3", "feedforward.up"),
        ("ffn.W2", "feedforward.down"),
    )
}


def glassllm(language: str) -> tuple[Llama, Tokenizer]:
    """A decoder of 852,608 weights and its tokenizer: `"en"` or `"pt"`.

    Four layers, four query heads on two key/value heads, 128 tokens at most. One was
    trained on Lewis Carroll, the other on Machado de Assis: words in their manner,
    without much sense.

    Raises:
        ValueError: another language, or files that do not fit.
        WeightsMissing: the files are not on this machine; the message says what to do.

    Taught in: book/11_rope.ipynb, book/12_grouped_query_attention.ipynb
    """
    if language not in _LANGUAGES:
        raise ValueError(f"language must be 'en' or 'pt', got {language!r}")
    folder = find("glassllm")
    path = folder / f"{language}.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    settings = json.loads(str(arrays.pop("__config__")))
    config = LlamaConfig(
        **{ours: settings[theirs] for theirs, ours in _SIZES.items()},
        d_ff=8 * settings["d_model"] // 3,
        tied=True,
    )
    model = unfilled(lambda: Llama(config, pairing=interleaved))
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    model = load_into(model, renamed(given, _NAMES), path)
    tokenizer = folder / f"{language}.tokenizer.json"
    return model, glassllm_tokenizer(tokenizer, max_len=config.max_seq_len)
