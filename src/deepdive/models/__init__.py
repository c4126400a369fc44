# SPDX-License-Identifier: MIT
"""One paper each, from the parts: wiring and a forward pass, no mechanism.

`Transformer` (2017), `Bert` and `MaskedLM`, `Gpt`, `T5`, `Llama` (and Mistral),
`Mixtral`, `DeepSeek` (V2 and V3). Each takes a config of `deepdive.configs`.
"""

import importlib

_HOME = {
    "Bert": "bert",
    "DeepSeek": "deepseek",
    "Gpt": "gpt",
    "Llama": "llama",
    "MaskedLM": "bert",
    "Mixtral": "mixtral",
    "T5": "t5",
    "Transformer": "transformer2017",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
