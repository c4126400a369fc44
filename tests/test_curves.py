# SPDX-License-Identifier: MIT
"""The cost curves: what is measured and predicted, and how the file is kept."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from deepdive.memory import peak_memory

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def curves(monkeypatch):
    """The script, without its main."""
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("curves", FOLDER / "curves.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("record", None)


@pytest.fixture
def squares(curves, monkeypatch):
    """A curve whose work holds n² numbers, and whose predictions are exact powers."""

    def points():
        for n in (10, 20, 40):
            predicted = {"operations": n**3, "bytes": 4 * n**2}
            yield curves.Point("one", n, lambda n=n: torch.zeros(n, n), predicted)
            yield curves.Point("two", n, lambda n=n: torch.zeros(n), {"operations": n})

    monkeypatch.setattr(curves, "LEAST", 1e-4)
    made = {"squares": curves.Curve("n", "zeros", points), "other": None}
    monkeypatch.setattr(curves, "CURVES", made)
    return curves


def test_each_point_is_measured_and_each_way_fitted(squares):
    drawn = squares.drawn("squares", rounds=3, made_by="the command")
    one = [point for point in drawn["points"] if point["way"] == "one"]
    assert [point["size"] for point in one] == [10, 20, 40]
    assert [point["peak_bytes"] for point in one] == [400, 1600, 6400]
    assert all(0 < p["lowest"] <= p["median"] <= p["highest"] for p in one)
    first, second = drawn["fits"]
    assert first["memory"] == {"exponent": 2.0, "error": 0.0}
    assert first["predicted"] == {"operations": 3.0, "bytes": 2.0}
    assert second["memory"] == {"exponent": 1.0, "error": 0.0}
    assert second["predicted"] == {"operations": 1.0}
    assert set(first["time"]) == {"exponent", "error"}
    assert drawn["command"] == "the command" and drawn["machine"]["threads"] == 1


def test_a_curve_is_put_beside_those_that_stand(squares, tmp_path):
    out = tmp_path / "a.json"
    squares.keep(out, "other", {"old": 1})
    squares.keep(out, "squares", {"new": 2})
    squares.keep(out, "squares", {"new": 3})
    held = json.loads(out.read_text(encoding="utf-8"))
    assert list(held["curves"].items()) == [
        ("squares", {"new": 3}),
        ("other", {"old": 1}),
    ]


def test_the_command_line_measures_what_it_names(
    squares, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "a.json"
    words = ["curves.py", "--curves", "squares", "--rounds", "3", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    squares.main()
    held = json.loads(out.read_text(encoding="utf-8"))
    assert list(held["curves"]) == ["squares"]
    assert held["curves"]["squares"]["command"] == (
        "OMP_NUM_THREADS=1 python benchmarks/curves.py --rounds 3 --curves squares"
    )
    assert capsys.readouterr().out.count('squares {"way"') == 2
    monkeypatch.setattr(sys, "argv", ["curves.py", "--curves", "circles"])
    with pytest.raises(SystemExit):
        squares.main()
    assert "invalid choice: 'circles'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["layers", "batch", "experts", "visited"])
def test_a_smallest_point_of_each_kind_runs(curves, name):
    """Forward and backward, and no gradient is left behind."""
    forward, both = (p for _, p in zip(range(2), curves.CURVES[name].points()))  # noqa: B905
    assert forward.call().shape[-1] == 256 and both.call() is None
    assert both.predicted["operations"] == 3 * forward.predicted["operations"]


def test_every_decoding_step_stands_behind_as_many_tokens(curves):
    point = next(curves.decoding())
    point.call(), point.call()
    caches = point.call.__closure__[0].cell_contents
    assert caches.seen == point.size == 512


def test_what_experts_cost_is_what_is_visited(curves):
    """At a fixed K hardly more with E; at a fixed E more with K, and less than K."""
    fixed = {
        name: [p.predicted["operations"] for p in curves.CURVES[name].points()][::2]
        for name in ("experts", "visited")
    }
    assert 1 < fixed["experts"][-1] / fixed["experts"][0] < 1.1
    assert 2 < fixed["visited"][-1] / fixed["visited"][0] < 8


def test_the_memory_of_attention_is_as_predicted(curves):
    for point in curves.attention():
        if point.size <= 1024:
            measured = peak_memory(point.call)
            assert abs(measured / point.predicted["memory"] - 1) < 0.02


RESULT = FOLDER / "results" / "curves.json"
HELD = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}


@pytest.mark.parametrize("name", HELD.get("curves", {}))
def test_what_is_kept_is_what_the_script_would_predict_and_fit(curves, name):
    kept, curve = HELD["curves"][name], curves.CURVES[name]
    points = list(curve.points())
    assert kept["against"] == curve.against and kept["what"] == curve.what
    now = [(p.way, p.size, p.predicted) for p in points]
    assert now == [(p["way"], p["size"], p["predicted"]) for p in kept["points"]]
    assert kept["fits"] == curves.fits(kept["points"])
