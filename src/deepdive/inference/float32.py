# SPDX-License-Identifier: MIT
"""In which order are a matrix's numbers read, for one row and for many?

`nn.Linear` keeps the weights of one output after the other. For a single row x that
means as many sums along memory as there are outputs. In bands of 16 outputs

    bands[b, j, i] = W[16b + i, j],      y[16b + i] = Σⱼ xⱼ·bands[b, j, i]

16 sums grow at once, each in its own place of a register, and memory is read from one
end to the other. Many rows are multiplied by oneDNN, which keeps the weights in an
order of its own.

Taught in: book/10_kv_cache.ipynb
"""

import torch
from torch import Tensor, nn

from deepdive.inference.experts import can_pack
from deepdive.inputs import check_kind, check_last

BAND = 16  # outputs; 512 bits of float32
ROWS = 64  # for so many rows oneDNN lays the weights out
# Numbers of a matrix. Below, what a call costs is more than what it saves: 64 × 64 took
# 2.6 times nn.Linear's time for 8 rows, 192 × 192 1.05 times, 256 × 256 0.83 times.
LEAST = 2**16


class Float32Linear(nn.Module):
    """A linear layer that keeps its weights twice: for one row, and for many.

    Shapes:
        x (…, in) → (…, out), in x's dtype

    Args:
        linear: where the weights come from; they are copied.

    Raises:
        TypeError: not a linear layer.
        ValueError: weights that are not float32 on the CPU.
        RuntimeError: torch lacks oneDNN.

    Note:
        The 121 matrices of a Llama with SmolLM2's widths, 538 MB, torch 2.13, one AMD
        EPYC thread with AVX-512, as many times as fast as `nn.Linear` for 1, 2, 3, 4
        and 8 rows:

            bands of 16                         1.9  2.0  2.0  1.3  1.2
            bands of 32                         1.8  2.2  2.2  1.1  1.1
            the whole matrix as one band        1.4  1.9    –  0.9  0.9
            oneDNN, laid out for 64 rows        1.2  2.0  3.4  2.1  1.9

        and oneDNN 1.0 … 2.1 times for 16 to 1,024 rows. In bands of 16 one row took 1.1
        times as long as adding up the same bytes. Tried beside them, for one row:
        weighted `embedding_bag` (1.2), MKL's packed product (1.2), the row repeated
        four times for oneDNN (1.1), a convolution by oneDNN (1.2), bands of 48 and 64
        (1.3), all weights in one piece of memory with huge pages (no difference).
        NumPy's OpenBLAS did as well as the bands, but has threads of its own, which
        torch does not count.

        `weight` has no rows: it tells width and dtype to who asks, and holds no number.
        It computes in float32 whatever comes. There is no gradient, and nothing in
        `state_dict`: load weights into the model and prepare that.

    >>> linear = nn.Linear(40, 20)
    >>> x = torch.randn(3, 40)
    >>> torch.allclose(Float32Linear(linear)(x), linear(x), atol=1e-5)
    True

    Taught in: book/10_kv_cache.ipynb
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        check_kind("linear", linear, nn.Linear)
        weight = linear.weight.detach()
        if weight.dtype != torch.float32 or weight.device.type != "cpu":
            raise ValueError(
                f"weights must be float32 on the cpu, got {weight.dtype} on "
                f"{weight.device}"
            )
        if not can_pack():
            raise RuntimeError("torch has no packed products of oneDNN here")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.width = weight.shape[1:]
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("weight", weight[:0].clone(), persistent=False)
        self.bias, self.bands, self._packed = bias, bands(weight), _pack(weight)
        self.n_bands = len(self.bands)
        self.spare = self.n_bands * BAND - self.out_features

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32 or x.requires_grad or x.shape[-1:] != self.width:
            check_last("x", x, self.in_features)
            return self(x.detach().float()).to(x.dtype)
        if x.numel() != self.in_features:
            return _multiply(x, self._packed, self.bias)
        row = x if x.dim() == 3 else x.reshape(1, 1, -1)
        out = torch.bmm(row.expand(self.n_bands, 1, -1), self.bands)
        out = out.view(*x.shape[:-1], -1)
        if self.spare:
            out = out[..., : self.out_features]
        return out if self.bias is None else out + self.bias

    def __getstate__(self) -> dict:
        return {k: v for k, v in super().__getstate__().items() if k != "_packed"}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        whole = self.bands.transpose(1, 2).flatten(0, 1)  # (out and some, in)
        self._packed = _pack(whole[: self.out_features])

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}"


def bands(weight: Tensor) -> Tensor:
    """Sixteen outputs side by side, their weights for one input after another.

    Shapes:
        weight (out, in) → (⌈out/16⌉, in, 16); outputs that there are not are 0

    Raises:
        ValueError: not two axes.

    >>> bands(torch.arange(6.0).view(3, 2))[0, :, :4]
    tensor([[0., 2., 4., 0.],
            [1., 3., 5., 0.]])

    Taught in: book/10_kv_cache.ipynb
    """
    check_kind("weight", weight, Tensor)
    if weight.dim() != 2:
        raise ValueError(f"weight must be (out, in), got {tuple(weight.shape)}")
    out, width = weight.shape
    whole = nn.functional.pad(weight, (0, 0, 0, -out % BAND))
    return whole.view(-1, BAND, width).transpose(1, 2).contiguous()


def fastest(linear: nn.Linear) -> nn.Module:
    """The layout that was never slower: `Float32Linear` for large matrices in float32
    on the CPU, where torch has both libraries; everything else as it is.

    >>> fastest(nn.Linear(2, 3))
    Linear(in_features=2, out_features=3, bias=True)

    Taught in: book/10_kv_cache.ipynb
    """
    weight = linear.weight
    fits = weight.dtype == torch.float32 and weight.device.type == "cpu"
    large = fits and weight.numel() >= LEAST
    if large and torch.backends.mkl.is_available() and can_pack():
        return Float32Linear(linear)
    return linear


def _pack(weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)


def _multiply(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
