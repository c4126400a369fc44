# SPDX-License-Identifier: MIT
"""Which trainings belong to the book? Each is one file here, and can be run again.

`python -m deepdive train --list` lists them.
"""

from deepdive.recipes.austen import AUSTEN
from deepdive.recipes.g2p import PRONUNCIATION
from deepdive.recipes.grammar import GRAMMAR
from deepdive.recipes.recipe import Recipe, Symbols, Writing
from deepdive.recipes.recurrent_grammar import FADING
from deepdive.recipes.reverse import REVERSE
from deepdive.recipes.runs import load_run, publish, run_recipe
from deepdive.recipes.three_tasks import THREE_TASKS

RECIPES = {
    recipe.name: recipe
    for recipe in (REVERSE, GRAMMAR, *FADING, *PRONUNCIATION, *AUSTEN, *THREE_TASKS)
}

__all__ = [
    "RECIPES",
    "Recipe",
    "Symbols",
    "Writing",
    "load_run",
    "publish",
    "run_recipe",
]
