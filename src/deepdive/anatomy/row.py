# SPDX-License-Identifier: MIT
"""What is this model made of? One row, read off the built model."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from deepdive.anatomy.behaviour import behaviour
from deepdive.anatomy.maps import SEEDS
from deepdive.anatomy.sizes import sizes
from deepdive.anatomy.watch import copied


@dataclass(frozen=True)
class Anatomy:
    """One row of the book's central table.

    Attributes:
        name: the model's.
        halves: encoder, decoder or both; a half decodes if it does not look ahead.
        mask: who sees whom in one layer of each half, found by differentiating.
        attention: multi-head, grouped-query, multi-query or latent.
        positions, enter: what tells the order, and where a run was seen to take it in.
        norm, norm_place: its kind; pre: the sublayer reads what the norm gave, post:
            the norm reads the sum.
        feedforward: its activation; a gated network goes by its own name (SwiGLU).
        experts: routed ones, how many per token, shared ones; None without a mixture.
        biases: all, some or none of the blocks' linear maps have one.
        tied: the output layer is the embedding's matrix; None without output layer.
        layers: blocks of one half, or of each.
        kv_heads: heads with keys and values of their own; the latent counts as one.
        head_dim: width of a head; in latent attention of a key's two parts and a value.
        parameters, used, parts: all, those of one token's pass, and by part.
        kv_numbers: kept per token and layer; None without a cache.

    Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
    """

    name: str
    halves: str
    mask: str
    attention: str
    positions: str
    enter: str
    norm: str
    norm_place: str
    feedforward: str
    experts: tuple[int, int, int] | None
    biases: str
    tied: bool | None
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: str
    d_ff: str
    parameters: int
    used: int
    parts: dict[str, int]
    kv_numbers: int | None


def anatomy(
    model: nn.Module | Callable[[Any], nn.Module],
    config: Any = None,
    name: str | None = None,
) -> Anatomy:
    """One model's row.

    A built model is measured itself, its masks and norms on a copy in float64. A class
    with a config is measured twice, so that no published size is too large: how it
    works on a model of the same class with `shrunken` sizes, how large it is on one
    without storage, built on torch's meta device.

    Args:
        model: a built model of blocks; or what builds one from `config`.
        name: the row's; the class's name unless given.

    Raises:
        TypeError: not a model, nor a builder with one of `deepdive.configs`' models.
        ValueError: the model holds no `Stack` of blocks.

    Note:
        What measuring may miss. A weight that is exactly zero hides a path that is
        there: a model whose output matrices start at zero seems to see only itself. The
        choice of an expert is a step, without a gradient; only its gate is seen. And a
        window longer than a test text is taken from the mask that the layers receive,
        after the measured map has been found to agree with that mask.

    >>> from deepdive.configs import MISTRAL_7B
    >>> from deepdive.models.llama import Llama
    >>> row = anatomy(Llama, MISTRAL_7B, "Mistral 7B")
    >>> row.mask, row.attention, row.enter, row.norm_place, row.feedforward
    ('causal, window 4096', 'grouped-query', 'q and k', 'pre', 'SwiGLU')
    >>> f"{row.parameters:,}", row.kv_numbers
    ('7,241,732,096', 2048)

    Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
    """
    name = getattr(model, "__name__", type(model).__name__) if name is None else name
    if isinstance(model, nn.Module):
        if config is not None:
            raise TypeError("a built model has its sizes: config must be None")
        large = small = copied(model)
    elif callable(model):
        small = shrunken(config)
        with torch.random.fork_rng(devices=[]):  # the caller's numbers stay the same
            torch.manual_seed(SEEDS[0])
            small = copied(model(small))
            with torch.device("meta"):
                large = model(config)
    else:
        raise TypeError(f"expected a model or its class, got {type(model).__name__}")
    counted = sizes(large)
    rules = counted.pop("rules")
    return Anatomy(name=name, **counted, **behaviour(small, rules))


def shrunken(config: Any) -> Any:
    """The same design, small: its structure is kept, its sizes are not.

    Kept: which of H, G and 1 are equal, a window (of 3 tokens), gates, ties, experts
    (4, of which 2 work), groups, shared experts, dense layers, compressed queries.

    Raises:
        TypeError: not one of `deepdive.configs`' models.

    >>> from deepdive.configs import LLAMA_3_8B
    >>> small = shrunken(LLAMA_3_8B)
    >>> small.n_heads, small.n_kv_heads, small.d_model
    (4, 2, 16)

    Taught in: book/16_what_stayed.ipynb
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"expected a model's config, got {config!r}")
    given = {f.name: getattr(config, f.name) for f in fields(config)}
    if not {"n_layers", "n_heads", "d_model"} <= set(given):
        raise TypeError(f"expected a model's config, got {type(config).__name__}")
    small = {
        **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size"), 11),
        **{"d_model": 16, "n_layers": 2, "n_heads": 4, "head_dim": 6, "d_ff": 12},
        **{"max_seq_len": 32, "dropout": 0.0, "window": 3, "d_expert": 6},
        **{"q_lora_rank": 7, "kv_lora_rank": 5, "v_head_dim": 3},
        **{"qk_nope_head_dim": 4, "qk_rope_head_dim": 2},
        **{"n_experts": 4, "top_k": 2, "top_groups": 1},
        "n_groups": min(2, given.get("n_groups", 1)),
        "n_shared_experts": min(1, given.get("n_shared_experts", 0)),
    }
    if "n_kv_heads" in given:
        H, G = given["n_heads"], given["n_kv_heads"]
        small["n_kv_heads"] = 4 if G == H else 1 if G == 1 else 2
    if "n_dense_layers" in given:
        dense = given["n_dense_layers"]
        small["n_dense_layers"] = 2 if dense == given["n_layers"] else min(1, dense)
    changed = {k: v for k, v in small.items() if given.get(k) is not None}
    return dataclasses.replace(config, **changed)
