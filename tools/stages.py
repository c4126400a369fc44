# SPDX-License-Identifier: MIT
"""The tasks behind `make` and `python tools/dev.py`. Only the standard library.

Everything is installed into .venv and built into _build, both in this folder. Nothing
outside it is written, apart from pip's own cache.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from tools.environment import BUILD, ROOT, chapters, settings
from tools.serve import Server, make_server

VENV = ROOT / ".venv"
STAMP = VENV / "deepdive-stamp"
SITE = BUILD / "html"
REPORTS = BUILD / "test"
TORCH_CPU = "https://download.pytorch.org/whl/cpu"
# It has no __main__, and a script's path differs between systems and breaks when moved.
JUPYTER_BOOK = "from jupyter_book.cli.main import main; main()"
QUIET_SECONDS = 8  # nothing is silent for longer than ten
FIRST_CHAPTER = "02_attention.ipynb"


class Stop(Exception):  # noqa: N818 - not an error of the program's
    """A task can't go on; the message says why and what to do."""


def say(text: str) -> None:
    print(text, flush=True)


# --- running things ---------------------------------------------------------------


heard = threading.local()  # .file: where a command's words go, unless on the screen


def run(*command: str | Path, **extra: str) -> None:
    """Run a command in the repository's root, showing what it says."""
    code = subprocess.call(
        [str(part) for part in command],
        cwd=ROOT,
        env=settings() | extra,
        stdout=getattr(heard, "file", None),
        stderr=subprocess.STDOUT if hasattr(heard, "file") else None,
    )
    if code:
        raise Stop(f"This failed (exit {code}): {show(command)}")


def show(command: tuple[str | Path, ...]) -> str:
    """Return a command as one would type it in the repository's root."""
    parts = [str(part).replace(f"{ROOT}{os.sep}", "") for part in command]
    return " ".join(f'"{part}"' if " " in part else part for part in parts)


def run_long(doing: str, *command: str | Path) -> None:
    """Run a talkative command: show the lines that matter, and never fall silent."""
    start = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=settings() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    tail: collections.deque[str] = collections.deque(maxlen=30)
    told_at = start
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                if (line := lines.get(timeout=1)) is None:
                    break
                tail.append(line)
                if told := worth_telling(line):
                    say(f"  {told}")
                    told_at = time.monotonic()
            if time.monotonic() - told_at > QUIET_SECONDS:
                told_at = time.monotonic()
                last = shorten(tail[-1].strip()) if tail else ""
                say(f"  … {doing}, {told_at - start:.0f} s so far. {last}")
    except KeyboardInterrupt:
        process.terminate()
        raise
    if process.wait():
        say("\n".join(tail))
        raise Stop(f"This failed (exit {process.returncode}): {show(command)}")


def worth_telling(line: str) -> str:
    """Return what a reader wants of one line of pip's output; "" for nothing."""
    words = line.split()
    if line.startswith("Installing collected packages"):
        return f"Installing {count(len(words) - 3)}: a minute or two"
    if line.startswith("Successfully installed"):
        return f"Installed {count(len(words) - 2)}"
    if line.lstrip().startswith(("Downloading", "Building", "ERROR")):
        return line.strip()
    return ""


def count(packages: int) -> str:
    return "1 package" if packages == 1 else f"{packages} packages"


def shorten(text: str, width: int = 70) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


# --- the environment --------------------------------------------------------------


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def fingerprint(version: str) -> str:
    """Return a digest of all that decides what .venv should hold, and where it is."""
    digest = hashlib.sha256(f"{ROOT}\n{version}\n".encode())
    for name in ("requirements.txt", "constraints.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()


def probe(python: Path) -> str:
    """Return the version of a venv's Python as "3.11.7"; "" if it doesn't run."""
    code = "import sys, pip; print('.'.join(map(str, sys.version_info[:3])))"
    try:
        found = subprocess.run(
            [str(python), "-c", code], capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def make_venv() -> None:
    say(f"Making .venv with Python {sys.version.split()[0]} (some ten seconds)")
    try:
        run_long("making .venv", sys.executable, "-m", "venv", VENV)
    except Stop as stop:
        shutil.rmtree(VENV, ignore_errors=True)  # it was made by the line above
        raise Stop(
            "This Python can't make a virtual environment. On Debian and Ubuntu: "
            "sudo apt install python3-venv"
        ) from stop


def torch_pin() -> str:
    return re.search(r"^torch==\S+", (ROOT / "requirements.txt").read_text(), re.M)[0]


def setup(cpu: bool) -> Path:
    """Make .venv ready, doing nothing if it already is; return its Python."""
    if not VENV.exists():
        make_venv()
    python = venv_python()
    version = probe(python)
    if not version or tuple(map(int, version.split(".")[:2])) < (3, 11):
        wrong = f"has Python {version}" if version else "doesn't start"
        raise Stop(
            f"The folder .venv is there but {wrong}. Delete it, or move it away if it "
            "holds something of yours, and run this again."
        )
    wanted = fingerprint(version)
    if STAMP.exists() and STAMP.read_text().strip() == wanted:
        return python
    STAMP.unlink(missing_ok=True)
    pip = (python, "-m", "pip", "install", "-c", "constraints.txt")
    say("Installing what the book needs into .venv (the README says how much)")
    if cpu and sys.platform.startswith("linux"):
        say("First torch without CUDA, from PyTorch's own index")
        # Torch alone: what it needs comes from the usual index, with everything else.
        alone = ("--no-deps", "--index-url", TORCH_CPU, torch_pin())
        run_long("fetching torch", *pip, *alone)
    run_long("installing", *pip, "-r", "requirements.txt")
    silence_lab_news()
    STAMP.write_text(wanted + "\n")
    return python


def silence_lab_news() -> None:
    """Keep JupyterLab from asking the network for news and updates."""
    folder = VENV / "share" / "jupyter" / "lab" / "settings"
    folder.mkdir(parents=True, exist_ok=True)
    choice = {"fetchNews": "false", "checkForUpdates": False}
    text = json.dumps({"@jupyterlab/apputils-extension:notification": choice})
    (folder / "overrides.json").write_text(text + "\n")


# --- stages -----------------------------------------------------------------------


def lint(python: Path) -> None:
    run(python, "-m", "ruff", "check", ".")
    run(python, "-m", "ruff", "format", "--check", ".")


def pytest(python: Path, name: str, *arguments: str | Path) -> None:
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{name}.xml"
    report.unlink(missing_ok=True)
    run(python, "-m", "pytest", f"--junitxml={report}", *arguments)


def tests(python: Path) -> None:
    """All tests that need no browser; the docstrings' examples are among them."""
    pytest(python, "tests", "tests", "-m", "not browser", "--durations=8")


def fast_tests(python: Path) -> None:
    pytest(python, "fast", "tests", "-m", "not browser and not weights and not slow")


def nbval(python: Path, notebooks: list[Path]) -> None:
    """Re-execute notebooks and compare with what they store.

    Floats and reprs differ between systems, so elsewhere than on Linux only errors
    count.
    """
    mode = "--nbval" if sys.platform.startswith("linux") else "--nbval-lax"
    mask = "--nbval-sanitize-with=nbval.cfg"
    options = ("-p", "no:cacheprovider", "--durations=5")
    pytest(python, "nbval", mode, mask, *options, *notebooks)


def bench(python: Path) -> None:
    """All ways of each benchmark give the same numbers; small, so no goal is judged."""
    run(python, "-m", "deepdive", "bench", "--quick", "--rounds", "5")


def build(python: Path) -> None:
    """Build the site from the stored outputs; a warning is an error."""
    for path in chapters():
        if fault := unfit(json.loads(path.read_text(encoding="utf-8"))):
            raise Stop(
                f"book/{path.name}: {fault}. The site shows stored outputs, so the "
                "build stops here: run `make notebooks`, or mend the cell."
            )
    command = ("build", ".", "-W", "--keep-going", "--all")
    run(python, "-c", JUPYTER_BOOK, *command)
    if not (SITE / "index.html").exists():
        raise Stop("The build said nothing was wrong, but made no index.html.")


def unfit(notebook: dict) -> str:
    """Return why a notebook can't be published as it is stored; "" if it can."""
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code" or not "".join(cell["source"]).strip():
            continue
        if any(out["output_type"] == "error" for out in cell["outputs"]):
            return f"cell {number} stores an error"
        if cell.get("execution_count") is None:
            return f"cell {number} was never run"
    return ""


def browser(python: Path) -> None:
    pytest(python, "browser", "tests", "-m", "browser", "--durations=8")


# --- tasks ------------------------------------------------------------------------


def in_turn(*stages: tuple[str, Callable[[], None]]) -> None:
    """Run stages in order, stop at the first red one, and say what took how long."""
    shutil.rmtree(REPORTS, ignore_errors=True)
    times: list[tuple[str, float]] = []
    failed = ""
    for name, stage in stages:
        say(f"\n=== {name}")
        start = time.monotonic()
        try:
            stage()
        except Stop as stop:
            failed = f"RED at stage “{name}”. {stop}"
        times.append((name, time.monotonic() - start))
        if failed:
            break
    say("\n=== summary")
    for name, seconds in times:
        say(f"{name:14} {seconds:6.0f} s")
    passed, red, skipped = counts()
    say(f"total: {passed} passed, {red} failed, {skipped} skipped")
    if failed:
        raise Stop(failed)
    say("All green.")


def side_by_side(first: Callable[[], None], second: Callable[[], None]) -> None:
    """Run two stages at once, each on its core; what the second says comes at the end.

    The second runs to its end even if the first is red.
    """
    failed: list[Stop] = []
    REPORTS.mkdir(parents=True, exist_ok=True)
    words = REPORTS / "second.log"

    def aside() -> None:
        with words.open("w", encoding="utf-8") as heard.file:
            try:
                second()
            except Stop as stop:
                failed.append(stop)

    thread = threading.Thread(target=aside)
    thread.start()
    try:
        first()
    except Stop as stop:
        failed.insert(0, stop)
    thread.join()
    say(words.read_text(encoding="utf-8", errors="replace").rstrip())
    if failed:
        raise Stop(" ".join(map(str, failed)))


def counts() -> tuple[int, int, int]:
    """Add up the reports of all pytest runs: passed, failed, skipped."""
    total = collections.Counter()
    for report in REPORTS.glob("*.xml"):
        for suite in ElementTree.parse(report).iter("testsuite"):
            for key in ("tests", "failures", "errors", "skipped"):
                total[key] += int(suite.get(key, 0))
    red = total["failures"] + total["errors"]
    return total["tests"] - red - total["skipped"], red, total["skipped"]


def test(python: Path) -> None:
    in_turn(
        ("weights", lambda: weights(python)),
        ("lint", lambda: lint(python)),
        (
            "tests, nbval",
            lambda: side_by_side(
                lambda: tests(python), lambda: nbval(python, chapters())
            ),
        ),
        ("bench", lambda: bench(python)),
        ("site", lambda: build(python)),
        ("browser", lambda: browser(python)),
    )


def check(python: Path) -> None:
    in_turn(
        ("lint", lambda: lint(python)),
        ("fast tests", lambda: fast_tests(python)),
        ("one chapter", lambda: nbval(python, [ROOT / "book" / FIRST_CHAPTER])),
    )


def book(python: Path) -> None:
    build(python)
    serve(SITE)


def lab(python: Path) -> None:
    root = ("--allow-root",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    folder = f"--ServerApp.root_dir={ROOT}"
    # What this folder stores is ours: without trust, Lab shows figures as bare text.
    run(python, "-m", "jupyter", "trust", *(str(path) for path in chapters()))
    start = "--LabApp.default_url=/lab/tree/book"
    run(python, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", folder, start, *root)


def notebooks(python: Path) -> None:
    run(python, "tools/notebooks.py")


def weights(python: Path) -> None:
    run(python, "-m", "deepdive", "weights")


def audit(python: Path) -> None:
    if not (SITE / "index.html").exists():
        build(python)
    run(python, "tools/audit")


def clean(_python: Path | None = None) -> None:
    """Remove what was built and cached here; .venv and fetched weights stay."""
    caches = [".pytest_cache", ".ruff_cache", ".hypothesis", ".jupyter_cache"]
    gone = [BUILD, *(ROOT / name for name in caches)]
    for folder in ("book", "src", "tests", "tools", "."):
        for name in ("__pycache__", ".ipynb_checkpoints"):
            pattern = name if folder == "." else f"**/{name}"
            gone += (ROOT / folder).glob(pattern)
    for path in filter(Path.exists, gone):
        shutil.rmtree(path)
        say(f"removed {path.relative_to(ROOT)}")
    say("clean. The folder .venv stays; delete it by hand to install afresh.")


def serve(folder: Path, first: int = 8000) -> None:
    """Serve a folder on the first free port of this machine's own address."""
    for port in range(first, first + 100):
        try:
            server: Server = make_server(folder, port)
        except OSError:
            continue
        say(f"\nThe book is at http://127.0.0.1:{port}/   (Ctrl+C stops it)")
        with server:
            server.serve_forever()
        return
    raise Stop(f"Ports {first} to {first + 99} are all taken on this machine.")


TASKS: dict[str, tuple[Callable, str]] = {
    "book": (book, "install, build the site, serve it on this machine"),
    "site": (build, "build the site into _build/html without serving it"),
    "lab": (lab, "open the chapters in JupyterLab"),
    "test": (test, "run everything that CI runs"),
    "check": (check, "lint, fast tests and one chapter, in three minutes"),
    "lint": (lint, "check style and layout of the code"),
    "notebooks": (notebooks, "re-execute all chapters and store their outputs"),
    "weights": (weights, "fetch the weights of the real models (asks for network)"),
    "audit": (audit, "measure the built site in a browser"),
    "clean": (clean, "remove what was built; .venv stays"),
    "setup": (lambda python: None, "make .venv ready and nothing more"),
}


def main(argv: list[str]) -> int:
    """Run one task; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
    text = "\n".join(f"  {name:10} {what}" for name, (_, what) in TASKS.items())
    parser = argparse.ArgumentParser(
        prog="dev.py",
        description=f"tasks:\n{text}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=TASKS, metavar="task")
    parser.add_argument(
        "--cpu", action="store_true", help="on Linux: torch without CUDA (or CPU=1)"
    )
    parser.add_argument(
        "--here", action="store_true", help="use this Python as it is, not .venv"
    )
    chosen = parser.parse_args(argv)
    cpu = chosen.cpu or os.environ.get("CPU", "") not in ("", "0")
    task = TASKS[chosen.task][0]
    try:
        if task is clean:
            clean()
        else:
            task(Path(sys.executable) if chosen.here else setup(cpu))
    except Stop as stop:
        say(f"\n{stop}")
        return 1
    except KeyboardInterrupt:
        say("\nstopped.")
        return 130
    return 0
