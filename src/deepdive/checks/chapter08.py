# SPDX-License-Identifier: MIT
"""The checks of chapter 8, GPT."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepdive.checks.base import Check, Wrong, random_tensors

_BITS = (1 + 2 + 3 + 3) / 4  # of the guesses 1/2, 1/4, 1/8, 1/8

four_guesses = Check(
    right=2**_BITS,
    praise="1, 2, 3 and 3 bits, 2.25 on average, and 2 to that power.",
    wrong=[
        Wrong(
            4.0,
            "that is one over the mean probability. Average the logarithms instead.",
        ),
        Wrong(4.75, "that is cut off, not rounded: the third decimal is a 7."),
        Wrong(5.5, "that averages 1/p. Average the losses, then raise."),
        Wrong(_BITS, "that is the mean loss, in bits. Now raise 2 to that power."),
        Wrong(
            _BITS * math.log(2),
            "that is the mean loss, in nats. Now raise e to that power.",
        ),
        Wrong(math.exp(_BITS), "bits belong to the base 2, nats to the base e."),
        Wrong(2 ** (_BITS * math.log(2)), "nats belong to the base e, bits to 2."),
        Wrong(
            2**-_BITS,
            "that is the typical probability. The perplexity is one over it.",
        ),
        Wrong(512, "the losses were added. Take their mean before you raise."),
    ],
    tolerance=5e-3,  # two decimals will do
)

_V, _T, _D, _L = 50_257, 1_024, 768, 12
_WORDS, _PLACES, _LAST = _V * _D, _T * _D, 2 * _D
_NORMS, _BIASES = 4 * _D, 4 * _D + 4 * _D + _D
_MATRICES = 4 * _D**2 + 2 * _D * 4 * _D
_GPT2 = _WORDS + _PLACES + _L * (_MATRICES + _BIASES + _NORMS) + _LAST

gpt2_parameters = Check(
    right=_GPT2,
    praise="38.6 million in the word table, 0.8 in the positions, 85.1 in the blocks.",
    wrong=[
        Wrong(
            117_000_000,
            "that is the paper's figure. OpenAI has since called it an error.",
        ),
        Wrong(
            _GPT2 + _WORDS,
            "the output layer was counted again. It is the word table itself.",
        ),
        Wrong(_GPT2 - _PLACES, "the table of 1,024 positions is missing."),
        Wrong(_GPT2 - _WORDS, "the word table is missing. Tied or not, it is there."),
        Wrong(_GPT2 - _LAST, "GPT-2 has one more norm, behind the last block."),
        Wrong(_GPT2 - _L * _BIASES, "the blocks' matrices have biases."),
        Wrong(
            _GPT2 - _L * _NORMS,
            "4 · 768 are missing in each block: attention's four biases, or the two "
            "norms' gains and biases.",
        ),
        Wrong(
            _GPT2 - _L * _NORMS - _LAST,
            "no norm is counted: two in each block, one behind the last, each with "
            "gain and bias.",
        ),
        Wrong(
            _GPT2 - _L * (_BIASES + _NORMS),
            "the blocks' matrices are all there, but no biases and no norms.",
        ),
        Wrong(
            _GPT2 - _L * (_BIASES + _NORMS) - _LAST,
            "tables and matrices are all there. Biases and norms come on top.",
        ),
        Wrong(
            _GPT2 - _WORDS - _PLACES - _LAST,
            "those are the blocks. Tables and the last norm come on top.",
        ),
    ],
)


def _losses(lead: int = 0, lag: int = 1, axis: int = -1, how: Callable = torch.log):
    """Losses of logits from place `lead` on, asked for words from place `lag` on."""

    def losses(logits: Tensor, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        count = T - max(lead, lag)
        p = how(logits.softmax(axis))[:, lead : lead + count]
        return -p.gather(-1, tokens[:, lag : lag + count, None])[..., 0]

    return losses


def _unsoftened(logits: Tensor, tokens: Tensor) -> Tensor:
    return -logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


def _come_round(logits: Tensor, tokens: Tensor) -> Tensor:
    return _losses(lag=0)(logits, tokens.roll(-1, 1))


_IDS = torch.tensor([[1, 3, 0, 2, 4], [2, 2, 1, 0, 3]])

next_word_losses = Check(
    right=_losses(),
    praise="the losses that deepdive.objectives.causal_lm adds up.",
    cases=[
        (*random_tensors((2, 5, 5)), _IDS),
        (*random_tensors((2, 3, 7)), _IDS[:, :3]),
    ],
    wrong=[
        Wrong(_losses(lag=0), "each place is asked for the word it has just read."),
        Wrong(
            lambda x, ids: _losses(lag=0)(x, ids)[:, :-1],
            "T − 1 places, and each is asked for its own word. Shift the words.",
        ),
        Wrong(
            lambda x, ids: _losses(lag=0)(x, ids)[:, 1:],
            "both were cut at the start. Cut the logits at the end.",
        ),
        Wrong(
            _losses(lead=1, lag=0),
            "each place is asked for the word before it: the shift goes the other way.",
        ),
        Wrong(
            _losses(lag=2),
            "the words were shifted twice: each place is asked for the one after next.",
        ),
        Wrong(
            _come_round,
            "the first word came round to the end. The last place has no answer.",
        ),
        Wrong(_losses(axis=1), "the softmax runs over the places. Use the last axis."),
        Wrong(
            _losses(how=lambda p: p), "that is −p. The loss is −log p: take the log."
        ),
        Wrong(_unsoftened, "those are raw logits. A softmax makes probabilities."),
        Wrong(_losses(how=torch.log2), "that is in bits. Use the natural logarithm."),
        Wrong(
            lambda x, ids: -_losses()(x, ids),
            "the sign is missing: a loss is −log p, never negative.",
        ),
    ],
)


def _kept(inside: Callable, again: bool = True, back: bool = True) -> Callable:
    """Keep a set of the words sorted by their probability."""

    def keep(probs: Tensor, p: float) -> Tensor:
        falling, order = probs.sort(descending=True, stable=True)
        chosen = torch.where(inside(falling, p), falling, 0.0)
        if back:
            chosen = torch.empty_like(probs).scatter(0, order, chosen)
        return chosen / chosen.sum() if again else chosen

    return keep


def _reached(falling: Tensor, p: float) -> Tensor:
    """Those before this word have not reached p."""
    return falling.cumsum(0) - falling < p - 1e-12


def _rising(probs: Tensor, p: float) -> Tensor:
    rising, order = probs.sort(stable=True)
    kept = torch.where(rising.cumsum(0) - rising < p - 1e-12, rising, 0.0)
    kept = torch.empty_like(probs).scatter(0, order, kept)
    return kept / kept.sum()


def _at_least(probs: Tensor, p: float) -> Tensor:
    kept = torch.where(probs >= p, probs, 0.0)
    return kept / kept.sum()


def _unsorted(probs: Tensor, p: float) -> Tensor:
    kept = torch.where(_reached(probs, p), probs, 0.0)
    return kept / kept.sum()


_THREE = torch.tensor([0.09, 0.5, 0.41], dtype=torch.float64)
_EIGHTHS = torch.tensor([0.5, 0.375, 0.125], dtype=torch.float64)
(_EIGHT,) = random_tensors((8,))

top_p_probabilities = Check(
    right=_kept(_reached),
    praise="the same numbers as deepdive.decoding's top_p.",
    cases=[
        (_THREE, 0.9),
        (_EIGHTHS, 0.5),  # sums without rounding: 0.5 is reached exactly
        (_THREE, 0.01),
        (_THREE, 1.0),
        (_EIGHT.softmax(0), 0.7),
    ],
    wrong=[
        Wrong(
            _kept(lambda falling, p: falling.cumsum(0) <= p),
            "the word that reaches p is dropped, so a small p keeps none. It belongs "
            "to the set.",
        ),
        Wrong(
            _kept(lambda falling, p: falling.cumsum(0) < p),
            "words are kept while the sum is below p. The one that reaches p belongs "
            "to the set.",
        ),
        Wrong(
            _kept(lambda falling, p: falling.cumsum(0) - falling <= p),
            "one word too many where the sum is p exactly: the set is complete then.",
        ),
        Wrong(
            _kept(_reached, again=False),
            "the right words. Now divide, so that their probabilities sum to 1.",
        ),
        Wrong(
            _kept(_reached, back=False),
            "the right numbers at the wrong words: undo the sorting.",
        ),
        Wrong(_rising, "sorted upwards: the set begins with the most probable word."),
        Wrong(_at_least, "p bounds the sum of the set, not each word by itself."),
        Wrong(
            _unsorted,
            "the words were taken as they stand. Begin with the most probable one.",
        ),
    ],
)

_A, _B = math.log2(20) / 2.7, math.log2(2.6)

two_rulers = Check(
    right=_A - _B,
    praise="1.601 bits for each byte against 1.379: the model of bytes is better.",
    wrong=[
        Wrong(_B - _A, "that much more A needs; asked is how much B saves: no minus."),
        Wrong((_A - _B) * math.log(2), "those are nats. One nat is 1 / ln 2 bits."),
        Wrong(math.log2(20) - _B, "a piece of A's is 2.7 bytes long. Divide by that."),
        Wrong(20 / 2.7 - 2.6, "perplexities cannot be shared out. Logarithms can."),
        Wrong(20 - 2.6, "those are perplexities of different rulers. Take logarithms."),
        Wrong(
            math.log2(20 / 2.7) - _B,
            "take the logarithm first, then divide by the length.",
        ),
        Wrong(_A, "that is what A needs. Subtract what B needs."),
        Wrong(_B, "that is what B needs. Subtract it from what A needs."),
        Wrong(
            math.log2(20) * 2.7 - _B, "divide by the length: a piece covers 2.7 bytes."
        ),
    ],
    tolerance=5e-3,  # two decimals will do
)
