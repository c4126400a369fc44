# SPDX-License-Identifier: MIT
"""The checks of chapter 1, the recurrent bottleneck."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepdive import trace
from deepdive.checks.base import Check, Wrong, random_tensors

_READ = trace.recurrence()
_W_X, _W_H = _READ["W_x"], _READ["W_h"]
_MICE = _READ["states"][-1]
_DAILY = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
_SUM = _DAILY @ _W_X + _MICE @ _W_H


fourth_state = Check(
    right=float(_SUM.tanh()[0]),
    praise="tanh(−0.3 + 0.628) = tanh(0.328) = 0.317.",
    tolerance=1e-3,  # three decimals carried by hand
    wrong=[
        Wrong(float(_SUM[0]), "that is the sum. The tanh is still to come."),
        Wrong(
            float((_DAILY @ _W_X).tanh()[0]),
            "the old state is missing: add h₃ W_h before the tanh.",
        ),
        Wrong(
            float((_DAILY @ _W_X + _MICE).tanh()[0]),
            "the old state was added as it is. It goes through W_h first.",
        ),
        Wrong(
            float((_DAILY @ _W_X + _MICE @ _W_H.T).tanh()[0]),
            "rows and columns of W_h are exchanged: h W_h weighs its rows and adds.",
        ),
        Wrong(
            float((_DAILY @ _W_X + _READ["states"][1] @ _W_H).tanh()[0]),
            "that starts from the state after chase. Start from the last one.",
        ),
        Wrong(
            float(_SUM.tanh()[1]), "that is the second number. The first one is asked."
        ),
    ],
)

steps_to_one_percent = Check(
    right=44,
    praise="log 0.01 / log 0.9, rounded up: 0.9⁴³ is still above 0.01, 0.9⁴⁴ below.",
    tolerance=0.02,  # 43.7 is 43.709 too
    wrong=[
        Wrong(43, "0.9⁴³ = 0.0108 is still above 1 %. One more step."),
        Wrong(
            math.log(0.01) / math.log(0.9),
            "that is the exact point. Count whole steps: round up.",
        ),
        Wrong(10, "a tenth is lost of what is left, not of the beginning: multiply."),
        Wrong(22, "that is where 10 % are left. One hundredth takes twice as long."),
        Wrong(7, "that is where one half is left. It has to halve again and again."),
        Wrong(2, "0.9² is 0.81. The signal is multiplied by 0.9, not by 0.1."),
    ],
)

steps_that_wait = Check(
    right=35,
    praise="20 to read, both directions side by side, then 15 to write.",
    wrong=[
        Wrong(
            55,
            "the two directions need not wait for each other: both read at once.",
        ),
        Wrong(
            300,
            "the 20 scores of a step need not wait for each other. Count states.",
        ),
        Wrong(15, "the writer's first step waits for the reader. Add its steps."),
        Wrong(20, "the writer's steps wait for each other too. Add them."),
        Wrong(
            21, "the writer's steps wait for each other: each needs the word before."
        ),
        Wrong(
            1,
            "attention takes all words at once, but it needs the states first, and "
            "those come one by one.",
        ),
    ],
)


def _gru(
    inside: bool = False,
    flipped: bool = False,
    keep_all: bool = False,
    squash: Callable = torch.tanh,
    reset: bool = True,
    gate: Callable = torch.sigmoid,
) -> Callable:
    """A GRU step on stacks of three matrices, with a chosen mistake."""

    def step(x: Tensor, h: Tensor, W: Tensor, U: Tensor) -> Tensor:
        r = gate(x @ W[0] + h @ U[0]) if reset else torch.ones_like(h)
        z = gate(x @ W[1] + h @ U[1])
        old = (r * h) @ U[2] if inside else r * (h @ U[2])
        n = squash(x @ W[2] + old)
        if keep_all:
            return n + z * h
        return z * n + (1 - z) * h if flipped else (1 - z) * n + z * h

    return step


gru_step = Check(
    right=_gru(),
    praise="the same numbers as deepdive.recurrent.GruCell.",
    cases=[
        random_tensors((2, 4), (2, 3), (3, 4, 3), (3, 3, 3)),
        random_tensors((1, 2), (1, 5), (3, 2, 5), (3, 5, 5)),
    ],
    wrong=[
        Wrong(
            _gru(flipped=True),
            "z and 1 − z are exchanged. In this book z says how much of the old stays.",
        ),
        Wrong(
            _gru(inside=True),
            "the reset gate was applied before U_n. Here it stands outside: r (h U_n).",
        ),
        Wrong(
            _gru(keep_all=True),
            "the new part is added in full. Take (1 − z) of it, and z of the old.",
        ),
        Wrong(_gru(reset=False), "the reset gate r is not used."),
        Wrong(
            _gru(squash=torch.sigmoid), "the proposal n needs tanh, not the sigmoid."
        ),
        Wrong(_gru(squash=lambda a: a), "the proposal n is not squeezed by a tanh."),
        Wrong(
            _gru(gate=torch.tanh),
            "gates need the sigmoid: they say how much, from 0 to 1.",
        ),
        Wrong(
            lambda x, h, W, U: _gru()(x, h, W[[1, 0, 2]], U[[1, 0, 2]]),
            "r and z are exchanged: matrix 0 belongs to r, matrix 1 to z.",
        ),
    ],
)


def _additive(
    squash: Callable = torch.tanh,
    share: Callable = lambda scores: scores.softmax(0),
    mix: Callable = lambda weights, H, U: weights @ H,
) -> Callable:
    """Additive attention of one query over the rows of H, with a chosen mistake."""

    def attend(s: Tensor, H: Tensor, W: Tensor, U: Tensor, v: Tensor) -> Tensor:
        return mix(share(squash(s @ W + H @ U) @ v), H, U)

    return attend


additive_attention = Check(
    right=_additive(),
    praise="the same numbers as deepdive.recurrent.BahdanauAttention.",
    cases=[
        random_tensors((3,), (5, 4), (3, 2), (4, 2), (2,)),
        random_tensors((4,), (2, 4), (4, 4), (4, 4), (4,)),
    ],
    wrong=[
        Wrong(
            _additive(squash=lambda a: a),
            "the tanh is missing. Without it s shifts all scores alike, which the "
            "softmax does not see.",
        ),
        Wrong(
            _additive(share=lambda scores: scores),
            "the scores mix the states. The softmax comes first.",
        ),
        Wrong(
            _additive(share=lambda scores: torch.ones_like(scores) / len(scores)),
            "that is the plain mean. The scores decide the shares.",
        ),
        Wrong(
            _additive(mix=lambda weights, H, U: weights),
            "those are the weights. Mix the rows of H with them.",
        ),
        Wrong(
            _additive(mix=lambda weights, H, U: weights @ (H @ U)),
            "the rows of H U are mixed. They are compared; the rows of H are mixed.",
        ),
        Wrong(
            _additive(mix=lambda weights, H, U: H[int(weights.argmax())]),
            "that picks the best row. Attention mixes all of them.",
        ),
        Wrong(
            lambda s, H, W, U, v: ((H @ U) @ (s @ W)).softmax(0) @ H,
            "those are dot products, chapter 2's way. Here: tanh(s W + H U) times v.",
        ),
    ],
)

strongest_factor = Check(
    right=2.7,
    praise="below it W_h loses too much, above it tanh does. Even here the first word "
    "counts little: 0.14.",
    tolerance=0.06,  # 2.65 is the top of a finer search
    wrong=[
        Wrong(
            1.5,
            "from there on W_h no longer shortens every vector. But tanh still takes "
            "its part: try larger factors.",
        ),
        Wrong(
            1.7,
            "from there on the 24 zeros gain. With words, tanh passes on less: try "
            "larger factors.",
        ),
        Wrong(
            6,
            "that is right for zeros, where tanh stays steep. Here the words are "
            "asked: X.repeat(8, 1).",
        ),
        Wrong(3.2, "that is right for three words. Read them eight times."),
        Wrong(2, "on the way up: go on in steps of 0.1."),
        Wrong(3, "past the top: go back in steps of 0.1."),
        Wrong(1, "there the first word counts 8e-14. Try 1.0, 1.1, … 6.0."),
    ],
)
