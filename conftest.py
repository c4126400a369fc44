# SPDX-License-Identifier: MIT
"""Set up every pytest run: kernels' environment, markers, and no silent skips in CI."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.environment import settings

# Kernels inherit this process's environment, under nbval too.
os.environ.update(settings())

MUST_RUN = ("browser", "weights")
ON_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")


def pytest_configure(config: pytest.Config) -> None:
    """Compare stored outputs strictly on Linux alone; elsewhere only errors count."""
    if getattr(config.option, "nbval", False) and not sys.platform.startswith("linux"):
        config.option.nbval, config.option.nbval_lax = False, True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Count everything under tests/site as a browser test."""
    for item in items:
        if Path("tests/site") in item.path.relative_to(item.config.rootpath).parents:
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """In CI, turn a skipped browser or weights test into a failure."""
    report = yield
    needed = [name for name in MUST_RUN if item.get_closest_marker(name)]
    if ON_CI and needed and report.skipped and not hasattr(report, "wasxfail"):
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
