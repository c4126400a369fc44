# SPDX-License-Identifier: MIT
"""Which outputs depend on which inputs? The mask, found by differentiating.

Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.anatomy.watch import (
    LENGTH,
    Run,
    Visit,
    check_length,
    copied,
    random_like,
    run_once,
)
from deepdive.masks import Causal, Everyone, Rule

SEEDS = (0, 1)


def dependence(out: Tensor, x: Tensor, seed: int = 0) -> Tensor:
    """Which outputs change with which inputs, by differentiating: (T, S) bool.

        depends[t, s]  =  ∂(out_t · r) / ∂x_s ≠ 0,   r a random direction

    Shapes:
        out (1, T, any), computed from x (1, S, any), which asks for its gradient

    Raises:
        ValueError: another shape, or x asks for no gradient.

    >>> x = torch.ones(1, 3, 1, requires_grad=True)
    >>> dependence(x.cumsum(dim=1), x).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)

    Taught in: book/16_what_stayed.ipynb
    """
    for what, tensor in (("out", out), ("x", x)):
        if tensor.dim() != 3 or tensor.shape[0] != 1:
            raise ValueError(f"{what} must be (1, T, any), got {tuple(tensor.shape)}")
    if not x.requires_grad:
        raise ValueError("x must ask for its gradient (requires_grad)")
    depends = torch.zeros(out.shape[1], x.shape[1], dtype=torch.bool)
    if not out.requires_grad:
        return depends
    # A sum of a normalised vector's numbers is constant: a random mixture is not.
    direction = random_like(out.shape[-1:], out, seed)
    for t in range(out.shape[1]):
        (slope,) = torch.autograd.grad(
            out[0, t] @ direction, x, retain_graph=True, allow_unused=True
        )
        if slope is not None:
            depends[t] = (slope[0] != 0).any(dim=-1)
    return depends


def layer_maps(model: nn.Module, length: int = LENGTH) -> dict[str, Tensor]:
    """Who sees whom in one layer of each half, and who in the source ("cross").

    Every block is run alone, on random vectors, with the mask, bias and rotation that
    the model gave it. Blocks of a half that differ are joined by “or”.

    Shapes:
        → {"encoder", "decoder" or "cross": (T, S) bool}, as in `reach`

    Raises:
        TypeError: not a model.  ValueError: no blocks in it, or length below 1.

    Taught in: book/12_grouped_query_attention.ipynb, book/16_what_stayed.ipynb
    """
    check_length(length)
    run = run_once(copied(model), length)
    cross = {} if run.memory is None else {"cross": cross_map(run)}
    return {**maps_of(run), **cross}


def reach(model: nn.Module, length: int = LENGTH) -> dict[str, Tensor]:
    """Who depends on whom from the words to the output, through all layers.

    In an encoder–decoder "cross" says which source words each target position reads.
    L layers with a window w reach L · (w − 1) words back.

    Shapes:
        → {"encoder", "decoder" or "cross": (T, S) bool}, T = S = length; a target has
        one word less than its source

    Raises:
        TypeError: not a model.  ValueError: no blocks in it, or length below 1.

    Taught in: book/12_grouped_query_attention.ipynb, book/16_what_stayed.ipynb
    """
    check_length(length)
    model, found = copied(model), {}
    for seed in SEEDS:
        run = run_once(model, length, replace_words=seed)
        if run.memory is None:
            pairs = {next(iter(maps_of(run))): (run.out, run.words[0])}
        else:
            source, target = run.words
            pairs = {"encoder": (run.memory, source), "decoder": (run.out, target)}
            pairs["cross"] = (run.out, source)
        for name, (out, x) in pairs.items():
            seen = dependence(out, x, seed)
            found[name] = found[name] | seen if name in found else seen
    return found


def mask_words(seen: Tensor) -> str:
    """The rule that a measured map follows, in words.

    Shapes:
        seen (T, S) bool

    >>> mask_words(Causal(window=2).tensor(4, 4)), mask_words(Everyone().tensor(2, 3))
    ('causal, window 2', 'everyone')

    Raises:
        TypeError: not a bool tensor.  ValueError: not two axes.

    Taught in: book/16_what_stayed.ipynb
    """
    if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
        raise TypeError("a map must be a bool tensor")
    if seen.dim() != 2:
        raise ValueError(f"a map must be (T, S), got {tuple(seen.shape)}")
    T, S = seen.shape
    if seen.all():
        return "everyone"
    for prefix in (0, *range(2, S)):
        for window in (None, *range(1, S)):
            rule = Causal(window, prefix)
            if T <= S and torch.equal(rule.tensor(T, S), seen.cpu()):
                return rule_words(rule)
    return "other"


def rule_words(rule: Rule | None) -> str | None:
    """A rule in words, None for one that is not known here."""
    if type(rule) is Everyone:
        return "everyone"
    if type(rule) is not Causal:
        return None
    window = "" if rule.window is None else f", window {rule.window}"
    return f"causal{window}" + (f", prefix {rule.prefix}" if rule.prefix else "")


def maps_of(run: Run) -> dict[str, Tensor]:
    """Each half's layer map, under the half's name, in the order of the run."""
    maps: dict[str, Tensor] = {}
    for visits in run.halves().values():
        seen = [_alone(visit, seed) for visit in visits for seed in SEEDS]
        seen = torch.stack(seen).any(dim=0)  # (T, T)
        if run.memory is None:
            decodes = len(seen) == 1 or not seen[-2, -1]
        else:
            decodes = visits[0].block.cross_attention is not None
        maps["decoder" if decodes else "encoder"] = seen
    return maps


def cross_map(run: Run) -> Tensor:
    """Which of the encoder's outputs each target position reads in one layer: (T, S).

    Outputs that the decoder never receives stand first, as read by nobody.
    """
    T, S = run.out.shape[1], run.memory.shape[1]
    reads = torch.zeros(T, S, dtype=torch.bool)
    for visit in run.visits:
        if visit.block.cross_attention is not None:
            given = visit.how["memory"]
            for seed in SEEDS:
                memory = random_like(given.shape, given, seed).requires_grad_()
                seen = dependence(visit.again(visit.x, memory=memory), memory, seed)
                reads[:, S - seen.shape[1] :] |= seen
    return reads


def _alone(visit: Visit, seed: int) -> Tensor:
    """One block's map, (T, T)."""
    x = visit.random(seed)
    return dependence(visit.again(x), x, seed)
