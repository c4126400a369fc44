# SPDX-License-Identifier: MIT
"""What is the least that a decoder must know of a model? One step.

A step is any callable that is given the next tokens, ids (B, T) int64, remembers all
that it was given before, and answers with their logits (B, T, V). It may also have

    last(ids, count) → (B, count, V)   only the last logits, which is cheaper
    truncate(n)                        forget all but the first n tokens (speculation)
    reorder(rows)                      put the batch's rows in another order (beams)
    seen, max_seq_len, vocab_size      numbers, for checks before any work

Two adapters make a step of a model. They give the same logits: one reads the whole
text again each time, the other only what is new.

Taught in: book/10_kv_cache.ipynb
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from deepdive.inputs import check_batch, check_ids, check_kind

Step = Callable[[Tensor], Tensor]


class _ModelStep:
    """What both adapters share: the model, and what stands beside the tokens."""

    def __init__(self, model: Callable[..., Tensor], keep: Tensor | None, beside: dict):
        if not callable(model):
            raise TypeError(f"model must be callable, got {type(model).__name__}")
        if keep is not None:
            check_kind("keep", keep, Tensor)
            if keep.dtype != torch.bool or keep.dim() != 2:
                raise TypeError(
                    f"keep must be (B, T) bool, got {tuple(keep.shape)} {keep.dtype}"
                )
        self.hidden, self.logits = model, _same
        if hasattr(model, "hidden"):  # a decoder: the vocabulary only where asked for
            self.hidden, self.logits = model.hidden, model.logits
        self.keep, self.beside = keep, beside
        config = getattr(getattr(model, "__self__", model), "config", None)
        self.max_seq_len = getattr(config, "max_seq_len", None)
        self.vocab_size = getattr(config, "vocab_size", None)

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits of every token of ids: (B, T) → (B, T, V)."""
        check_batch(ids)
        return self.last(ids, ids.shape[1])

    def _check(self, ids: Tensor, count: int) -> None:
        """New tokens, and of how many of them logits are wanted."""
        check_batch(ids)
        if ids.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"ids must be int32 or int64, got {ids.dtype}")
        check_whole("count", count, least=1)
        if count > ids.shape[1]:
            raise ValueError(f"count {count} is more than {ids.shape[1]} new tokens")

    def _how(self, total: int) -> dict[str, Tensor]:
        """The model's other arguments; new tokens are words, not padding."""
        if self.keep is None:
            return self.beside
        new = max(0, total - self.keep.shape[1])
        self.keep = torch.nn.functional.pad(self.keep, (0, new), value=True)
        return self.beside | {"keep": self.keep[:, :total]}

    def _reorder(self, rows: Tensor) -> None:
        if self.keep is not None:
            self.keep = self.keep[rows]
        self.beside = {name: _rows(x, rows) for name, x in self.beside.items()}


class UncachedStep(_ModelStep):
    """Keep the tokens, and read the whole text again at every step.

    Args:
        model: a decoder, or any `model(ids, **beside) → (B, T, V)`.
        keep: (B, T) bool, False where the prompt is padding; it grows with the text.
        beside: tensors of B rows for each call, such as an encoder's `memory`.

    Note:
        The model should be in `eval()` mode: dropout would make each reading differ.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, model, keep: Tensor | None = None, **beside: Tensor | None):
        super().__init__(model, keep, beside)
        self.ids: Tensor | None = None

    @property
    def seen(self) -> int:
        """Tokens read so far."""
        return 0 if self.ids is None else self.ids.shape[1]

    def last(self, ids: Tensor, count: int = 1) -> Tensor:
        """Read ids; logits of the last `count` of them: (B, T) → (B, count, V)."""
        self._check(ids, count)
        if self.ids is not None and len(ids) != len(self.ids):
            raise ValueError(
                f"ids {tuple(ids.shape)} behind {len(self.ids)} older rows"
            )
        text = ids if self.ids is None else torch.cat([self.ids, ids], dim=1)
        x = self.hidden(text, **self._how(text.shape[1]))
        self.ids = text
        return self.logits(x[:, x.shape[1] - count :])

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens.

        Raises:
            ValueError: n is negative or above `seen`.
        """
        check_kind("n", n, int)
        if not 0 <= n <= self.seen:
            raise ValueError(f"cannot go back to {n} tokens: {self.seen} were seen")
        if self.ids is not None:
            self.ids = self.ids[:, :n]
        if self.keep is not None:
            self.keep = self.keep[:, :n]

    def reorder(self, rows: Tensor) -> None:
        """Put rows in another order, (B',) int64; one may be repeated or left out."""
        if self.ids is not None:
            check_ids("rows", rows, len(self.ids))
            self.ids = self.ids[rows]
        self._reorder(rows)


class CachedStep(_ModelStep):
    """Read only what is new; the caches remember the rest.

        step = CachedStep(gpt, gpt.new_caches())
        step = CachedStep(t5.decode, t5.new_caches(), memory=memory, memory_keep=keep)

    Args:
        model: a decoder, or any `model(ids, caches=caches, **beside) → (B, T, V)`.
        caches: one per layer, as `model.new_caches()` makes them.
        keep: (B, seen + T) bool, False where the prompt is padding; it grows.
        beside: tensors of B rows for each call, such as an encoder's `memory`.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(
        self, model, caches, keep: Tensor | None = None, **beside: Tensor | None
    ):
        super().__init__(model, keep, beside)
        if not hasattr(caches, "seen"):
            raise TypeError(
                f"caches must be what new_caches gave, got {type(caches).__name__}"
            )
        self.caches = caches

    @property
    def seen(self) -> int:
        """Tokens read so far."""
        return self.caches.seen

    def last(self, ids: Tensor, count: int = 1) -> Tensor:
        """Read ids; logits of the last `count` of them: (B, T) → (B, count, V)."""
        self._check(ids, count)
        how = self._how(self.seen + ids.shape[1])
        x = self.hidden(ids, caches=self.caches, **how)
        return self.logits(x[:, x.shape[1] - count :])

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens, in every layer."""
        self.caches.truncate(n)
        if self.keep is not None:
            self.keep = self.keep[:, :n]

    def reorder(self, rows: Tensor) -> None:
        """Put rows in another order, (B',) int64; one may be repeated or left out."""
        self.caches.reorder(rows)
        self._reorder(rows)


@torch.no_grad()
def read(step: Step, ids: Tensor, count: int = 1) -> Tensor:
    """Give a step its next tokens; the logits of the last `count`, checked.

    Shapes:
        ids (B, T) → (B, count, V), 1 ≤ count ≤ T

    Raises:
        ValueError: the answer has another shape, a NaN, a +∞, or nothing but −∞ in
            some row.  TypeError: it is no tensor of floats.
    """
    last = getattr(step, "last", None)
    logits = last(ids, count) if last else step(ids)
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        kind = getattr(logits, "dtype", type(logits).__name__)
        raise TypeError(f"a step must answer with float logits, got {kind}")
    B, T = ids.shape
    shape = tuple(logits.shape)
    if len(shape) != 3 or shape[:2] != (B, count if last else T) or not shape[2]:
        raise ValueError(f"a step that read {B} × {T} tokens gave logits {shape}")
    logits = logits[:, -count:]
    if not logits.amax(-1).isfinite().all():  # amax hands on a NaN
        raise ValueError("the step's logits hold a NaN, a +inf, or a row of -inf only")
    return logits


def check_request(
    step: Step, prompt: Tensor, max_new: int, stop: Collection[int], pad: int = 0
) -> None:
    """Can this text be continued? Asked before the model is run.

    Raises:
        TypeError: not callable, not integers.  ValueError: an empty prompt, a negative
            number, an id outside the vocabulary, a text longer than the model takes.
    """
    if not callable(step):
        raise TypeError(f"step must be callable, got {type(step).__name__}")
    if isinstance(step, torch.nn.Module):
        raise TypeError(
            f"a {type(step).__name__} forgets what it has read; step must remember: "
            f"CachedStep(model, model.new_caches())"
        )
    if not isinstance(prompt, Tensor):
        raise TypeError(f"the prompt must be a tensor, got {type(prompt).__name__}")
    if prompt.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"prompt ids must be int32 or int64, got {prompt.dtype}")
    if prompt.dim() != 2 or 0 in prompt.shape:
        shape = tuple(prompt.shape)
        raise ValueError(f"the prompt must be (B, T) with B, T ≥ 1, got {shape}")
    check_whole("max_new", max_new, least=0)
    check_ids_below(stop, pad, getattr(step, "vocab_size", None))
    most, seen = getattr(step, "max_seq_len", None), getattr(step, "seen", 0)
    if most is not None and seen + prompt.shape[1] + max_new > most:
        raise ValueError(
            f"{seen} tokens seen, a prompt of {prompt.shape[1]} and {max_new} new ones "
            f"are more than the model's max_seq_len, {most}"
        )


def check_ids_below(stop: Collection[int], pad: int, size: int | None) -> None:
    """Stop and padding ids must be numbers of the vocabulary, where its size is known.

    Raises:
        TypeError: not integers.  ValueError: one lies outside 0 … size − 1.
    """
    if isinstance(stop, str | Tensor) or not isinstance(stop, Collection):
        raise TypeError(f"stop must be a collection of ids, got {type(stop).__name__}")
    for name, value in (("pad", pad), *(("a stop id", id) for id in stop)):
        check_whole(name, value, least=0)
        if size is not None and value >= size:
            raise ValueError(f"{name} must lie in 0 … {size - 1}, got {value}")


def check_whole(name: str, value: int, least: int) -> None:
    """A whole number, at least so large.

    Raises:
        TypeError: not an integer.  ValueError: too small.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be ≥ {least}, got {value}")


def need(step: Step, method: str, why: str) -> None:
    """Refuse a step that lacks an optional method which this search depends on.

    Raises:
        TypeError: the step has no such method.
    """
    if not callable(getattr(step, method, None)):
        raise TypeError(
            f"{why} needs a step with a method `{method}`; {type(step).__name__} has "
            f"none"
        )


def _same(x: Tensor) -> Tensor:
    return x


def _rows(x: Tensor | None, rows: Tensor) -> Tensor | None:
    return x[rows] if isinstance(x, Tensor) else x
