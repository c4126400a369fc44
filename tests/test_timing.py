# SPDX-License-Identifier: MIT
"""Ratios are what they are called, wrong numbers stop a row, and limits take time."""

import json
import time

import pytest
import torch

from deepdive import products, timing
from deepdive.timing import Goal, Judged, Result, Row, measure


def busy(seconds, numbers=(1.0, 1.0)):
    """A call that keeps the processor busy for so long."""

    def call():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return torch.tensor(numbers)

    return call


def test_ratios_and_goals():
    row = Row(
        "work", "none", {"slow": busy(0.06), "fast": busy(0.02)},
        goals=(Goal("fast", "slow", 2.0), Goal("fast", "limit", 0.9, "why not")),
        limits={"limit": busy(0.01, (7.0,))},
    )  # fmt: skip
    found = measure(row, 5)
    slow, fast, limit = found.measured
    assert slow.ratio == slow.lowest == slow.highest == 1
    assert 2.5 < fast.ratio < 3.5 and 5 < limit.ratio < 7
    assert 50 < slow.milliseconds < 80
    twice, near = found.judged
    assert twice.verdict == "reached" and 2.5 < twice.ratio < 3.5
    assert near.verdict == "missed" and 0.4 < near.ratio < 0.6
    assert near.why == "why not"
    assert measure(row, 5, judge=False).judged == []
    kept = json.loads(json.dumps(found.as_dict()))
    assert kept["judged"][1]["verdict"] == "missed"
    assert Result.from_dict(kept) == found


@pytest.mark.parametrize(
    ("ratio", "highest", "verdict"),
    [(2.0, 2.0, "reached"), (1.9, 2.0, "within the spread"), (1.9, 1.99, "missed")],
)
def test_verdicts(ratio, highest, verdict):
    goal = Judged("a", "b", 2.0, "", ratio, 1.0, highest)
    assert goal.verdict == verdict
    result = Result("row", "sizes", [], [goal], {"c": "3 × b"})
    assert verdict in timing.table(result) and "c, 3 × b" in timing.table(result)


def test_a_ratio_is_made_round_by_round():
    # A machine that slows down as it goes changes both sides alike.
    assert timing.ratio([1.0, 2.0, 4.0], [0.5, 1.0, 2.0]) == (2.0, 2.0, 2.0)
    assert timing.ratio([1.0, 3.0, 8.0], [1.0, 1.0, 2.0]) == (3.0, 1.0, 4.0)


def test_other_numbers_stop_a_row():
    ways = {"a": lambda: torch.ones(2), "b": lambda: torch.ones(2)}
    row = Row("work", "none", ways)
    timing.check_same(row)
    for wrong in ([1.0, 1.01], [1.0, torch.nan], [1.0, 1.0, 1.0], [[1.0, 1.0]]):
        ways["b"] = lambda wrong=wrong: torch.tensor(wrong)
        with pytest.raises(ArithmeticError, match="b"):
            measure(row, 5)
    ways["b"] = lambda: torch.tensor([1.0, 1.01])
    with pytest.raises(ArithmeticError, match="b differs from a by 1"):
        timing.check_same(row)
    timing.check_same(row._replace(tolerance=0.02))


def test_a_goal_names_ways_that_are_there():
    row = Row("work", "none", {"a": torch.ones}, (Goal("a", "c", 1.0),))
    with pytest.raises(ValueError, match="work: no way 'c', only a"):
        measure(row, 5)


def test_limits_take_time_in_proportion():
    with timing.one_thread():
        times = [min(timing.seconds(timing.reading(n), 3) for _ in range(3))
                 for n in (2**26, 2**28)]  # fmt: skip
        assert 2.5 < times[1] / times[0] < 6
        times = [min(timing.seconds(timing.multiplying(f), 2) for _ in range(3))
                 for f in (2e9, 8e9)]  # fmt: skip
        assert 2.8 < times[1] / times[0] < 6
    assert timing.reading(400)() == 100


@pytest.mark.parametrize("flops", [2.0, 1e3, 1e6, 3.3e9])
def test_as_many_operations_as_asked_for(flops):
    from torch.utils.flop_counter import FlopCounterMode

    call = timing.multiplying(flops)
    kinds = {}
    if products.has_onednn():  # torch does not count it
        op = torch.ops.mkldnn._linear_pointwise
        kinds = {op: lambda x, W, *rest, **out: 2 * x[0] * x[1] * W[0]}
    with FlopCounterMode(display=False, custom_mapping=kinds) as counted:
        call()
    assert counted.get_total_flops() == pytest.approx(flops, rel=0.08)


@pytest.mark.parametrize("slow", ["mm", "onednn_linear"])
def test_the_faster_product_is_the_limit(monkeypatch, slow):
    called = []

    def product(name):
        def call(a, b, bias=None):
            called.append(name)
            if name == slow:
                sum(range(100_000))
            return a

        return call

    monkeypatch.setattr(torch, "mm", product("mm"))
    monkeypatch.setattr(products, "onednn_linear", product("onednn_linear"))
    monkeypatch.setattr(products, "has_onednn", lambda: True)
    call = timing.multiplying(1e6)
    assert set(called) == {"mm", "onednn_linear"}
    called.clear()
    call()
    assert called and slow not in called


def test_the_limit_needs_no_onednn(monkeypatch):
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    monkeypatch.setattr(products, "onednn_linear", None)
    timing.multiplying(1e4)()


def test_limits_refuse_nothing_to_do():
    for call in (timing.reading, timing.multiplying):
        with pytest.raises(ValueError, match="got 0"):
            call(0)


def test_one_thread_is_given_back():
    before = torch.get_num_threads()
    with timing.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_script_prints_tables_or_lines(capsys):
    about = "Work that is no work."
    made = (lambda: Row("half", "1 × 1", {"a": busy(0.01)}),)
    timing.main(about, made * 2, made, [])
    assert capsys.readouterr().out.count("half: 1 × 1") == 2
    timing.main(about, made * 2, made, ["--quick", "--lines", "--rounds", "5"])
    (line,) = capsys.readouterr().out.splitlines()
    assert Result.from_dict(json.loads(line)).row == "half"
    with pytest.raises(SystemExit):
        timing.main(about, made, made, ["--rounds", "4"])
    assert "at least 5, got 4" in capsys.readouterr().err
