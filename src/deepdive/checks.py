# SPDX-License-Identifier: MIT
"""Is the exercise solved? One check each, with a hint for every known wrong answer.

A check is a function of the answer: `checks.attention(my_attention)`. It depends on
nothing else in the notebook, neither on cell names nor on their order.
"""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from deepdive import trace
from deepdive.attention import merge_heads, split_heads
from deepdive.kernels import equation
from deepdive.masks import Causal


@dataclass(frozen=True)
class Verdict:
    """The result of a check: true or false, with one sentence that helps."""

    right: bool
    message: str

    def __bool__(self) -> bool:
        return self.right

    def __repr__(self) -> str:
        return f"{'Right' if self.right else 'Not yet'}: {self.message}"

    def _repr_html_(self) -> str:
        kind, word = ("right", "✓ Right") if self.right else ("notyet", "Not yet")
        return (
            f'<p class="dd-verdict dd-{kind}"><strong>{word}.</strong> '
            f"{html.escape(self.message)}</p>"
        )


@dataclass(frozen=True)
class Wrong:
    """A known wrong answer, a value or a function, and the hint that mends it."""

    answer: Any
    hint: str


@dataclass(frozen=True)
class Check:
    """Compare an answer with the right one, then with each known wrong one.

    Args:
        right: a number, or a function when the exercise asks for one.
        cases: argument tuples to try a function on.
        tolerance: how far a number may be off.
    """

    right: Any
    praise: str
    wrong: Sequence[Wrong] = field(default_factory=tuple)
    cases: Sequence[tuple] = field(default_factory=tuple)
    tolerance: float = 5e-4

    def __call__(self, answer) -> Verdict:
        if answer is None or answer is Ellipsis:
            return Verdict(False, "no answer yet. Replace the dots, then run the cell.")
        return self._function(answer) if callable(self.right) else self._value(answer)

    def _value(self, answer) -> Verdict:
        try:
            number = float(answer)
        except Exception:  # a tensor, an array, a huge integer: each has its own error
            return Verdict(False, f"a number is expected, got {answer!r}.")
        if abs(number - self.right) <= self.tolerance:
            return Verdict(True, self.praise)
        for wrong in self.wrong:
            if abs(number - wrong.answer) <= self.tolerance:
                return Verdict(False, wrong.hint)
        if abs(number - self.right) <= 0.01 * abs(self.right):
            return Verdict(False, "close. Carry three decimals through to the end.")
        return Verdict(
            False, f"{number:g} is not it. Write down each step and compare."
        )

    def _function(self, answer: Callable) -> Verdict:
        if not callable(answer):
            return Verdict(False, f"a function is expected, got {answer!r}.")
        for case in self.cases:
            expected = self.right(*case)
            got = _call(answer, case)
            if got is None or got is Ellipsis:
                return Verdict(False, "the function returns nothing yet.")
            if isinstance(got, Exception):
                return Verdict(False, _stopped(got, case))
            if not _same(got, expected):
                return self._hint(answer, expected, got)
        return Verdict(True, self.praise)

    def _hint(self, answer: Callable, expected: Tensor, got) -> Verdict:
        for wrong in self.wrong:
            if all(
                _alike(_call(answer, c), _call(wrong.answer, c)) for c in self.cases
            ):
                return Verdict(False, wrong.hint)
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        if shape != tuple(expected.shape):
            return Verdict(
                False, f"expected shape {tuple(expected.shape)}, got {shape}."
            )
        return Verdict(False, _first_difference(got, expected))


def _first_difference(got: Tensor, expected: Tensor) -> str:
    """Name the first row that is off, and show both, to three decimals."""
    if got.isnan().any():
        return "NaN appears. 0 · (−∞) is NaN: use masked_fill to write −∞."
    ours, right = (x.double().reshape(-1, x.shape[-1]) for x in (got, expected))
    row = int((ours - right).abs().amax(-1).gt(1e-6).nonzero()[0])
    return (
        f"the shape is right, the numbers are not. Compare row {row + 1}: yours is "
        f"{_row(ours[row])}, it should be {_row(right[row])}."
    )


def _row(x: Tensor) -> str:
    """One row of numbers, to three decimals."""
    return f"({', '.join(f'{float(v):.3f}' for v in x)})"


def _stopped(error: Exception, case: tuple) -> str:
    """What the function stopped with, in one line, and what it was given."""
    first_line = str(error).strip().split("\n")[0]
    given = [tuple(x.shape) if isinstance(x, Tensor) else x for x in case]
    return (
        f"it stops with {type(error).__name__}: {first_line} "
        f"It was given {', '.join(map(str, given))}."
    )


def _call(function: Callable, case: tuple):
    """The function's result, or the exception it raised; arguments are copies."""
    try:
        return function(*(x.clone() if isinstance(x, Tensor) else x for x in case))
    except Exception as error:
        return error


def _same(a, b) -> bool:
    """Equal as tensors, to 1e-6, with NaN nowhere."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    return torch.allclose(a.double(), b.double(), rtol=0, atol=1e-6)


def _alike(a, b) -> bool:
    """The same mistake, whether or not NaN was painted over with zeros."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor)
    return both and _same(a.nan_to_num(), b.nan_to_num())


def _random(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Seeded float64 tensors for the cases."""
    generator = torch.Generator().manual_seed(2017)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )


# ── Chapter 2 ────────────────────────────────────────────────────────────────────────

_K = trace.attention()["K"]
_SCORES = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64) @ _K.T  # 0, 2, 1


def _weight(scores: Tensor, key: int) -> float:
    return float(scores.softmax(0)[key])


_V = trace.attention()["V"]


def _mix(scores: Tensor, values: Tensor = _V) -> float:
    """First entry of the output for these scores."""
    return float(scores.softmax(0) @ values[:, 0])


new_query = Check(
    right=_mix(_SCORES / 2),
    praise="weights 0.186, 0.506, 0.307 on the values 0.5, 1 and 0.5.",
    tolerance=1e-3,  # three decimals carried by hand end at 0.7525
    wrong=[
        Wrong(_mix(_SCORES), "the scores were not divided by √d_k = 2."),
        Wrong(_mix(_SCORES / 4), "divide by the square root of 4, not by 4."),
        Wrong(
            _weight(_SCORES / 2, 1),
            "that is the weight of chase. Use all three weights to mix the values.",
        ),
        Wrong(
            _mix(_SCORES / 2, _K),
            "the keys were mixed. Keys are compared with; the values are mixed.",
        ),
        Wrong(
            _mix(_SCORES / 2, trace.CATS.X),
            "the rows of X were mixed. The values V are what is mixed.",
        ),
        Wrong(
            float(_SCORES / 2 @ _V[:, 0]),
            "the scores were used as weights. The softmax comes first.",
        ),
    ],
)

_CHASE = trace.attention()["Q"][1]

shifted_keys = Check(
    right=_weight(_CHASE @ _K.T / 2, 0),
    praise="a row's scores all grow by the same q·c; softmax sees differences only.",
    wrong=[
        Wrong(
            _weight(_CHASE @ (_K + 1).T, 0),
            "the shift is harmless, but the division by √d_k = 2 is missing.",
        ),
        Wrong(
            _weight((_CHASE @ _K.T + torch.tensor([2.0, 0, 0])) / 2, 0),
            "the vector is added to all three keys, not to that of cats alone.",
        ),
        Wrong(1 / 3, "the three scores stay different. By how much does each grow?"),
        Wrong(
            _weight(_CHASE @ _K.T / 2, 1),
            "that is the weight of chase on itself. The one on cats is asked.",
        ),
    ],
)


def _scaled(factor: float, axis: int = -1, mix_keys: bool = False) -> Callable:
    """Attention on (T, D) matrices with a chosen scale, softmax axis and mixture."""

    def attention(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
        weights = (Q @ K.T * Q.shape[-1] ** factor).softmax(axis)
        return weights @ (K if mix_keys else V)

    return attention


attention = Check(
    right=lambda Q, K, V: equation(Q[None, None], K[None, None], V[None, None])[0, 0],
    praise="the same numbers as deepdive.kernels.equation.",
    cases=[_random((3, 4), (3, 4), (3, 4)), _random((2, 9), (5, 9), (5, 9))],
    wrong=[
        Wrong(_scaled(0.0), "the scores are not divided by √d_k."),
        Wrong(
            _scaled(-1.0), "divide by the square root of the width, not by the width."
        ),
        Wrong(
            _scaled(-0.5, axis=0),
            "the softmax runs down the columns. Each query's row must sum to 1.",
        ),
        Wrong(
            _scaled(-0.5, mix_keys=True),
            "the keys are mixed. Keys are compared with; the values are what is mixed.",
        ),
        Wrong(
            lambda Q, K, V: (Q @ K.T / len(Q) ** 0.5).softmax(-1) @ V,
            "the divisor is the root of the number of queries. It is the width's root.",
        ),
        Wrong(
            lambda Q, K, V: (Q @ K.T / len(K) ** 0.5).softmax(-1) @ V,
            "the divisor is the root of the number of keys. It is the width's root.",
        ),
        Wrong(
            lambda Q, K, V: (Q @ K.T / 2).softmax(-1) @ V,
            "√d_k is 2 for a width of 4 only. Take the width from the matrices.",
        ),
        Wrong(
            lambda Q, K, V: (
                (Q @ K.T / Q.shape[-1] ** 0.5).flatten().softmax(0).view(len(Q), -1) @ V
            ),
            "one softmax over the whole table. Each row needs its own: dim=-1.",
        ),
        Wrong(
            lambda Q, K, V: Q @ K.T / Q.shape[-1] ** 0.5 @ V,
            "the scores mix the values. The softmax comes first.",
        ),
    ],
)


def _blocked(where: Callable[[Tensor], Tensor]) -> Callable:
    """Softmax of the scores after −∞ was written where `where(allowed)` is True."""

    def weights(scores: Tensor) -> Tensor:
        allowed = Causal().tensor(*scores.shape)
        return scores.masked_fill(where(allowed), -torch.inf).softmax(-1)

    return weights


causal_weights = Check(
    right=_blocked(lambda allowed: ~allowed),
    praise="each row sums to 1 and sees no future.",
    cases=[_random((3, 3)), _random((5, 5))],
    wrong=[
        Wrong(
            lambda s: s.softmax(-1).tril(),
            "blocking after the softmax leaves rows that sum to less than 1.",
        ),
        Wrong(
            lambda s: s.masked_fill(~Causal().tensor(*s.shape), -torch.inf),
            "the future is blocked. The softmax is still to come.",
        ),
        Wrong(
            lambda s: s.tril().softmax(-1),
            "a blocked score of 0 still has e⁰ = 1 in the softmax. It must be −∞.",
        ),
        Wrong(
            _blocked(lambda allowed: ~allowed.T),
            "the mask is upside down: word t may look at words up to t.",
        ),
        Wrong(
            _blocked(lambda allowed: allowed),
            "the mask is upside down: True means “may look” in this book.",
        ),
        Wrong(
            _blocked(lambda allowed: ~allowed.tril(-1)),
            "a word may look at itself: the diagonal is allowed.",
        ),
    ],
)

# ── Chapter 3 ────────────────────────────────────────────────────────────────────────

_CATS = trace.attention()
_HEAD3 = _CATS["Q"][0, 2] * _CATS["K"][:, 2]  # width 1: a score is one product

four_heads = Check(
    right=_weight(_HEAD3, 2),
    praise="with width 1 the scale is 1/√1: scores 0, 1, 1 and weight e / (1 + 2e).",
    wrong=[
        Wrong(
            _weight(_HEAD3 / 2, 2),
            "that divides by √4. The scale follows the head's width, here 1.",
        ),
        Wrong(
            _weight(_HEAD3 / 2**0.5, 2),
            "that divides by √2. Four heads on width 4 have width 1 each.",
        ),
        Wrong(1.0, "that is the score. The softmax is still to come."),
        Wrong(0.5, "the score of 0 counts too: e⁰ = 1."),
        Wrong(_weight(_HEAD3, 0), "that is the weight of cats. Mice is asked."),
        Wrong(
            _weight(_CATS["Q"][0, 3] * _CATS["K"][:, 3], 2),
            "that is head 4. Heads are counted from 1 in the text: head 3 is column 2.",
        ),
    ],
)

t5_parameters = Check(
    right=4 * 1024 * 128 * 128,
    praise="four matrices of 1,024 × 16,384: sixteen times 4 · 1,024².",
    tolerance=0.5,
    wrong=[
        Wrong(4 * 1024**2, "128 heads of width 128 make 16,384 columns, not 1,024."),
        Wrong(3 * 1024 * 128 * 128, "W_O counts too: 16,384 × 1,024 once more."),
        Wrong(1024 * 128 * 128, "that is one matrix. There are four."),
        Wrong(4 * 1024 * 128, "that is one head. There are 128."),
    ],
)

split = Check(
    right=lambda x, n_heads: split_heads(x, n_heads),
    praise="each head has its own columns, for every word.",
    cases=[(*_random((2, 3, 12)), 4), (*_random((1, 5, 12)), 3)],
    wrong=[
        Wrong(
            lambda x, h: x.reshape(x.shape[0], h, x.shape[1], -1),
            "the shape is right but words are cut up: split the last axis first, then "
            "exchange the axes of words and heads.",
        ),
        Wrong(
            lambda x, h: x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2),
            "each head takes every H-th column; it should take neighbouring columns.",
        ),
        Wrong(
            lambda x, h: x.unflatten(-1, (h, -1)),
            "the axes are (B, T, H, D). Exchange words and heads: (B, H, T, D).",
        ),
    ],
)


def _summed(
    heads: Tensor, W_O: Tensor, rows: bool = True, mean: bool = False
) -> Tensor:
    """Σ over heads of head · (its part of W_O); the flags make the known mistakes."""
    H, _, D = heads.shape
    parts = [slice(h * D, (h + 1) * D) for h in range(H)]
    blocks = [W_O[p] if rows else W_O[:, p].T for p in parts]
    out = torch.stack([heads[h] @ blocks[h] for h in range(H)])
    return out.mean(0) if mean else out.sum(0)


sum_of_heads = Check(
    right=lambda heads, W_O: merge_heads(heads[None])[0] @ W_O,
    praise="the same numbers. Did you manage without concatenating?",
    cases=[_random((2, 3, 2), (4, 4)), _random((3, 2, 4), (12, 12))],
    wrong=[
        Wrong(
            lambda heads, W: _summed(heads, W, rows=False),
            "head h meets rows h·D … (h+1)·D − 1 of W_O, not its columns.",
        ),
        Wrong(
            lambda heads, W: _summed(heads, W, mean=True),
            "add the heads' contributions; do not average them.",
        ),
        Wrong(
            lambda heads, W: heads.reshape(heads.shape[1], -1) @ W,
            "a reshape alone mixes words. Exchange the axes of heads and words first.",
        ),
    ],
)

ALL = {
    name: check for name, check in list(globals().items()) if isinstance(check, Check)
}
__all__ = ["ALL", *ALL, "Check", "Verdict", "Wrong"]
