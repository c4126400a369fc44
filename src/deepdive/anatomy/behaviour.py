# SPDX-License-Identifier: MIT
"""How does a model work? Masks, where positions enter, what the norms read.

Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
"""

from typing import Any

import torch
from torch import Tensor, nn

from deepdive.anatomy.maps import cross_map, maps_of, mask_words, reach, rule_words
from deepdive.anatomy.watch import LENGTH, Run, Visit, run_once
from deepdive.masks import Rule


def behaviour(model: nn.Module, rules: list[Rule | None]) -> dict[str, Any]:
    """What is seen of a small model in float64; `rules` are the full-size model's."""
    used = run_once(model, 1)
    windows = [w for w in map(_window, used.halves().values()) if w and w <= 64]
    length = max([LENGTH, *(w + 3 for w in windows)])
    longest = getattr(getattr(model, "config", None), "max_seq_len", length)
    length = min(length, longest)
    run = run_once(model, length)
    words = {
        name: _half_words(seen, visits, rule)
        for (name, seen), visits, rule in zip(
            maps_of(run).items(), run.halves().values(), rules, strict=True
        )
    }
    halves = " and ".join(words)
    if run.memory is not None:
        whole = reach(model, length)["cross"]
        words["cross"] = mask_words(cross_map(run) if whole.all() else whole)
    one = len(words) == 1
    return {
        "halves": halves,
        "mask": "; ".join(w if one else f"{name}: {w}" for name, w in words.items()),
        "enter": _entrances(run),
        "norm_place": joined(place for v in run.visits for place in _norm_places(v)),
    }


def _half_words(seen: Tensor, visits: list[Visit], rule: Rule | None) -> str:
    """What was measured, in words; the rule's own where it is what was measured."""
    given = visits[0].how.get("mask")
    agrees = isinstance(given, Rule) and torch.equal(given.tensor(*seen.shape), seen)
    return (rule_words(rule) if agrees else None) or mask_words(seen)


def _window(visits: list[Visit]) -> int | None:
    return getattr(visits[0].how.get("mask"), "window", None)


@torch.no_grad()
def _entrances(run: Run) -> str:
    """Where the order comes in: found by taking it away, or by equal words."""
    found = []
    firsts = [visits[0] for visits in run.halves().values()]
    if any(not torch.equal(v.x, v.x[:, :1].expand_as(v.x)) for v in firsts):
        found.append("embedding")
    for key, where in (("rotate", "q and k"), ("bias", "scores")):
        for visit in run.visits:
            if visit.how.get(key) is not None:
                x = visit.random(0)
                if not torch.equal(visit.again(x), visit.again(x, **{key: None})):
                    found.append(where)
                    break
    return ", ".join(found) or "nowhere"


@torch.no_grad()
def _norm_places(visit: Visit) -> list[str]:
    """For each sublayer: does the norm stand before it, or behind the sum?"""
    block, seen = visit.block, {}
    pairs = [
        (block.attention, block.attention_norm),
        (block.cross_attention, block.cross_norm),
        (block.feedforward, block.feedforward_norm),
    ]
    pairs = [pair for pair in pairs if pair[0] is not None]

    def note(module, args, out):
        seen[module] = args[0], out

    handles = [m.register_forward_hook(note) for pair in pairs for m in pair]
    try:
        visit.again(visit.random(0))
    finally:
        for handle in handles:
            handle.remove()
    places = []
    for sublayer, norm in pairs:
        (read, gave), (norm_read, norm_gave) = seen[sublayer], seen[norm]
        if isinstance(norm, nn.Identity):
            places.append("none")
        elif torch.equal(read, norm_gave):
            places.append("pre")
        else:
            places.append("post" if torch.allclose(norm_read, read + gave) else "other")
    return places


def joined(words) -> str:
    """Words side by side, each once, in the order of their first appearance."""
    return " / ".join(dict.fromkeys(words))
