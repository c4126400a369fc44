# SPDX-License-Identifier: MIT
"""How are all experts kept busy? Left alone, a router sends everything to a few.

Each loss takes the `Routing` that `record_routing` collects; the caller multiplies it
by a small factor and adds it to the loss of the task. With padding, take
`routing.rows(keep.flatten())` first.
"""

import torch
from torch import Tensor

from deepdive.inputs import check_kind, check_sizes
from deepdive.moe.routing import Routing, dense_gates, expert_counts


def importance_loss(routing: Routing) -> Tensor:
    """Experts should get equal shares of the gates.

        CV(importance)²,  importanceₑ = Σₙ gateₙₑ

    The square of the coefficient of variation: variance over squared mean, over all E.

    Shapes:
        → a scalar, 0 at perfect balance and E − 1 where one expert has everything

    Source: Shazeer et al. 2017 (arXiv:1701.06538), §4; its factor was 0.1 in the
        largest models (appendix C.1).

    Taught in: book/14_mixture_of_experts.ipynb
    """
    return _squared_variation(dense_gates(routing).sum(0))


def load_loss(routing: Routing) -> Tensor:
    """Experts should get equal numbers of tokens, as far as chance can tell.

        CV(load)²,  loadₑ = Σₙ chance that token n chooses expert e

    Where a routing has no chances, as in evaluation, the load is the count itself.

    Shapes:
        → a scalar; counts have no gradient

    Source: Shazeer et al. 2017, appendix A; its factor was 0.1 in the
        largest models (appendix C.1).

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    if routing.chances is None:
        return _squared_variation(expert_counts(routing).to(routing.gates.dtype))
    return _squared_variation(routing.chances.sum(0))


def switch_balance_loss(routing: Routing) -> Tensor:
    """Experts that got many tokens should become less probable.

        E · Σₑ fₑ Pₑ,  f = share of the choices (no gradient), P = mean probability

    Shapes:
        → a scalar, 1 at perfect balance

    Source: Fedus et al. 2021 (arXiv:2101.03961), §2.2, equations 4 to 6; factor 0.01.

    Note:
        f sums to 1 for any K, as in DeepSeekMoE's expert-level loss. Some libraries do
        not divide by K; theirs is K times this one.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    counts = expert_counts(routing).to(routing.probabilities.dtype)
    share = counts / counts.sum().clamp_min(1)
    return routing.n_experts * (share * _mean(routing.probabilities)).sum()


def router_z_loss(routing: Routing) -> Tensor:
    """Logits should stay small, where float32 and softmax are exact.

        mean over tokens of (log Σₑ exp logitₙₑ)²

    Shapes:
        → a scalar

    Source: Zoph et al. 2022 (ST-MoE, arXiv:2202.08906), equation 5; factor 0.001.

    Taught in: book/14_mixture_of_experts.ipynb
    """
    check_kind("routing", routing, Routing)
    return _mean(routing.logits.logsumexp(-1).square())


def sequence_balance_loss(routing: Routing, n_sequences: int) -> Tensor:
    """Balance within each sequence: what DeepSeek-V3 adds to its selection bias.

        mean over sequences of E · Σₑ fₑ Pₑ,
        f = share of the sequence's choices by score alone, P = mean s / Σ s

    Shapes:
        N tokens that stand as (n_sequences, T) → a scalar, 1 at perfect balance

    Source: DeepSeek-V3 (arXiv:2412.19437), §2.1.2, equations 17 to 20; factor 0.0001.

    Raises:
        ValueError: n_sequences does not divide N.

    Note:
        By the letter of equation 18, f counts the K highest scores, without selection
        bias and groups; the experts that were visited may be others.

    Taught in: book/15_deepseek.ipynb
    """
    check_kind("routing", routing, Routing)
    check_sizes(n_sequences=n_sequences)
    N, K = routing.experts.shape
    if N % n_sequences:
        raise ValueError(f"n_sequences {n_sequences} does not divide {N} tokens")
    wanted = routing.probabilities.detach().topk(K, dim=-1).indices  # (N, K)
    chosen = torch.zeros_like(routing.probabilities).scatter(1, wanted, 1.0 / K)
    per_sequence = (n_sequences, N // n_sequences, routing.n_experts)
    share = chosen.view(per_sequence).mean(1)  # (B, E), sums to 1
    probability = routing.probabilities.view(per_sequence).mean(1)  # (B, E)
    return routing.n_experts * (share * probability).sum(-1).mean()


def _squared_variation(amounts: Tensor) -> Tensor:
    """Variance over squared mean of (E,); 0 where there is nothing, or one expert."""
    tiny = torch.finfo(amounts.dtype).tiny
    return (amounts / amounts.mean().clamp_min(tiny)).var(correction=0)


def _mean(x: Tensor) -> Tensor:
    """The mean over tokens; 0 where there are none."""
    return x.sum(0) / max(1, x.shape[0])
