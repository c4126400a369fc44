# SPDX-License-Identifier: MIT
"""The Transformer and what became of it, as changes to the same few parts.

Submodules load on first use, so `import deepdive` is quick and torch is imported only
by the modules that need it.
"""

import importlib

__version__ = "0.1.0"

_SUBMODULES = {
    "ablation", "accounting", "anatomy", "attention", "blocks", "cache", "checks",
    "commands", "configs", "data", "decoding", "dependence", "device", "fading",
    "feedforward", "figures", "filling", "growth", "halves", "heads", "induction",
    "inference", "inputs", "kernels", "latent_attention", "masks", "memory", "models",
    "moe", "ngrams", "norms", "objectives", "palette", "positions", "pretrained",
    "products", "recipes", "recurrent", "roofline", "scoring", "shelf", "show",
    "timing", "tokenizers", "trace", "training", "widgets",
}  # fmt: skip


def __getattr__(name: str):
    if name in _SUBMODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_SUBMODULES | {"__version__"})
