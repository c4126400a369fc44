# SPDX-License-Identifier: MIT
"""Which words are hidden, for a model that is asked to fill the gaps?

BERT hides single words and asks for each in its place; T5 drops whole spans and asks
for all of them in one text.
"""

from collections.abc import Sequence
from itertools import pairwise
from types import NoneType

import torch
from torch import Tensor

from deepdive.inputs import check_batch, check_ids, check_kind, check_sizes
from deepdive.objectives.shifts import IGNORED


def masked_lm_batch(
    ids: Tensor,
    vocab_size: int,
    mask_id: int,
    special_ids: Sequence[int],
    generator: torch.Generator | None = None,
    rate: float = 0.15,
    masked: float = 0.8,
    swapped: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """BERT's cloze test: hide some words, ask for them.

    Each ordinary word is chosen with probability `rate`. A chosen one becomes [MASK]
    (80 %), a random ordinary word (10 %; BERT's own code draws from all words, special
    ones too), or stays as it is (10 %).

    Shapes:
        ids (B, T) → (inputs, labels) (B, T); labels are −100 where not chosen

    Args:
        special_ids: never chosen and never drawn: [CLS], [SEP], [PAD] …
        generator: of the device on which ids are.
        masked, swapped: shares of the chosen that become [MASK] and another word; the
            rest stays.

    Raises:
        ValueError: an id outside the vocabulary, rate outside 0 … 1, shares below 0 or
            above 1 together, or no ordinary word in the vocabulary.  TypeError: dtypes.

    Note:
        Words are chosen independently, so a short text may have none: its loss is 0.

    Source: Devlin et al. 2018, §3.1 and appendix A.1.

    Taught in: book/07_bert.ipynb
    """
    check_batch(ids)
    check_sizes(vocab_size=vocab_size)
    check_sizes(0, mask_id=mask_id)
    check_ids("token", ids, vocab_size)
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in 0 … 1, got {rate}")
    if not (masked >= 0 and swapped >= 0 and masked + swapped <= 1):
        raise ValueError(
            f"masked and swapped must be shares, together ≤ 1, got {masked}, {swapped}"
        )
    special = {*map(int, special_ids), int(mask_id)}
    if not all(0 <= id < vocab_size for id in special):
        raise ValueError(f"special ids {sorted(special)} need 0 … {vocab_size - 1}")
    if len(special) == vocab_size:
        raise ValueError(f"all {vocab_size} ids are special, none is left to draw")
    special = torch.tensor(list(special), device=ids.device)
    ordinary = torch.arange(vocab_size, device=ids.device)
    ordinary = ordinary[~torch.isin(ordinary, special)]
    how = {"device": ids.device, "generator": generator}

    chosen = torch.rand(ids.shape, **how) < rate
    chosen &= ~torch.isin(ids, special)
    labels = ids.masked_fill(~chosen, IGNORED)
    lot = torch.rand(ids.shape, **how)
    drawn = ordinary[torch.randint(len(ordinary), ids.shape, **how)].to(ids.dtype)
    inputs = ids.masked_fill(chosen & (lot < masked), mask_id)
    other = chosen & (lot >= masked) & (lot < masked + swapped)
    return torch.where(other, drawn, inputs), labels


def span_corruption(
    ids: Tensor,
    sentinels: Sequence[int],
    generator: torch.Generator | None = None,
    rate: float = 0.15,
    mean_span: float = 3.0,
    eos: int | None = None,
) -> tuple[Tensor, Tensor]:
    """T5's cloze test: drop whole spans, ask for all of them in one go.

        Thank you [for inviting] me to your party [last] week .
        inputs  = Thank you ⟨0⟩ me to your party ⟨1⟩ week .
        targets = ⟨0⟩ for inviting ⟨1⟩ last ⟨2⟩

    Of L words, N = round(L·rate) are dropped, in round(N/mean_span) spans, each at
    least 1 long and no two of them adjacent; which ones is uniform over all such cuts.

    Shapes:
        ids (L,), L ≥ 2 → inputs (L − N + spans,), targets (N + spans + 1,); one more
        each where eos is given

    Args:
        sentinels: the ids of ⟨0⟩, ⟨1⟩, …, one more than spans.
        generator: a generator of the CPU.
        eos: appended to both where given.

    Raises:
        ValueError: too short a text, too few sentinels, a sentinel in the text, or a
            rate (0 … 1, both excluded) or mean_span (≥ 1) out of range.

    Source: Raffel et al. 2019, §3.1.4, figure 2 (one last sentinel ends the targets),
    and §3.3.4 (spans). The authors' released code always keeps the first word, drops
    the last, and lets eos stand for the last sentinel.

    Taught in: book/09_t5.ipynb
    """
    _check_spans(ids, sentinels, rate, mean_span)
    check_kind("eos", eos, int, NoneType)
    L = len(ids)
    dropped = min(max(round(L * rate), 1), L - 1)
    spans = min(max(round(dropped / mean_span), 1), dropped, L - dropped + 1)
    if len(sentinels) < spans + 1:
        raise ValueError(
            f"{spans} spans need {spans + 1} sentinels, got {len(sentinels)}"
        )
    gone = _parts(dropped, spans, generator)
    # Spans + 1 stretches are kept, the first and the last of them perhaps empty.
    kept = _parts(L - dropped + 2, spans + 1, generator)
    kept[0], kept[-1] = kept[0] - 1, kept[-1] - 1

    lengths = [n for pair in zip(kept, [*gone, 0], strict=True) for n in pair]
    pieces = iter(ids.split(lengths))
    marks = list(ids.new_tensor(list(sentinels[: spans + 1])).split(1))
    end = [] if eos is None else [ids.new_tensor([eos])]
    inputs, targets = [], []
    for mark in marks:
        inputs += [next(pieces), mark]
        targets += [mark, next(pieces)]
    return torch.cat([*inputs[:-1], *end]), torch.cat([*targets, *end])


def fill_spans(inputs: Tensor, targets: Tensor, sentinels: Sequence[int]) -> Tensor:
    """Undo `span_corruption`: put what follows each sentinel back in its place.

    Shapes:
        inputs (M,), targets (N,), without eos → ids (L,)

    Raises:
        ValueError: a sentinel of the inputs is not in the targets exactly once.

    Taught in: book/09_t5.ipynb
    """
    _check_text("inputs", inputs)
    _check_text("targets", targets)
    marks, spans, current = set(map(int, sentinels)), {}, []
    for id in targets.tolist():
        if id in marks:
            if id in spans:
                raise ValueError(f"sentinel {id} stands twice in the targets")
            current = spans[id] = []
        else:
            current.append(id)
    missing = [id for id in inputs.tolist() if id in marks and id not in spans]
    if missing:
        raise ValueError(f"sentinels {missing} of the inputs are not in the targets")
    filled = [spans[id] if id in marks else [id] for id in inputs.tolist()]
    return inputs.new_tensor([id for span in filled for id in span])


def _check_spans(ids, sentinels, rate: float, mean_span: float) -> None:
    """What `span_corruption` needs before it draws."""
    _check_text("ids", ids)
    if len(ids) < 2:
        raise ValueError(f"ids must be (L,) with L ≥ 2, got L = {len(ids)}")
    if not 0 < rate < 1 or not mean_span >= 1:
        raise ValueError(
            f"rate must lie between 0 and 1, mean_span be ≥ 1, got {rate}, {mean_span}"
        )
    present = set(ids.tolist()) & set(map(int, sentinels))
    if present:
        raise ValueError(f"sentinels {sorted(present)} already stand in the text")
    if len(set(sentinels)) != len(sentinels):
        raise ValueError(f"sentinels must differ, got {list(sentinels)}")


def _check_text(name: str, ids: Tensor) -> None:
    """One text: integers on one axis."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{name} must be a tensor of integers, got {kind}")
    if ids.dim() != 1:
        raise ValueError(f"{name} must have one axis, got {tuple(ids.shape)}")


def _parts(total: int, n: int, generator: torch.Generator | None) -> list[int]:
    """`total` as a sum of n numbers ≥ 1, every such sum equally likely."""
    cuts = torch.randperm(total - 1, generator=generator)[: n - 1].sort().values + 1
    ends = [0, *cuts.tolist(), total]
    return [b - a for a, b in pairwise(ends)]
