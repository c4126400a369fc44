# SPDX-License-Identifier: MIT
"""The checks of chapter 5, the block."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import layer_norm as normed

from deepdive.checks.base import Check, Wrong, random_tensors

_ROW = torch.tensor([1.0, 3.0, 3.0, 9.0], dtype=torch.float64)  # mean 4, variance 9
_OFF = float(_ROW[-1] - _ROW.mean())  # 5
_RMS = float(_ROW.square().mean().sqrt())  # 5

normed_entry = Check(
    right=_OFF / 3,
    praise="mean 4, distances −3 −1 −1 5, variance 36/4 = 9, and 5/√9.",
    wrong=[
        Wrong(_OFF / 12**0.5, "36 was divided by 3. LayerNorm divides by all four."),
        Wrong(_OFF / 9, "divide by the root of the variance, not by the variance."),
        Wrong(float(_ROW[-1]) / 3, "the mean was not subtracted on top."),
        Wrong(float(_ROW[-1]) / _RMS, "that is RMSNorm. LayerNorm subtracts the mean."),
        Wrong(
            _OFF / 6, "that divides by the root of a sum. Take the mean of 36 first."
        ),
        Wrong(_OFF, "that is the distance from the mean. Now divide by the spread."),
        Wrong(-1.0, "that is the first entry. The last one is asked."),
        Wrong(_OFF / _RMS, "the spread is taken around the mean, not around zero."),
    ],
    tolerance=5e-3,  # two decimals will do
)

_ATTENTION, _NETWORK, _NORMS = 4 * (512**2 + 512), 2 * 512 * 2048 + 2048 + 512, 4 * 512
_BLOCK = _ATTENTION + _NETWORK + _NORMS

block_parameters = Check(
    right=_BLOCK,
    praise="1,050,624 in attention, 2,099,712 in the network, 2,048 in the norms.",
    wrong=[
        Wrong(
            4 * 512**2 + 2 * 512 * 2048,
            "the matrices are all there. Biases and the norms' numbers are missing.",
        ),
        Wrong(
            _BLOCK - 2048,  # by chance both are 2,048 numbers
            "2,048 short: the norms' gains and biases, or attention's four biases.",
        ),
        Wrong(_BLOCK - 1024, "a block has two norms, and one was counted."),
        Wrong(
            _ATTENTION + 2 * 512 * 2048 + _NORMS,
            "the two maps of the network have biases too: 2048 and 512 numbers.",
        ),
        Wrong(
            _BLOCK - 512**2 - 512, "W_O, the fourth matrix of attention, is missing."
        ),
        Wrong(
            _BLOCK - 512 * 2048 - 512,
            "the network has two maps: up to 2048 and down to 512 again.",
        ),
        Wrong(
            8 * _ATTENTION + _NETWORK + _NORMS,
            "heads cut columns: eight of width 64 have the parameters of one of 512.",
        ),
    ],
)


def _norm(axes: tuple[int, ...], correction: int = 0, centre: bool = True) -> Callable:
    """LayerNorm with a choice of what is averaged."""

    def norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        mean = x.mean(axes, keepdim=True)
        variance = (x - mean).square().sum(axes, keepdim=True)
        count = math.prod(x.shape[axis] for axis in axes)
        off = x - mean if centre else x
        return off / (variance / (count - correction) + eps).sqrt() * gain + bias

    return norm


def _divided(divisor: Callable) -> Callable:
    """LayerNorm with another divisor, a function of the variance and eps."""

    def norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
        off = x - x.mean(-1, keepdim=True)
        variance = off.square().mean(-1, keepdim=True)
        return off / divisor(variance, eps) * gain + bias

    return norm


def _rms(x: Tensor, gain: Tensor, bias: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain + bias


layer_norm = Check(
    right=lambda x, gain, bias, eps: normed(x, gain.shape, gain, bias, eps),
    praise="the same numbers as torch's layer_norm.",
    cases=[
        (*random_tensors((2, 3, 4), (4,), (4,)), 0.1),
        (*random_tensors((3, 5, 6), (6,), (6,)), 1e-5),
    ],
    wrong=[
        Wrong(
            _norm((-1,), correction=1), "torch's x.var divides by d − 1. Divide by d."
        ),
        Wrong(_norm((1,)), "the mean runs over the words. Each word is normed alone."),
        Wrong(
            _norm((1, 2)),
            "the mean runs over the whole sentence. Each word is normed alone.",
        ),
        Wrong(_norm((0,)), "the mean runs over the batch: that is batch norm's axis."),
        Wrong(_rms, "that is RMSNorm with a bias. LayerNorm subtracts the mean."),
        Wrong(
            _norm((-1,), centre=False), "the mean is missing on top of the fraction."
        ),
        Wrong(
            _divided(lambda variance, eps: variance.sqrt() + eps),
            "eps is added to the variance, under the root.",
        ),
        Wrong(
            _divided(lambda variance, eps: variance.sqrt()),
            "eps is missing. A row of equal numbers would be divided by zero.",
        ),
        Wrong(
            _divided(lambda variance, eps: variance + eps),
            "divide by the root of the variance.",
        ),
        Wrong(
            lambda x, gain, bias, eps: normed(x, gain.shape, None, None, eps),
            "gain and bias are missing.",
        ),
        Wrong(
            lambda x, gain, bias, eps: normed(x, gain.shape, bias, gain, eps),
            "gain and bias are exchanged: the gain multiplies, the bias is added.",
        ),
    ],
)


class _Part:
    """A function with a name that a message can show."""

    def __init__(self, name: str, function: Callable[[Tensor], Tensor]):
        self.name, self.function = name, function

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def __repr__(self) -> str:
        return self.name


def _rms_alone(x: Tensor) -> Tensor:
    """RMSNorm without eps: it hears of a constant, and forgets a factor."""
    return x / x.square().mean(-1, keepdim=True).sqrt()


def _running(x: Tensor) -> Tensor:
    """A norm that looks back: each word by the spread of itself and those before."""
    seen = torch.arange(1, len(x) + 1, dtype=x.dtype)[:, None]
    square = x.square().mean(-1, keepdim=True).cumsum(0) / seen
    return x / (square + 1e-5).sqrt()


def _moved(change: Callable, turn: bool = False, keep: bool = False) -> Callable:
    """Row i, column j: 1 where output i moves when word j is changed so."""

    def table(norm: Callable, x: Tensor) -> Tensor:
        before, other, columns = norm(x), x.clone(), []
        for j in range(len(x)):
            other = other.clone() if keep else x.clone()
            other[j] = change(other[j])
            columns.append((norm(other) - before).abs().amax(-1) > 1e-9)
        return torch.stack(columns, 0 if turn else 1).double()

    return table


def _one_feature(row: Tensor) -> Tensor:
    return torch.cat([row[:1] + 1, row[1:]])


who_moves = Check(
    right=_moved(_one_feature),
    praise="LayerNorm alone gives the diagonal: no word hears of another.",
    cases=[
        (
            _Part("layer norm", lambda x: normed(x, x.shape[-1:], eps=0.0)),
            *random_tensors((4, 6)),
        ),
        (_Part("RMS norm", _rms_alone), *random_tensors((4, 6))),
        (_Part("a running norm", _running), *random_tensors((4, 6))),
        (
            _Part("a norm over the words", lambda x: normed(x.T, (len(x),)).T),
            *random_tensors((4, 6)),
        ),
    ],
    wrong=[
        Wrong(
            _moved(lambda row: row + 1),
            "a constant added to all features of a word leaves no trace in LayerNorm: "
            "it is the mean that is subtracted. Change one feature.",
        ),
        Wrong(
            _moved(lambda row: 2 * row),
            "a word times a number leaves no trace, eps aside: the size is divided "
            "out. Change one feature.",
        ),
        Wrong(
            _moved(_one_feature, keep=True),
            "the changes pile up. Change one word alone: begin from x each time.",
        ),
        Wrong(
            _moved(_one_feature, turn=True),
            "rows and columns are exchanged: row i is the output that moves.",
        ),
        Wrong(
            lambda norm, x: 1 - _moved(_one_feature)(norm, x),
            "the table is upside down: 1 means that the output moves.",
        ),
        Wrong(
            lambda norm, x: torch.eye(len(x), dtype=x.dtype),
            "true of LayerNorm. The table is to be measured, for any norm.",
        ),
    ],
)

_PARTS = (
    _Part("attention", lambda x: x.cumsum(0).tanh()),
    _Part("feedforward", lambda x: (x * 2 + 1).relu() - x),
    _Part("norm 1", lambda x: normed(x, x.shape[-1:]) * 1.5),
    _Part("norm 2", lambda x: normed(x, x.shape[-1:]) * 0.5 + 0.25),
)


def _pre(x, attention, feedforward, norm1, norm2):
    x = x + attention(norm1(x))
    return x + feedforward(norm2(x))


def _post(x, attention, feedforward, norm1, norm2):
    x = norm1(x + attention(x))
    return norm2(x + feedforward(x))


def _normed_stream(x, attention, feedforward, norm1, norm2):
    x = norm1(x)
    x = norm2(x + attention(x))
    return x + feedforward(x)


def _normed_outputs(x, attention, feedforward, norm1, norm2):
    x = x + norm1(attention(x))
    return x + norm2(feedforward(x))


pre_norm_block = Check(
    right=_pre,
    praise="the same numbers as two calls of deepdive.blocks.pre_norm.",
    cases=[
        (*random_tensors((3, 4)), *_PARTS),
        (*random_tensors((5, 6)), *_PARTS),
    ],
    wrong=[
        Wrong(_post, "that is post-norm: the norms stand on the stream."),
        Wrong(_normed_stream, "the stream itself was normed. Norm a copy of it."),
        Wrong(_normed_outputs, "the sublayers' outputs are normed, not their inputs."),
        Wrong(
            lambda x, a, f, n, m: f(m(a(n(x)))),
            "the residuals are missing: add what went in.",
        ),
        Wrong(
            lambda x, a, f, n, m: x + f(m(x + a(n(x)))),
            "the second sum adds the block's input. Add what the first sum gave.",
        ),
        Wrong(
            lambda x, a, f, n, m: x + a(n(x)) + f(m(x)),
            "the network reads the block's input. It is to read the first sum.",
        ),
        Wrong(
            lambda x, a, f, n, m: _pre(x, a, f, n, n),
            "each sublayer has a norm of its own.",
        ),
        Wrong(
            lambda x, a, f, n, m: m(_pre(x, a, f, n, m)),
            "one norm too many: the final norm stands after the last block only.",
        ),
    ],
)
