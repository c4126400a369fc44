# SPDX-License-Identifier: MIT
"""Is this book's DeepSeek the same function as V2 and V3 in `transformers`?

To 1e-9 where the reference is made to compute in float64 (`wide_reference`), to 1e-5
as it comes: its norms and routers, and V2's rotation, are float32 by name.
"""

import json
import math

import pytest
import torch
import transformers
from compare import close
from safetensors.torch import load_file, save_file
from wide_reference import randomise, wide

from deepdive import configs
from deepdive.attention import record
from deepdive.cache import Caches
from deepdive.configs import DeepSeekV2Config, DeepSeekV3Config
from deepdive.inference import for_inference
from deepdive.models.deepseek import DeepSeek
from deepdive.moe import SigmoidRouter, SoftmaxTopKRouter, record_routing
from deepdive.pretrained import load_deepseek

V, T = 37, 9
SIZES = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 7,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 64,
    "n_group": 4,
    "topk_group": 2,
}
LIMITED = {"topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 0.707,
    "mscale_all_dim": 0.5,
}
KINDS = {
    "V2, groups": (2, LIMITED),
    "V2, greedy, plain queries": (2, {"q_lora_rank": None, "n_group": None}),
    "V2, all experts, YaRN": (
        2,
        {"rope_parameters": YARN, "first_k_dense_replace": 0, "n_shared_experts": 1},
    ),
    "V3": (3, {}),
    "V3, plain queries, not normalised": (
        3,
        {"q_lora_rank": None, "norm_topk_prob": False, "n_shared_experts": 1},
    ),
    "V3, one group, YaRN": (
        3,
        {"n_group": 1, "topk_group": 1, "rope_parameters": YARN},
    ),
    "V3, dense": (3, {"first_k_dense_replace": 2}),
}
OURS = {
    "vocab_size": V,
    "d_model": 16,
    "n_layers": 2,
    "n_heads": 4,
    "q_lora_rank": 7,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "d_ff": 20,
    "n_dense_layers": 1,
    "d_expert": 12,
    "n_experts": 8,
    "top_k": 3,
    "n_groups": 4,
    "top_groups": 2,
    "max_seq_len": 12,
}
BOTH = pytest.mark.parametrize("family", [DeepSeekV2Config, DeepSeekV3Config])


def theirs(kind="V3", seed=0, **more):
    version, settings = KINDS[kind]
    build = f"DeepseekV{version}"
    config = getattr(transformers, build + "Config")(**{**SIZES, **settings, **more})
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    return randomise(getattr(transformers, build + "ForCausalLM")(config), seed)


def saved(reference, folder, shard="1GB"):
    reference.save_pretrained(folder, max_shard_size=shard)
    return folder


def text(seed=0, B=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, V, (B, T), generator=generator)


def ragged(side):
    """Three texts of 9, 6 and 2 real tokens, padded on one side."""
    place = torch.arange(T) if side == "right" else torch.arange(T).flip(0)
    return place < torch.tensor([9, 6, 2])[:, None]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_equals_transformers(kind, seed, tmp_path):
    reference = theirs(kind, seed)
    ours = load_deepseek(saved(reference, tmp_path), torch.float64)
    tokens, padded = text(seed), {}
    with torch.no_grad():
        close(ours(tokens), reference(tokens).logits, 1e-5, "as it comes")
        with wide(reference):
            whole = reference(tokens).logits
            for side in ("left", "right"):
                keep = ragged(side)
                positions = (keep.long().cumsum(1) - 1).clamp(min=0)
                padded[side] = reference(
                    tokens, attention_mask=keep, position_ids=positions
                ).logits
        for model in (ours, for_inference(ours)):
            close(model(tokens), whole, 1e-9)
            for side, expected in padded.items():
                keep = ragged(side)
                close(model(tokens, keep=keep)[keep], expected[keep], 1e-9, side)


@pytest.mark.parametrize("kind", ["V2, groups", "V3", "V3, one group, YaRN"])
@pytest.mark.parametrize("cuts", [(1,) * T, (5, 3, 1), (2, 7)])
@pytest.mark.parametrize("prepare", [lambda model: model, for_inference])
def test_token_by_token_is_all_at_once(kind, cuts, prepare, tmp_path):
    """By the model, and by its prepared copy; held to the model's whole pass."""
    ours = load_deepseek(saved(theirs(kind), tmp_path), torch.float64)
    model, tokens = prepare(ours), text()
    for keep in (None, ragged("left")):
        whole = ours(tokens, keep=keep).detach()
        for capacity in (None, T):
            caches, parts = model.new_caches(capacity), []
            for part in tokens.split(cuts, dim=1):
                upto = caches.seen + part.shape[1]
                part_keep = None if keep is None else keep[:, :upto]
                parts.append(model(part, caches, part_keep).detach())
            real = slice(None) if keep is None else keep
            close(torch.cat(parts, 1)[real], whole[real], 1e-10)
    # B29: the latent and one rotary key per token, layer and text, and nothing else
    assert caches.nbytes == 2 * 3 * T * (8 + 4) * 8


@pytest.mark.parametrize("kind", ["V2, groups", "V3"])
@torch.no_grad()
def test_writing_with_a_cache_equals_transformers_writing_with_theirs(kind, tmp_path):
    """Word by word on both sides, in float32 as it comes."""
    reference = theirs(kind).float()
    ours = load_deepseek(saved(reference, tmp_path), torch.float32)
    prompt, new = text().split((4, T - 4), dim=1)
    cache = transformers.DynamicCache(config=reference.config)
    expected = [reference(prompt, cache=cache).logits]
    expected += [reference(one, cache=cache).logits for one in new.split(1, dim=1)]
    for model in (ours, for_inference(ours)):
        caches = model.new_caches(T)
        got = [model(prompt, caches), *(model(one, caches) for one in new.split(1, 1))]
        close(torch.cat(got, 1), torch.cat(expected, 1), 1e-4)
    assert caches.seen == cache.get_seq_length() == T


@pytest.mark.parametrize("kind", ["V2, groups", "V3"])
def test_gradients_equal_transformers(kind, tmp_path):
    reference = theirs(kind)
    ours = load_deepseek(saved(reference, tmp_path), torch.float64)
    tokens = text()
    with wide(reference):
        out = reference(tokens).logits
    (out.logsumexp(-1).sum() / 10).backward()
    (ours(tokens).logsumexp(-1).sum() / 10).backward()
    model = reference.model
    close(ours.token.weight.grad, model.embed_tokens.weight.grad, 1e-8)
    for mine, other in zip(ours.blocks, model.layers, strict=True):
        attention, one = mine.attention, other.self_attn
        kv = one.kv_b_proj.weight.grad.view(4, 11, 8)
        pairs = {
            "q_down": (attention.q_down.weight, one.q_a_proj.weight.grad),
            "q_norm": (attention.q_norm.weight, one.q_a_layernorm.weight.grad),
            "k_rope": (attention.k_rope.weight, one.kv_a_proj_with_mqa.weight.grad[8:]),
            "k_up": (attention.k_up.weight, kv[:, :6].reshape(-1, 8)),
            "v_up": (attention.v_up.weight, kv[:, 6:].reshape(-1, 8)),
        }
        if mine is not ours.blocks[0]:
            experts, moe = mine.feedforward, other.mlp
            gate, up = moe.experts.gate_up_proj.grad.chunk(2, dim=1)
            shared = moe.shared_experts
            pairs |= {
                "router": (experts.router.weight, moe.gate.weight.grad),
                "gate": (experts.experts.gate, gate),
                "up": (experts.experts.up, up),
                "down": (experts.experts.down, moe.experts.down_proj.grad),
                "shared": (experts.shared.down.weight, shared.down_proj.weight.grad),
            }
        for name, (weight, grad) in pairs.items():
            assert grad.abs().max() > 1e-3, name
            close(weight.grad, grad, 1e-8, name)


@pytest.mark.parametrize("kind", ["V2, groups", "V3"])
def test_low_precision_errs_at_most_twice_as_much_as_transformers(kind, tmp_path):
    errors = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        reference = theirs(kind, seed).bfloat16()
        folder, tokens = saved(reference, tmp_path / str(seed)), text(seed)
        exact = load_deepseek(folder, torch.float64)
        with torch.no_grad():
            true = exact(tokens)
            low = load_deepseek(folder, torch.bfloat16)(tokens)
            assert low.dtype == torch.bfloat16
            for i, got in enumerate((low, reference(tokens).logits)):
                errors[i] += (got.double() - true).square().mean()
    assert errors[0].sqrt() <= 2 * errors[1].sqrt()


# Sizes, routers, limits

PUBLISHED = {  # billions: in all, and used per token, as the reports print them
    "DEEPSEEK_V2": (235.7, 21.0),
    "DEEPSEEK_V2_LITE": (15.7, 2.4),
    "DEEPSEEK_V3": (671.0, 37.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes(name):
    """Used: all but the experts not chosen, the table of words counted or not."""
    config = getattr(configs, name)
    with torch.device("meta"):
        model = DeepSeek(config)
    total = sum(x.numel() for x in model.parameters())
    experts = [x for n, x in model.named_parameters() if ".experts." in n]
    idle = sum(x.numel() for x in experts) // config.n_experts
    used = total - idle * (config.n_experts - config.top_k)
    published_total, published_used = PUBLISHED[name]
    assert round(total / 1e9, 1) == published_total
    words = config.vocab_size * config.d_model
    assert math.floor((used - words) / 1e8) / 10 <= published_used <= used / 1e9


@BOTH
def test_the_type_of_the_config_decides_the_router(family):
    model = DeepSeek(family(**OURS))
    dense, experts = (block.feedforward for block in model.blocks)
    third = family is DeepSeekV3Config
    assert type(experts.router) is (SigmoidRouter if third else SoftmaxTopKRouter)
    assert experts.router.groups.best == (2 if third else 1)
    assert not hasattr(dense, "experts") and dense.up.out_features == 20
    shared = 1 if third else 2
    assert experts.shared.up.out_features == shared * 12
    lonely = DeepSeek(family(**OURS, n_shared_experts=0)).blocks[1].feedforward
    assert lonely.shared is None


@BOTH
def test_past_the_longest_text(family):
    model, tokens = DeepSeek(family(**OURS)), text()
    caches = model.new_caches()
    model(tokens, caches)
    with pytest.raises(ValueError, match=r"9 tokens seen and 4 new .* max_seq_len 12"):
        model(tokens[:, :4], caches)
    assert caches.seen == T
    model(tokens[:, :3], caches)


@BOTH
def test_a_new_model_starts_small_and_can_be_looked_into(family):
    torch.manual_seed(0)
    model = DeepSeek(family(**OURS))
    with record(model) as weights, record_routing(model) as routes:
        out = model(text())
    assert out.std() < 0.5 and out.isfinite().all()
    assert [tuple(w.shape) for w in weights.values()] == [(3, 4, T, T)] * 2
    assert [len(r.experts.unique()) for r in routes.values()] == [8]


# The loader


def test_shards_and_half_precision(tmp_path):
    reference = theirs()
    one = load_deepseek(saved(reference, tmp_path / "one"), torch.float64)
    folder = saved(reference, tmp_path / "many", shard="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    many = load_deepseek(folder, torch.float64).state_dict()
    for name, x in one.state_dict().items():
        assert torch.equal(x, many[name]), name
    low = load_deepseek(folder, torch.bfloat16)
    assert {x.dtype for x in low.parameters()} == {torch.bfloat16}
    bias = reference.model.layers[1].mlp.gate.e_score_correction_bias
    kept = low.blocks[1].feedforward.router.selection_bias
    assert torch.equal(kept, bias.float())  # not rounded to 8 bits


def test_the_layer_that_predicts_a_second_token_is_left_out(tmp_path):
    reference = theirs()
    saved(reference, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    extra = {
        name.replace("layers.1.", "layers.2."): tensor + 1
        for name, tensor in tensors.items()
        if "layers.1." in name
    }
    extra["model.layers.2.eh_proj.weight"] = torch.zeros(16, 32)
    save_file(tensors | extra, path)
    ours = load_deepseek(tmp_path, torch.float64)
    close(ours(text()), reference(text()).logits, 1e-5)

    settings = json.loads((tmp_path / "config.json").read_text())
    settings["num_nextn_predict_layers"] = 0
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"unknown \(\d+\): model.layers.2"):
        load_deepseek(tmp_path)


def test_old_configs_with_rope_scaling_are_read(tmp_path):
    """As the released files have it: rope_theta and rope_scaling, not one table."""
    reference = theirs("V2, all experts, YaRN")
    path = saved(reference, tmp_path) / "config.json"
    settings = json.loads(path.read_text())
    yarn = settings.pop("rope_parameters")
    settings["rope_theta"] = yarn.pop("rope_theta")
    yarn["type"] = yarn.pop("rope_type")
    path.write_text(json.dumps(settings | {"rope_scaling": yarn}))
    close(
        load_deepseek(tmp_path, torch.float64)(text()), reference(text()).logits, 1e-5
    )


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("V3", {"model_type": "deepseek_v32"}, "model_type = 'deepseek_v32'"),
        ("V3", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("V3", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("V3", {"rope_interleave": False}, "rope_interleave = False"),
        ("V3", {"attention_bias": True}, "attention_bias = True"),
        ("V3", {"tie_word_embeddings": True}, "tie_word_embeddings = True"),
        ("V3", {"scoring_func": "softmax"}, "scoring_func = 'softmax'"),
        ("V3", {"num_key_value_heads": 2}, "num_key_value_heads = 2"),
        ("V3", {"moe_layer_freq": 2}, "moe_layer_freq = 2"),
        ("V3", {"n_group": None}, "n_group is missing"),
        ("V3", {"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ("V3", {"rope_parameters": {"rope_type": "dynamic"}}, "'dynamic'"),
        ("V2, groups", {"norm_topk_prob": True}, "norm_topk_prob = True"),
        ("V2, groups", {"topk_method": "noaux_tc"}, "topk_method = 'noaux_tc'"),
        ("V2, groups", {"topk_method": None}, "topk_method is missing"),
    ],
)
def test_what_is_not_computed_is_refused(kind, change, message, tmp_path):
    path = saved(theirs(kind), tmp_path) / "config.json"
    settings = json.loads(path.read_text()) | change
    settings = {k: v for k, v in settings.items() if v is not None}
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        load_deepseek(tmp_path)


def test_one_message_lists_all_that_does_not_fit(tmp_path):
    path = saved(theirs(), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    layer = "model.layers.1."
    del tensors[layer + "mlp.experts.2.up_proj.weight"], tensors["model.norm.weight"]
    tensors[layer + "mlp.experts.0.up_proj.weight_scale_inv"] = torch.zeros(1)
    tensors[layer + "self_attn.kv_b_proj.weight"] = torch.zeros(43, 8)
    save_file(tensors, path)
    with pytest.raises(ValueError) as caught:
        load_deepseek(tmp_path)
    for part in (
        "blocks.1.feedforward.experts.up lacks parts",
        "norm.weight",
        "experts.0.up_proj.weight_scale_inv",
        "kv_b_proj.weight is (43, 8): expected 4 × (6 + 5) rows",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        (torch.tensor([[0, V]]), ValueError, f"0 … {V - 1}, got 0 … {V}"),
        (torch.tensor([0, 1]), ValueError, r"\(B, T\)"),
        (torch.zeros(1, 2), TypeError, "int32 or int64"),
        ([[0, 1]], TypeError, "tensor"),
        (torch.zeros(1, 0, dtype=torch.int64), ValueError, "T ≥ 1"),
    ],
)
def test_wrong_tokens_are_refused(tokens, error, message):
    model = DeepSeek(DeepSeekV3Config(**OURS))
    caches = model.new_caches()
    with pytest.raises(error, match=message):
        model(tokens, caches)
    assert caches.seen == 0
    with pytest.raises(ValueError, match="layers need as many caches"):
        model(text(), Caches(caches[:1]))
