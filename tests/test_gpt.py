# SPDX-License-Identifier: MIT
"""GPT-2 equals `transformers`' on the same random weights, gradients too; and what
holds for every decoder: a token at a time is all at once, padding changes nothing.
"""

import itertools
import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from deepdive.cache import Caches, GrowingCache, PreallocatedCache, WindowedCache
from deepdive.configs import (
    GPT2_LARGE,
    GPT2_MEDIUM,
    GPT2_SMALL,
    GPT2_XL,
    GptConfig,
    LlamaConfig,
    YarnScaling,
)
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.positions import interleaved
from deepdive.pretrained.gpt import gpt_config, gpt_names, load_gpt
from deepdive.pretrained.huggingface import load_into
from tests.compare import close

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

# sizes: d_model, layers, heads, d_ff
SIZES = [(8, 1, 1, 32), (24, 2, 3, 96), (32, 3, 8, 50)]
TINY = {"vocab_size": 61, "n_positions": 24, "eos_token_id": 0, "bos_token_id": 0}


def hugging_face(sizes=SIZES[1], seed=0, dtype=torch.float64, **more):
    """`transformers`' GPT-2 with random weights, all of them, norms and biases too."""
    d_model, n_layers, n_heads, d_ff = sizes
    config = transformers.GPT2Config(
        n_embd=d_model, n_layer=n_layers, n_head=n_heads, n_inner=d_ff, **TINY, **more
    )
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel._from_config(
        config, attn_implementation="eager"
    )
    for x in model.parameters():
        torch.nn.init.normal_(x, std=0.3)
    return model.to(dtype).eval()


def ours(theirs) -> Gpt:
    """This book's Gpt with the same weights."""
    dtype = theirs.dtype
    model = Gpt(gpt_config(theirs.config.to_dict()))
    return load_into(model, gpt_names(theirs.state_dict()), "a copy", dtype)


def text(B=2, T=9, seed=0, vocab=61):
    torch.manual_seed(seed)
    return torch.randint(vocab, (B, T))


def padded(side: str, B=3, T=9) -> torch.Tensor:
    """keep: row b has T − 2b real tokens, padding on the named side."""
    keep = torch.arange(T)[None] < T - 2 * torch.arange(B)[:, None]
    return keep.flip(1) if side == "left" else keep


# The same function as transformers'


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sizes", SIZES)
@torch.no_grad()
def test_logits_equal_transformers(sizes, seed):
    theirs = hugging_face(sizes, seed)
    tokens = text(seed=seed)
    close(ours(theirs)(tokens), theirs(tokens).logits, 1e-9)


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_padded_logits_equal_transformers(side):
    theirs, tokens, keep = hugging_face(), text(3), padded(side)
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    expected = theirs(tokens, attention_mask=keep.long(), position_ids=positions)
    got = ours(theirs)(tokens, keep=keep)
    close(got[keep], expected.logits[keep], 1e-9)
    assert got.isfinite().all()


@torch.no_grad()
def test_cached_logits_equal_transformers_cached():
    theirs, tokens, keep = hugging_face(), text(3), padded("left")
    model = ours(theirs)
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    caches = model.new_caches()
    remembered = transformers.DynamicCache(config=theirs.config)
    for a, b in ((0, 4), (4, 5), (5, 9)):
        seen, now = keep[:, :b], keep[:, a:b]
        expected = theirs(
            tokens[:, a:b], remembered, seen.long(), position_ids=positions[:, a:b]
        ).logits
        got = model(tokens[:, a:b], caches, seen)
        close(got[now], expected[now], 1e-9)


def test_gradients_equal_transformers():
    theirs, tokens, keep = hugging_face(), text(3), padded("right")
    model, wanted = ours(theirs), torch.randn(3, 9, 61, dtype=torch.float64)
    logits = theirs(tokens, attention_mask=keep.long()).logits
    (logits * wanted)[keep].sum().backward()
    (model(tokens, keep=keep) * wanted)[keep].sum().backward()
    expected = gpt_names({name: x.grad for name, x in theirs.named_parameters()})
    got = {name: x.grad for name, x in model.named_parameters()}
    assert got.keys() == expected.tensors.keys() and not expected.unknown
    for name, grad in got.items():
        close(grad, expected.tensors[name], 1e-9, name)


@torch.no_grad()
def test_half_precision_is_as_close_as_transformers():
    off = {"ours": 0.0, "theirs": 0.0}
    for seed in range(3):
        exact, tokens = hugging_face(SIZES[2], seed), text(seed=seed)
        rough = hugging_face(SIZES[2], seed, torch.bfloat16)
        expected = exact(tokens).logits
        off["theirs"] += (rough(tokens).logits - expected).square().sum().item()
        off["ours"] += (ours(rough)(tokens) - expected).square().sum().item()
    assert off["ours"] ** 0.5 <= 2 * off["theirs"] ** 0.5


# Folders


@pytest.mark.parametrize("shard", ["50GB", "20KB"])
@torch.no_grad()
def test_a_saved_folder_loads_and_computes_the_same(tmp_path, shard):
    theirs = hugging_face()
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").exists() == (shard == "50GB")
    model = load_gpt(tmp_path, torch.float64)
    assert model.output.weight is model.token.weight and not model.training
    tokens = text()
    close(model(tokens), theirs(tokens).logits, 1e-9)


@torch.no_grad()
def test_the_older_layouts_load_too(tmp_path):
    theirs, tokens = hugging_face(), text()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    # without the prefix, and with the masks that were stored once
    tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 24, 24).tril()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, path)
    close(load_gpt(tmp_path, torch.float64)(tokens), theirs(tokens).logits, 1e-9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"activation_function": "relu"},
        {"scale_attn_by_inverse_layer_idx": True},
        {"add_cross_attention": True},
        {"tie_word_embeddings": False},
        {"model_type": "gpt_neo"},
        {"quantization_config": {"bits": 4}},
    ],
)
def test_another_function_is_refused(tmp_path, wrong):
    hugging_face().save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    settings = transformers.GPT2Config.from_json_file(config).to_dict()
    config.write_text(json.dumps(settings | wrong))
    with pytest.raises(ValueError, match=next(iter(wrong))):
        load_gpt(tmp_path)


def test_faults_of_a_file_are_listed_together(tmp_path):
    hugging_face().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["score.weight"] = torch.ones(2, 24)
    del tensors["transformer.ln_f.bias"]
    tensors["transformer.h.1.mlp.c_fc.weight"] = torch.ones(24, 95)
    tensors["transformer.h.0.attn.c_attn.weight"] = torch.ones(24, 71)
    save_file(tensors, path)
    with pytest.raises(ValueError) as error:
        load_gpt(tmp_path)
    for part in ("score.weight", "norm.bias", "blocks.1.feedforward.up", "3 equal"):
        assert part in str(error.value)
    tensors = load_file(path)
    with pytest.raises(ValueError) as error:
        load_gpt(tmp_path, ignoring=("score.",))
    assert "score.weight" not in str(error.value)


# Sizes and the start of training


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (GPT2_SMALL, 124_439_808),
        (GPT2_MEDIUM, 354_823_168),
        (GPT2_LARGE, 774_030_080),
        (GPT2_XL, 1_557_611_200),
    ],
)
def test_published_sizes(config, parameters):
    with torch.device("meta"):
        model = Gpt(config)
    assert sum(x.numel() for x in model.parameters()) == parameters
    assert model(torch.zeros(1, 3, dtype=torch.long, device="meta")).is_meta


def test_training_starts_small():
    torch.manual_seed(0)
    model = Gpt(GptConfig(500, d_model=64, n_layers=8, n_heads=2, d_ff=256))
    for name, x in model.named_parameters():
        if x.dim() == 1:
            assert (x == float("norm" in name and name.endswith("weight"))).all(), name
        else:
            residual = name.endswith(("o_proj.weight", "down.weight"))
            std = 0.02 / 4 if residual else 0.02  # √(2 · 8) = 4
            assert abs(x.std().item() / std - 1) < 0.05, name
    tokens = text(4, 64, vocab=500)
    loss = torch.nn.functional.cross_entropy(
        model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    assert abs(loss.item() - torch.tensor(500.0).log().item()) < 0.1


def test_dropout_works_in_training_alone():
    model = Gpt(GptConfig(61, 24, 2, 3, 96, 24, dropout=0.5))
    tokens = text()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    dropped = []
    for layer in (model.dropout, *(block.dropout for block in model.blocks)):
        layer.register_forward_hook(lambda m, a, x: dropped.append((x == 0).float()))
    model.train()(tokens)
    assert len(dropped) == 5  # embeddings, and two sublayers in each of two blocks
    for zeros in dropped:
        assert 0.4 < zeros.mean() < 0.6


# What holds for every decoder

LLAMA = LlamaConfig(61, 24, 2, n_heads=4, n_kv_heads=2, d_ff=40, max_seq_len=24)
LLAMA = {name: getattr(LLAMA, name) for name in LLAMA.__dataclass_fields__}
DECODERS = {
    "gpt": lambda: Gpt(GptConfig(61, 24, 2, 3, 96, 24)),
    "llama": lambda: Llama(LlamaConfig(**LLAMA)),
    "interleaved": lambda: Llama(LlamaConfig(**LLAMA | {"tied": True}), interleaved),
    "yarn": lambda: Llama(LlamaConfig(**LLAMA | {"rope_scaling": YarnScaling(4.0, 6)})),
    "window": lambda: Llama(LlamaConfig(**LLAMA | {"window": 4})),
    "window 1": lambda: Llama(LlamaConfig(**LLAMA | {"window": 1})),
}
CHUNKS = [(3, 1, 1), (3, 2), (1, 1, 1, 1, 1), (5,), (1, 4), (2, 3)]


def decoder(name, seed=0):
    torch.manual_seed(seed)
    model = DECODERS[name]().double().eval()
    for x in model.parameters():
        torch.nn.init.normal_(x, std=0.3)
    return model


def in_chunks(model, tokens, caches, chunks, keep=None):
    """The logits of each chunk, side by side."""
    parts, ends = [], list(itertools.accumulate(chunks))
    for n, end in zip(chunks, ends, strict=True):
        now = None if keep is None else keep[:, :end]
        parts.append(model(tokens[:, end - n : end], caches, now))
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("capacity", [None, 12])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_in_chunks_is_all_at_once(name, capacity):
    model, tokens = decoder(name), text(2, 5)
    whole = model(tokens)
    for chunks in CHUNKS:  # case B13
        caches = model.new_caches(capacity)
        close(in_chunks(model, tokens, caches, chunks), whole, 1e-12, f"{chunks}")
        assert caches.seen == 5
        assert torch.equal(model(tokens), whole)  # nothing leaks into a later call


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_padding_changes_nothing_cached_or_not(name, side):
    model, tokens, keep = decoder(name), text(3), padded(side)
    whole = model(tokens, keep=keep)
    assert whole.isfinite().all()
    for row, real, got in zip(tokens, keep, whole, strict=True):
        close(got[real], model(row[real][None])[0], 1e-12, f"{real}")
    for chunks in ((4, 1, 4), (1,) * 9, (6, 3)):
        for capacity in (None, 9):
            caches = model.new_caches(capacity)
            got = in_chunks(model, tokens, caches, chunks, keep)
            close(got[keep], whole[keep], 1e-12, f"{chunks}")


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_a_left_padded_prompt_answers_as_it_does_alone(name):
    model = decoder(name)  # case B15
    tokens = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    keep = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    alone, both = torch.tensor([[5, 6, 7]]), tokens
    caches = model.new_caches()
    logits = model(both, caches, keep)
    for _ in range(6):
        close(logits[0, -1], model(alone)[0, -1], 1e-12)
        word = logits[:, -1].argmax(-1, keepdim=True)
        keep = torch.nn.functional.pad(keep, (0, 1), value=True)
        alone = torch.cat((alone, word[:1]), dim=1)
        logits = model(word, caches, keep)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_no_word_sees_the_future_and_positions_matter(name):
    model, tokens = decoder(name), text(1, 8)
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 61
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5], after[:, 5])
    if name == "gpt":  # learned positions are absolute …
        moved = model(tokens, positions=torch.arange(3, 11))
        assert not torch.allclose(moved, before)
    else:  # … and turned ones know distances alone
        moved = model(tokens, positions=torch.arange(3, 11))
        close(moved, before, 1e-5)  # angles are computed in float32
    given = torch.arange(8).expand(1, 8)
    assert torch.equal(model(tokens, positions=given), before)


@pytest.mark.parametrize("name", DECODERS)
@torch.no_grad()
def test_caches_can_be_taken_back_and_reordered(name):
    model, tokens = decoder(name), text(2, 9)
    caches = model.new_caches()
    model(tokens[:, :4], caches)
    model(tokens[:, 4:5], caches)
    caches.truncate(4)
    again = model(tokens[:, 4:6], caches)
    close(again, model(tokens[:, :6])[:, 4:], 1e-12)
    caches.reorder(torch.tensor([1, 1]))
    rows = tokens[[1, 1]]
    close(model(rows[:, 6:], caches), model(rows)[:, 6:], 1e-12)


@pytest.mark.parametrize("name", DECODERS)
def test_the_caches_suit_the_model(name):
    model = decoder(name)
    kind, windowed = GrowingCache, getattr(model.config, "window", None)
    caches, roomy = model.new_caches(), model.new_caches(7)
    if windowed:
        kind = WindowedCache
    assert [type(cache) for cache in caches] == [kind, kind]
    assert type(roomy[0]) is (WindowedCache if windowed else PreallocatedCache)
    with torch.no_grad():
        model(text(1, 7), roomy)
        if windowed:
            model(text(1, 7), roomy)
            assert roomy.held == model.config.window
        else:
            with pytest.raises(ValueError, match="cannot take 1 more"):
                model(text(1, 1), roomy)
            assert roomy.seen == 7  # and nothing was stored


@pytest.mark.parametrize("name", DECODERS)
def test_too_long_a_text_is_refused(name):
    model = decoder(name)
    with pytest.raises(ValueError, match="more than max_seq_len 24"):
        model(text(1, 25))
    with torch.no_grad():
        assert model(text(1, 24)).isfinite().all()
        caches = model.new_caches()
        model(text(1, 23), caches)
        with pytest.raises(ValueError, match="23 tokens seen and 2 new"):
            model(text(1, 2), caches)
        model(text(1, 1), caches)
    assert caches.seen == 24


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    ("error", "wrong"),
    [
        (ValueError, {"tokens": torch.tensor([[1, 61]])}),
        (ValueError, {"tokens": torch.tensor([[-1, 0]])}),
        (ValueError, {"tokens": torch.tensor([1, 2])}),
        (ValueError, {"tokens": torch.zeros(1, 0, dtype=torch.long)}),
        (TypeError, {"tokens": torch.zeros(1, 2)}),
        (TypeError, {"tokens": [[1, 2]]}),
        (ValueError, {"keep": torch.ones(1, 3, dtype=torch.bool)}),
        (ValueError, {"keep": torch.ones(2, 2, dtype=torch.bool)}),
        (TypeError, {"keep": torch.ones(1, 2)}),
        (TypeError, {"keep": [[True, True]]}),
        (ValueError, {"positions": torch.arange(3)}),
        (ValueError, {"positions": torch.zeros(2, 2, dtype=torch.long)}),
        (TypeError, {"positions": torch.zeros(2)}),
        (TypeError, {"positions": [0, 1]}),
        (ValueError, {"caches": Caches()}),
        (ValueError, {"caches": Caches([GrowingCache()])}),
        (ValueError, {"caches": Caches([GrowingCache()] * 3)}),
    ],
)
def test_wrong_input_is_refused(name, error, wrong):
    model = decoder(name)
    with pytest.raises(error):
        model(**{"tokens": torch.tensor([[1, 2]])} | wrong)
    for cache in wrong.get("caches", ()):
        assert cache.seen == 0


@pytest.mark.parametrize("name", DECODERS)
def test_logits_are_of_hidden_and_refuse_what_does_not_fit(name):
    model, tokens = decoder(name), text()
    with torch.no_grad():
        assert torch.equal(model.logits(model.hidden(tokens)), model(tokens))
    with pytest.raises(ValueError, match="d_model = 24"):
        model.logits(torch.zeros(2, 3, 23).double())
    with pytest.raises(TypeError):
        model.logits(torch.zeros(2, 3, 24))
