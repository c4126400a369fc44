# SPDX-License-Identifier: MIT
"""Llama and Mistral equal `transformers`' on the same random weights, gradients too.

`transformers` computes three parts in float32 whatever the dtype: the norms, the
softmax and the angles. `hugging_face` takes torch's own norm and attention instead, in
float64, so that the angles alone remain, which are ours to the bit where no scaling
rule intervenes. One test leaves the reference as it comes.
"""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from deepdive import configs
from deepdive.configs import LlamaConfig, NTKScaling
from deepdive.models.llama import Llama
from deepdive.positions import half_split, interleaved
from deepdive.pretrained.huggingface import load_into
from deepdive.pretrained.llama import llama_config, llama_names, load_llama
from tests.compare import close

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

TINY = {
    "vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 3, "intermediate_size": 40,
    "max_position_embeddings": 48, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
SCALINGS = {
    "default": {},
    "linear": {"factor": 3.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 12},
    "yarn, all": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 0.5, "mscale": 0.7, "mscale_all_dim": 0.4,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip


def rope(name: str, base: float = 10_000.0) -> dict:
    return {"rope_type": name, "rope_theta": base} | SCALINGS[name]


def hugging_face(seed=0, dtype=torch.float64, wide=True, kind="Llama", **more):
    """`transformers`' model with random weights; wide: float64 all but the angles."""
    if kind == "Mistral":
        more = {"sliding_window": None} | more
    config = getattr(transformers, kind + "Config")(**TINY | more)
    build = getattr(transformers, kind + "ForCausalLM")._from_config
    torch.manual_seed(seed)
    model = build(config, attn_implementation="sdpa" if wide else "eager")
    model = model.to(dtype).eval()
    for name, module in list(model.named_modules()):
        if wide and type(module).__name__.endswith("RMSNorm"):
            eps = config.rms_norm_eps
            norm = torch.nn.RMSNorm(config.hidden_size, eps=eps, dtype=dtype)
            model.set_submodule(name, norm)
    for x in model.parameters():
        torch.nn.init.normal_(x, std=0.3)
    return model


def ours(theirs, pairing=half_split) -> Llama:
    """This book's Llama with the same weights."""
    model = Llama(llama_config(theirs.config.to_dict()), pairing)
    given = llama_names(theirs.state_dict())
    return load_into(model, given, "a copy", theirs.dtype)


def text(B=2, T=11, seed=0):
    torch.manual_seed(seed)
    return torch.randint(61, (B, T))


def padded(side: str, B=3, T=11) -> torch.Tensor:
    """keep: row b has T − 3b real tokens, padding on the named side."""
    keep = torch.arange(T)[None] < T - 3 * torch.arange(B)[:, None]
    return keep.flip(1) if side == "left" else keep


# The same function as transformers'


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("more", [
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 2},
    {"num_key_value_heads": 3, "tie_word_embeddings": True},
    {"num_key_value_heads": 6, "rms_norm_eps": 1e-3},
    {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
    {"head_dim": 10, "num_hidden_layers": 1},
])  # fmt: skip
@torch.no_grad()
def test_logits_equal_transformers(more, seed):
    theirs, tokens = hugging_face(seed, **more), text(seed=seed)
    close(ours(theirs)(tokens), theirs(tokens).logits, 1e-9)


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
@torch.no_grad()
def test_logits_equal_transformers_as_it_comes(kind):
    theirs, tokens = hugging_face(wide=False, kind=kind), text()
    close(ours(theirs)(tokens), theirs(tokens).logits, 1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("window", [None, 1, 3, 11])
@torch.no_grad()
def test_padded_windows_equal_transformers(window, side):
    theirs = hugging_face(kind="Mistral", sliding_window=window)
    tokens, keep = text(3), padded(side)
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    expected = theirs(tokens, attention_mask=keep.long(), position_ids=positions)
    got = ours(theirs)(tokens, keep=keep)
    close(got[keep], expected.logits[keep], 1e-9)
    assert got.isfinite().all()


@pytest.mark.parametrize("window", [None, 3])
@torch.no_grad()
def test_cached_logits_equal_transformers_cached(window):
    theirs = hugging_face(kind="Mistral", sliding_window=window)
    model, tokens, keep = ours(theirs), text(3), padded("left")
    positions = (keep.long().cumsum(1) - 1).clamp(min=0)
    caches = model.new_caches()
    remembered = transformers.DynamicCache(config=theirs.config)
    for a, b in ((0, 5), (5, 6), (6, 8), (8, 11)):
        expected = theirs(
            tokens[:, a:b], keep[:, :b].long(), positions[:, a:b], remembered
        ).logits
        got = model(tokens[:, a:b], caches, keep[:, :b])
        close(got[keep[:, a:b]], expected[keep[:, a:b]], 1e-9)


@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_every_scaling_rule_equals_transformers(name):
    theirs = hugging_face(hidden_size=48, rope_parameters=rope(name, 500.0))
    tokens = text(1, 40)
    # A rule's own sums may be done in another order: a last bit of a float32 angle.
    tolerance = 1e-9 if name in ("default", "linear") else 1e-4
    got = ours(theirs)(tokens)
    close(got, theirs(tokens).logits, tolerance)
    plain = hugging_face(hidden_size=48, rope_parameters=rope("default", 500.0))
    if name != "default":
        assert (got - ours(plain)(tokens)).abs().max() > 0.1


@torch.no_grad()
def test_ntk_scaling_is_a_larger_base():
    s, D = 4.0, 8
    theirs = hugging_face(
        hidden_size=48,
        rope_parameters=rope("default", 500.0 * s ** (D / (D - 2))),
    )
    settings = theirs.config.to_dict() | {"rope_parameters": rope("default", 500.0)}
    config = llama_config(settings)
    config = LlamaConfig(**vars(config) | {"rope_scaling": NTKScaling(s)})
    given = llama_names(theirs.state_dict())
    model, tokens = load_into(Llama(config), given, "", torch.float64), text(1, 40)
    close(model(tokens), theirs(tokens).logits, 1e-9)


@torch.no_grad()
def test_interleaved_files_need_the_other_pairing():
    theirs, tokens = hugging_face(), text()
    tensors = dict(theirs.state_dict())
    for name, x in tensors.items():
        if "q_proj" in name or "k_proj" in name:  # D = 4: rows 0 2 1 3 of every head
            tensors[name] = x.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)
    config, off = llama_config(theirs.config.to_dict()), {}
    for pairing in (half_split, interleaved):
        model = load_into(
            Llama(config, pairing), llama_names(tensors), "", torch.float64
        )
        off[pairing] = (model(tokens) - theirs(tokens).logits).abs().max().item()
    assert off[interleaved] <= 1e-9 and off[half_split] > 0.1


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
def test_gradients_equal_transformers(kind):
    more = {"sliding_window": 3} if kind == "Mistral" else {}
    theirs = hugging_face(kind=kind, tie_word_embeddings=kind == "Llama", **more)
    model, tokens, keep = ours(theirs), text(3), padded("right")
    wanted = torch.randn(3, 11, 61, dtype=torch.float64)
    logits = theirs(tokens, attention_mask=keep.long()).logits
    (logits * wanted)[keep].sum().backward()
    (model(tokens, keep=keep) * wanted)[keep].sum().backward()
    expected = llama_names({name: x.grad for name, x in theirs.named_parameters()})
    got = {name: x.grad for name, x in model.named_parameters()}
    assert got.keys() == expected.tensors.keys() and not expected.unknown
    for name, grad in got.items():
        close(grad, expected.tensors[name], 1e-9, name)


@torch.no_grad()
def test_half_precision_is_as_close_as_transformers():
    off = {"ours": 0.0, "theirs": 0.0}
    for seed in range(3):
        exact, tokens = hugging_face(seed), text(seed=seed)
        rough = hugging_face(seed, torch.bfloat16, wide=False)
        expected = exact(tokens).logits
        off["theirs"] += (rough(tokens).logits - expected).square().sum().item()
        off["ours"] += (ours(rough)(tokens) - expected).square().sum().item()
    assert off["ours"] ** 0.5 <= 2 * off["theirs"] ** 0.5


# Folders


@pytest.mark.parametrize("kind", ["Llama", "Mistral"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shard", ["50GB", "20KB"])
@torch.no_grad()
def test_a_saved_folder_loads_and_computes_the_same(tmp_path, shard, tied, kind):
    more = {"sliding_window": 4} if kind == "Mistral" else {}
    theirs = hugging_face(kind=kind, tie_word_embeddings=tied, **more)
    theirs.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").exists() == (shard == "50GB")
    model, tokens = load_llama(tmp_path, torch.float64), text()
    assert model.config.window == more.get("sliding_window") and not model.training
    assert (model.output.weight is model.token.weight) == tied
    close(model(tokens), theirs(tokens).logits, 1e-9)


@pytest.mark.parametrize("style", ["rope_parameters", "rope_scaling", "type"])
@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_old_and_new_words_for_a_scaling(tmp_path, name, style):
    theirs = hugging_face(rope_parameters=rope(name, 500.0))
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text())
    if style != "rope_parameters":
        scaling = settings.pop("rope_parameters")
        settings["rope_theta"] = scaling.pop("rope_theta")
        if style == "type":
            scaling["type"] = scaling.pop("rope_type")
        settings["rope_scaling"] = None if name == "default" else scaling
    path.write_text(json.dumps(settings))
    model, tokens = load_llama(tmp_path, torch.float64), text()
    assert model.config.rope_base == 500.0
    close(model(tokens), theirs(tokens).logits, 1e-5)


@torch.no_grad()
def test_names_without_prefix_and_stored_angles(tmp_path):
    theirs, tokens = hugging_face(tie_word_embeddings=True), text()
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = {n.removeprefix("model."): x for n, x in load_file(path).items()}
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    tensors["lm_head.weight"] = tensors["embed_tokens.weight"].clone()
    save_file(tensors, path)
    close(load_llama(tmp_path, torch.float64)(tokens), theirs(tokens).logits, 1e-9)
    tensors["lm_head.weight"][0, 0] += 1
    save_file(tensors, path)
    with pytest.raises(ValueError, match="differ, but are one tensor"):
        load_llama(tmp_path)


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("attention_bias", {"attention_bias": True}),
        ("mlp_bias", {"mlp_bias": True}),
        ("hidden_act", {"hidden_act": "gelu"}),
        ("model_type", {"model_type": "qwen2"}),
        ("quantization_config", {"quantization_config": {"bits": 4}}),
        ("layer_types", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
        ("longrope", {"rope_parameters": {"rope_type": "longrope"}}),
        ("attention_factor", {"rope_parameters": rope("yarn") | {
            "attention_factor": 2.0}}),
        ("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
        ("missing", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
    ],
)  # fmt: skip
def test_another_function_is_refused(tmp_path, named, wrong):
    hugging_face().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    with pytest.raises(ValueError, match=named):
        load_llama(tmp_path)


def test_faults_are_listed_together(tmp_path):
    hugging_face().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(24)
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.ones(39, 24)
    del tensors["lm_head.weight"], tensors["model.layers.1.mlp.gate_proj.weight"]
    save_file(tensors, path)
    with pytest.raises(ValueError) as error:
        load_llama(tmp_path)
    for part in (
        "model.layers.0.self_attn.q_proj.bias", "output.weight",
        "blocks.1.feedforward.gate.weight", "(39, 24), expected (40, 24)",
    ):  # fmt: skip
        assert part in str(error.value)
    settings = tmp_path / "config.json"
    settings.write_text('{"model_type": "llama", "hidden_act": "relu"}')
    with pytest.raises(ValueError, match=r"relu.*; vocab_size is missing"):
        load_llama(tmp_path)


# Published models: their config.json, as far as it says sizes, and their parameters

LLAMA_2 = {
    "model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 11008, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "vocab_size": 32000,
}  # fmt: skip
LLAMA_3_1 = LLAMA_2 | {
    "attention_bias": False, "attention_dropout": 0.0, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": False, "num_key_value_heads": 8,
    "rope_theta": 500000.0, "vocab_size": 128256,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
MISTRAL = LLAMA_2 | {
    "model_type": "mistral", "intermediate_size": 14336,
    "max_position_embeddings": 32768, "num_key_value_heads": 8,
    "rope_theta": 10000.0, "sliding_window": 4096,
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "config"),
    [
        (LLAMA_2, configs.LLAMA_2_7B),
        ({k: v for k, v in LLAMA_2.items() if "value" not in k}, configs.LLAMA_2_7B),
        (LLAMA_3_1, configs.LLAMA_3_1_8B),
        (MISTRAL, configs.MISTRAL_7B),
        ({k: v for k, v in MISTRAL.items() if k != "sliding_window"},
         configs.MISTRAL_7B),
    ],
)  # fmt: skip
def test_published_configs_are_read(settings, config):
    assert llama_config(settings) == config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("LLAMA_7B", 6_738_415_616),
        ("LLAMA_2_7B", 6_738_415_616),
        ("LLAMA_2_13B", 13_015_864_320),
        ("LLAMA_2_70B", 68_976_648_192),
        ("LLAMA_3_8B", 8_030_261_248),
        ("LLAMA_3_1_8B", 8_030_261_248),
        ("LLAMA_3_70B", 70_553_706_496),
        ("LLAMA_3_1_405B", 405_853_388_800),
        ("MISTRAL_7B", 7_241_732_096),
        ("DEEPSEEK_67B", 67_425_001_472),
        ("SMOLLM2_135M", 134_515_008),
    ],
)
def test_published_sizes(name, parameters):
    with torch.device("meta"):
        model = Llama(getattr(configs, name))
    assert sum(x.numel() for x in model.parameters()) == parameters
    assert all(x.is_meta for x in model.state_dict().values())


def test_training_starts_small():
    torch.manual_seed(0)
    model = Llama(LlamaConfig(500, 64, 8, 2, 1, 256, tied=True))
    for name, x in model.named_parameters():
        if x.dim() == 1:
            assert (x == 1).all(), name
        else:
            residual = name.endswith(("o_proj.weight", "down.weight"))
            std = 0.02 / 4 if residual else 0.02  # √(2 · 8) = 4
            assert abs(x.std().item() / std - 1) < 0.05, name


def test_loading_draws_no_random_numbers_and_keeps_the_callers(tmp_path):
    hugging_face().save_pretrained(tmp_path)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    load_llama(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
