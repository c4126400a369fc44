# SPDX-License-Identifier: MIT
"""How large is a model, and of which parts? Counted on the built modules.

Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
"""

from typing import Any

import torch
from torch import nn

from deepdive.anatomy.behaviour import joined
from deepdive.anatomy.watch import POSITIONS, run_once
from deepdive.blocks import Block, Stack
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.latent_attention import LatentAttention
from deepdive.moe import Experts, MixtureOfExperts, TwoLayerExperts

GATED = {"ReLU": "ReGLU", "GELU": "GEGLU", "SiLU": "SwiGLU", "Sigmoid": "GLU"}


def sizes(model: nn.Module) -> dict[str, Any]:
    """What can be read off the modules at full size, without numbers in them."""
    blocks = [b for b in model.modules() if isinstance(b, Block)]
    parts = _parts(model)
    total = sum(parts.values())
    networks = [_network(block.feedforward) for block in blocks]
    mixtures = [
        b.feedforward for b in blocks if isinstance(b.feedforward, MixtureOfExperts)
    ]
    idle = sum(_idle(mixture) for mixture in mixtures)
    found = {
        "norm": joined(type(b.attention_norm).__name__ for b in blocks),
        "feedforward": joined(kind for kind, _ in networks),
        "d_ff": _counted([width for _, width in networks]),
        "experts": _experts(mixtures[0]) if mixtures else None,
        "biases": _biases(blocks),
        "layers": len(next(s for s in model.modules() if isinstance(s, Stack))),
        "positions": joined(
            word
            for kind, word in POSITIONS.items()
            for module in model.modules()
            if isinstance(module, kind)
        )
        or "none",
        **{"parts": parts, "parameters": total, "used": total - idle},
        **_heads(blocks),
    }
    return {**found, **_ran(model, blocks)}


@torch.no_grad()
def _ran(model: nn.Module, blocks: list[Block]) -> dict[str, Any]:
    """What one token shows: the cache, the tie, the width, and the layers' masks."""
    if next(model.parameters()).is_meta:
        for block in blocks:  # experts choose by numbers, which a meta model has not
            block.feedforward = nn.Identity()
    caches = model.new_caches() if hasattr(model, "new_caches") else None
    run = run_once(model, 1, caches)
    heads = [layer for layer, out in run.linears if out is run.out]
    kept = None
    if caches is not None:
        own = [getattr(cache, "own", cache) for cache in caches]
        kept = sum(c.nbytes // c.entries[0].element_size() for c in own if c.held)
        kept //= len(own)
    return {
        "kv_numbers": kept,
        "tied": heads[0].weight is run.embeddings[-1].weight if heads else None,
        "d_model": run.visits[0].x.shape[-1],
        "rules": [v[0].how.get("mask") for v in run.halves().values()],
    }


def _parts(model: nn.Module) -> dict[str, int]:
    """Parameters by part; one that is used twice counts where it looks words up."""
    counted: set[nn.Parameter] = set()

    def count(modules) -> int:
        new = {p for m in modules if m is not None for p in m.parameters()} - counted
        counted.update(new)
        return sum(p.numel() for p in new)

    blocks = [b for b in model.modules() if isinstance(b, Block)]
    lookups = (nn.Embedding, *POSITIONS)
    return {
        "attention": count(x for b in blocks for x in (b.attention, b.cross_attention)),
        "feedforward": count(b.feedforward for b in blocks),
        "embedding": count(m for m in model.modules() if isinstance(m, lookups)),
        "norms": count(m for m in model.modules() if "Norm" in type(m).__name__),
        "output": count([model]),
    }


def _heads(blocks: list[Block]) -> dict[str, Any]:
    """The number of heads, their widths, and what kind of attention that makes."""
    found = {_head(b.attention) for b in blocks}
    found |= {_head(b.cross_attention) for b in blocks if b.cross_attention is not None}
    if len(found) > 1:
        raise ValueError(f"the blocks' attention differs: {sorted(found)}")
    (kind, heads, kv_heads, width) = found.pop()
    return {"attention": kind, "heads": heads, "kv_heads": kv_heads, "head_dim": width}


def _head(attention: nn.Module) -> tuple[str, int, int, str]:
    if isinstance(attention, LatentAttention):
        key = f"{attention.qk_nope_head_dim} + {attention.qk_rope_head_dim}"
        width = f"{key}, value {attention.v_head_dim}"
        return "latent", attention.n_heads, 1, width
    D = attention.head_dim
    H, G = attention.q_proj.out_features // D, attention.k_proj.out_features // D
    kind = "multi-head" if G == H else "multi-query" if G == 1 else "grouped-query"
    return kind, H, G, str(D)


def _network(layer: nn.Module) -> tuple[str, int]:
    """What a feed-forward layer, or one of its experts, is called; its width."""
    core = layer.experts if isinstance(layer, MixtureOfExperts) else layer
    if not isinstance(core, (FeedForward, GatedFeedForward, Experts, TwoLayerExperts)):
        return type(core).__name__, 0
    activation = type(core.activation).__name__
    if isinstance(core, (GatedFeedForward, Experts)):
        activation = GATED.get(activation, f"gated {activation}")
    return activation, core.up.shape[1] if core is not layer else core.up.out_features


def _experts(layer: MixtureOfExperts) -> tuple[int, int, int]:
    """E, K and the shared ones; K by asking the router about one token."""
    weight = layer.experts.up
    chosen = layer.router(weight.detach().new_zeros(1, layer.experts.d_model)).experts
    wide = 0 if layer.shared is None else layer.shared.up.out_features
    return weight.shape[0], chosen.shape[1], wide // layer.experts.d_expert


def _idle(layer: MixtureOfExperts) -> int:
    """Weights of the experts that a token does not visit."""
    E, K, _ = _experts(layer)
    return sum(p.numel() for p in layer.experts.parameters()) // E * (E - K)


def _biases(blocks: list[Block]) -> str:
    linear = [m for b in blocks for m in b.modules() if isinstance(m, nn.Linear)]
    having = sum(layer.bias is not None for layer in linear)
    return "none" if not having else "all" if having == len(linear) else "some"


def _counted(widths: list[int]) -> str:
    """Different widths with their numbers of layers: 12288 (1), 1536 (59)."""
    kinds = dict.fromkeys(widths)
    if len(kinds) == 1:
        return str(widths[0])
    return ", ".join(f"{width} ({widths.count(width)})" for width in kinds)
