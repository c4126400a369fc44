# SPDX-License-Identifier: MIT
"""Do the files that set the project up agree with each other?"""

import re
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from tools import stages

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?:;.*)?$", re.M)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pins(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for package, version in PIN.findall(read(name)):
        found.setdefault(re.sub(r"[-_.]+", "-", package).lower(), set()).add(version)
    return found


def test_requirements_are_exact_and_end_with_this_package() -> None:
    lines = [line for line in read("requirements.txt").splitlines() if line.strip()]
    wanted = [line for line in lines if not line.startswith("#")]
    assert wanted[-1] == "-e ."
    assert all(PIN.fullmatch(line) for line in wanted[:-1])


def test_constraints_hold_every_requirement_and_no_path() -> None:
    locked = pins("constraints.txt")
    for package, versions in pins("requirements.txt").items():
        assert versions <= locked.get(package, set()), package
    assert not re.search(
        r"@|://|\+cpu|^-e", re.sub("(?m)^#.*", "", read("constraints.txt"))
    )


def test_the_same_versions_are_named_everywhere() -> None:
    wanted = pins("requirements.txt")
    assert f"torch=={min(wanted['torch'])}" in read("README.md")
    hooks = re.findall(r"([\w-]+)==([\d.]+)", read(".pre-commit-config.yaml"))
    assert hooks
    assert all(version in wanted[package] for package, version in hooks)


def faults_of_links(text: str, folder: Path) -> list[str]:
    """Links of a Markdown text that lead to no file beside it, or to no heading."""
    titles = re.findall(r"(?m)^#+ (.*)$", text)
    headings = {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}
    faults = []
    for link in re.findall(r"\]\(<?([^)\s>]+)", text):
        path, _, heading = link.partition("#")
        if re.match(r"\w+:", link):  # on the web, or a mail
            continue
        if (path and not (folder / unquote(path)).exists()) or (
            not path and heading not in headings
        ):
            faults.append(link)
    return faults


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").touch()
    text = (
        "# Two words\n[a](there.md) [b](there.md#x) [c](#two-words) [d](https://a.b/c)"
        "\n![e](gone.svg) [`f`](src/gone.py) [g](#three)\n"
    )
    assert faults_of_links(text, tmp_path) == ["gone.svg", "src/gone.py", "#three"]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name: str) -> None:
    assert faults_of_links(read(name), ROOT) == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_column_has_a_heading(name: str) -> None:
    heads = re.findall(r"(?m)^\|(.*)\|\n\|[-:| ]+\|$", read(name))
    assert all(cell.strip() for head in heads for cell in head.split("|"))


def test_make_knows_every_task() -> None:
    listed = re.search(r"^TASKS := (.*)$", read("Makefile"), re.M)[1].split()
    assert set(listed) == set(stages.TASKS)
    said = read("README.md") + read("CONTRIBUTING.md") + read(".ci/run")
    for name in re.findall(r"(?m)(?:^|`|\" )make ([a-z]+)", said):
        assert name in stages.TASKS, name


def test_the_workflow_runs_what_exists() -> None:
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    for uses in (step["uses"] for step in steps if "uses" in step):
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", uses), uses
    commands = " ".join(step.get("run", "") for step in steps)
    for task in re.findall(r"tools/dev\.py (?:--here )?(\w+)", commands):
        assert task in stages.TASKS
    matrix = jobs["test"]["strategy"]["matrix"]
    assert len(matrix["os"]) == 3
    assert matrix["python"] == ["3.11", "3.13"]


def test_a_taken_port_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages.Server, "serve_forever", lambda self: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        stages.serve(tmp_path, first=port)
    said = capsys.readouterr().out
    assert "http://127.0.0.1:" in said
    assert f":{port}/" not in said


def test_what_is_told_of_an_installation() -> None:
    told = stages.worth_telling
    assert told("Collecting numpy==2.4.6") == ""
    assert told("  Downloading torch-2.13.0.whl (190 MB)").startswith(
        "Downloading torch"
    )
    assert "2 packages" in told("Installing collected packages: numpy, torch")
    assert "1 package" in told("Successfully installed numpy-2.4.6")


def test_nothing_is_silent_for_long(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that aren't shown must not count as a sign of life."""
    monkeypatch.setattr(stages, "QUIET_SECONDS", 0.5)
    line = "print('Collecting', i, flush=True); time.sleep(0.3)"
    code = f"import time\nfor i in range(8): {line}"
    stages.run_long("waiting", sys.executable, "-c", code)
    assert capsys.readouterr().out.count("… waiting") >= 2


def test_a_failure_shows_its_end(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(stages.Stop, match="exit 3"):
        code = "print('the reason'); raise SystemExit(3)"
        stages.run_long("failing", sys.executable, "-c", code)
    assert "the reason" in capsys.readouterr().out


@pytest.mark.parametrize("stored", ["error", "unrun", "fine"])
def test_what_the_build_refuses(stored: str) -> None:
    outputs = [{"output_type": "error"}] if stored == "error" else []
    count = None if stored == "unrun" else 1
    cell = {"cell_type": "code", "source": ["x"], "outputs": outputs}
    said = stages.unfit({"cells": [cell | {"execution_count": count}]})
    assert bool(said) == (stored != "fine")


def test_an_old_python_is_told_in_one_line() -> None:
    code = (
        "import runpy, sys; sys.version_info = (3, 8, 18, 'final', 0); "
        "runpy.run_path('tools/dev.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "needs Python 3.11 or newer, and this is Python 3.8" in done.stderr


def test_two_stages_side_by_side(monkeypatch, tmp_path, capfd) -> None:
    """Both run at once; the second's words come last; a red one makes the pair red."""
    monkeypatch.setattr(stages, "REPORTS", tmp_path)
    python = sys.executable

    def wait_for(name: str, other: str) -> None:
        # Ends only when the other has begun as well.
        code = (
            "import pathlib, sys, time\n"
            f"here = pathlib.Path({str(tmp_path)!r})\n"
            f"(here / '{name}').touch()\n"
            "end = time.monotonic() + 30\n"
            f"while not (here / '{other}').exists() and time.monotonic() < end:\n"
            "    time.sleep(0.01)\n"
            f"print('{name} says')\n"
            f"sys.exit(not (here / '{other}').exists())"
        )
        stages.run(python, "-c", code)

    stages.side_by_side(lambda: wait_for("a", "b"), lambda: wait_for("b", "a"))
    said = capfd.readouterr().out
    assert said.index("a says") < said.index("b says")

    def red() -> None:
        stages.run(python, "-c", "import sys; print('red'); sys.exit(3)")

    for pair in ((red, lambda: None), (lambda: None, red)):
        with pytest.raises(stages.Stop, match="exit 3"):
            stages.side_by_side(*pair)
        assert "red" in capfd.readouterr().out
