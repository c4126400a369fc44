# SPDX-License-Identifier: MIT
"""Can a large model write faster, and still write exactly its own text?

A small model drafts a few words; the large one reads them all in one step, which costs
it little more than reading one, and keeps those that it might have written itself.

Source: Leviathan et al. 2022 (arXiv:2211.17192), Algorithm 1; Chen et al. 2023
(arXiv:2302.01318), Algorithm 2.

Taught in: book/10_kv_cache.ipynb
"""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from deepdive.decoding.generate import Generated, first_stop
from deepdive.decoding.sampling import Choices, check_choices, probabilities
from deepdive.decoding.steps import (
    Step,
    check_ids_below,
    check_request,
    check_whole,
    need,
    read,
)


@dataclass(frozen=True, eq=False)
class Speculated(Generated):
    """What was written, and what the drafts were worth.

    Attributes:
        proposed: words the draft proposed.
        accepted: those of them that stand in the text.
        rounds: steps of the target; without drafts it would be one for each word.

    Taught in: book/10_kv_cache.ipynb
    """

    proposed: int
    accepted: int
    rounds: int


def speculative(
    step: Step,
    draft_step: Step,
    prompt: Tensor,
    max_new: int,
    draft_length: int = 4,
    choose: Choices = None,
    stop: Collection[int] = (),
    generator: torch.Generator | None = None,
) -> Speculated:
    """Write what the target would write, with several words to one of its steps.

    A draft x, drawn from q, is accepted with probability min(1, p(x) / q(x)). At the
    first refusal the target draws from max(0, p − q), scaled to sum to 1, instead; when
    all are accepted it adds a word drawn from p. Either way each word is distributed
    as p, whatever q is (Leviathan et al. 2022, appendix A.1).

    Shapes:
        prompt (1, T) → ids (1, N), N ≤ max_new

    Args:
        step, draft_step: target and draft, of one vocabulary, which can `truncate`.
        choose: for both; None for the most probable word: the target's `greedy` text.

    Note:
        One text at a time, since the rows of a batch would accept different numbers of
        words. Windowed caches need `spare` ≥ draft_length. Afterwards both steps have
        read all but the last token, as after `stream`.

    Raises:
        TypeError, ValueError: as for `stream`; more than one row; draft_length < 1; a
            step without `truncate`; two vocabularies.

    Taught in: book/10_kv_cache.ipynb
    """
    for each in (step, draft_step):
        check_request(each, prompt, max_new, stop)
        need(each, "truncate", "speculative decoding")
    check_whole("draft_length", draft_length, least=1)
    check_choices(choose)
    if len(prompt) != 1:
        raise ValueError(f"speculative decoding takes one text, got B = {len(prompt)}")
    sizes = [getattr(each, "vocab_size", None) for each in (step, draft_step)]
    _check_vocabularies(*(sizes if None not in sizes else (0, 0)))
    target, draft = _Reader(step, choose), _Reader(draft_step, choose)
    text, T = prompt.long(), prompt.shape[1]
    proposed = accepted = rounds = 0
    stopped = False
    while text.shape[1] < T + max_new and not stopped:
        before = text.shape[1]
        guesses = min(draft_length, T + max_new - before - 1)  # the target adds one
        drafted, q = _propose(draft, text, guesses, generator)
        p = target.read(drafted, guesses + 1)  # (guesses + 1, V)
        check_ids_below(stop, 0, p.shape[-1])
        text, taken = _judge(drafted, before, p, q, generator)
        new = int(first_stop(text[:, before:], stop))
        text, taken = text[:, : before + new], min(taken, new)
        stopped = int(text[0, -1]) in stop
        target.forget(text)
        draft.forget(text)
        proposed, accepted = proposed + guesses, accepted + taken
        rounds += 1
    if rounds:
        draft.catch_up(text)
    ids = text[:, T:]
    return Speculated(ids, first_stop(ids, ()), proposed, accepted, rounds)


class _Reader:
    """A step, and how much of the text it has read."""

    def __init__(self, step: Step, choose: Choices):
        self.step, self.choose = step, choose
        self.base, self.known = getattr(step, "seen", 0), 0

    def read(self, text: Tensor, count: int) -> Tensor:
        """Read what is new; probabilities after the last tokens, (count, V)."""
        logits = read(self.step, text[:, self.known :], count)[0]
        self.known = text.shape[1]
        return probabilities(logits, self.choose)

    def forget(self, text: Tensor) -> None:
        """Take back what is not in the text, and its last token."""
        if self.known > text.shape[1] - 1:
            self.known = text.shape[1] - 1
            self.step.truncate(self.base + self.known)

    def catch_up(self, text: Tensor) -> None:
        """Read all but the last token."""
        if self.known < text.shape[1] - 1:
            read(self.step, text[:, self.known : -1])


def _propose(draft, text: Tensor, guesses: int, generator) -> tuple[Tensor, Tensor]:
    """The text with drafts behind it, (1, n + guesses), and their q, (guesses, V)."""
    q = []
    for _ in range(guesses):
        q.append(draft.read(text, 1)[0])
        token = torch.multinomial(q[-1], 1, generator=generator)
        text = torch.cat([text, token[None]], dim=1)
    return text, torch.stack(q) if q else None


def _judge(drafted: Tensor, before: int, p: Tensor, q: Tensor, generator):
    """The text after one round of the algorithm, and how many drafts it took."""
    x = drafted[0, before:, None]  # (guesses, 1)
    taken = 0
    left = p[-1]
    if len(x):
        _check_vocabularies(p.shape[-1], q.shape[-1])
        u = torch.rand(x.shape, generator=generator, device=x.device, dtype=p.dtype)
        refused = (u * q.gather(1, x) >= p[:-1].gather(1, x)).flatten()
        taken = int(refused.nonzero()[0]) if refused.any() else len(x)
    if taken < len(x):
        left = (p[taken] - q[taken]).clamp(min=0)
        left = left if left.sum() > 0 else p[taken]  # p = q but for rounding
    token = torch.multinomial(left, 1, generator=generator)
    return torch.cat([drafted[:, : before + taken], token[None]], dim=1), taken


def _check_vocabularies(target: int, draft: int) -> None:
    if target != draft:
        raise ValueError(
            f"target and draft need one vocabulary, got {target} and {draft} words"
        )
