# SPDX-License-Identifier: MIT
"""The checks of chapter 2, attention by hand."""

from collections.abc import Callable

import torch
from torch import Tensor

from deepdive import trace
from deepdive.checks.base import Check, Wrong, random_tensors
from deepdive.kernels import equation
from deepdive.masks import Causal

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
    cases=[
        random_tensors((3, 4), (3, 4), (3, 4)),
        random_tensors((2, 9), (5, 9), (5, 9)),
    ],
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
    cases=[random_tensors((3, 3)), random_tensors((5, 5))],
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
