# SPDX-License-Identifier: MIT
"""The feed-forward forms against `transformers` and against each other."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, T5Config
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense

from deepdive.feedforward import FeedForward, GatedFeedForward
from tests.compare import close


@pytest.mark.parametrize("seed", range(3))
def test_swiglu_is_that_of_llama(seed):
    torch.manual_seed(seed)
    config = LlamaConfig(hidden_size=12, intermediate_size=20, num_attention_heads=2)
    theirs = LlamaMLP(config).double()
    ours = GatedFeedForward(12, 20, nn.SiLU()).double()
    ours.gate, ours.up, ours.down = theirs.gate_proj, theirs.up_proj, theirs.down_proj
    x = torch.randn(2, 5, 12).double()
    close(ours(x), theirs(x))


@pytest.mark.parametrize("gated", [False, True])
def test_t5_has_both_forms(gated):
    torch.manual_seed(1)
    kind = "gated-gelu" if gated else "relu"
    config = T5Config(d_model=12, d_ff=20, feed_forward_proj=kind, dropout_rate=0.0)
    if gated:
        theirs = T5DenseGatedActDense(config).double()
        ours = GatedFeedForward(12, 20, nn.GELU("tanh")).double()
        ours.gate, ours.up = theirs.wi_0, theirs.wi_1
    else:
        theirs = T5DenseActDense(config).double()
        ours = FeedForward(12, 20, nn.ReLU(), bias=False).double()
        ours.up = theirs.wi
    ours.down = theirs.wo
    x = torch.randn(2, 5, 12).double()
    close(ours(x), theirs(x))


def test_an_open_gate_leaves_two_linear_maps():
    """With a gate that is always 1, what remains is W_down W_up x."""
    layer = GatedFeedForward(6, 9, nn.Identity(), bias=True).double()
    nn.init.zeros_(layer.gate.weight)
    nn.init.ones_(layer.gate.bias)
    x = torch.randn(4, 6).double()
    close(layer(x), layer.down(layer.up(x)))


def test_at_two_thirds_of_the_width_it_has_the_parameters_of_the_plain_one():
    def count(module):
        return sum(p.numel() for p in module.parameters())

    plain = FeedForward(16, 48, nn.ReLU(), bias=False)
    assert count(GatedFeedForward(16, 32, nn.SiLU())) == count(plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_nan_from_large_input(dtype):
    layer = GatedFeedForward(16, 24, nn.SiLU()).to(dtype)
    assert layer(torch.full((1, 2, 16), 1e4, dtype=dtype)).isfinite().all()


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="got 0, 8"):
        GatedFeedForward(0, 8, nn.SiLU())
    with pytest.raises(ValueError, match=r"d_model = 8\), got \(2, 7\)"):
        GatedFeedForward(8, 8, nn.SiLU())(torch.zeros(2, 7))
