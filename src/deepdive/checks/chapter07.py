# SPDX-License-Identifier: MIT
"""The checks of chapter 7, BERT."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from deepdive.checks.base import Check, Wrong, random_tensors
from deepdive.trace import CATS, CATS_DAILY


def _zero_mask(words: tuple[int, ...] = (0, 1, 2)) -> Tensor:
    """Probabilities of the four words where [MASK] has the vector 0."""
    X = torch.stack([CATS.X[0], torch.zeros_like(CATS.X[0]), CATS.X[2]])
    mixed = (X @ CATS.W_V)[list(words)].mean(0)
    return (CATS_DAILY.X @ mixed).softmax(0)


def _old_weights() -> Tensor:
    """The same with the weights of the page, where [MASK] is (0, 1, 0, 0)."""
    X = CATS.X[[0, 0, 2]]
    X[1] = torch.tensor([0, 1, 0, 0])
    weights = ((X @ CATS.W_Q)[1] @ (X @ CATS.W_K).T / 2).softmax(0)
    X[1] = 0
    return (CATS_DAILY.X @ (weights @ X @ CATS.W_V)).softmax(0)


_LOGITS = (CATS_DAILY.X @ torch.tensor([1, 0.5, 1, 2], dtype=torch.float64)) / 3
_THREE = _zero_mask()
_LOSS = -float(_THREE[1].log())

zero_mask_loss = Check(
    right=_LOSS,
    praise="a third of each value, logits 2/3, 5/6, 1/2 and 1, and −log 0.267.",
    wrong=[
        Wrong(
            -float(_zero_mask((0, 2))[1].log()),
            "[MASK] takes a third from itself too, and its value is 0. Divide by 3.",
        ),
        Wrong(float(_THREE[1]), "that is the probability of chase. Take −log of it."),
        Wrong(_LOSS / math.log(2), "that is in bits. The book's log is the natural."),
        Wrong(_LOSS / math.log(10), "that is log₁₀. The book's log is the natural."),
        Wrong(
            -float(_THREE[3].log()),
            "that is the price of daily. It was chase that stood there.",
        ),
        Wrong(-float(_THREE[0].log()), "that is the price of cats. Chase was hidden."),
        Wrong(
            -float(_LOGITS[:3].log_softmax(0)[1]),
            "daily is missing: the model knows four words, and all have a share.",
        ),
        Wrong(
            -float(_old_weights()[1].log()),
            "those are the weights of the page. The query is zero too: all scores "
            "are 0.",
        ),
        Wrong(math.log(4), "that is an even guess. The neighbours' values count."),
    ],
)

_CHOSEN, _MASKED, _SWAPPED = 0.15, 0.8, 0.1
_WRONG = _CHOSEN * _SWAPPED / (1 - _CHOSEN * _MASKED)

wrong_among_visible = Check(
    right=100 * _WRONG,
    praise="1.5 of 100 pieces are swapped, 88 of 100 are visible: 1.7 %.",
    tolerance=0.03,
    wrong=[
        Wrong(10.0, "10 % of the chosen ones. Only 15 % are chosen."),
        Wrong(1.5, "1.5 % of all pieces. Those that are hidden are not visible."),
        Wrong(50.0, "that is the share among visible places that are *asked*."),
        Wrong(100 * _WRONG / 100, "that is the share. The answer is to be in percent."),
        Wrong(
            100 * 0.015 / 0.85,
            "the swapped ones are visible too: 88 of 100 can be seen, not 85.",
        ),
        Wrong(
            100 * 0.03 / 0.88,
            "half of the visible chosen ones are left as they are: not wrong.",
        ),
    ],
)


def _hide(
    first: float = 0.8, second: float = 0.9, every: bool = False, ask: str = "chosen"
) -> Callable:
    """80/10/10 from one lot, with the usual ways to get it wrong."""

    def hide(ids: Tensor, chosen: Tensor, lot: Tensor, other: Tensor, mask: int):
        where = torch.ones_like(chosen) if every else chosen
        inputs = ids.masked_fill(where & (lot < first), mask)
        inputs = torch.where(where & (lot >= first) & (lot < second), other, inputs)
        asked = chosen if ask == "chosen" else chosen & (inputs == mask)
        asked = ~chosen if ask == "others" else asked
        labels = ids if ask == "all" else ids.masked_fill(~asked, -100)
        return torch.stack([inputs, labels])

    return hide


def _labels_from_inputs(ids, chosen, lot, other, mask):
    inputs = _hide()(ids, chosen, lot, other, mask)[0]
    return torch.stack([inputs, inputs.masked_fill(~chosen, -100)])


def _tenth_of_the_rest(ids, chosen, lot, other, mask):
    """One tenth of the remaining fifth is swapped: 2 % of the chosen."""
    return _hide(0.8, 0.8 + 0.1 * 0.2)(ids, chosen, lot, other, mask)


def _texts(seed: int) -> tuple:
    draw = torch.Generator().manual_seed(seed)
    ids, other = torch.randint(1, 90, (2, 6, 40), generator=draw)
    lot, chance = torch.rand(2, 6, 40, generator=draw)
    return ids, chance < 0.4, lot, other, 99


hide_pieces = Check(
    right=_hide(),
    praise="80 % hidden, 10 % swapped, 10 % left, and every chosen piece is asked.",
    cases=[_texts(1), _texts(2)],
    wrong=[
        Wrong(
            _hide(every=True),
            "pieces that were not chosen are spoilt too. Look at `chosen` first.",
        ),
        Wrong(
            _hide(0.8 * 0.15, 0.9 * 0.15),
            "0.15 is in `chosen` already. Of the chosen, lot < 0.8 is hidden.",
        ),
        Wrong(_hide(ask="hidden"), "swapped pieces and those left are asked for too."),
        Wrong(
            _hide(ask="all"), "only chosen places have a label. The others have −100."
        ),
        Wrong(
            _hide(ask="others"),
            "the labels are the wrong way round: −100 stands at the places that were "
            "chosen.",
        ),
        Wrong(
            _labels_from_inputs,
            "the labels were read off the spoilt text. The original is asked for.",
        ),
        Wrong(
            _tenth_of_the_rest,
            "a tenth of the chosen is swapped, not a tenth of those left over.",
        ),
        Wrong(
            _hide(0.0, 0.9),
            "the second condition also catches those just hidden: 0.8 ≤ lot < 0.9.",
        ),
        Wrong(_hide(0.8, 1.0), "all the rest is swapped. Half of it stays as it is."),
        Wrong(_hide(0.8, 0.8), "nothing is swapped: 0.8 ≤ lot < 0.9 takes `other`."),
    ],
)


def _each(labels: Tensor) -> Tensor:
    """How many places of each row are asked, and 1 where none is."""
    return (labels != -100).sum(-1).clamp(min=1)


def _cloze(divisor: Callable, all_asked: bool = False, axis: int = -1) -> Callable:
    """−log p of the labels, summed over each row and divided by something."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        price = -logits.log_softmax(axis)
        price = price.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        if not all_asked:
            price = price.masked_fill(labels == -100, 0.0)
        return price.sum(-1) / divisor(labels)

    return loss


def _some_labels(seed: int, rows: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Logits (B, T, V), and so many labels in each row."""
    (logits,) = random_tensors((len(rows), 7, 5))
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (len(rows), 7), generator=draw)
    for row, n in enumerate(rows):
        labels[row, n:] = -100
    return logits, labels


cloze_loss = Check(
    right=_cloze(_each),
    praise="−log p at the asked places alone, and 0 for a row without any.",
    cases=[_some_labels(1, (1, 4, 2)), _some_labels(2, (3, 0))],
    wrong=[
        Wrong(
            _cloze(lambda labels: labels.shape[-1]),
            "divided by all places. Divide by the number that was asked.",
        ),
        Wrong(
            _cloze(lambda labels: (labels != -100).sum(-1)),
            "a row in which nothing is asked gives 0/0. Its loss is to be 0.",
        ),
        Wrong(
            _cloze(lambda labels: 1),
            "that is the sum. The mean over the asked places is wanted.",
        ),
        Wrong(
            _cloze(lambda labels: (labels != -100).sum()),
            "divided by what the whole batch is asked. Each row has its own number.",
        ),
        Wrong(
            _cloze(lambda labels: labels.shape[-1], all_asked=True),
            "−100 is no word: places with that label are not asked.",
        ),
        Wrong(
            lambda logits, labels: -_cloze(_each)(logits, labels),
            "the sign: log p is negative, and a price is −log p.",
        ),
        Wrong(
            _cloze(_each, axis=-2),
            "the softmax runs over the places. Each place shares among the words.",
        ),
    ],
)
