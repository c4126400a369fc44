# SPDX-License-Identifier: MIT
"""How can a pickle be read without running what it says?

A pickle is a program: it may name any function and call it. Some packages ship their
vocabularies or weights as pickles, so they are read here by a reader that knows plain
containers and the classes you name, and nothing else.

Taught in: book/01_recurrence.ipynb
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Containers that pickle writes by name; list, dict, tuple, str and numbers need none.
_PLAIN = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "bytearray"),
    ("builtins", "complex"),
    ("collections", "OrderedDict"),
}


class _OnlyNamed(pickle.Unpickler):
    """An unpickler that builds plain containers and the given stubs."""

    def __init__(self, file, stubs: Mapping[str, type]):
        super().__init__(file)
        self._stubs = stubs

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in self._stubs:
            return self._stubs[f"{module}.{name}"]
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        known = ", ".join(sorted(self._stubs)) or "none"
        raise pickle.UnpicklingError(
            f"this pickle asks for {module}.{name}, which is not on the list "
            f"(stubs given: {known}); nothing of it was run"
        )


def load_pickle(path: str | Path, stubs: Mapping[str, type] | None = None) -> Any:
    """Read a pickle that holds plain containers and, at most, the named classes.

    Args:
        stubs: which class stands for which name, e.g. `{"data.Lang": Lang}`; the
            stub is an empty class of yours, and the original is never imported.

    Raises:
        pickle.UnpicklingError: the pickle names anything else (the message says what),
            or is damaged.
        TypeError: a stub is not a class.
    """
    stubs = dict(stubs or {})
    for name, stub in stubs.items():
        if not isinstance(stub, type):
            raise TypeError(f"the stub for {name} must be a class, got {stub!r}")
    with Path(path).open("rb") as file:
        try:
            return _OnlyNamed(file, stubs).load()
        except (EOFError, ValueError, IndexError, KeyError, AttributeError) as error:
            raise pickle.UnpicklingError(f"{path} is damaged: {error}") from error


def load_tensors(path: str | Path) -> Any:
    """Read a file written by `torch.save`, allowing tensors and plain containers only.

    Raises:
        pickle.UnpicklingError: the file holds anything else, or is damaged. Torch's own
            message then suggests how to switch the protection off; this one does not.
    """
    import torch

    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()
        told = [line for line in first if "GLOBAL" in line or "Unsupported" in line]
        raise pickle.UnpicklingError(
            f"{path} holds more than tensors and plain containers, so it was not "
            f"read: {(told or first or ['no reason given'])[0].strip()}"
        ) from None
    except (EOFError, IndexError, KeyError, RuntimeError, ValueError) as error:
        raise pickle.UnpicklingError(f"{path} is damaged: {error}") from None
