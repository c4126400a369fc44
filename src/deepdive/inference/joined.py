# SPDX-License-Identifier: MIT
"""Several matrices read the same vector: why not as one?

Taught in: book/10_kv_cache.ipynb
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.cache import Cache
from deepdive.feedforward import GatedFeedForward
from deepdive.inputs import check_last, check_vectors
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.masks import Rule


class JoinedAttention(nn.Module):
    """`MultiHeadAttention` to itself, with one product for queries, keys and values.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Args:
        attention: where the weights come from; the three matrices are copied.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, attention: MultiHeadAttention):
        super().__init__()
        if not isinstance(attention, MultiHeadAttention):
            kind = type(attention).__name__
            raise TypeError(f"expected a MultiHeadAttention, got {kind}")
        self.n_heads, self.n_kv_heads = attention.n_heads, attention.n_kv_heads
        self.head_dim = attention.head_dim
        self.kernel, self.scale = attention.kernel, attention.scale
        self.qkv_proj = joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.o_proj = attention.o_proj

    def forward(
        self,
        x: Tensor,
        mask: Tensor | Rule | None = None,
        bias: Tensor | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        check_vectors("x", x, self.qkv_proj.weight)
        H, G = self.n_heads, self.n_kv_heads
        heads = split_heads(self.qkv_proj(x), H + 2 * G)  # (B, H + 2G, T, D)
        qk, v = heads[:, : H + G], heads[:, H + G :]
        if rotate is not None:
            qk = rotate(qk)  # queries and keys stand at the same positions
        q, k = qk[:, :H], qk[:, H:]
        if cache is not None:
            k, v = cache.append(k, v)  # (B, G, S, D): the older ones first
        out = self.kernel(q, k, v, mask=mask, bias=bias, scale=self.scale)
        return self.o_proj(merge_heads(out))


class JoinedFeedForward(nn.Module):
    """`GatedFeedForward` with one product for gate and up.

    Shapes:
        x (B, T, d_model) → (B, T, d_model)

    Args:
        network: where the weights come from; the two matrices are copied.

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, network: GatedFeedForward):
        super().__init__()
        if not isinstance(network, GatedFeedForward):
            raise TypeError(
                f"expected a GatedFeedForward, got {type(network).__name__}"
            )
        self.gate_up = joined(network.gate, network.up)
        self.activation, self.down = network.activation, network.down

    def forward(self, x: Tensor) -> Tensor:
        check_last("x", x, self.gate_up.in_features)
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # (B, T, d_ff) each
        return self.down(self.activation(gate) * up)


def joined(*linears: nn.Linear) -> nn.Linear:
    """Linear layers of one input as one, their outputs side by side.

    Raises:
        ValueError: they read different widths, or some have a bias and some none.

    >>> joined(nn.Linear(3, 2), nn.Linear(3, 5))
    Linear(in_features=3, out_features=7, bias=True)

    Taught in: book/10_kv_cache.ipynb
    """
    widths = {linear.in_features for linear in linears}
    biases = {linear.bias is not None for linear in linears}
    if len(widths) != 1 or len(biases) != 1:
        raise ValueError(f"these cannot be one product: {linears}")
    made = nn.Linear(*widths, 1, bias=biases.pop(), device="meta")
    made.out_features = sum(linear.out_features for linear in linears)
    for name, _ in list(made.named_parameters()):
        parts = torch.cat([getattr(linear, name).detach() for linear in linears])
        setattr(made, name, nn.Parameter(parts, requires_grad=False))
    return made
