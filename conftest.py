# SPDX-License-Identifier: MIT
"""Set up every pytest run: kernels' environment, markers, and no silent skips in CI."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tools.environment import settings

# Kernels inherit this process's environment, under nbval too.
os.environ.update(settings())

# A test is marked by what it asks for, so that no mark is forgotten.
NEEDS = {"browser": {"browser", "chromium"}, "weights": {"minilm", "real"}}
ON_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")

# In CI the same cases in every run: a red run is then of the change, not of the dice.
# Elsewhere new ones each time, which find more.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("ci" if ON_CI else "here")


def pytest_configure(config: pytest.Config) -> None:
    """Compare stored outputs strictly on Linux alone; elsewhere only errors count."""
    if getattr(config.option, "nbval", False) and not sys.platform.startswith("linux"):
        config.option.nbval, config.option.nbval_lax = False, True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ask for a browser or for real weights."""
    for item in items:
        for mark, fixtures in NEEDS.items():
            if fixtures & set(getattr(item, "fixturenames", ())):
                item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """In CI, a test whose browser or weights are missing fails instead of skipping."""
    report = yield
    needed = [mark for mark in NEEDS if item.get_closest_marker(mark)]
    missing = call.when == "setup" and not item.get_closest_marker("skipif")
    if ON_CI and needed and missing and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        report.outcome = "failed"
        report.longrepr = f"In CI a {needed[0]} test must run. It said: {reason}"
    return report


@pytest.fixture(scope="session")
def fresh() -> Callable:
    """Return a function: chapter path → its fresh execution, made once a session."""
    from tools.notebooks import Run, execute

    runs: dict[Path, Run | Exception] = {}

    def run(path: Path) -> Run:
        if path not in runs:
            try:
                runs[path] = execute(path)
            except Exception as error:  # kept, so that each test fails at once
                runs[path] = error
        if isinstance(runs[path], Exception):
            pytest.fail(f"{path.name} doesn't run: {runs[path]}", pytrace=False)
        return runs[path]

    return run
