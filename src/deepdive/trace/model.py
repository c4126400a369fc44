# SPDX-License-Identifier: MIT
"""What stands around attention? Positions, a whole block, a second text, experts.

Taught in: book/04_positions.ipynb
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from deepdive.blocks import Block, Residual, post_norm
from deepdive.feedforward import FeedForward
from deepdive.inputs import check_kind
from deepdive.kernels import attention_weights
from deepdive.kernels.layout import split_heads
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
        X, attended (attention's output), first_sum (X + attended, before the norm),
        network_input, fed (the network's output), second_sum, output (T, d_model);
        before_relu, hidden (T, 8)

    Note:
        With `pre_norm` the sums are taken in other places, so they are not given.

        The norms have gain 1, bias 0 and torch's eps, 1e-5.

    Taught in: book/05_block.ipynb
    """
    check_kind("example", example, Example)
    check_kind("network", network, Network)
    module = block_module(example, n_heads, network, residual)
    seen: dict[str, Tensor] = {}

    def keep(name: str):
        return lambda module, inputs, out: seen.update({name: out[0].detach()})

    def keep_input(name: str):
        return lambda module, inputs: seen.update({name: inputs[0][0].detach()})

    fed = module.feedforward
    handles = [
        module.attention.register_forward_hook(keep("attended")),
        fed.register_forward_pre_hook(keep_input("network_input")),
        fed.up.register_forward_hook(keep("before_relu")),
        fed.down.register_forward_pre_hook(keep_input("hidden")),
        fed.register_forward_hook(keep("fed")),
    ]
    if residual is post_norm:
        handles += [
            module.attention_norm.register_forward_pre_hook(keep_input("first_sum")),
            module.feedforward_norm.register_forward_pre_hook(keep_input("second_sum")),
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
        Q (T, d_model), K, V (S, d_model), raw_scores, scaled_scores, weights (H, T, S),
        output (T, d_model)

    Taught in: book/06_transformer_2017.ipynb
    """
    check_kind("example", example, Example)
    if not isinstance(target, tuple) or len(target) != 2:
        raise TypeError(f"target must be a pair (words, vectors), got {target!r}")
    words, Y = target
    module = layer(example, n_heads)
    Q, (K, V) = Y @ example.W_Q, (example.X @ W for W in (example.W_K, example.W_V))
    q, k = (split_heads(M[None], n_heads) for M in (Q, K))
    raw = (q @ k.mT)[0]
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
        "raw_scores": raw,
        "scaled_scores": raw / q.shape[-1] ** 0.5,
        "weights": attention_weights(q, k)[0],
        "output": output,
    }


def routed(example: Example = CATS, network: Network = NETWORK) -> dict:
    """Each word to two of four experts, their outputs mixed by the gates.

        output = Σ gateₑ · expertₑ(x),   expertₑ(x) = relu(x W_up,ₑ) W_down,ₑ

    Expert e owns columns 2e and 2e + 1 of W_up, and these rows of W_down.

    Shapes:
        logits, probabilities (T, E); experts (T, K) from 0; gates (T, K), which sum to
        1; expert_outputs (T, K, d_model); counts (E,); output (T, d_model)

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
        matrices = module.experts.up, module.experts.down
        outputs = [
            [module.experts.expert(x[None], *(W[e] for W in matrices))[0] for e in row]
            for x, row in zip(example.X, routing.experts.tolist(), strict=True)
        ]
    return {
        "words": example.words,
        "X": example.X,
        "logits": example.X @ network.W_router,
        "probabilities": routing.probabilities,
        "experts": routing.experts,
        "gates": routing.gates,
        "expert_outputs": torch.stack([torch.stack(row) for row in outputs]),
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
