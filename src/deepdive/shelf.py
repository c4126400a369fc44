# SPDX-License-Identifier: MIT
"""Where do the book's own files lie: its texts, trained weights and measurements?

They stand in the book's folder beside `src`, not inside the package, so they are found
where the package was installed from a copy of the book (`pip install -e .`).
"""

import os
from pathlib import Path

_BOOK = Path(__file__).resolve().parents[2]


def data(name: str) -> Path:
    """A text of the folder `data`, such as "cmudict.dict".

    Raises:
        FileNotFoundError: it is not there; the message says what is.

    Taught in: book/01_recurrence.ipynb
    """
    return _find("data", name)


def weights(name: str) -> Path:
    """The folder of a training run in `weights`: `recipes.load_run` reads it.

    Raises:
        FileNotFoundError: it is not there; the message says what is.

    Taught in: book/01_recurrence.ipynb
    """
    return _find("weights", name)


def results(name: str) -> Path:
    """The measurements of `benchmarks/<name>.py`, a JSON file.

    Raises:
        FileNotFoundError: it is not there; the message says what is.

    Taught in: book/01_recurrence.ipynb
    """
    return _find("benchmarks/results", f"{name}.json")


def benchmarks(name: str) -> Path:
    """A folder or script of `benchmarks`, such as "speed".

    Raises:
        FileNotFoundError: it is not there; the message says what is.

    Taught in: book/01_recurrence.ipynb
    """
    return _find("benchmarks", name)


def _find(folder: str, name: str) -> Path:
    """A file or folder of the book, under the folder set by DEEPDIVE_BOOK if it is."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a file must be a string, got {name!r}")
    chosen = os.environ.get("DEEPDIVE_BOOK")
    shelf = (Path(chosen).expanduser().absolute() if chosen else _BOOK) / folder
    if not shelf.is_dir():
        raise FileNotFoundError(
            f"no folder {shelf}: the book's own files stand beside src; install the "
            f"package from a copy of the book (pip install -e .), or set DEEPDIVE_BOOK "
            f"to that copy's folder"
        )
    names = sorted(path.name for path in shelf.iterdir() if path.name != "README.md")
    if name not in names:
        raise FileNotFoundError(f"no {name!r} in {shelf}; there are {', '.join(names)}")
    return shelf / name
