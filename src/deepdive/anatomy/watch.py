# SPDX-License-Identifier: MIT
"""What happens inside a model when it reads one random text? One run, watched.

Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
"""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from deepdive.blocks import Block, Stack
from deepdive.positions import (
    Alibi,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
)

POSITIONS = {
    SinusoidalPositions: "sinusoidal",
    LearnedPositions: "learned",
    Rotary: "rotary",
    RelativeBias: "relative bias",
    Alibi: "ALiBi",
}
LENGTH = 8  # words of a test text; longer where a window asks for it


@dataclass
class Visit:
    """One block's call: the half it belongs to, what came in, and how it was called."""

    block: Block
    stack: Stack
    x: Tensor
    how: dict[str, Any]

    def again(self, x: Tensor, **changed: Any) -> Tensor:
        """The block alone, on another x; without a cache."""
        return self.block(x, **{**self.how, "cache": None, **changed})

    def random(self, seed: int) -> Tensor:
        return random_like(self.x.shape, self.x, seed).requires_grad_()


@dataclass
class Run:
    """What a model did with a text."""

    embeddings: list[nn.Embedding] = field(default_factory=list)  # of the words
    words: list[Tensor] = field(default_factory=list)  # what they gave
    visits: list[Visit] = field(default_factory=list)
    linears: list[tuple[nn.Linear, Tensor]] = field(default_factory=list)
    memory: Tensor | None = None
    out: Tensor | None = None

    def halves(self) -> dict[Stack, list[Visit]]:
        """The visits of each stack."""
        halves: dict[Stack, list[Visit]] = {}
        for visit in self.visits:
            halves.setdefault(visit.stack, []).append(visit)
        return halves


def run_once(
    model: nn.Module, length: int, caches=None, replace_words: int | None = None
) -> Run:
    """Let a model read `length` times word 0, and watch.

    Args:
        replace_words: a seed; the words' vectors are then random and ask for their
            gradients.
    """
    device = next(model.parameters()).device
    src = torch.zeros(1, length, dtype=torch.int64, device=device)
    tgt = src[:, : max(1, length - 1)].clone()
    run = Run()
    handles = _watch(model, run, (src, tgt), replace_words)
    try:
        if hasattr(model, "encode") and hasattr(model, "decode"):
            run.memory = model.encode(src)
            run.out = model.decode(tgt, run.memory, caches=caches)
        else:
            run.out = model(src) if caches is None else model(src, caches)
    finally:
        for handle in handles:
            handle.remove()
    return run


def _watch(model: nn.Module, run: Run, texts: tuple, replace_words: int | None):
    """Hooks that note in `run` what passes by; the embedding is the one that reads."""
    stack_of = {
        block: stack
        for stack in model.modules()
        if isinstance(stack, Stack)
        for block in stack
    }

    def embed(module, args, out):
        if not any(args[0] is text for text in texts):
            return None
        run.embeddings.append(module)
        if replace_words is not None:
            seed = 2 * replace_words + len(run.words)
            out = random_like(out.shape, out, seed).requires_grad_()
        run.words.append(out)
        return out

    def enter(module, args, how):
        run.visits.append(Visit(module, stack_of[module], args[0], dict(how)))

    def multiply(module, args, out):
        run.linears.append((module, out))

    handles = [b.register_forward_pre_hook(enter, with_kwargs=True) for b in stack_of]
    inside = {module for block in stack_of for module in block.modules()}
    for module in set(model.modules()) - inside:
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(embed))
        elif isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(multiply))
    return handles


def copied(model: nn.Module) -> nn.Module:
    """The same in float64, out of training."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model, got {type(model).__name__}")
    stacks = [stack for stack in model.modules() if isinstance(stack, Stack)]
    if not stacks or not all(len(stack) for stack in stacks):
        raise ValueError(f"{type(model).__name__} holds no stack of blocks")
    if any(p.is_meta for p in model.parameters()):
        raise ValueError("a model on the meta device has no numbers to be measured by")
    return copy.deepcopy(model).double().eval()


def check_length(length: int) -> None:
    """A test text needs a whole number of words, one at least."""
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"length must be an integer, got {length!r}")
    if length < 1:
        raise ValueError(f"length must be ≥ 1, got {length}")


def random_like(shape, like: Tensor, seed: int) -> Tensor:
    """The same random numbers on every device, in `like`'s dtype.

    Shapes:
        → shape
    """
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)
