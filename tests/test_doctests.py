# SPDX-License-Identifier: MIT
"""The examples in the docstrings are true, and every module can be imported."""

import doctest
import importlib
import pkgutil

import pytest

import deepdive

MODULES = [
    module.name
    for module in pkgutil.walk_packages(deepdive.__path__, "deepdive.")
    if ".widgets" not in module.name and not module.name.endswith("__main__")
]
WITH_EXAMPLES = {"deepdive.attention", "deepdive.masks", "deepdive.kernels.equation"}


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), raise_on_error=False)
    assert result.failed == 0
    assert result.attempted or name not in WITH_EXAMPLES


def test_every_part_of_the_package_can_be_reached():
    parts = {module.name for module in pkgutil.iter_modules(deepdive.__path__)}
    assert parts - {"__main__"} == deepdive._SUBMODULES


def test_submodules_load_on_first_use():
    assert set(MODULES) >= WITH_EXAMPLES
    for name in dir(deepdive):
        if name not in ("widgets", "__version__"):
            assert getattr(deepdive, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = deepdive.nonsense
