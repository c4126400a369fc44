# SPDX-License-Identifier: MIT
"""T5, 1.0 and 1.1, against `transformers` on the same random weights."""

import json

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from deepdive.cache import Caches
from deepdive.configs import T5_1_1_SMALL, T5_3B, T5_BASE, T5_SMALL, T5Config
from deepdive.models.t5 import T5
from deepdive.pretrained.huggingface import load_into
from deepdive.pretrained.t5 import load_t5, t5_config, t5_names
from tests.compare import close
from tests.wide_reference import wide

SIZES = {
    "vocab_size": 43,
    "d_model": 24,
    "d_kv": 10,  # 3 · 10 is not d_model
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
VERSIONS = {
    "1.0": {"feed_forward_proj": "relu"},
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}


def theirs(version="1.0", seed=0):
    """Their model with all weights random; in 1.1 the output layer a matrix apart."""
    torch.manual_seed(seed)
    config = transformers.T5Config(**SIZES, **VERSIONS[version])
    model = transformers.T5ForConditionalGeneration(config).double().eval()
    with torch.no_grad():
        for x in model.parameters():
            x.copy_(torch.randn_like(x) / x.shape[-1] ** 0.5)
        if version == "1.1":
            model.lm_head.weight = torch.nn.Parameter(
                torch.randn_like(model.lm_head.weight)
            )
    return model


def ours(reference):
    settings = reference.config.to_dict()
    model = T5(t5_config(settings)).double()
    return load_into(model, t5_names(reference.state_dict()), "test", torch.float64)


def batch(seed=0):
    gen = torch.Generator().manual_seed(seed)
    src = torch.randint(1, 43, (2, 19), generator=gen)
    keep = torch.ones(2, 19).bool()
    keep[1, 13:] = False
    return src, torch.randint(1, 43, (2, 15), generator=gen), keep


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("version", VERSIONS)
def test_logits_equal_transformers(version, seed):
    reference = theirs(version, seed)
    src, tgt, keep = batch(seed)
    with torch.no_grad(), wide(reference):
        expected = reference(
            input_ids=src, attention_mask=keep.long(), decoder_input_ids=tgt
        ).logits
    close(ours(reference)(src, tgt, src_keep=keep), expected, 1e-9)


def test_the_scale_of_the_tied_head_is_pinned():
    """1.0 multiplies what the tied output layer reads by d_model^−½; 1.1 does not."""
    model = T5(T5Config(9, 16, 1, 2, 8, 16)).double().eval()
    src = tgt = torch.tensor([[1, 2, 3]])
    read = []
    model.output.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    model.decoder_norm.register_forward_hook(lambda *args: read.append(args[2]))
    logits = model(src, tgt)
    close(read[1], read[0] * 16**-0.5)
    close(logits, read[0] @ model.token.weight.T / 4)
    assert model.output.weight is model.token.weight
    untied = T5(T5Config(9, 16, 1, 2, 8, 16, tied=False)).double().eval()
    untied.output.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    untied.decoder_norm.register_forward_hook(lambda *args: read.append(args[2]))
    untied(src, tgt)
    close(read[3], read[2])
    assert untied.output.weight is not untied.token.weight


@pytest.mark.parametrize("version", VERSIONS)
def test_gradients_equal_transformers(version):
    reference = theirs(version)
    model = ours(reference)
    src, tgt, keep = batch()
    labels = torch.randint(43, (2 * 15,))
    with wide(reference):
        out = reference(
            input_ids=src, attention_mask=keep.long(), decoder_input_ids=tgt
        )
    cross_entropy(out.logits.flatten(0, 1), labels).backward()
    cross_entropy(model(src, tgt, src_keep=keep).flatten(0, 1), labels).backward()
    grads = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    renamed = t5_names(grads).tensors
    for name, x in model.named_parameters():
        close(x.grad, renamed[name], 1e-9, name)


@pytest.mark.parametrize("cuts", [(1,) * 15, (3, 1, 1, 10), (15,)])
def test_cached_equals_uncached(cuts):
    model = ours(theirs())
    src, tgt, keep = batch()
    with torch.no_grad():
        memory, caches = model.encode(src, keep), model.new_caches()
        full = model.decode(tgt, memory, keep)
        steps = [model.decode(x, memory, keep, caches) for x in tgt.split(cuts, 1)]
    close(torch.cat(steps, 1), full, 1e-12)
    assert (caches.seen, caches[0].memory.held) == (15, 19)


def test_padding_on_either_side_of_the_target_changes_nothing():
    model = ours(theirs())
    src, tgt, keep = batch()
    tgt = tgt[:, :6]
    bare = model(src, tgt, src_keep=keep)
    pad, real = torch.zeros(2, 3).long(), torch.ones(2, 6).bool()
    left = torch.cat((~real[:, :3], real), 1)
    close(model(src, torch.cat((pad, tgt), 1), keep, left)[:, 3:], bare, 1e-12)
    right = torch.cat((real, ~real[:, :3]), 1)
    close(model(src, torch.cat((tgt, pad), 1), keep, right)[:, :6], bare, 1e-12)


def test_padding_of_the_source_changes_nothing():
    model = ours(theirs())
    src, tgt, keep = batch()
    close(model(src[1:, :13], tgt[1:]), model(src, tgt, src_keep=keep)[1:], 1e-12)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", ["5GB", "10kB"])
def test_a_saved_folder_is_read(tmp_path, version, size):
    reference = theirs(version)
    if version == "1.1":  # their newest version ties on saving
        reference.lm_head.weight = reference.shared.weight
    reference.save_pretrained(tmp_path, max_shard_size=size)
    src, tgt, keep = batch()
    model = load_t5(tmp_path, torch.float64)
    with torch.no_grad(), wide(reference):
        expected = reference(
            input_ids=src, attention_mask=keep.long(), decoder_input_ids=tgt
        ).logits
    close(model(src, tgt, src_keep=keep), expected, 1e-9)
    assert model.config.tied == (version == "1.0") and not model.training


def test_what_it_does_not_compute_is_refused(tmp_path):
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    good = json.loads(path.read_text(encoding="utf-8"))
    for change, words in (
        ({"feed_forward_proj": "gated-silu"}, "gated-silu"),
        ({"num_decoder_layers": 5}, "5 decoder layers"),
        ({"model_type": "mt5"}, "mt5"),
        ({"d_kv": 11}, "wrong shape"),
    ):
        path.write_text(json.dumps(good | change), encoding="utf-8")
        with pytest.raises(ValueError, match=words):
            load_t5(tmp_path)


@pytest.mark.parametrize(
    ("config", "millions"), [(T5_SMALL, 60.5), (T5_BASE, 222.9), (T5_3B, 2851.6)]
)
def test_published_sizes(config, millions):
    """Raffel et al. 2019, §3.7: about 60 and 220 million, 2.8 billion parameters."""
    with torch.device("meta"):
        model = T5(config)
    n = sum(p.numel() for p in model.parameters())
    assert n / 1e6 == pytest.approx(millions, abs=0.05)


def test_version_1_1_small_is_larger_untied():
    with torch.device("meta"):
        n = sum(p.numel() for p in T5(T5_1_1_SMALL).parameters())
    assert n / 1e6 == pytest.approx(76.96, abs=0.01)


def test_wrong_input_is_refused():
    model = T5(T5Config(9, 16, 2, 2, 8, 16))
    ids = torch.tensor([[1, 2, 3]])
    memory = model.encode(ids)
    with pytest.raises(ValueError, match="source ids must lie in 0 … 8, got 1 … 9"):
        model.encode(torch.tensor([[1, 9]]))
    with pytest.raises(ValueError, match="target ids"):
        model.decode(torch.tensor([[-1]]), memory)
    with pytest.raises(TypeError, match="int32 or int64"):
        model.encode(ids.float())
    with pytest.raises(ValueError, match="2 layers need as many caches, 0"):
        model.decode(ids, memory, caches=Caches())
    with pytest.raises(ValueError, match="keep"):
        model.encode(ids, keep=torch.ones(1, 4).bool())
    with pytest.raises(ValueError, match=r"\(1, 4\)"):
        model.decode(ids, memory, torch.ones(1, 4).bool())
    with pytest.raises(ValueError, match="batch"):
        model.decode(ids.expand(2, 3), memory)


@torch.no_grad()
def test_queries_begin_smaller_in_the_place_of_a_division():
    """Each matrix gives numbers of spread 1 from such numbers, queries 1/√D of that."""
    torch.manual_seed(0)
    model = T5(T5Config(200, d_model=128, n_layers=1, n_heads=4, head_dim=32, d_ff=512))
    attention = model.decoder[0].cross_attention
    assert attention.q_proj.weight.std() == pytest.approx((128 * 32) ** -0.5, rel=0.03)
    for layer, fan_in in ((attention.k_proj, 128), (attention.v_proj, 128)):
        assert layer.weight.std() == pytest.approx(fan_in**-0.5, rel=0.03)
    down = model.encoder[0].feedforward.down
    assert down.weight.std() == pytest.approx(512**-0.5, rel=0.03)
    assert model.token.weight.std() == pytest.approx(1.0, rel=0.03)
    q, k = (project(torch.randn(400, 128)) for project in (
        attention.q_proj, attention.k_proj))  # fmt: skip
    scores = q.view(400, 4, 32).transpose(0, 1) @ k.view(400, 4, 32).permute(1, 2, 0)
    assert scores.std() == pytest.approx(1.0, rel=0.05)  # as after a division by √D
