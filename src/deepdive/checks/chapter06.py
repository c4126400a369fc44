# SPDX-License-Identifier: MIT
"""The checks of chapter 6, the 2017 Transformer."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from deepdive import trace
from deepdive.checks.base import Check, Wrong, random_tensors
from deepdive.objectives.shifts import seq2seq_shift

_CATS = trace.attention()
_QUERY = torch.tensor([1.0, 1, 0, 1], dtype=torch.float64)


def _read(values: Tensor, divide: float = 2.0, seen: int = 3) -> float:
    """The first entry of what a query takes from the English words."""
    weights = (_QUERY @ _CATS["K"][:seen].T / divide).softmax(0)
    return float(weights @ values[:seen, 0])


third_word = Check(
    right=_read(_CATS["V"]),
    praise="scores 1.5, 0.8, 1 after the division, weights 0.475, 0.236, 0.288.",
    wrong=[
        Wrong(
            _read(_CATS["V"], divide=1.0),
            "the scores were not divided by √d_k = 2.",
        ),
        Wrong(
            _read(_CATS["K"]),
            "keys were mixed. Keys decide how much, values are what is mixed.",
        ),
        Wrong(
            _read(_CATS["X"]),
            "rows of X were mixed. The memory goes through W_V first.",
        ),
        Wrong(
            _read(_CATS["V"], seen=1),
            "only cats was seen. The causal mask is for the decoder's own words; the "
            "source is there from the start.",
        ),
        Wrong(
            float((_QUERY @ _CATS["K"].T / 2).softmax(0)[0]),
            "that is the weight of cats. Mix the values with all three weights.",
        ),
        Wrong(
            float(_QUERY @ _CATS["K"].T / 2 @ _CATS["V"][:, 0]),
            "the scores were used as weights. The softmax comes first.",
        ),
    ],
)

_ATTENTION = 4 * 512 * 512 + 4 * 512
_NETWORK = 2 * 512 * 2048 + 2048 + 512

decoder_layer = Check(
    right=2 * _ATTENTION + _NETWORK + 3 * 2 * 512,
    praise="two attentions, one network, three norms: 4,204,032.",
    tolerance=0.5,
    wrong=[
        Wrong(
            _ATTENTION + _NETWORK + 2 * 2 * 512,
            "that is an encoder layer. A decoder layer has a second attention, and a "
            "norm for it.",
        ),
        Wrong(
            2 * (_ATTENTION - 4 * 512) + _NETWORK - 2048 - 512,
            "those are the matrices alone. Add the biases and the norms.",
        ),
        Wrong(
            2 * _ATTENTION + _NETWORK + 3 * 2 * 512 - 8 * 512 - 2048 - 512,
            "the biases of projections and network are missing: 512 for each "
            "projection, 2,048 and 512 in the network.",
        ),
        Wrong(
            2 * _ATTENTION + _NETWORK,
            "the norms are missing: three of them, a gain and a bias of 512 each.",
        ),
        Wrong(
            2 * _ATTENTION + _NETWORK + 2 * 2 * 512,
            "one norm is missing: each of the three sublayers has its own.",
        ),
        Wrong(
            2 * _ATTENTION + _NETWORK + 3 * 512,
            "a layer norm has a gain and a bias, 512 numbers each.",
        ),
        Wrong(
            _ATTENTION + (_ATTENTION - 2 * 512 * 512 - 2 * 512) + _NETWORK + 3 * 1024,
            "cross-attention has keys and values of its own: they are made from the "
            "memory, by its own two matrices.",
        ),
    ],
)

_LABELS = (torch.tensor([[7, 8, 9, 2], [5, 4, 2, 0]]), torch.tensor([[3, 2]]))

target_shift = Check(
    right=lambda labels, start: seq2seq_shift(labels, start),
    praise="each position reads what comes before its label, and no more.",
    cases=[(_LABELS[0], 1), (_LABELS[1], 6)],
    wrong=[
        Wrong(
            lambda labels, start: labels,
            "position t reads its own label: the model has to copy, and learns nothing "
            "else.",
        ),
        Wrong(
            lambda labels, start: labels.roll(1, dims=1),
            "the last token has come round to the front. The first input is start.",
        ),
        Wrong(
            lambda labels, start: F.pad(labels[:, 1:], (0, 1), value=start),
            "shifted the other way: position t reads label t + 1, which it will be "
            "asked for next.",
        ),
        Wrong(
            lambda labels, start: F.pad(labels, (1, 0), value=start),
            "one token too long. After the last label nothing is asked any more, so "
            "the last label is never read.",
        ),
        Wrong(
            lambda labels, start: F.pad(labels[:, :-1], (1, 0), value=0),
            "the first input must be start, whatever its number.",
        ),
        Wrong(
            lambda labels, start: F.pad(labels[:, 1:], (1, 0), value=start),
            "start has taken the first label's place. Nothing may be lost but the last "
            "label: everything moves one place to the right.",
        ),
    ],
)


def _smoothed(logits: Tensor, targets: Tensor, eps: float, others: float) -> Tensor:
    """(1 − ε) on the right word, and `others` on every word beside."""
    surprise = -logits.log_softmax(-1)
    right = surprise.gather(-1, targets[:, None])[:, 0]
    return (1 - eps) * right + others * surprise.sum(-1)


def _mixed(costs: Tensor, targets: Tensor, eps: float) -> Tensor:
    """(1 − ε) of the right word's cost and ε of the mean of all."""
    return (1 - eps) * costs.gather(-1, targets[:, None])[:, 0] + eps * costs.mean(-1)


def _spared(logits: Tensor, targets: Tensor, eps: float) -> Tensor:
    """1 − ε on the right word, ε shared by the wrong ones alone."""
    share = eps / (logits.shape[-1] - 1)
    return _smoothed(logits, targets, eps + share, share)


_GUESSES = random_tensors((4, 5), (3, 7))

smoothed_loss = Check(
    right=lambda logits, targets, eps: F.cross_entropy(
        logits, targets, label_smoothing=eps, reduction="none"
    ),
    praise="the same as torch's label_smoothing.",
    cases=[
        (_GUESSES[0], torch.tensor([0, 4, 2, 2]), 0.1),
        (_GUESSES[1], torch.tensor([6, 0, 3]), 0.3),
    ],
    wrong=[
        Wrong(
            lambda logits, targets, eps: _smoothed(logits, targets, eps, 0.0),
            "the other words' share ε is missing: with it the target sums to 1.",
        ),
        Wrong(
            lambda logits, targets, eps: _smoothed(logits, targets, eps, eps),
            "every word got ε. The doubt is ε in all: ε/V for each.",
        ),
        Wrong(
            _spared,
            "here the right word keeps 1 − ε and the others share ε, as Tensor2Tensor "
            "does. Give ε/V to every word, the right one too.",
        ),
        Wrong(
            lambda logits, targets, eps: F.cross_entropy(
                logits, targets, reduction="none"
            ),
            "that is the plain loss: eps does nothing.",
        ),
        Wrong(
            lambda logits, targets, eps: (
                -_smoothed(logits, targets, eps, eps / logits.shape[-1])
            ),
            "the sign is missing: a surprise is −log p.",
        ),
        Wrong(
            lambda logits, targets, eps: _mixed(logits.softmax(-1), targets, eps),
            "probabilities were mixed. A surprise is −log p: take the logarithm first.",
        ),
        Wrong(
            lambda logits, targets, eps: _mixed(-logits, targets, eps),
            "those are raw logits. A softmax along each row makes probabilities first.",
        ),
        Wrong(
            lambda logits, targets, eps: _mixed(-logits.log_softmax(0), targets, eps),
            "the softmax went down the columns. Each row is one guess: dim=-1.",
        ),
        Wrong(
            lambda logits, targets, eps: F.cross_entropy(
                logits, targets, label_smoothing=eps
            ),
            "one number for each row is asked for; do not average.",
        ),
    ],
)

unmasked_dice = Check(
    right=math.log(10) / 6,
    praise="five of six digits stand one place to the right; the last is a guess.",
    tolerance=5e-3,
    wrong=[
        Wrong(
            math.log(10),
            "that is the model with its mask, for which every digit is a guess.",
        ),
        Wrong(
            0.0,
            "the last digit of a row is never read: nothing stands to its right.",
        ),
        Wrong(
            5 * math.log(10) / 6,
            "the other way round: which of the six digits can be read off?",
        ),
        Wrong(
            math.log(10) / 5,
            "the mean is over all six digits of a row, the five that cost nothing too.",
        ),
    ],
)
