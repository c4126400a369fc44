# SPDX-License-Identifier: MIT
"""What stands around attention? Positions, a whole block, a second text, experts."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from deepdive.blocks import Block, Residual, post_norm
from deepdive.feedforward import FeedForward
from deepdive.inputs import check_kind
from deepdive.kernels import attention_weights
from deepdive.masks import Rule
from deepdive.moe import MixtureOfExperts, SoftmaxTopKRouter, TwoLayerExperts
from deepdive.positions import SinusoidalPositions
from deepdive.trace.example import CATS, NETWORK, TARGET, Example, Network
from deepdive.trace.formula import attention, layer


def positions(example: Example = CATS, n_heads: int = 1) -> dict:
    """The sinusoids of the paper added to the words, and attention once more.

    Shapes:
        table (T, d_model), and all that `attention` gives for X + table

    Note:
        The table is computed in float32, as positions are everywhere in this book.

    Taught in: book/04_positions.ipynb
    """
    check_kind("example", example, Example)
    T, d_model = example.X.shape
    table = SinusoidalPositions(d_model)(torch.arange(T)).to(example.X.dtype)
    placed = replace(example, X=example.X + table)
    return {"table": table, "bare": example.X, **attention(placed, n_heads)}


def block(
    example: Example = CATS,
    n_heads: int = 2,
    network: Network = NETWORK,
    residual: Residual = post_norm,
    mask: Tensor | Rule | None = None,
) -> dict:
    """One whole layer: attention, residual, norm, network, residual, norm.

    Shapes:
        X, attended, after_attention, fed, output (T, d_model); hidden (T, 8)

    Note:
        The norms have gain 1, bias 0 and torch's eps, 1e-5.

    Taught in: book/05_block.ipynb
    """
    check_kind("example", example, Example)
    check_kind("network", network, Network)
    module = block_module(example, n_heads, network, residual)
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        return lambda module, inputs, out: seen.update({name: out[0].detach()})

    handles = [
        module.attention.register_forward_hook(keep("attended")),
        module.feedforward.up.register_forward_hook(keep("hidden")),
        module.feedforward.register_forward_hook(keep("fed")),
        module.feedforward.register_forward_pre_hook(
            lambda module, inputs: seen.update(network_input=inputs[0][0].detach())
        ),
    ]
    with torch.no_grad():
        output = module(example.X[None], mask=mask)[0]
    for handle in handles:
        handle.remove()
    return {"words": example.words, "X": example.X, **seen, "output": output}


def block_module(
    example: Example = CATS,
    n_heads: int = 2,
    network: Network = NETWORK,
    residual: Residual = post_norm,
) -> Block:
    """The same numbers as a block of the package, in float64."""
    d_model = example.X.shape[-1]
    feedforward = FeedForward(d_model, network.W_up.shape[1], nn.ReLU(), bias=False)
    with torch.no_grad():
        feedforward.double().up.weight.copy_(network.W_up.T)
        feedforward.down.weight.copy_(network.W_down.T)
    norms = (nn.LayerNorm(d_model).double() for _ in range(2))
    return Block(layer(example, n_heads), feedforward, *norms, residual)


def cross(example: Example = CATS, target=TARGET, n_heads: int = 1) -> dict:
    """Two words that are being written read the three that were given.

    Shapes:
        Y (T, d_model) the target's vectors, X (S, d_model) the source's;
        Q (T, d_model), K, V (S, d_model), weights (H, T, S), output (T, d_model)

    Taught in: book/06_transformer_2017.ipynb
    """
    check_kind("example", example, Example)
    if not isinstance(target, tuple) or len(target) != 2:
        raise TypeError(f"target must be a pair (words, vectors), got {target!r}")
    words, Y = target
    module = layer(example, n_heads)
    Q, (K, V) = Y @ example.W_Q, (example.X @ W for W in (example.W_K, example.W_V))
    heads = (M.unflatten(-1, (n_heads, -1)).transpose(0, 1)[None] for M in (Q, K))
    with torch.no_grad():
        output = module(Y[None], example.X[None])[0]
    return {
        "words": words,
        "source_words": example.words,
        "Y": Y,
        "X": example.X,
        "Q": Q,
        "K": K,
        "V": V,
        "weights": attention_weights(*heads)[0],
        "output": output,
    }


def routed(example: Example = CATS, network: Network = NETWORK) -> dict:
    """Each word to two of four experts, their outputs mixed by the gates.

    Shapes:
        logits, probabilities (T, E); experts (T, K) from 0; gates (T, K), which sum to
        1; counts (E,); output (T, d_model)

    Note:
        The gates follow Mixtral's rule, a softmax over the chosen logits.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("example", example, Example)
    check_kind("network", network, Network)
    module = routed_module(network)
    with torch.no_grad():
        routing = module.router(example.X)
        output = module(example.X[None])[0]
    return {
        "words": example.words,
        "X": example.X,
        "logits": example.X @ network.W_router,
        "probabilities": routing.probabilities,
        "experts": routing.experts,
        "gates": routing.gates,
        "counts": routing.experts.flatten().bincount(minlength=network.n_experts),
        "output": output,
    }


def routed_module(network: Network = NETWORK) -> MixtureOfExperts:
    """The same numbers as a layer of the package, in float64."""
    d_model, d_ff = network.W_up.shape
    E, width = network.n_experts, d_ff // network.n_experts
    router = SoftmaxTopKRouter(d_model, E, network.top_k).double()
    experts = TwoLayerExperts(E, d_model, width).double()
    with torch.no_grad():
        router.weight.copy_(network.W_router.T)
        experts.up.copy_(network.W_up.T.unflatten(0, (E, width)))
        experts.down.copy_(network.W_down.unflatten(0, (E, width)).transpose(1, 2))
    return MixtureOfExperts(router, experts)
