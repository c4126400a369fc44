# SPDX-License-Identifier: MIT
"""What do the later ideas do to the same three words? Same formula, other costs."""

from dataclasses import replace

import torch
from torch import Tensor

from deepdive.cache import GrowingCache
from deepdive.inputs import check_kind
from deepdive.kernels import attention_weights, equation
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.kernels.tiled import online_softmax_steps
from deepdive.masks import Causal, Rule
from deepdive.positions import Rotary, interleaved
from deepdive.trace.example import CATS, CATS_DAILY, CATS_MICE_CHASE, Example
from deepdive.trace.formula import attention, layer


def cached(example: Example = CATS_DAILY, n_heads: int = 1) -> dict:
    """The last word alone, with the keys and values of the older ones remembered.

    Shapes:
        q, k, v (1, d_model) of the new word; K, V (T, d_model) as held afterwards;
        raw_scores, scaled_scores, weights (H, 1, T), output (1, d_model)

    Taught in: book/10_kv_cache.ipynb
    """
    check_kind("example", example, Example)
    module, cache = layer(example, n_heads), GrowingCache()
    old, new = example.X[None, :-1], example.X[None, -1:]
    with torch.no_grad():
        module(old, mask=Causal(), cache=cache)
        held = cache.seen
        output = module(new, mask=Causal(), cache=cache)[0]
        k, v = module.keys_values(new)
        q = split_heads(module.q_proj(new), n_heads)
        raw = (q @ cache.entries[0].mT)[0]
        weights = attention_weights(q, cache.entries[0], mask=Causal())[0]
    return {
        "words": example.words,
        "held_before": held,
        "q": merge_heads(q)[0],
        "k": merge_heads(k)[0],
        "v": merge_heads(v)[0],
        "K": merge_heads(cache.entries[0])[0],
        "V": merge_heads(cache.entries[1])[0],
        "raw_scores": raw,
        "scaled_scores": raw / q.shape[-1] ** 0.5,
        "weights": weights,
        "output": output,
        "nbytes": cache.nbytes,
    }


def rotary(
    example: Example = CATS_DAILY, n_heads: int = 2, mask: Tensor | Rule | None = None
) -> dict:
    """The same q and k, turned by their positions before they meet.

        (x, y) at angle a  ↦  (x cos a − y sin a, x sin a + y cos a)

    With two heads D = 2: one pair per head, and a = 1 radian per position. The weights
    are softmax(raw_scores / √D).

    Shapes:
        angles (T, D / 2); q, k, v, rotated_q, rotated_k (H, T, D); unrotated_scores,
        raw_scores, scaled_scores, weights (H, T, T); output (T, d_model)

    Taught in: book/11_rope.ipynb
    """
    check_kind("example", example, Example)
    Q, K, V = (example.X @ W for W in (example.W_Q, example.W_K, example.W_V))
    q, k, v = (split_heads(M[None], n_heads) for M in (Q, K, V))  # (1, H, T, D)
    at = torch.arange(len(example.words))
    turning = Rotary(q.shape[-1], pairing=interleaved)
    rotate = turning(at)
    turned_q, turned_k = rotate(q), rotate(k)
    heads = equation(turned_q, turned_k, v, mask=mask)
    raw = (turned_q @ turned_k.mT)[0]
    return {
        "words": example.words,
        "angles": at[:, None] * turning.frequencies(),
        "q": q[0],
        "k": k[0],
        "v": v[0],
        "rotated_q": turned_q[0],
        "rotated_k": turned_k[0],
        "unrotated_scores": (q @ k.mT)[0],
        "raw_scores": raw,
        "scaled_scores": raw / q.shape[-1] ** 0.5,
        "weights": attention_weights(turned_q, turned_k, mask=mask)[0],
        "output": merge_heads(heads)[0] @ example.W_O,
    }


def shared(example: Example = CATS, mask: Tensor | Rule | None = None) -> dict:
    """Two query heads read one key and one value head: the mean of the two they had.

    Shapes:
        q (2, T, 2); K, V (T, 2); raw_scores, scaled_scores, weights (2, T, T); output
        (T, d_model)

    Source: the mean, as Ainslie et al. 2023 (arXiv:2305.13245), §2.1, convert a model.

    Taught in: book/12_grouped_query_attention.ipynb
    """
    check_kind("example", example, Example)
    Q, K, V = (example.X @ W for W in (example.W_Q, example.W_K, example.W_V))
    q, k, v = (split_heads(M[None], 2) for M in (Q, K, V))  # (1, 2, T, 2)
    k, v = (M.mean(1, keepdim=True) for M in (k, v))  # (1, 1, T, 2)
    heads = equation(q, k, v, mask=mask)
    raw = (q @ k.mT)[0]
    return {
        "words": example.words,
        "q": q[0],
        "K": k[0, 0],
        "V": v[0, 0],
        "raw_scores": raw,
        "scaled_scores": raw / q.shape[-1] ** 0.5,
        "weights": attention_weights(q, k, mask=mask)[0],
        "output": merge_heads(heads)[0] @ example.W_O,
    }


def tiles(
    example: Example = CATS_MICE_CHASE, block_size: int = 2, mask: Rule | None = None
) -> dict:
    """One head's scores in tiles of 2 + 1, with the running maximum and sum.

    The words stand in another order, which without a mask changes no word's output:
    so the best key of *cats*, *chase*, comes in the second tile and moves the maximum.

    Shapes:
        steps: one dictionary for each tile of queries and keys, two by two: queries,
        keys (first, end), scores, scaled, (t, s), m, l and shrink (t,), acc and out
        (t, d_model); Q, K, V, output (T, d_model), scaled_scores (1, T, T)
        m is the largest score so far, l = Σ exp(score − m), acc = Σ exp(score − m) v;
        shrink is exp(old m − new m), the factor on the old l and acc; 0 at first

    Taught in: book/13_flash_attention.ipynb
    """
    check_kind("example", example, Example)
    whole = attention(example, mask=mask)
    found = online_softmax_steps(
        whole["Q"], whole["K"], whole["V"], block_size=block_size, mask=mask
    )
    steps, last = [], {}
    for step in found:
        m = last.get(step.queries, torch.full_like(step.m, -torch.inf))
        last[step.queries] = step.m
        steps.append(
            {
                "queries": (step.queries.start, step.queries.stop),
                "keys": (step.keys.start, step.keys.stop),
                "scores": step.scores,
                "m": step.m,
                "shrink": (m - step.m).exp(),
                "l": step.l,
                "acc": step.acc,
                "out": step.out,
            }
        )
    return {
        "words": example.words,
        **{name: whole[name] for name in ("Q", "K", "V", "scaled_scores")},
        "steps": steps,
        "output": whole["output"],
    }


def latent(example: Example = CATS, rank: int = 2) -> dict:
    """Keys and values read out of one short vector per word, the best of its length.

        [W_K W_V] ≈ W_down [W_UK W_UV], by the `rank` largest singular values

    Shapes:
        W_down (d_model, rank), W_UK, W_UV (rank, d_model), singular (d_model,);
        latents (T, rank), K, V (T, d_model) as read out of them; raw_scores,
        scaled_scores, weights (1, T, T); output (T, d_model); absorbed_q (T, rank): the
        query that meets latents directly

    Raises:
        ValueError: rank is not 1 … d_model.

    Taught in: book/15_deepseek.ipynb
    """
    check_kind("example", example, Example)
    d_model = example.X.shape[-1]
    check_kind("rank", rank, int)
    if not 1 <= rank <= d_model:
        raise ValueError(f"rank must lie in 1 … {d_model}, got {rank}")
    joined = torch.cat((example.W_K, example.W_V), dim=1)  # (d_model, 2 d_model)
    U, singular, V_h = torch.linalg.svd(joined, full_matrices=False)
    sign = U[:, :rank].sum(0).sign()  # svd leaves it open; sums ≥ 0 here
    W_down = U[:, :rank] * singular[:rank] * sign
    W_UK, W_UV = (V_h[:rank] * sign[:, None]).split(d_model, dim=1)
    # Zeros that rounding left at 1e−16, as zeros.
    W_down, W_UK, W_UV = (
        torch.where(M.abs() < 1e-12, 0.0, M) for M in (W_down, W_UK, W_UV)
    )
    pressed = replace(example, W_K=W_down @ W_UK, W_V=W_down @ W_UV)
    result = attention(pressed)
    return {
        "words": example.words,
        "singular": singular,
        "W_down": W_down,
        "W_UK": W_UK,
        "W_UV": W_UV,
        "latents": example.X @ W_down,
        "absorbed_q": result["Q"] @ W_UK.T,
        "K": result["K"],
        "V": result["V"],
        "raw_scores": result["raw_scores"],
        "scaled_scores": result["scaled_scores"],
        "weights": result["weights"],
        "output": result["output"],
    }
