# SPDX-License-Identifier: MIT
"""What is this model made of? Read off its built modules, and measured, not typed.

A table that somebody typed can be wrong. Here a model is built and asked: which modules
does it hold, what do its layers receive when it runs, does the norm see the sublayer's
input or the sum, how many numbers does its cache keep, and which outputs change when an
input does?
"""

from deepdive.anatomy.maps import dependence, layer_maps, mask_words, reach
from deepdive.anatomy.memory import measured_activation_bytes
from deepdive.anatomy.row import Anatomy, anatomy, shrunken
from deepdive.anatomy.tables import as_html, difference, family_table, markdown

__all__ = [
    "Anatomy",
    "anatomy",
    "as_html",
    "dependence",
    "difference",
    "family_table",
    "layer_maps",
    "markdown",
    "mask_words",
    "measured_activation_bytes",
    "reach",
    "shrunken",
]
