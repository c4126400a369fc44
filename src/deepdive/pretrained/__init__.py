# SPDX-License-Identifier: MIT
"""Real, trained weights, found on this machine and loaded into the book's models.

Only `fetch` (or `python -m deepdive weights`) downloads; everything else works offline
and says what is missing. Names load on first use: listing and fetching need no torch.
"""

import importlib

_HOME = {
    "DownloadError": "weights",
    "MODELS": "registry",
    "Vocabulary": "recurrent",
    "WeightsMissing": "files",
    "annalog": "molecules",
    "cn2en": "recurrent",
    "fetch": "weights",
    "find": "files",
    "g2p": "recurrent",
    "glassllm": "glass",
    "llama_from_gguf": "smollm",
    "load": "auto",
    "load_bert": "bert",
    "load_deepseek": "deepseek",
    "load_gpt": "gpt",
    "load_llama": "llama",
    "load_masked_lm": "bert",
    "load_mixtral": "mixtral",
    "load_pickle": "pickles",
    "load_t5": "t5",
    "load_tensors": "pickles",
    "minilm": "bert",
    "pool": "bert",
    "pronounce": "recurrent",
    "read_gguf": "gguf",
    "sentence_embedding": "bert",
    "similarity": "bert",
    "smollm2": "smollm",
    "tokenizer_from_gguf": "gguf",
    "translate": "recurrent",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in {*_HOME.values()}:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*_HOME, *_HOME.values()})
