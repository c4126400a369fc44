# SPDX-License-Identifier: MIT
"""The 2017 model against torch's own, and against a trained one's own code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, post_norm, pre_norm
from deepdive.cache import DecoderLayerCache, GrowingCache, Memory
from deepdive.configs import TRANSFORMER_BASE, TransformerConfig
from deepdive.decoding import CachedStep, UncachedStep, greedy
from deepdive.feedforward import FeedForward
from deepdive.masks import Causal, Everyone
from deepdive.models.transformer2017 import Transformer, build_block
from deepdive.pretrained.files import WeightsMissing
from tests.compare import close

GOLDEN = Path(__file__).parent / "golden" / "annalog.npz"
CONFIG = TransformerConfig(
    17, 19, d_model=24, n_layers=2, n_heads=3, d_ff=40, tied=False
)
ORDERS = [post_norm, pre_norm]
names = {"ids": lambda x: getattr(x, "__name__", None)}


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention):
    """torch keeps q, k and v in one matrix."""
    parts = (ours.q_proj, ours.k_proj, ours.v_proj)
    weights = theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3)
    for part, weight, bias in zip(parts, *weights, strict=True):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    ours.o_proj.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def copy_block(ours: Block, theirs: nn.Module):
    """One layer of torch's, encoder or decoder, into one of ours."""
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_norm, ours.feedforward_norm]
    if ours.cross_attention is not None:
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_norm)
    ours.feedforward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.down.load_state_dict(theirs.linear2.state_dict())
    for i, norm in enumerate(norms):
        norm.load_state_dict(getattr(theirs, f"norm{i + 1}").state_dict())


def disturb(module):
    """Give every bias and norm a random value: at their start many are 0 or 1."""
    with torch.no_grad():
        for x in module.parameters():
            if x.dim() == 1:
                x.add_(torch.randn_like(x) / 3)
    return module.double().eval()


def inputs(seed=0):
    torch.manual_seed(seed)
    x, memory = (torch.randn(2, n, 24, dtype=torch.float64) for n in (7, 9))
    keep = torch.tensor([[1] * 9, [1] * 6 + [0] * 3]).bool()
    return x, memory, keep


@pytest.mark.parametrize("residual", ORDERS, **names)
@pytest.mark.parametrize("seed", range(2))
def test_a_decoder_layer_equals_torch(residual, seed):
    x, memory, keep = inputs(seed)
    theirs = nn.TransformerDecoderLayer(
        24, 3, 40, dropout=0.0, batch_first=True, norm_first=residual is pre_norm
    )
    disturb(theirs)
    ours = build_block(CONFIG, residual, cross=True).double()
    copy_block(ours, theirs)
    blocked = nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64)
    expected = theirs(x, memory, blocked, memory_key_padding_mask=~keep)
    got = ours(x, memory, Everyone(keep), mask=Causal())
    close(got, expected, 1e-12)


def pair(residual, seed=0):
    """Their whole model with random weights, and ours with the same."""
    torch.manual_seed(seed)
    pre = residual is pre_norm
    theirs = nn.Transformer(
        24, 3, 2, 2, 40, dropout=0.0, batch_first=True, norm_first=pre
    )
    if not pre:  # torch ends each half in a norm, which the paper has not
        theirs.encoder.norm = theirs.decoder.norm = None
    disturb(theirs)
    ours = Transformer(CONFIG, residual).double().eval()
    for half in ("encoder", "decoder"):
        blocks, layers = getattr(ours, half), getattr(theirs, half).layers
        for block, layer in zip(blocks, layers, strict=True):
            copy_block(block, layer)
        if pre:
            norm = getattr(theirs, half).norm.state_dict()
            getattr(ours, f"{half}_norm").load_state_dict(norm)
    return theirs, ours


def run_theirs(theirs, ours, src, tgt, keep):
    """Their stacks between our embeddings and our output layer."""
    blocked = nn.Transformer.generate_square_subsequent_mask(
        tgt.shape[1], dtype=torch.float64
    )
    at = [torch.arange(ids.shape[1]) for ids in (src, tgt)]
    x = ours.embed(ours.src_token(src), ours.src_positions(at[0]))
    y = ours.embed(ours.tgt_token(tgt), ours.tgt_positions(at[1]))
    out = theirs(
        x,
        y,
        tgt_mask=blocked,
        src_key_padding_mask=~keep,
        memory_key_padding_mask=~keep,
    )
    return ours.output(out)


def ids(seed=0):
    gen = torch.Generator().manual_seed(seed)
    src = torch.randint(17, (2, 9), generator=gen)
    keep = torch.tensor([[1] * 9, [1] * 6 + [0] * 3]).bool()
    return src, torch.randint(19, (2, 7), generator=gen), keep


@pytest.mark.parametrize("residual", ORDERS, **names)
@pytest.mark.parametrize("seed", range(2))
def test_the_whole_model_equals_torch_gradients_too(residual, seed):
    theirs, ours = pair(residual, seed)
    src, tgt, keep = ids(seed)
    theirs.train()  # with dropout 0; in eval mode torch takes another path
    expected = run_theirs(theirs, ours, src, tgt, keep)
    got = ours(src, tgt, src_keep=keep)
    close(got, expected, 1e-11)
    labels = torch.randint(19, (14,))
    wanted = torch.autograd.grad(
        cross_entropy(expected.flatten(0, 1), labels),
        [theirs.encoder.layers[0].linear1.weight, ours.src_token.weight],
    )
    grads = torch.autograd.grad(
        cross_entropy(got.flatten(0, 1), labels),
        [ours.encoder[0].feedforward.up.weight, ours.src_token.weight],
    )
    for mine, other in zip(grads, wanted, strict=True):
        close(mine, other, 1e-11)


@pytest.mark.parametrize("cuts", [(1,) * 7, (3, 1, 3), (7,)])
@pytest.mark.parametrize("residual", ORDERS, **names)
def test_cached_equals_uncached(residual, cuts):
    _, model = pair(residual)
    src, tgt, keep = ids()
    with torch.no_grad():
        memory, caches = model.encode(src, keep), model.new_caches()
        full = model.decode(tgt, memory, keep)
        steps = [model.decode(x, memory, keep, caches) for x in tgt.split(cuts, 1)]
    close(torch.cat(steps, 1), full, 1e-12)


def test_padding_on_either_side_changes_nothing():
    _, model = pair(post_norm)
    src, tgt, _ = ids()
    bare = model(src, tgt)
    pad, real = torch.zeros(2, 3).long(), torch.ones(2, 9).bool()
    none = ~real[:, :3]
    left = model(
        torch.cat((pad, src), 1),
        torch.cat((pad, tgt), 1),
        torch.cat((none, real), 1),
        torch.cat((none, real[:, :7]), 1),
    )
    close(left[:, 3:], bare, 1e-12)
    right = model(
        torch.cat((src, pad), 1),
        torch.cat((tgt, pad), 1),
        torch.cat((real, none), 1),
        torch.cat((real[:, :7], none), 1),
    )
    close(right[:, :7], bare, 1e-12)


def test_nothing_depends_on_whether_it_trains_without_dropout():
    _, model = pair(post_norm)
    src, tgt, keep = ids()
    close(model.train()(src, tgt, keep), model.eval()(src, tgt, keep), 1e-12)


def test_dropout_acts_in_training_alone():
    torch.manual_seed(0)
    config = TransformerConfig(9, 9, 16, 1, 2, 16, dropout=0.5)
    model, src = Transformer(config), torch.tensor([[1, 2, 3]])
    assert not torch.equal(model(src, src), model(src, src))
    model.eval()
    assert torch.equal(model(src, src), model(src, src))


def test_embeddings_are_tied_and_scaled():
    model = Transformer(TransformerConfig(9, 9, 16, 1, 2, 16)).eval()
    assert model.src_token.weight is model.tgt_token.weight is model.output.weight
    assert model.output.bias is None
    at = torch.arange(3)
    x = model.embed(model.src_token(at), model.src_positions(at))
    close(x, model.src_token.weight[:3] * 4 + model.src_positions(at), 1e-6)


def test_the_paper_s_base_model():
    """Table 3 says 65 million; ours has the biases, and 37,000 words as §5.1 has."""
    with torch.device("meta"):
        model = Transformer(TRANSFORMER_BASE)
    assert sum(p.numel() for p in model.parameters()) == 63_082_496


def test_a_block_is_told_what_it_lacks():
    block = build_block(CONFIG, post_norm, cross=True)
    x = torch.zeros(1, 2, 24)
    with pytest.raises(ValueError, match="needs a memory"):
        block(x)
    with pytest.raises(ValueError, match="no cross-attention"):
        build_block(CONFIG, post_norm)(x, x)
    with pytest.raises(ValueError, match="come together"):
        Block(
            MultiHeadAttention(24, 3),
            FeedForward(24, 8, nn.ReLU()),
            nn.LayerNorm(24),
            nn.LayerNorm(24),
            post_norm,
            cross_attention=MultiHeadAttention(24, 3),
        )
    cache = DecoderLayerCache(GrowingCache(), Memory())
    block(x, x, cache=cache, mask=Causal())
    assert cache.seen == 2 and cache.memory.held == 2


def test_wrong_input_is_refused():
    _, model = pair(post_norm)
    src, tgt, keep = ids()
    memory = model.encode(src)
    with pytest.raises(ValueError, match="source ids must lie in 0 … 16, got"):
        model.encode(src + 17)
    with pytest.raises(ValueError, match="target ids must lie in 0 … 18, got"):
        model.decode(tgt + 19, memory)
    with pytest.raises(ValueError, match="keep"):
        model(src, tgt, keep[:, :5])
    with pytest.raises(TypeError, match="bool"):
        model(src, tgt, keep.int())
    with pytest.raises(ValueError, match="tied"):
        TransformerConfig(3, 4)


# ── A trained one ────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def trained():
    from deepdive.pretrained import annalog

    try:
        return annalog()
    except WeightsMissing as error:
        pytest.skip(str(error))


@pytest.mark.weights
@pytest.mark.parametrize("i", range(3))
def test_annalog_equals_its_own_code(trained, i):
    model, smiles = trained
    golden = np.load(GOLDEN)
    src, tgt = (
        torch.from_numpy(golden[f"{i}_{side}"])[None] for side in ("src", "tgt")
    )
    assert torch.equal(smiles.encode(str(golden[f"{i}_src_text"])).ids, src)
    with torch.no_grad():
        logits = model(src, tgt)[0]
    close(logits, torch.from_numpy(golden[f"{i}_logits"]), 1e-4)


@pytest.mark.weights
@pytest.mark.parametrize("i", range(3))
def test_annalog_writes_what_its_own_code_writes(trained, i):
    model, smiles = trained
    golden = np.load(GOLDEN)
    src = torch.from_numpy(golden[f"{i}_src"])[None]
    memory = model.encode(src)
    start = torch.tensor([[smiles.start]])
    steps = (
        CachedStep(model.decode, model.new_caches(), memory=memory),
        UncachedStep(model.decode, memory=memory),
    )
    for step in steps:
        out = greedy(step, start, 60, stop=(smiles.end,))
        assert smiles.decode(out.ids[0]) == str(golden[f"{i}_greedy"])


@pytest.mark.weights
def test_smiles_are_refused_where_they_are_none(trained):
    _, smiles = trained
    with pytest.raises(ValueError, match="no token here"):
        smiles.encode("C?C")
    with pytest.raises(ValueError, match="102 positions"):
        smiles.encode("C" * 101)
