# SPDX-License-Identifier: MIT
"""Do the stored costs speak of what there is: entrances, limits, chapters?"""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from deepdive.kernels import equation
from deepdive.roofline import Machine
from tools.environment import chapters

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Import a script of the folder, without running it."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def imported(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield imported
    sys.modules.pop("record", None)


def stored(name: str) -> dict:
    return json.loads((FOLDER / "results" / f"{name}.json").read_text("utf-8"))


# Start-up


def test_every_entrance_was_measured_and_is_quick(load):
    script, found = load("startup"), stored("startup")
    for part, programs in (
        ("without_torch", script.PLAIN),
        ("others", script.OTHERS),
        ("beyond_torch", script.BEYOND),
    ):
        assert {e["entrance"]: e["program"] for e in found[part]} == programs
    for line in found["without_torch"]:
        assert line["seconds"] <= found["goal"] == 0.2 and not line["torch"], line
    (itself,) = [e for e in found["beyond_torch"] if e["entrance"] == "deepdive"]
    assert itself["seconds"] <= 0.2


def test_a_start_says_what_it_took(load):
    script = load("startup")
    took = script.started(script.SAYS + "\nimport json.tool\nraise SystemExit")
    assert took["modules"] >= 1 and not took["torch"]
    assert 0 < took["own"] < took["cpu"] and took["wall"] > 0
    with pytest.raises(RuntimeError, match="no_such_module"):
        script.started("import no_such_module")


# The roofline


def test_every_kind_of_work_stands_below_the_limit():
    """A limit that work passes was measured wrong, or its bytes are miscounted."""
    found = stored("roofline")
    works = {(p["work"], p["way"]) for p in found["points"]}
    assert len(works) == 7 and len(found["points"]) == 22
    for line in found["points"]:
        assert line["intensity"] == pytest.approx(line["flops"] / line["bytes"], 1e-3)
        assert line["share_of_limit"]["median"] < 1.1, line


def test_a_point_is_held_to_the_limits_of_its_rounds(load):
    script = load("roofline")
    work = script.Work("a", "b", "c", None, flops=40, bytes=10)  # 4 FLOPs a byte
    tops = [Machine(100.0, 5.0), Machine(16.0, 5.0)]  # 20 and 16 FLOP/s are left
    found = script.point(work, [4.0, 5.0], tops)
    assert found["share_of_limit"] == {"median": 0.5, "lowest": 0.5, "highest": 0.5}
    assert found["intensity"] == 4.0


def test_the_bytes_of_operations_are_their_inputs_and_outputs(load):
    script = load("roofline")
    x = torch.zeros(3, 4, device="meta")
    assert script.bytes_of(lambda mask: x.T + 1) == 2 * 48  # a view costs nothing
    q, k, v = torch.zeros(3, 1, 2, 8, 4, device="meta")
    maps = script.bytes_of(lambda mask: equation(q, k, v)) - 5 * q.nbytes - v.nbytes
    assert maps == 4 * 2 * 8 * 8 * 4  # q is scaled first; then written, softmax, read


# The chapters


def test_every_chapter_was_measured_and_is_cheap():
    found = stored("chapters")
    for line in found["chapters"]:
        assert line["cpu_seconds"] <= 60 == found["goal"]["seconds"], line
        assert line["peak_megabytes"] <= 1500 == found["goal"]["peak_megabytes"], line
    names = {line["chapter"] for line in found["chapters"]}
    assert {path.stem for path in chapters() if path.stem[0].isdigit()} <= names


def test_a_chapter_is_measured_again_when_its_code_changes(load, tmp_path, monkeypatch):
    script = load("chapters")
    paths = [tmp_path / f"{name}.ipynb" for name in "ab"]

    def write(path, source, output="1"):
        cells = [
            {"cell_type": "markdown", "source": output},
            {"cell_type": "code", "source": [source], "outputs": [output]},
        ]
        path.write_text(json.dumps({"cells": cells}), encoding="utf-8")

    for path in paths:
        write(path, "x = 1")
    held = {path.stem: {"code": script.code(path)} for path in paths}
    assert script.wanted(paths, [], held) == []
    write(paths[0], "x = 1", output="2")
    assert script.wanted(paths, [], held) == []
    write(paths[0], "x = 2")
    assert script.wanted(paths, [], held) == paths[:1]
    assert script.wanted(paths, ["b"], held) == paths[1:]
    assert script.wanted(paths, [], {}) == paths
    with pytest.raises(SystemExit, match="no such chapter: c"):
        script.wanted(paths, ["c"], held)
    out = tmp_path / "out.json"
    script.keep(out, [{"chapter": "a", "code": "1"}])
    assert script.read(out) == {"a": {"chapter": "a", "code": "1"}}
    monkeypatch.setattr(script, "machine", lambda: {"torch": "0", "time": ""})
    assert script.read(out) == {}
