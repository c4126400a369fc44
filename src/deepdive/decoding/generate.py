# SPDX-License-Identifier: MIT
"""How does a model that predicts one word write a text? One word at a time.

Taught in: book/08_gpt.ipynb
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from deepdive.decoding.sampling import Choices, check_choices, draw
from deepdive.decoding.steps import Step, check_ids_below, check_request, read


@dataclass(frozen=True, eq=False)
class Generated:
    """The new tokens of each row, padded at the end, without the prompt.

    Shapes:
        ids (B, N) int64, lengths (B,) int64: how many of a row are real, a stop
        token included

    Taught in: book/08_gpt.ipynb
    """

    ids: Tensor
    lengths: Tensor

    def rows(self) -> list[list[int]]:
        """Each row's tokens as a list, without padding."""
        pairs = zip(self.ids.tolist(), self.lengths.tolist(), strict=True)
        return [row[:length] for row, length in pairs]


def stream(
    step: Step,
    prompt: Tensor,
    max_new: int,
    choose: Choices = None,
    stop: Collection[int] = (),
    pad: int = 0,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Write on, one token at a time, so that a reader need not wait for the end.

    It ends after `max_new` tokens, or when every row has written a stop token. A row
    that has gives `pad` from then on.

    Shapes:
        prompt (B, T) → one (B,) int64 after another

    Args:
        choose: how the next word is chosen, see `probabilities`; None for the most
            probable one.
        pad: any id of the vocabulary; `Generated.lengths` says what is padding.

    Note:
        The step has then read all but the last token. To go on with the same step, let
        the next prompt begin with that one.

    Raises:
        TypeError, ValueError: at the call, as `check_request` says; while it runs, for
            logits that are not finite.

    Taught in: book/08_gpt.ipynb
    """
    check_request(step, prompt, max_new, stop, pad)
    check_choices(choose)
    return _stream(step, prompt.long(), max_new, choose, stop, pad, generator)


def _stream(step, ids, max_new, choose, stop, pad, generator) -> Iterator[Tensor]:
    finished = torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)
    stops = torch.tensor(list(stop), dtype=torch.int64, device=ids.device)
    for n in range(max_new):
        logits = read(step, ids)[:, -1]  # (B, V)
        if n == 0:
            check_ids_below(stop, pad, logits.shape[-1])
        token = draw(logits, choose, generator).masked_fill(finished, pad)
        yield token
        finished = finished | torch.isin(token, stops)
        if len(stops) and finished.all():
            return
        ids = token[:, None]  # (B, 1)


def greedy(
    step: Step, prompt: Tensor, max_new: int, stop: Collection[int] = (), pad: int = 0
) -> Generated:
    """Write on with the most probable word each time; of equal ones, the lowest id.

    Shapes:
        prompt (B, T) → ids (B, N), N ≤ max_new

    Raises:
        TypeError, ValueError: as for `stream`.

    A step remembers what it has read: a new text needs a new step.

        step = CachedStep(model.eval(), model.new_caches())
        greedy(step, prompt, max_new=40).ids

    >>> fixed = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])  # after 0, 1, 2
    >>> greedy(lambda ids: fixed[ids], torch.tensor([[0]]), max_new=4).ids
    tensor([[1, 2, 0, 1]])

    Taught in: book/08_gpt.ipynb
    """
    return sample(step, prompt, max_new, choose=None, stop=stop, pad=pad)


def sample(
    step: Step,
    prompt: Tensor,
    max_new: int,
    choose: Choices = (),
    stop: Collection[int] = (),
    pad: int = 0,
    generator: torch.Generator | None = None,
) -> Generated:
    """Write on with words drawn from the model's probabilities.

        sample(step, prompt, 50, choose=[temperature(0.7), top_p(0.9)])

    Shapes:
        prompt (B, T) → ids (B, N), N ≤ max_new

    Args:
        choose: choices applied in order; () draws from the model as it is.
        generator: on the logits' device; the same seed gives the same text.

    Raises:
        TypeError, ValueError: as for `stream`.

    Taught in: book/08_gpt.ipynb
    """
    tokens = list(stream(step, prompt, max_new, choose, stop, pad, generator))
    ids = torch.stack(tokens, dim=1) if tokens else prompt.new_zeros(len(prompt), 0)
    return Generated(ids.long(), first_stop(ids, stop))


def first_stop(ids: Tensor, stop: Collection[int]) -> Tensor:
    """Length of each row up to its first stop token, that included: (B, N) → (B,)."""
    stops = torch.tensor(list(stop), dtype=ids.dtype, device=ids.device)
    before = torch.isin(ids, stops).cumsum(1).roll(1, dims=1)  # (B, N)
    before[:, :1] = 0
    return (before == 0).sum(1)
