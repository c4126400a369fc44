# SPDX-License-Identifier: MIT
"""The attention layer against torch's, and what `record` promises."""

import pytest
import torch
from compare import close
from torch import nn

from deepdive.attention import MultiHeadAttention, merge_heads, record, split_heads
from deepdive.configs import BertConfig
from deepdive.kernels import equation, fused
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import Bert

D_MODEL, H, B, T, S = 12, 3, 2, 4, 6
KEEP = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]]).bool()


def draw(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def twins(seed=0, bias=True, kernel=fused):
    """Our layer and torch's, holding the same weights."""
    torch.manual_seed(seed)
    ours = MultiHeadAttention(D_MODEL, H, bias=bias, kernel=kernel).double()
    theirs = nn.MultiheadAttention(D_MODEL, H, bias=bias, batch_first=True).double()
    parts = (ours.q_proj, ours.k_proj, ours.v_proj)
    with torch.no_grad():
        for p in ours.parameters():
            p.copy_(draw(seed + p.numel(), *p.shape) / 3)
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in parts]))
        theirs.out_proj.weight.copy_(ours.o_proj.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([p.bias for p in parts]))
            theirs.out_proj.bias.copy_(ours.o_proj.bias)
    return ours, theirs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kernel", [equation, fused])
def test_self_attention_is_torchs(seed, bias, kernel):
    ours, theirs = twins(seed, bias, kernel)
    x = draw(seed, B, S, D_MODEL)
    close(ours(x), theirs(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("seed", range(3))
def test_padding_and_cross_attention_are_torchs(seed):
    """torch's padding mask has the opposite sense: True = hide."""
    ours, theirs = twins(seed)
    x, context = draw(seed, B, T, D_MODEL), draw(seed + 1, B, S, D_MODEL)
    with record(ours) as seen:
        out = ours(x, context, mask=Everyone(KEEP))
    expected, weights = theirs(
        x, context, context, key_padding_mask=~KEEP, average_attn_weights=False
    )
    close(out, expected)
    close(ours(x, context, mask=Everyone(KEEP)), expected)
    close(seen[""], weights)


def test_causal_is_torchs():
    ours, theirs = twins()
    x = draw(0, B, T, D_MODEL)
    hidden = torch.ones(T, T).triu(1).bool()
    close(ours(x, mask=Causal()), theirs(x, x, x, attn_mask=hidden)[0])


def test_gradients_are_torchs():
    ours, theirs = twins()
    x, context = draw(1, B, T, D_MODEL), draw(2, B, S, D_MODEL)
    ours(x, context, mask=Everyone(KEEP)).square().sum().backward()
    out = theirs(x, context, context, key_padding_mask=~KEEP, need_weights=False)[0]
    out.square().sum().backward()
    parts = (ours.q_proj, ours.k_proj, ours.v_proj)
    close(torch.cat([p.weight.grad for p in parts]), theirs.in_proj_weight.grad, 1e-10)
    close(torch.cat([p.bias.grad for p in parts]), theirs.in_proj_bias.grad, 1e-10)
    close(ours.o_proj.weight.grad, theirs.out_proj.weight.grad, 1e-10)


@pytest.mark.parametrize("G", [1, 2, 4])
@pytest.mark.parametrize("kernel", [equation, fused])
def test_shared_heads_are_copied_heads(G, kernel):
    """G key/value heads, each read by H/G neighbours, are G heads written H/G times."""
    torch.manual_seed(G)
    grouped = MultiHeadAttention(16, 4, n_kv_heads=G, kernel=kernel).double()
    full = MultiHeadAttention(16, 4, kernel=kernel).double()
    with torch.no_grad():
        for name, p in grouped.named_parameters():
            target = full.get_parameter(name)
            if name[0] in "kv":
                heads = p.unflatten(0, (G, 4)).repeat_interleave(4 // G, dim=0)
                target.copy_(heads.flatten(0, 1))
            else:
                target.copy_(p)
    x = draw(3, B, T, 16)
    close(grouped(x, mask=Causal()), full(x, mask=Causal()))
    assert grouped.k_proj.weight.shape == (G * 4, 16)


def test_head_dim_and_scale_reach_the_kernel():
    layer = MultiHeadAttention(8, 2, head_dim=5, scale=1.0).double()
    x = draw(4, 1, T, 8)
    q, k, v = (split_heads(p(x), 2) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    expected = layer.o_proj(merge_heads((q @ k.mT).softmax(-1) @ v))
    assert q.shape == (1, 2, T, 5)
    close(layer(x), expected)


def test_bias_is_added_to_the_scores():
    ours, theirs = twins()
    x, bias = draw(5, B, T, D_MODEL), draw(6, H, T, T)
    expected = theirs(x, x, x, attn_mask=bias.repeat(B, 1, 1))[0]
    close(ours(x, bias=bias), expected)


def test_split_is_a_view_and_merge_undoes_it():
    x = draw(7, B, T, D_MODEL)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, D_MODEL // H)
    assert heads.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert torch.equal(merge_heads(heads), x)
    assert torch.equal(heads[1, 2, 3], x[1, 3, 8:12]), "head 3 = columns 8 … 11"
    assert torch.equal(split_heads(merge_heads(heads), H), heads)


# ── record ───────────────────────────────────────────────────────────────────────────

TINY = BertConfig(50, d_model=12, n_layers=2, n_heads=3, d_ff=16, max_seq_len=8)


def test_recording_changes_no_output_and_gives_the_kernels_back():
    layer, _ = twins()
    x = draw(8, B, T, D_MODEL)
    before = layer(x, mask=Causal())
    with record(layer) as seen:
        assert layer.kernel is not fused
        close(layer(x, mask=Causal()), before)
    assert layer.kernel is fused
    close(seen[""].sum(-1), torch.ones(B, H, T).double())
    assert (seen[""].triu(1) == 0).all() and not seen[""].requires_grad


@pytest.mark.parametrize("kernel", [equation, fused])
@pytest.mark.parametrize(
    "options", [{}, {"n_kv_heads": 1}, {"n_kv_heads": 2, "head_dim": 5}, {"scale": 1.0}]
)
@pytest.mark.parametrize("biased", [False, True])
def test_what_is_recorded_makes_the_same_output(kernel, options, biased):
    torch.manual_seed(1)
    layer = MultiHeadAttention(16, 4, kernel=kernel, **options).double()
    x, bias = draw(13, B, T, 16), draw(14, 4, T, T) if biased else None
    before = layer(x, mask=Causal(), bias=bias)
    with record(layer) as seen:
        close(layer(x, mask=Causal(), bias=bias), before)
    v = split_heads(layer.v_proj(x), layer.n_kv_heads)
    v = v.repeat_interleave(4 // layer.n_kv_heads, dim=1)
    close(layer.o_proj(merge_heads(seen[""] @ v)), before, what="from the weights seen")


def test_kernels_come_back_after_an_error():
    layer, _ = twins(kernel=equation)
    with pytest.raises(ValueError, match="99"), record(layer):
        layer(torch.zeros(1, 2, 99).double())
    assert layer.kernel is equation


def test_recordings_nest():
    layer, _ = twins()
    x, y = draw(9, 1, 2, D_MODEL), draw(10, 1, 3, D_MODEL)
    with record(layer) as outer:
        layer(x)
        with record(layer) as inner:
            layer(y)
        assert outer[""].shape[-1] == 2 and inner[""].shape[-1] == 3
        layer(y)
        assert outer[""].shape[-1] == 3
    assert layer.kernel is fused


def test_record_sees_every_layer_of_a_model():
    torch.manual_seed(0)
    model = Bert(TINY).double().eval()
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
    keep = tokens != 0
    before = model(tokens, keep=keep)
    with record(model) as seen:
        close(model(tokens, keep=keep), before)
    assert list(seen) == ["blocks.0.attention", "blocks.1.attention"]
    for weights in seen.values():
        assert weights.shape == (2, 3, 4, 4) and (weights[1, ..., 3] == 0).all()
        close(weights.sum(-1), torch.ones(2, 3, 4).double())
    assert all(block.attention.kernel is fused for block in model.blocks)


def test_half_precision_is_recorded_and_returned_in_its_dtype():
    layer = twins()[0].bfloat16()
    x = draw(11, B, T, D_MODEL).bfloat16()
    with record(layer) as seen:
        out = layer(x)
    assert out.dtype == torch.bfloat16 and seen[""].isfinite().all()


def test_autocast_may_mix_dtypes():
    layer = twins()[0].float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(layer(draw(12, B, T, D_MODEL).float())).dtype == torch.bfloat16


def test_a_model_without_attention_has_nothing_to_record():
    with (
        pytest.raises(ValueError, match="Linear has no layer"),
        record(nn.Linear(2, 2)),
    ):
        pass


def test_any_module_with_a_kernel_is_recorded():
    class Other(nn.Module):
        kernel = staticmethod(equation)

        def forward(self, x):
            return self.kernel(x, x, x)

    other = Other()
    with record(other) as seen:
        other(torch.zeros(1, 2, 3, 4))
    assert seen[""].shape == (1, 2, 3, 3)


def test_attention_compiles_as_one_graph():
    layer = MultiHeadAttention(8, 2)
    x = torch.randn(1, 3, 8)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    close(compiled(x), layer(x))
