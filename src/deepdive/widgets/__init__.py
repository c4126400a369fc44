# SPDX-License-Identifier: MIT
"""The book's live figures; each is a Python file and an ES module of the same name."""

import importlib

_HOMES = {
    "AttentionTrace": "attention_trace",
    "CausalHeads": "head_explorer",
    "FadingMemory": "fading_memory",
    "SoftmaxScale": "softmax_scale",
    "HeadSplit": "head_split",
    "MaskGrid": "mask_grid",
    "HeadExplorer": "head_explorer",
    "LiveTransformer": "live_transformer",
    "Quiz": "quiz",
    "Sinusoids": "sinusoids",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
