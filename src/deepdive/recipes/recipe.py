# SPDX-License-Identifier: MIT
"""What must be written down so that a training run can be run again by anybody?

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepdive.decoding import Step
from deepdive.objectives import Loss
from deepdive.training.schedules import Schedule


class Writing(NamedTuple):
    """How a trained model goes on from a text: what `decoding.stream` takes.

    Shapes:
        prompt (1, T) int64

    Args:
        stop: ids that end a text.
        decode: all new ids so far → their text.
    """

    step: Step
    prompt: Tensor
    stop: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True)
class Recipe:
    """One training run: its model, data, loss, updates, and how it is judged.

    Everything random comes from the seed: the model's first weights by torch's
    generator, the batches by `batches(seed)`.

    Attributes:
        what: one line: what is trained, and what it shows.
        expect: one line: the result and the time, as measured, with the machine.
        steps: updates of the whole run.
        model: builds the model, with random weights.
        batches: seed → number of a micro-batch → batch, on the CPU.
        loss: model, batch → `Loss`.
        optimiser: model → optimiser.
        schedule: number of updates → factor on the learning rate at each.
        evaluate: model → metrics on texts that no batch holds.
        write: model, text → how it goes on. Raises ValueError for a text that it
            cannot read.
        accumulate: micro-batches of an update.
        average: decay of the weights' running average (`training.EMA`), which is then
            what is judged and kept; None for the last weights.
        every: updates between two checkpoints.
        evaluate_every: updates between two lines of metrics in the log.
    """

    name: str
    what: str
    expect: str
    steps: int
    model: Callable[[], nn.Module]
    batches: Callable[[int], Callable[[int], Any]]
    loss: Callable[[nn.Module, Any], Loss]
    optimiser: Callable[[nn.Module], torch.optim.Optimizer]
    schedule: Callable[[int], Schedule]
    evaluate: Callable[[nn.Module], dict[str, float]]
    write: Callable[[nn.Module, str], Writing]
    accumulate: int = 1
    average: float | None = None
    every: int = 50
    evaluate_every: int = 100


class Symbols:
    """A vocabulary that is written down: each symbol's number is its place.

    Args:
        symbols: in the order of their ids.
        between: what stands between two symbols of a text.

    Raises:
        ValueError: a symbol stands twice.

    >>> Symbols(["<end>", "a", "b"]).encode("ab")
    [1, 2]
    """

    def __init__(self, symbols: Sequence[str], between: str = ""):
        if len(set(symbols)) != len(symbols):
            raise ValueError(f"a symbol stands twice in {list(symbols)}")
        self.symbols, self.between = tuple(symbols), between
        self.ids = {symbol: i for i, symbol in enumerate(symbols)}

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: str) -> list[int]:
        """The ids of a text.

        Raises:
            ValueError: a symbol that is not in the vocabulary, which is then listed.
        """
        parts = text.split() if self.between.isspace() else list(text)
        if unknown := [part for part in parts if part not in self.ids]:
            raise ValueError(
                f"{unknown[0]!r} is not in the vocabulary: {' '.join(self.symbols)}"
            )
        return [self.ids[part] for part in parts]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""
        return self.between.join(self.symbols[i] for i in ids)
