# SPDX-License-Identifier: MIT
"""What does a model cost? Parameters, operations and bytes, predicted from its sizes.

Everything here is arithmetic on a config; torch is not imported, so a table of all the
book's models takes no time. Tests hold each formula to the built model: its parameters,
the operations that torch counts, the bytes that its caches report.

Conventions: one multiply-add is 2 FLOPs. Only matrix products are counted; norms,
activations, softmax and rotations are left out (under 1 % at the models' own widths).
Bytes are those of the numbers alone.
"""

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, NamedTuple

from deepdive.configs import (
    AttentionConfig,
    BertConfig,
    DeepSeekV2Config,
    GptConfig,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    TransformerConfig,
)


class Part(NamedTuple):
    """Weights of one part of a layer: in matrices, which multiply, and beside them.

    Taught in: book/10_kv_cache.ipynb
    """

    matrices: int = 0
    vectors: int = 0  # biases, norms, tables that are looked up

    @property
    def total(self) -> int:
        return self.matrices + self.vectors


NOTHING = Part()


@dataclass(frozen=True)
class Layer:
    """One layer's weights, and what its attention does per token and per pair.

    Attributes:
        used: of the feed-forward part, what one token visits; all of it unless given.
        per_key: matrices that are applied to every key of the cache at each step (MLA's
            expansion), or to the new tokens alone where they are absorbed.
        cached: numbers that are kept per token.
        pair, absorbed_pair: multiply-adds for one query with one key, all heads.
        cross, cross_source: cross-attention; of it, what reads the source, once.
        window: keys that a query may see; None for all.

    Taught in: book/10_kv_cache.ipynb
    """

    attention: Part
    feedforward: Part
    norms: Part
    cached: int = 0
    pair: int = 0
    used: Part | None = None
    cross: Part = NOTHING
    cross_source: Part = NOTHING
    per_key: int = 0
    absorbed_pair: int | None = None
    window: int | None = None
    experts: tuple[int, int, int] | None = None  # E, K, weights of one

    @property
    def visited(self) -> Part:
        return self.feedforward if self.used is None else self.used


@dataclass(frozen=True)
class Plan:
    """A whole model: its stacks, and what stands around them.

    Taught in: book/10_kv_cache.ipynb
    """

    embedding: Part
    output: Part  # stored beside the embedding; tied weights are not stored twice
    head: int  # matrix weights that every token's logits multiply, tied or not
    decoder: tuple[Layer, ...] = ()
    encoder: tuple[Layer, ...] = ()
    positions: Part = NOTHING
    norms: Part = NOTHING  # beside the layers', of what a decoder's step passes
    encoder_norms: Part = NOTHING
    causal: bool = True

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self.encoder + self.decoder


def parameters(config) -> dict[str, int]:
    """How many weights, by part; `used` is what one token's pass needs.

    `used` leaves out the experts that a token does not visit and counts the rest whole,
    the embedding table too. Reports differ there: Mixtral's 12.9 B has the table, of
    which one row is read; DeepSeek's 2.4 B (V2-Lite) and 36.7 B (V3) fit without it.

    Raises:
        TypeError: not one of `deepdive.configs`' models.

    >>> from deepdive.configs import GPT2_SMALL, MIXTRAL_8X7B
    >>> parameters(GPT2_SMALL)["total"]
    124439808
    >>> round(parameters(MIXTRAL_8X7B)["used"] / 1e9, 1)
    12.9

    Taught in: book/06_transformer_2017.ipynb, book/14_mixture_of_experts.ipynb
    """
    plan = plan_of(config)
    parts = {
        "embedding": plan.embedding.total + plan.positions.total,
        "attention": sum(x.attention.total + x.cross.total for x in plan.layers),
        "feedforward": sum(x.feedforward.total for x in plan.layers),
        "norms": plan.norms.total
        + plan.encoder_norms.total
        + sum(x.norms.total for x in plan.layers),
        "output": plan.output.total,
    }
    total = sum(parts.values())
    idle = sum(x.feedforward.total - x.visited.total for x in plan.layers)
    return {**parts, "total": total, "used": total - idle}


def kv_numbers(config, tokens: int, source: int = 0) -> int:
    """Numbers that a decoder keeps of `tokens` tokens, all layers together.

    Args:
        source: tokens of the encoder's text, whose keys and values are kept as well.

    Note:
        The sizes of an attention alone (`configs.AttentionConfig`) are enough.

    Raises:
        TypeError: not a decoder's config.
        ValueError: a negative number, or a source without an encoder.

    Taught in: book/10_kv_cache.ipynb
    """
    alone = isinstance(config, AttentionConfig)
    plan = _attention_alone(config) if alone else _decoder(config)
    _check_counts(tokens=tokens, source=source)
    _check_source(config, plan, source=source)
    return sum(
        layer.cached * (source + _at_most(tokens, layer.window))
        for layer in plan.decoder
    )


def kv_bytes(
    config, tokens: int, batch: int = 1, source: int = 0, bytes_per_number: int = 2
) -> int:
    """Bytes of the cache: 2 · n_layers · G · D · tokens · bytes, or (d_c + d_R) in MLA.

    Raises:
        TypeError: not a decoder's config.
        ValueError: a negative number, or a source without an encoder.

    >>> from deepdive.configs import LLAMA_3_8B, DEEPSEEK_V2
    >>> kv_bytes(LLAMA_3_8B, tokens=1) / 1024, kv_bytes(DEEPSEEK_V2, tokens=1) / 1024
    (128.0, 67.5)

    Taught in: book/10_kv_cache.ipynb, book/12_grouped_query_attention.ipynb
    """
    _check_counts(batch=batch, bytes_per_number=bytes_per_number)
    return batch * bytes_per_number * kv_numbers(config, tokens, source)


def flops(
    config,
    tokens: int,
    seen: int = 0,
    source: int = 0,
    memory: int = 0,
    batch: int = 1,
    skip_blocked: bool = True,
) -> dict[str, int]:
    """Operations of one forward pass over `tokens` new tokens, by part.

    Args:
        seen: tokens in the cache; the new ones stand behind them.
        source: tokens that the encoder reads in the same pass. With `tokens` 0 the
            encoder is counted alone.
        memory: tokens that the encoder has read before, whose keys and values for
            cross-attention are kept.
        skip_blocked: count the pairs that the mask allows; otherwise all of T × S,
            which is what a kernel without tiles computes.

    Note:
        Logits are counted for every new token; BERT's pooler once. Latent attention is
        counted in the cheaper of its two forms, as the layer chooses.

    Raises:
        TypeError: not one of `deepdive.configs`' models.
        ValueError: a negative number; `seen` without a cache; a source or memory
            without an encoder, both at once, or neither for an encoder–decoder.

    >>> from deepdive.configs import GPT2_SMALL
    >>> flops(GPT2_SMALL, tokens=1, seen=99)["total"] / 1e6    # about 2 per weight
    250.750464

    Taught in: book/06_transformer_2017.ipynb, book/10_kv_cache.ipynb
    """
    plan = plan_of(config)
    _check_counts(tokens=tokens, seen=seen, source=source, memory=memory, batch=batch)
    _check_source(config, plan, source=source, memory=memory)
    if seen and not plan.causal:
        raise ValueError(f"{type(config).__name__} has no cache: seen must be 0")
    if plan.encoder and (source > 0) + (memory > 0) != (1 if tokens else source > 0):
        raise ValueError(
            f"a decoder's tokens read either a source or a memory, an encoder alone a "
            f"source; got source {source} and memory {memory} for {tokens} tokens"
        )
    out = dict.fromkeys(("projections", "scores", "feedforward", "output"), 0)
    for layer in plan.encoder:
        _add_layer(out, layer, source, 0, causal=False, skip=skip_blocked)
    for layer in plan.decoder if tokens else ():
        _add_layer(out, layer, tokens, seen, causal=plan.causal, skip=skip_blocked)
        asking = layer.cross.matrices - layer.cross_source.matrices
        out["projections"] += 2 * asking * tokens
        out["projections"] += 2 * layer.cross_source.matrices * source
        out["scores"] += 2 * layer.pair * tokens * (source + memory)
    out["output"] = 2 * plan.head * (tokens if plan.causal else min(tokens, 1))
    out = {name: batch * count for name, count in out.items()}
    return {**out, "total": sum(out.values())}


def _add_layer(
    out: dict[str, int], layer: Layer, T: int, seen: int, causal: bool, skip: bool
) -> None:
    """One layer's operations for T tokens behind `seen` older ones."""
    S = _older(seen, layer.window) + T
    pairs = causal_pairs(T, seen, layer.window) if causal and skip else T * S
    ways = [(S if layer.per_key else T, layer.pair)]
    if layer.absorbed_pair is not None:
        ways.append((T, layer.absorbed_pair))
    # The layer compares its two ways on T × S, whatever the mask lets it skip.
    keys, pair = min(ways, key=lambda way: layer.per_key * way[0] + way[1] * T * S)
    out["projections"] += 2 * (layer.attention.matrices - layer.per_key) * T
    out["projections"] += 2 * layer.per_key * keys
    out["scores"] += 2 * pair * pairs
    out["feedforward"] += 2 * layer.visited.matrices * T


def causal_pairs(T: int, seen: int = 0, window: int | None = None) -> int:
    """How many (query, key) pairs the causal rule allows.

        Σ min(p + 1, window) over the positions p = seen … seen + T − 1

    >>> causal_pairs(4), causal_pairs(1, seen=3), causal_pairs(4, window=2)
    (10, 4, 7)

    Raises:
        TypeError: not integers.  ValueError: a negative number, or a window below 1.

    Taught in: book/13_flash_attention.ipynb
    """
    _check_counts(T=T, seen=seen)
    if window is not None:
        _check_counts(least=1, window=window)
    full = T * seen + T * (T + 1) // 2
    if window is None:
        return full
    # Positions from window − 1 on see `window` keys, so many fewer than p + 1.
    first = max(seen, window)
    late = max(0, seen + T - first)
    missing = late * (first + 1 - window) + late * (late - 1) // 2
    return full - missing


def decode_bytes(
    config,
    seen: int,
    batch: int = 1,
    source: int = 0,
    weight_bytes: int = 2,
    cache_bytes: int = 2,
) -> dict[str, int]:
    """Bytes that one decoding step must read: the weights in use, and the cache.

    A batch shares the weights and not the caches. Of E experts, a batch of tokens that
    choose K each at random meets E · (1 − (1 − K/E)^batch).

    Args:
        source: tokens that the encoder has read before; it is not run again, and
            neither are the projections of its output.

    Note:
        Rows that are looked up (the new words, their positions) are left out. A window
        of w reads w − 1 older tokens: the newest is not fetched, it was made just now.

    Raises:
        TypeError: not a decoder's config.
        ValueError: a negative number, or a source without an encoder.

    >>> from deepdive.configs import LLAMA_2_7B
    >>> decode_bytes(LLAMA_2_7B, seen=4096)
    {'weights': 13214687232, 'cache': 2147483648}

    Taught in: book/10_kv_cache.ipynb, book/14_mixture_of_experts.ipynb
    """
    plan = _decoder(config)
    _check_counts(
        seen=seen,
        batch=batch,
        source=source,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
    )
    _check_source(config, plan, source=source)
    weights = plan.head + plan.output.vectors + plan.norms.total
    cached = 0
    for layer in plan.decoder:
        weights += layer.attention.total + layer.norms.total
        weights += layer.cross.total - layer.cross_source.total
        weights += layer.visited.total
        if layer.experts is not None:
            E, K, one = layer.experts
            weights += (E * (1 - (1 - K / E) ** batch) - K) * one
        cached += layer.cached * (source + _older(seen, layer.window))
    return {
        "weights": round(weights) * weight_bytes,
        "cache": cached * batch * cache_bytes,
    }


def score_bytes(
    n_heads: int,
    T: int,
    S: int | None = None,
    batch: int = 1,
    bytes_per_number: int = 4,
) -> int:
    """Bytes of one layer's score map, which the formula writes and tiles do not.

        batch · H · T · S · bytes

    Args:
        S: keys; as many as queries unless given.

    Raises:
        TypeError: not integers.  ValueError: a negative number.

    >>> score_bytes(n_heads=12, T=1024) / 2**20
    48.0

    Taught in: book/03_multi_head.ipynb, book/13_flash_attention.ipynb
    """
    S = T if S is None else S
    _check_counts(n_heads=n_heads, T=T, S=S, batch=batch, bytes=bytes_per_number)
    return batch * n_heads * T * S * bytes_per_number


def roofline(
    flops: float, traffic: float, flops_per_second: float, bytes_per_second: float
) -> float:
    """The least seconds a step can take on a machine: the slower of its two limits.

        max(FLOPs / (FLOP/s), bytes / (byte/s))

    Args:
        flops, traffic: operations, and bytes moved.

    Raises:
        TypeError: not numbers.
        ValueError: a speed that is not above 0, a negative amount, or not finite.

    >>> roofline(1e12, 4e9, flops_per_second=1e12, bytes_per_second=1e9)
    4.0

    Source: Williams, Waterman & Patterson 2009.

    Taught in: book/10_kv_cache.ipynb, book/13_flash_attention.ipynb
    """
    given = (flops, traffic, flops_per_second, bytes_per_second)
    for value in given:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"amounts and speeds must be numbers, got {value!r}")
    if min(given[2:]) <= 0 or min(given[:2]) < 0 or not all(map(math.isfinite, given)):
        raise ValueError(
            f"speeds must be > 0 and amounts ≥ 0, all finite, got {flops} FLOPs, "
            f"{traffic} bytes, {flops_per_second} FLOP/s, {bytes_per_second} byte/s"
        )
    return max(flops / flops_per_second, traffic / bytes_per_second)


def head_cost(
    d_model: int,
    n_heads: int,
    head_dim: int | None = None,
    seq_len: int = 100,
    count_o: bool = True,
) -> dict[str, Any]:
    """Count the parameters and the score entries of one attention layer without biases.

        W_Q, W_K, W_V: d · hD each,   W_O: hD · d,   scores: h · N²

    Args:
        head_dim: D; None for d_model / n_heads, which makes hD = d.
        seq_len: N, the number of words.
        count_o: whether W_O is counted among the parameters.

    Raises:
        TypeError: a number is not an int.
        ValueError: a number is below 1, or `head_dim` is None and the heads do not
            divide the width.

    >>> head_cost(512, 8)["parameters"], head_cost(512, 1)["parameters"]
    (1048576, 1048576)
    >>> head_cost(1024, 128, 128)["ratio"]
    16.0

    Taught in: book/03_multi_head.ipynb
    """
    given = {"d_model": d_model, "n_heads": n_heads, "seq_len": seq_len}
    if head_dim is not None:
        given["head_dim"] = head_dim
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an int, got {value!r}")
        if value < 1:
            raise ValueError(f"{name} must be an integer ≥ 1, got {value}")
    if head_dim is None and d_model % n_heads:
        raise ValueError(f"{n_heads} heads do not divide d_model = {d_model}")
    dim = d_model // n_heads if head_dim is None else head_dim
    width = n_heads * dim
    one, o = d_model * width, d_model * width if count_o else 0
    return {
        "d_model": d_model,
        "n_heads": n_heads,
        "head_dim": dim,
        "seq_len": seq_len,
        "width": width,
        "ratio": width / d_model,
        "q": one,
        "k": one,
        "v": one,
        "o": o,
        "parameters": 3 * one + o,
        "score_entries": n_heads * seq_len**2,
    }


@singledispatch
def plan_of(config) -> Plan:
    """The layers of a model and what stands around them, from its config.

    A built model may stand in for its config, if it has what the config says.

    Raises:
        TypeError: not one of `deepdive.configs`' models.  ValueError: a built model
            with other parameters than its config's.

    Taught in: book/16_what_stayed.ipynb
    """
    inner, name = getattr(config, "config", None), type(config).__name__
    if inner is None or not hasattr(config, "parameters"):
        raise TypeError(f"expected a model's config, or a model, got {name}")
    plan, built = plan_of(inner), sum(x.numel() for x in config.parameters())
    if built != (planned := parameters(inner)["total"]):
        raise ValueError(
            f"{name} has {built:,} parameters, its config's model {planned:,}"
        )
    return plan


@plan_of.register
def _(c: TransformerConfig) -> Plan:
    attention = _heads(c.d_model, c.n_heads, c.n_heads, c.d_model // c.n_heads, True)
    layer = {
        "feedforward": _two_layers(c.d_model, c.d_ff, True),
        "cached": 2 * c.d_model,
        "pair": 2 * c.d_model,
    }
    vocab = c.tgt_vocab_size * c.d_model
    tables = 1 if c.tied else 2
    return Plan(
        embedding=Part(0, c.src_vocab_size * c.d_model + (tables - 1) * vocab),
        output=Part() if c.tied else Part(vocab, c.tgt_vocab_size),
        head=vocab,
        encoder=(Layer(attention, norms=Part(0, 4 * c.d_model), **layer),) * c.n_layers,
        decoder=(
            Layer(
                attention,
                norms=Part(0, 6 * c.d_model),
                cross=attention,
                cross_source=Part(2 * c.d_model**2, 2 * c.d_model),
                **layer,
            ),
        )
        * c.n_layers,
    )


@plan_of.register
def _(c: BertConfig) -> Plan:
    rows = c.vocab_size + c.n_segments
    layer = Layer(
        _heads(c.d_model, c.n_heads, c.n_heads, c.d_model // c.n_heads, True),
        _two_layers(c.d_model, c.d_ff, True),
        norms=Part(0, 4 * c.d_model),
        pair=2 * c.d_model,
    )
    return Plan(
        embedding=Part(0, rows * c.d_model),
        positions=Part(0, c.max_seq_len * c.d_model),
        norms=Part(0, 2 * c.d_model),  # of the embedding
        output=Part(c.d_model**2, c.d_model),  # the pooler, on the first token
        head=c.d_model**2,
        decoder=(layer,) * c.n_layers,
        causal=False,
    )


@plan_of.register
def _(c: GptConfig) -> Plan:
    layer = Layer(
        _heads(c.d_model, c.n_heads, c.n_heads, c.d_model // c.n_heads, True),
        _two_layers(c.d_model, c.d_ff, True),
        norms=Part(0, 4 * c.d_model),
        cached=2 * c.d_model,
        pair=2 * c.d_model,
    )
    table = c.vocab_size * c.d_model
    return Plan(
        embedding=Part(0, table),
        positions=Part(0, c.max_seq_len * c.d_model),
        norms=Part(0, 2 * c.d_model),
        output=Part(),
        head=table,
        decoder=(layer,) * c.n_layers,
    )


@plan_of.register
def _(c: T5Config) -> Plan:
    inner = c.n_heads * c.head_dim
    attention = _heads(c.d_model, c.n_heads, c.n_heads, c.head_dim, False)
    gated = _gated(c.d_model, c.d_ff)
    layer = {
        "feedforward": gated if c.gated else _two_layers(c.d_model, c.d_ff, False),
        "cached": 2 * inner,
        "pair": 2 * inner,
    }
    table = c.vocab_size * c.d_model
    return Plan(
        embedding=Part(0, table),
        positions=Part(0, 2 * c.n_buckets * c.n_heads),
        norms=Part(0, c.d_model),
        encoder_norms=Part(0, c.d_model),
        output=Part() if c.tied else Part(table),
        head=table,
        encoder=(Layer(attention, norms=Part(0, 2 * c.d_model), **layer),) * c.n_layers,
        decoder=(
            Layer(
                attention,
                norms=Part(0, 3 * c.d_model),
                cross=attention,
                cross_source=Part(2 * inner * c.d_model),
                **layer,
            ),
        )
        * c.n_layers,
    )


@plan_of.register
def _(c: LlamaConfig) -> Plan:
    return _llama_like(c, {"feedforward": _gated(c.d_model, c.d_ff)})


@plan_of.register
def _(c: MixtralConfig) -> Plan:
    one = _gated(c.d_model, c.d_expert).matrices
    return _llama_like(c, _experts(c.d_model * c.n_experts, c.n_experts, c.top_k, one))


@plan_of.register
def _(c: DeepSeekV2Config) -> Plan:
    qk = c.qk_nope_head_dim + c.qk_rope_head_dim
    up = c.kv_lora_rank * c.n_heads * (c.qk_nope_head_dim + c.v_head_dim)
    queries = c.n_heads * qk * (c.q_lora_rank or c.d_model)
    squeeze = c.d_model * (c.q_lora_rank or 0)
    latent = c.kv_lora_rank + c.qk_rope_head_dim
    out = c.n_heads * c.v_head_dim * c.d_model
    attention = {
        "attention": Part(
            queries + squeeze + c.d_model * latent + up + out,
            c.kv_lora_rank + (c.q_lora_rank or 0),  # the norms of the latents
        ),
        "norms": Part(0, 2 * c.d_model),
        "cached": latent,
        "per_key": up,
        "pair": c.n_heads * (qk + c.v_head_dim),
        "absorbed_pair": c.n_heads * (latent + c.kv_lora_rank),
    }
    one = _gated(c.d_model, c.d_expert).matrices
    shared = c.n_shared_experts * one
    # V3's bias on the choice is a buffer, which no gradient reaches: not counted.
    sparse = _experts(c.d_model * c.n_experts, c.n_experts, c.top_k, one, shared)
    dense = Layer(feedforward=_gated(c.d_model, c.d_ff), **attention)
    n = c.n_layers - c.n_dense_layers
    table = c.vocab_size * c.d_model
    return Plan(
        embedding=Part(0, table),
        norms=Part(0, c.d_model),
        output=Part(table),
        head=table,
        decoder=(dense,) * c.n_dense_layers + (Layer(**sparse, **attention),) * n,
    )


def _llama_like(c, feedforward: dict) -> Plan:
    """Grouped-query attention without biases, RMSNorm, an output layer of its own."""
    head_dim = c.head_dim or c.d_model // c.n_heads
    layer = Layer(
        attention=_heads(c.d_model, c.n_heads, c.n_kv_heads, head_dim, False),
        norms=Part(0, 2 * c.d_model),
        cached=2 * c.n_kv_heads * head_dim,
        pair=2 * c.n_heads * head_dim,
        window=c.window,
        **feedforward,
    )
    table = c.vocab_size * c.d_model
    return Plan(
        embedding=Part(0, table),
        norms=Part(0, c.d_model),
        output=Part() if c.tied else Part(table),
        head=table,
        decoder=(layer,) * c.n_layers,
    )


def _attention_alone(c: AttentionConfig) -> Plan:
    """Layers without a feed-forward part: for the cache, and for nothing else."""
    layer = Layer(
        attention=_heads(c.d_model, c.n_heads, c.n_kv_heads, c.head_dim, False),
        feedforward=NOTHING,
        norms=NOTHING,
        cached=2 * c.n_kv_heads * c.head_dim,
        window=c.window,
    )
    return Plan(NOTHING, NOTHING, head=0, decoder=(layer,) * c.n_layers)


def _heads(d_model: int, H: int, G: int, D: int, biases: bool) -> Part:
    """q and o for H heads, k and v for G."""
    vectors = (H + 2 * G) * D + d_model if biases else 0
    return Part(2 * (H + G) * D * d_model, vectors)


def _two_layers(d_model: int, d_ff: int, biases: bool) -> Part:
    return Part(2 * d_model * d_ff, d_ff + d_model if biases else 0)


def _gated(d_model: int, d_ff: int) -> Part:
    return Part(3 * d_model * d_ff)


def _experts(router: int, E: int, K: int, one: int, shared: int = 0) -> dict[str, Any]:
    """E experts of `one` weights, K of them per token; a router, and shared ones."""
    return {
        "feedforward": Part(router + E * one + shared),
        "used": Part(router + K * one + shared),
        "experts": (E, K, one),
    }


def _at_most(tokens: int, window: int | None) -> int:
    """How many of `tokens` a cache holds."""
    return tokens if window is None else min(tokens, window)


def _older(seen: int, window: int | None) -> int:
    """How many of the tokens seen before a new one may look at."""
    return seen if window is None else min(seen, window - 1)


def _decoder(config) -> Plan:
    """The plan of a model that has a cache."""
    plan = plan_of(config)
    if not plan.causal:
        raise TypeError(f"{type(config).__name__} decodes nothing: it has no cache")
    return plan


def _check_source(config, plan: Plan, **given: int) -> None:
    for name, value in given.items():
        if value and not plan.encoder:
            raise ValueError(
                f"{type(config).__name__} has no encoder: {name} must be 0, got {value}"
            )


def _check_counts(least: int = 0, **counts: int) -> None:
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")
