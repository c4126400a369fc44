# SPDX-License-Identifier: MIT
"""How does one word read from the others, several times in parallel?"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType

from torch import Tensor, nn

from deepdive.cache import Cache, Memory
from deepdive.inputs import check_kind, check_sizes, check_vectors
from deepdive.kernels import attention_weights, fused
from deepdive.kernels.contract import check_scale
from deepdive.kernels.equation import mix
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.masks import Rule


class MultiHeadAttention(nn.Module):
    """Let every position read from the positions its mask allows, H times in parallel.

        headᵢ = softmax(qᵢ kᵢᵀ / √D + bias) vᵢ,      out = [head₁ … head_H] W_O

    With G = n_kv_heads key/value heads, query heads g·H/G … (g+1)·H/G − 1 share
    key/value head g. G = H is the multi-head attention of Vaswani et al. 2017, §3.2.2;
    G = 1 multi-query (Shazeer 2019); between them grouped-query (Ainslie et al. 2023).

    Shapes:
        x (B, T, d_model), context (B, S, d_model) → (B, T, d_model)
        mask: a rule of `deepdive.masks`, or bool, True = may attend
        bias: float, added to the scores; both broadcast to (B, H, T, S)

    Args:
        head_dim: width D of one head; d_model / n_heads unless given.
        kernel: how scores become outputs; `kernels.equation` is the formula itself.
        scale: factor on the scores; 1/√D unless given.
        rotate: turns q and k by their positions (`positions.Rotary` makes it).
        cache: older tokens' keys and values; x are the new tokens then, and S counts
            all. A `Memory` keeps the context's, which are computed once.

    Raises:
        ValueError: the numbers of heads and the width do not divide, or a shape is
            wrong.  TypeError: the input has another dtype than the weights.

    >>> import torch
    >>> layer = MultiHeadAttention(d_model=32, n_heads=4)
    >>> layer(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])

    Taught in: book/03_multi_head.ipynb, book/10_kv_cache.ipynb,
    book/12_grouped_query_attention.ipynb
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        kernel: Callable[..., Tensor] = fused,
        scale: float | None = None,
    ):
        super().__init__()
        n_kv_heads = n_heads if n_kv_heads is None else n_kv_heads
        check_sizes(d_model=d_model, n_heads=n_heads, n_kv_heads=n_kv_heads)
        if n_heads % n_kv_heads:
            raise ValueError(
                f"n_kv_heads {n_kv_heads} does not divide n_heads {n_heads}"
            )
        if head_dim is not None:
            check_sizes(head_dim=head_dim)
        if head_dim is None and d_model % n_heads:
            raise ValueError(
                f"d_model {d_model} is not a multiple of n_heads {n_heads}; "
                f"give head_dim"
            )
        if not callable(kernel):
            raise TypeError(f"kernel must be a function of q, k and v, got {kernel!r}")
        check_scale(scale)
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = d_model // n_heads if head_dim is None else head_dim
        self.kernel, self.scale = kernel, scale

        self.q_proj = nn.Linear(d_model, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(d_model, n_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(n_heads * self.head_dim, d_model, bias=bias)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        mask: Tensor | Rule | None = None,
        bias: Tensor | None = None,
        rotate: Callable[[Tensor], Tensor] | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        check_vectors("x", x, self.q_proj.weight)
        check_kind("cache", cache, Cache, NoneType)
        q = split_heads(self.q_proj(x), self.n_heads)  # (B, H, T, D)
        if isinstance(cache, Memory) and cache.held:
            k, v = cache.entries  # the context does not change
            self._check_same(x if context is None else context, k)
        else:
            k, v = self.keys_values(x if context is None else context)
            if rotate is not None:
                k = rotate(k)
            if cache is not None:
                k, v = cache.append(k, v)  # (B, G, S, D): the older ones first
        if rotate is not None:
            q = rotate(q)
        out = self.kernel(q, k, v, mask=mask, bias=bias, scale=self.scale)
        return self.o_proj(merge_heads(out))

    def _check_same(self, context: Tensor, k: Tensor) -> None:
        """The context whose keys are remembered, by its sizes."""
        check_vectors("context", context, self.k_proj.weight)
        if (len(context), context.shape[1]) != (len(k), k.shape[2]):
            raise ValueError(
                f"context {tuple(context.shape)} is not the one that is kept, keys "
                f"{tuple(k.shape)}"
            )

    def keys_values(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What there is to read in each position: two times (B, G, S, D)."""
        check_vectors("context", context, self.k_proj.weight)
        k = split_heads(self.k_proj(context), self.n_kv_heads)
        return k, split_heads(self.v_proj(context), self.n_kv_heads)


@contextmanager
def record(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """See the attention weights of every layer, without changing the model's code.

    A layer is any module with a `kernel`, the contract of `deepdive.kernels`. Inside
    the `with` block it is the formula itself, and the latest call's weights,
    (B, H, T, S), are kept under the layer's name; the old kernels come back afterwards.

    Raises:
        TypeError: not a module.  ValueError: no layer in it has a kernel.

    >>> import torch
    >>> layer = MultiHeadAttention(d_model=8, n_heads=2)
    >>> with record(layer) as seen:
    ...     _ = layer(torch.zeros(1, 3, 8))
    >>> seen[""].shape
    torch.Size([1, 2, 3, 3])

    Taught in: book/03_multi_head.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if callable(getattr(layer, "kernel", None))
    }
    if not layers:
        raise ValueError(f"{type(model).__name__} has no layer with a kernel to record")
    kernels = {name: layer.kernel for name, layer in layers.items()}
    seen: dict[str, Tensor] = {}

    def keeping(name: str):
        def kernel(q, k, v, mask=None, bias=None, scale=None):
            weights = attention_weights(q, k, mask, bias, scale)
            seen[name] = weights.detach()
            return mix(weights, v)

        return kernel

    try:
        for name, layer in layers.items():
            layer.kernel = keeping(name)
        yield seen
    finally:
        for name, layer in layers.items():
            layer.kernel = kernels[name]
