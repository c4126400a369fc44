# SPDX-License-Identifier: MIT
"""How can trained weights be laid out so that writing a text reads them faster?

One new word needs every weight once, so decoding is bound by reading them. The model's
own file stays plain; here a prepared copy of it is made after loading: projections of
the same input become one matrix product, and a matrix may be kept in 8-bit integers.

Taught in: book/10_kv_cache.ipynb
"""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block
from deepdive.cache import Cache
from deepdive.feedforward import GatedFeedForward
from deepdive.inputs import check_floats, check_vectors
from deepdive.kernels.layout import merge_heads, split_heads
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Rule

Model = TypeVar("Model", bound=nn.Module)
Layout = Callable[[nn.Linear], nn.Module]
TINY = 1e-30  # instead of the largest number where all are 0


def as_it_is(linear: nn.Linear) -> nn.Module:
    """The layout that changes nothing."""
    return linear


def for_inference(model: Model, layout: Layout = as_it_is) -> Model:
    """A copy of a model, prepared for writing; the model itself is left as it is.

    Queries, keys and values of self-attention become one product, gate and up of a
    gated network another. The copy is in eval mode and is called as the model is:
    `forward`, `hidden`, `logits`, `new_caches`.

    Args:
        layout: what each remaining linear layer becomes, the output layer too:
            `as_it_is`, `Int8Linear`, or a function of your own.

    Raises:
        TypeError: model is not a module.  ValueError: what a layout refuses.

    Note:
        Weights that are not joined are shared with the model, so train neither of the
        two while both are used. Experts of a mixture, and the matrices that latent
        attention absorbs, keep their form. The names in `state_dict` differ.

    >>> from deepdive.configs import GptConfig
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
    for part in made.modules():
        if isinstance(part, Block) and type(part.attention) is MultiHeadAttention:
            part.attention = JoinedAttention(part.attention)
    for part in list(made.modules()):
        for name, child in part.named_children():
            if type(child) is GatedFeedForward:
                setattr(part, name, JoinedFeedForward(child))
    absorbed = {
        id(matrix)
        for part in made.modules()
        if isinstance(part, LatentAttention)
        for matrix in (part.k_up, part.v_up)
    }
    for part in list(made.modules()):
        for name, child in part.named_children():
            if type(child) is nn.Linear and id(child) not in absorbed:
                setattr(part, name, layout(child))
    return made.eval()


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
        qk, v = heads.split((H + G, G), dim=1)
        if rotate is not None:
            qk = rotate(qk)  # queries and keys stand at the same positions
        q, k = qk.split((H, G), dim=1)
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
        _check(x, self.gate_up.in_features)
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # (B, T, d_ff) each
        return self.down(self.activation(gate) * up)


class Int8Linear(nn.Module):
    """A linear layer that keeps its weights as 8-bit integers.

        Wᵢⱼ ≈ sᵢ·Qᵢⱼ·cⱼ,   cⱼ = √max|W·ⱼ|,   sᵢ = max|Wᵢⱼ/cⱼ|/127 over j
        c ⊙ x ≈ t·(X + Y/254),   t = max|c ⊙ x|/127,   X and Y of 8 bits
        yᵢ ≈ t·sᵢ·(Qᵢ·X + Qᵢ·Y/254),   both sums exact

    A quarter of float32's bytes are read for a new word. The weights are rounded once,
    the inputs as they come: to X, and what that leaves to Y. With X alone a few large
    numbers in x drown the rest, and so do a few large columns of W without c.

    Shapes:
        x (…, in) → (…, out), in x's dtype

    Args:
        linear: where the weights come from; they are not changed.

    Raises:
        TypeError: not a linear layer.
        ValueError: weights that are not finite, not on the CPU, or one to a row.

    Note:
        `weight` has no rows: it tells width and dtype to who asks, and holds no number.
        There is no gradient. On SmolLM2 (torch 2.13, one x86 thread with 8-bit
        instructions) a new word took 1/1.4 … 1/1.5 of float32's time, and perplexity
        moved by −0.3 … +0.1 % on three texts of over 1,000 tokens; a text of 36
        moved by 4.5 %. X alone would be 2.0 times as fast as float32, and 6 … 7 % worse
        on the three.

    Source: the sums of rounded rows: Dettmers et al. 2022 (arXiv:2208.07339), §2.1; the
        factors on columns: Xiao et al. 2022 (arXiv:2211.10438), §4.

    >>> linear = nn.Linear(2, 1, bias=False)
    >>> linear.weight.data = torch.tensor([[0.5, -1.0]])
    >>> y = Int8Linear(linear)(torch.tensor([[1.0, 1.0]]))
    >>> round(y.item(), 2)
    -0.5

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"expected an nn.Linear, got {type(linear).__name__}")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        if weight.device.type != "cpu":
            raise ValueError(f"8-bit products run on the cpu, not on {weight.device}")
        if self.in_features < 2:  # torch 2.13 reads past the end of such rows
            raise ValueError(f"8-bit rows need 2 numbers or more, got {linear}")
        if not weight.isfinite().all():
            raise ValueError(f"{linear} has weights that are not finite")
        columns = weight.float().abs().amax(0).clamp(min=TINY).sqrt()  # (in,)
        scales, rounded = _rounded(weight.float() / columns)
        self.register_buffer("columns", columns)
        self.register_buffer("scales", scales.squeeze(-1))  # (out,)
        self.register_buffer("rounded", rounded)  # (out, in) int8
        self.register_buffer("weight", weight[:0].clone())  # (0, in)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        _check(x, self.in_features)
        rows = x.reshape(-1, self.in_features).float() * self.columns  # (M, in)
        scales, coarse = _rounded(rows)
        fine = ((rows / scales - coarse) * 254).round_().to(torch.int8)
        both = torch._int_mm(torch.cat((coarse, fine)), self.rounded.t())  # (2M, out)
        coarse, fine = both.chunk(2)
        out = (coarse + fine / 254) * (scales * self.scales)  # (M, out) float32
        out = out.to(x.dtype).view(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


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


def _check(x: Tensor, width: int) -> None:
    """x must be (…, width)."""
    check_floats("x", x)
    if x.dim() < 1 or x.shape[-1] != width:
        raise ValueError(f"x must be (…, {width}), got {tuple(x.shape)}")


def _rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Each row as whole numbers −127 … 127 and its scale: (N, 1) float32, (N, K)."""
    scales = x.abs().amax(-1, keepdim=True).clamp(min=TINY) / 127  # (N, 1)
    return scales, (x / scales).round_().to(torch.int8)
