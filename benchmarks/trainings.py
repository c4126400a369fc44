# SPDX-License-Identifier: MIT
"""How are trainings of hours made? Each from where it stopped, and none of them twice.

A script lists its runs, or its trials, as tuples that begin with a recipe's name and a
number, the seed or the rate. Its command line names one of them, or none for all.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch

from deepdive.recipes import run_recipe
from deepdive.recipes.recipe import Recipe

Listed = TypeVar("Listed", bound=tuple)


def chosen(every: Sequence[Listed], wanted: Sequence[str]) -> list[Listed]:
    """All, or those of a recipe and a number; the script ends where there is none.

    Args:
        wanted: what the command line says: nothing, or a name and a number.
    """
    found = [r for r in every if not wanted or list(wanted) == [r[0], f"{r[1]:g}"]]
    if not found:
        sys.exit(f"{wanted} is none of {[r[:2] for r in every]}")
    return found


def ended(recipe: Recipe, place: Path, seed: int, steps: int | None = None) -> str:
    """Run to the end, from where it stopped, in one thread: the text of its result.

    A run that has ended is left as it is.
    """
    torch.set_num_threads(1)
    result = place / "result.json"
    if not result.is_file():
        run_recipe(recipe, place, steps=steps, seed=seed, progress=False)
    return result.read_text(encoding="utf-8")
