# SPDX-License-Identifier: MIT
"""The built site, a server for it, and a Chromium, shared by the tests of the site."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
for folder in ("tools", "book/_ext"):
    sys.path.insert(0, str(ROOT / folder))

# Jupyter Book can't be run with -m, and its script lies elsewhere on each system.
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
# Chromium as root in a container needs the first; the rest keep it off the network.
CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def page_names() -> list[str]:
    """Return every page that `_toc.yml` promises, and the search page."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    chapters = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    return [f"{name}.html" for name in [toc["root"], *chapters, "search"]]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `page_name` on every page."""
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", page_names())


def _is_stale(index: Path) -> bool:
    if not index.is_file():
        return True
    built = index.stat().st_mtime
    sources = [ROOT / "_config.yml", ROOT / "_toc.yml"]
    for path in (ROOT / "book").rglob("*"):
        if path.is_file() and not {"__pycache__", ".ipynb_checkpoints"} & set(
            path.parts
        ):
            sources.append(path)
    return any(path.stat().st_mtime > built for path in sources)


@pytest.fixture(scope="session")
def site() -> Path:
    """Return the folder of the built site, building it if it is missing or stale.

    `DEEPDIVE_SITE` names another built site to test, such as a published one.
    """
    named = os.environ.get("DEEPDIVE_SITE")
    if named:
        return Path(named).resolve()
    folder = ROOT / "_build" / "html"
    if _is_stale(folder / "index.html"):
        command = ["build", ".", "-W", "--keep-going", "--all"]
        done = subprocess.run(
            [sys.executable, "-c", JUPYTER_BOOK, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Serve the site on loopback; return its address."""
    from serve import serving

    with serving(site) as found:
        yield found


def find_chromium() -> str | None:
    """Return Debian's Chromium, or None for Playwright's own."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """Return a browser. Without one: an error in CI, else the tests are skipped.

    Module scope, since two of Playwright's event loops can't live side by side and the
    tests of the widgets start their own.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as play:
        try:
            browser = play.chromium.launch(
                executable_path=find_chromium(), args=CHROMIUM_ARGS
            )
        except playwright.Error as error:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"no Chromium: {error}")
        yield browser
        browser.close()


@dataclass
class Visit:
    """A page in the browser, with all it asked for and all it said."""

    page: object
    asked: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@pytest.fixture
def visit(chromium: object) -> Iterator[Callable[..., Visit]]:
    """Return `visit(url, width=…, theme=…)`, which opens a page with no network."""
    contexts = []

    def open_page(
        url: str, width: int = 1280, height: int = 900, theme: str = "light", **options
    ) -> Visit:
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme=theme,
            reduced_motion="reduce",
            offline=url.startswith("file:"),
            **options,
        )
        contexts.append(context)
        result = Visit(context.new_page())
        page = result.page
        page.on("request", lambda request: result.asked.append(request.url))
        page.on("requestfailed", lambda request: result.failed.append(request.url))
        page.on(
            "response",
            lambda answer: answer.status >= 400 and result.failed.append(answer.url),
        )
        page.on(
            "console",
            lambda message: (
                message.type in {"error", "warning"}
                and result.said.append(f"{message.type}: {message.text}")
            ),
        )
        page.on("pageerror", lambda error: result.said.append(f"exception: {error}"))
        page.goto(url, wait_until="load")
        return result

    yield open_page
    for context in contexts:
        context.close()
