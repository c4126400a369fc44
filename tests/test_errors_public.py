# SPDX-License-Identifier: MIT
"""Every argument of everything public, spoiled one by one: refused by name, or right.

The law: a call works and gives no NaN, or raises `ValueError` or `TypeError` whose
message has the argument's name or the offending value, shape, dtype or type. What works
although it was spoiled stands in accepted.json, so that a check that is lost is seen.
When a new leniency is meant: `python -m tests.test_errors_public` writes the file anew.
"""

import enum
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.public_calls import CALLS, EXCLUDED, excluded, public

# ── Is everything here? ──────────────────────────────────────────────────────────────


def test_everything_public_is_called_or_has_a_reason():
    called = {name.split(" ")[0] for name in CALLS}
    missing = [n for n in public() if n not in called and not excluded(n)]
    assert not missing, "give a good call in tests/public_calls.py"


def test_no_reason_is_left_over():
    names = list(public())
    for pattern in EXCLUDED:
        found = [name for name in names if excluded_by(name, pattern)]
        assert found, f"{pattern} excludes nothing"
        assert not set(found) & set(CALLS), f"{pattern} excludes what is called"


def excluded_by(name: str, pattern: str) -> bool:
    return bool(re.fullmatch(pattern.replace("*", ".*") + r"(\..*)?", name))


# ── Spoiled arguments ────────────────────────────────────────────────────────────────


class Thing:
    """An object of no use."""


def spoiled(value) -> Iterator[tuple[str, object]]:
    """Wrong, or at least other, values for one that is right, each with a label."""
    yield "a thing", Thing()
    if isinstance(value, Tensor):
        yield from spoiled_tensor(value)
    elif isinstance(value, bool):
        yield "None", None
    elif isinstance(value, int):
        yield from numbers(0, -1, 1.5, math.nan, math.inf, "3", None, [3], 7)
    elif isinstance(value, float):
        yield from numbers(math.nan, math.inf, -math.inf, -1.0, 0.0, 2, "x", None, [1])
    elif isinstance(value, (list, tuple)):
        yield from numbers(3, "x", None, [], [None], [-1], [1.5], [10**6], ["x"])
    elif value is None:
        yield from numbers(3.5, "x", [1])
    elif callable(value) and not isinstance(value, nn.Module):
        yield from numbers(None, 3, "x")
    else:
        yield from numbers(None, 3, "x", torch.zeros(2, 3))


def numbers(*values) -> Iterator[tuple[str, object]]:
    return (
        ("a tensor" if isinstance(value, Tensor) else repr(value), value)
        for value in values
    )


def spoiled_tensor(x: Tensor) -> Iterator[tuple[str, object]]:
    yield from numbers(None, 3, 2.5, "x", [[1.0]])
    yield "one axis more", x[None]
    yield "no axis", x.new_zeros(())
    if x.dim():
        yield "one axis fewer", x[0]
    for axis in range(x.dim()):
        yield f"axis {axis} longer", torch.cat([x, x.narrow(axis, 0, 1)], axis)
        yield f"axis {axis} empty", x.narrow(axis, 0, 0)
        if x.shape[axis] > 1:
            yield f"axis {axis} shorter", x.narrow(axis, 1, x.shape[axis] - 1)
    for dtype in (torch.int64, torch.bool, torch.cfloat, torch.half, torch.uint8):
        if dtype != x.dtype:
            yield str(dtype).removeprefix("torch."), x.to(dtype)
    if x.is_floating_point():
        yield (
            "float64" if x.dtype != torch.float64 else "float32",
            (x.double() if x.dtype != torch.float64 else x.float()),
        )
        yield "10⁴", x * 1e4
    else:
        yield "float32", x.float()
    if x.dtype == torch.int64 and x.numel():
        yield "−1", x - x.max() - 1
        yield "10⁶", x + 10**6


def nan(result) -> bool:
    """True when a tensor anywhere in a result holds a NaN."""
    if isinstance(result, Tensor):
        floats = result.is_floating_point() or result.is_complex()
        return bool(floats and result.isnan().any())
    if isinstance(result, dict):
        return any(map(nan, result.values()))
    if isinstance(result, (list, tuple)):
        return any(map(nan, result))
    if isinstance(result, float):
        return math.isnan(result)
    if hasattr(result, "__dict__") and not isinstance(result, (nn.Module, enum.Enum)):
        return any(map(nan, vars(result).values()))
    return False


def says(message: str, name: str, value, others: tuple[str, ...] = ()) -> bool:
    """Does the message name the argument, or say what was given?

    Args:
        others: the call's other arguments; where one is left out (None), it is one of
            them that no longer fits.
    """
    names = (name, *others) if value is None else (name,)
    if any(re.search(rf"\b{re.escape(name)}\b", message) for name in names):
        return True
    given = [type(value).__name__, *(["None"] if value is None else [])]
    if isinstance(value, Tensor):
        given += [str(tuple(value.shape)), str(value.dtype), *map(str, value.shape)]
        if value.numel() and not value.is_floating_point() and not value.is_complex():
            given += [str(int(value.max())), str(int(value.min()))]
    elif isinstance(value, (int, float, str, list, tuple)):
        given.append(repr(value))
        if isinstance(value, (list, tuple)):
            given += [part for one in value for part in (repr(one), type(one).__name__)]
        elif isinstance(value, (int, float)):
            given.append(repr(value - 1))  # ids below 7 lie in 0 … 6
    return any(part in message for part in given)


def outcome(name: str, argument: str, label: str) -> str | None:
    """None if it is refused as it should be; "works", or what went wrong."""
    function, arguments = CALLS[name]()
    value = dict(spoiled(arguments[argument]))[label]
    try:
        result = function(**arguments | {argument: value})
    except (ValueError, TypeError) as refusal:
        if says(str(refusal), argument, value, tuple(arguments)):
            return None
        return f"unclear: {type(refusal).__name__}: {refusal}"
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}"
    if nan(result) and not (isinstance(value, float) and math.isnan(value)):
        return "NaN"
    return "works"


@pytest.mark.parametrize("name", CALLS)
def test_a_good_call_works(name):
    function, arguments = CALLS[name]()
    assert not nan(function(**arguments))


FILE = Path(__file__).with_name("accepted.json")
ACCEPTED = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def verdicts(name: str) -> tuple[dict[str, list[str]], list[str]]:
    """Which spoiled arguments of a call work, and what goes wrong with which."""
    works, wrong = {}, []
    for argument, value in CALLS[name]()[1].items():
        for label, _ in spoiled(value):
            got = outcome(name, argument, label)
            if got == "works":
                works.setdefault(f"{name}: {argument}", []).append(label)
            elif got:
                wrong.append(f"{argument} = {label}: {got}")
    return works, wrong


@pytest.mark.parametrize("name", CALLS)
def test_a_spoiled_call_is_refused_or_right(name):
    works, wrong = verdicts(name)
    assert not wrong
    new = {
        key: sorted(set(labels) - set(ACCEPTED.get(key, ())))
        for key, labels in works.items()
    }
    assert not any(new.values()), {key: labels for key, labels in new.items() if labels}


def test_the_law_sees_what_breaks_it():
    """Each way to break the law, by a call that breaks it so."""
    broken = {
        "works": lambda n: n,
        "IndexError: ": lambda n: [][0],
        "unclear: ValueError: bad": lambda n: raised(ValueError("bad")),
        "NaN": lambda n: torch.tensor(math.nan),
    }
    for expected, function in broken.items():
        CALLS["broken"] = lambda function=function: (function, {"n": 1})
        try:
            assert outcome("broken", "n", "7").startswith(expected)
        finally:
            del CALLS["broken"]


def raised(error: Exception):
    raise error


def main() -> None:
    every = {key: labels for name in CALLS for key, labels in verdicts(name)[0].items()}
    text = json.dumps(every, indent=0, ensure_ascii=False, separators=(",", ": "))
    FILE.write_text(re.sub(r"\[[^]]*\]", one_line, text) + "\n", "utf-8")


def one_line(match: re.Match) -> str:
    return match[0].replace("\n", "").replace('","', '", "')


if __name__ == "__main__":
    main()
