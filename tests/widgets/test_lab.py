# SPDX-License-Identifier: MIT
"""Each widget in one real JupyterLab: by keyboard, and with the kernel both ways."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect
from scenarios import SCENARIOS, Scenario, press, read_tables, show_table
from test_static import tables_become

# No news, no update checks, nothing that asks.
SETTINGS = {
    "apputils-extension/notification": {
        "fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True,
    },
}  # fmt: skip

WATCH = """
import json
from pathlib import Path

def watch(name, widget):
    def keep(change):
        Path(f"{name}.json").write_text(json.dumps(change["new"]))
    widget.observe(keep, "state")
    return widget
"""


def notebook() -> nbformat.NotebookNode:
    """One cell per widget, and a last one that sets every state from Python."""
    cells = [nbformat.v4.new_code_cell(WATCH + "shown = {}")]
    for scenario in SCENARIOS:
        *before, last = scenario.source.strip().splitlines()
        lines = [
            *before,
            f"shown[{scenario.name!r}] = watch({scenario.name!r}, {last})",
        ]
        lines.append(f"shown[{scenario.name!r}]")
        cells.append(nbformat.v4.new_code_cell("\n".join(lines)))
    cells.append(
        nbformat.v4.new_code_cell(
            'if Path("go").exists():\n    for widget in shown.values():\n'
            "        widget.state = {}\n"
            '    print("all back")\nelse:\n    print("all shown")'
        )
    )
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """JupyterLab on loopback, with its own settings; its address and folder."""
    root = tmp_path_factory.mktemp("lab")
    work = root / "work"
    work.mkdir()
    nbformat.write(notebook(), work / "scratch.ipynb")
    for place, values in SETTINGS.items():
        file = root / f"settings/@jupyterlab/{place}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values), encoding="utf-8")
    port = free_port()
    env = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        "IPYTHONDIR": str(root / "ipython"),
    }
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
        "--ServerApp.password=", f"--ServerApp.root_dir={work}",
        "--LabApp.extension_manager=readonly", "--LabApp.news_url=",
    ]  # fmt: skip
    with (root / "lab.log").open("w") as log:
        server = subprocess.Popen(command, env=env, cwd=work, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=2)
                break
            except OSError:
                assert server.poll() is None, (root / "lab.log").read_text()
                time.sleep(0.25)
        yield address, work
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def page(lab: tuple[str, Path], browser: Browser) -> Iterator[Page]:
    """The scratch notebook, every cell run."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.noise, page.strangers = [], []
    page.on("pageerror", lambda e: page.noise.append(str(e)))
    page.on(
        "request",
        lambda r: (
            page.strangers.append(r.url)
            if not r.url.startswith(
                (lab[0], lab[0].replace("http", "ws"), "data:", "blob:")
            )
            else None
        ),
    )
    page.goto(f"{lab[0]}/lab/tree/scratch.ipynb")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=60_000)
    # Asked to run before the kernel is there, Lab would ask which one.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=90_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = page.locator(".jp-OutputArea-output", has_text="all shown")
    last.wait_for(timeout=180_000)
    yield page
    context.close()


def root_of(page: Page, scenario: Scenario):
    """The live widget, scrolled into view."""
    root = page.locator(f'.dd-widget[data-name="{scenario.name}"]').first
    root.wait_for(timeout=30_000)
    root.scroll_into_view_if_needed()
    return root


def heard(path: Path, key_values: dict) -> dict:
    """What the kernel's observer wrote, once it holds these values (5 s at most)."""
    found: dict = {}
    for _ in range(50):
        if path.exists():
            try:
                found = json.loads(path.read_text())
            except json.JSONDecodeError:
                found = {}
            if all(found.get(k) == v for k, v in key_values.items()):
                return found
        time.sleep(0.1)
    raise AssertionError(f"Python heard {found}, expected {key_values}")


STARTS: dict[str, dict] = {}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.name)
def test_keyboard_and_reader_to_python(scenario: Scenario, page: Page, lab) -> None:
    cells = page.locator(".jp-CodeCell").count()
    root = root_of(page, scenario)
    show_table(page, root)
    STARTS[scenario.name] = read_tables(root)
    scenario.act(page, root)
    show_table(page, root)
    tables_become(root, scenario.expect(), scenario.exact)
    heard(lab[1] / f"{scenario.name}.json", scenario.state)
    # Letters and arrows in a widget must not reach the notebook's shortcuts.
    press(page, "b", "d", "d", "x")
    assert page.locator(".jp-CodeCell").count() == cells
    assert not root.get_by_role("button", name="Copy link").count()


def test_python_to_reader(page: Page, lab) -> None:
    """`widget.state = {}` in a second cell brings every view back."""
    (lab[1] / "go").touch()
    page.locator(".jp-CodeCell .cm-content").last.click()
    press(page, "Shift+Enter")
    expect(page.locator(".jp-OutputArea-output", has_text="all back")).to_be_visible(
        timeout=20_000
    )
    for scenario in SCENARIOS:
        if scenario.name not in STARTS:
            continue
        root = root_of(page, scenario)
        page.wait_for_timeout(300)
        show_table(page, root)
        tables_become(root, STARTS[scenario.name], scenario.exact)


def test_lab_is_quiet(page: Page) -> None:
    assert page.noise == []
    assert page.strangers == []


def test_dark_lab(page: Page) -> None:
    page.evaluate("document.body.dataset.jpThemeLight = 'false'")
    root = root_of(page, SCENARIOS[0])
    ground = root.evaluate("(el) => getComputedStyle(el).backgroundColor")
    page.evaluate("document.body.dataset.jpThemeLight = 'true'")
    assert ground == "rgb(20, 24, 29)"
