# SPDX-License-Identifier: MIT
"""Which copy of a model writes fastest? Its linear layers, laid out anew.

Taught in: book/10_kv_cache.ipynb
"""

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block
from deepdive.feedforward import GatedFeedForward
from deepdive.inference.experts import PackedExperts, packable
from deepdive.inference.float32 import LEAST, Float32Linear, fastest
from deepdive.inference.joined import JoinedAttention, JoinedFeedForward
from deepdive.inference.latent import JoinedLatentAttention
from deepdive.inference.lean import LeanBlock, LeanRMSNorm, LeanRotary
from deepdive.inference.pages import LargePages, rounded_up
from deepdive.latent_attention import LatentAttention
from deepdive.norms import RMSNorm
from deepdive.positions import Rotary, half_split, interleaved

Model = TypeVar("Model", bound=nn.Module)
Layout = Callable[[nn.Linear], nn.Module]


def as_it_is(linear: nn.Linear) -> nn.Module:
    """The layout that changes nothing."""
    return linear


def for_inference(model: Model, layout: Layout = fastest) -> Model:
    """A copy of a model, prepared for writing; the model itself is left as it is.

    Queries, keys and values of self-attention become one product, gate and up of a
    gated network another; norms, rotations and residual paths are computed in fewer
    calls. The copy is in eval mode and is called as the model is: `forward`, `hidden`,
    `logits`, `new_caches`.

    Args:
        layout: what each remaining linear layer becomes, the output layer too:
            `fastest`, `as_it_is`, `Int8Linear`, or a function of your own.

    Raises:
        TypeError: model is not a module.  ValueError: what a layout refuses.

    Note:
        `fastest` keeps each large float32 matrix twice, see `Float32Linear`, and lays
        out large experts too: beside a model of 1 GB the copy takes 2 GB. With another
        layout experts keep their form. The matrices that latent attention absorbs
        always do. What is not laid out or joined is shared with the model, so train
        neither of the two while both are used. The names in `state_dict` differ.

    >>> import torch
    >>> from deepdive.configs import GptConfig
    >>> from deepdive.inference import Int8Linear
    >>> from deepdive.models.gpt import Gpt
    >>> model = Gpt(GptConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=16))
    >>> fast = for_inference(model, Int8Linear)
    >>> fast(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 9])

    Taught in: book/10_kv_cache.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    tensors = [*model.parameters(), *model.buffers()]
    shared = {id(x): x for x in tensors}  # `deepcopy` takes these as copied already
    made = copy.deepcopy(model, shared)
    _exchange(made, _prepared)
    absorbed = {
        id(matrix)
        for part in made.modules()
        if isinstance(part, LatentAttention)
        for matrix in (part.k_up, part.v_up)
    }

    def laid_out(part: nn.Module) -> nn.Module:
        if layout is fastest and packable(part) and part.gate[0].numel() >= LEAST:
            return PackedExperts(part)
        free = type(part) is nn.Linear and id(part) not in absorbed
        return layout(part) if free else part

    _exchange(made, laid_out)
    _settle([part for part in made.modules() if isinstance(part, Float32Linear)])
    return made.eval()


def _settle(parts: list[Float32Linear]) -> None:
    """Put the bands of all layers into large pages."""
    if parts:
        room = LargePages(sum(rounded_up(part.bands.nbytes) for part in parts))
        for part in parts:
            part.bands = room.copy(part.bands)


def _exchange(model: nn.Module, form: Callable[[nn.Module], nn.Module]) -> None:
    """Give each part its new form, those inside others first."""
    for part in reversed(list(model.modules())):
        for name, child in part.named_children():
            setattr(part, name, form(child))


def _prepared(part: nn.Module) -> nn.Module:
    """What a part becomes, or itself. Parts of other classes may compute otherwise."""
    if isinstance(part, Block) and type(part.attention) is MultiHeadAttention:
        part.attention = JoinedAttention(part.attention)  # not one that reads a memory
    if type(part) is Block and LeanBlock.fits(part):
        return LeanBlock(part)
    if type(part) is Rotary and part.pairing in (half_split, interleaved):
        return LeanRotary(part)
    return FORMS.get(type(part), _same)(part)


def _same(part: nn.Module) -> nn.Module:
    return part


FORMS = {
    GatedFeedForward: JoinedFeedForward,
    LatentAttention: JoinedLatentAttention,
    RMSNorm: LeanRMSNorm,
}
