# SPDX-License-Identifier: MIT
"""Train a model by one of the book's recipes, and keep all that the run was.

The folder gets recipe.json (what was run), checkpoint.pt, log.jsonl (a line of JSON for
each update), result.json and model.safetensors (the weights at the end). A run that was
stopped goes on when the same command is given again, to the same weights.

Several processes share the work of a run when torchrun starts this command:
torchrun --nproc-per-node 2 -m deepdive train RECIPE
"""

import argparse
from pathlib import Path

from deepdive.commands.words import (
    Stopped,
    Usage,
    add_device,
    complain,
    device,
    say,
    whole,
)

NAME, HELP = "train", "train a model by one of the book's recipes"
PRECISIONS = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `train`."""
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="one of --list")
    parser.add_argument("--list", action="store_true", help="list the recipes and stop")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="new, empty, or this very run's (default: runs/RECIPE-seed-S)",
    )
    parser.add_argument(
        "--steps", type=whole(1), metavar="N", help="updates (default: the recipe's)"
    )
    parser.add_argument(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=0,
        metavar="S",
        help="the same seed gives the same run (default: 0)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of the products; the weights stay float32 (default: float32)",
    )
    parser.add_argument(
        "--sharded",
        action="store_true",
        help="under torchrun: divide the model among the processes (FSDP2)",
    )
    add_device(parser)


def run(chosen: argparse.Namespace) -> int:
    """Run a recipe, or list all of them."""
    from deepdive.recipes import RECIPES
    from deepdive.training import join, leave

    if chosen.list:
        for recipe in RECIPES.values():
            say(f"{recipe.name}\n  {recipe.what}")
            say(f"  {recipe.steps} updates; {recipe.expect}")
        return 0
    if chosen.recipe not in RECIPES:
        asked = "which recipe?" if chosen.recipe is None else f"no {chosen.recipe!r};"
        raise Usage(f"{asked} known: {', '.join(RECIPES)}")
    world = join()
    if chosen.sharded and world.size == 1:
        raise Usage("--sharded: torchrun must start the processes that share a model")
    if not world.first:
        chosen.parser.prog += f" (process {world.rank})"  # which one has failed
    folder = chosen.out or Path("runs", f"{chosen.recipe}-seed-{chosen.seed}")
    if world.first:
        updates = chosen.steps or RECIPES[chosen.recipe].steps
        complain(f"{chosen.recipe}: {updates} updates")
        complain(f"    into {shown(folder)}")
        complain("Ctrl+C stops; the same command goes on from there. Preparing …")
    result = _result(chosen, folder)
    leave()
    if world.first:
        for name, value in result.items():
            say(f"{name} {value:.4g}")
        say(f"all of it is in {shown(folder)}; let it write with:")
        say(f"    python -m deepdive generate {shown(folder)}")
    return 0


def _result(chosen: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run the recipe, or go on with it."""
    import torch

    from deepdive.recipes import RECIPES, run_recipe
    from deepdive.training import join, sharded

    half = None if chosen.precision == "float32" else getattr(torch, chosen.precision)
    how = {"spread": sharded} if chosen.sharded else {}
    try:
        return run_recipe(
            RECIPES[chosen.recipe],
            folder,
            steps=chosen.steps,
            seed=chosen.seed,
            device=device(chosen.device),
            precision=half,
            **how,
        )
    except KeyboardInterrupt:
        if not join().first:
            raise SystemExit(130) from None
        raise Stopped(_how_to_go_on(chosen, folder)) from None


def _how_to_go_on(chosen: argparse.Namespace, folder: Path) -> str:
    """The command that resumes this run, written out."""
    if not (folder / "checkpoint.pt").is_file():
        return "nothing was trained yet"
    from deepdive.training import join

    words = ["python", "-m", "deepdive", "train", chosen.recipe, "--out", shown(folder)]
    words += ["--seed", str(chosen.seed), "--precision", chosen.precision]
    words += ["--device", chosen.device]
    if chosen.steps is not None:
        words += ["--steps", str(chosen.steps)]
    also = "" if join().size == 1 else " the same command, or in one process"
    command = " ".join(words)
    return f"the last checkpoint is kept; go on from it with{also}\n    {command}"


def shown(path: Path) -> str:
    """A path as every shell takes it: forward slashes, quoted where it has spaces."""
    text = path.as_posix()
    return f'"{text}"' if " " in text else text
