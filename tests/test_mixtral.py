# SPDX-License-Identifier: MIT
"""Is this book's Mixtral the same function as the one in `transformers`?

To 1e-9 where the reference is made to compute in float64 (`wide_reference`), to 1e-5
as it comes: its norms and the router's softmax are float32 by name.
"""

import json
import math

import pytest
import torch
import transformers
from compare import close
from safetensors.torch import load_file, save_file
from wide_reference import randomise, wide

from deepdive.cache import Caches
from deepdive.configs import MIXTRAL_8X7B, MixtralConfig
from deepdive.models.mixtral import Mixtral
from deepdive.moe import record_routing
from deepdive.pretrained import load_mixtral

V, T = 37, 9
SIZES = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 40,
    "rms_norm_eps": 1e-5,
}
KINDS = {
    "plain": {},
    "a window": {"sliding_window": 4},
    "tied, wide heads, three experts": {
        "tie_word_embeddings": True,
        "head_dim": 6,
        "num_experts_per_tok": 3,
    },
}
OURS = MixtralConfig(
    V, 16, 2, 4, 2, d_expert=12, n_experts=5, max_seq_len=12, rope_base=1e4
)


def theirs(seed=0, **more):
    config = transformers.MixtralConfig(**{**SIZES, **more})
    config._attn_implementation, config._experts_implementation = "sdpa", "eager"
    return randomise(transformers.MixtralForCausalLM(config), seed)


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
    reference = theirs(seed, **KINDS[kind])
    ours = load_mixtral(saved(reference, tmp_path), torch.float64)
    tokens = text(seed)
    padded = {}
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
        close(ours(tokens), whole, 1e-9)
        for side, expected in padded.items():
            keep = ragged(side)
            close(ours(tokens, keep=keep)[keep], expected[keep], 1e-9, side)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(1,) * T, (5, 3, 1), (2, 7)])
def test_token_by_token_is_all_at_once(kind, cuts, tmp_path):
    reference = theirs(**KINDS[kind])
    ours, tokens = load_mixtral(saved(reference, tmp_path), torch.float64), text()
    for keep in (None, ragged("left")):
        whole = ours(tokens, keep=keep).detach()
        for capacity in (None, T):
            caches, parts = ours.new_caches(capacity), []
            for part in tokens.split(cuts, dim=1):
                upto = caches.seen + part.shape[1]
                part_keep = None if keep is None else keep[:, :upto]
                parts.append(ours(part, caches, part_keep).detach())
            real = slice(None) if keep is None else keep
            close(torch.cat(parts, 1)[real], whole[real], 1e-10)
    window = ours.config.window
    assert caches.held == (window or T) and caches.seen == T


@pytest.mark.parametrize("seed", range(2))
def test_gradients_equal_transformers(seed, tmp_path):
    reference = theirs(seed)
    ours = load_mixtral(saved(reference, tmp_path), torch.float64)
    tokens = text(seed)
    for model in (ours, reference):
        model.requires_grad_()
    with wide(reference):
        out = reference(tokens).logits
    out.logsumexp(-1).mean().backward()
    ours(tokens).logsumexp(-1).mean().backward()
    close(ours.token.weight.grad, reference.model.embed_tokens.weight.grad, 1e-9)
    for mine, other in zip(ours.blocks, reference.model.layers, strict=True):
        gate, up = other.mlp.experts.gate_up_proj.grad.chunk(2, dim=1)
        pairs = {
            "router": (mine.feedforward.router.weight, other.mlp.gate.weight.grad),
            "gate": (mine.feedforward.experts.gate, gate),
            "up": (mine.feedforward.experts.up, up),
            "down": (
                mine.feedforward.experts.down,
                other.mlp.experts.down_proj.grad,
            ),
            "q": (mine.attention.q_proj.weight, other.self_attn.q_proj.weight.grad),
        }
        for name, (weight, grad) in pairs.items():
            assert grad.abs().max() > 1e-4
            close(weight.grad, grad, 1e-9, name)


def test_low_precision_errs_at_most_twice_as_much_as_transformers(tmp_path):
    errors = torch.zeros(2, dtype=torch.float64)
    for seed in range(4):
        reference = theirs(seed).bfloat16()
        folder, tokens = saved(reference, tmp_path / str(seed)), text(seed)
        exact = load_mixtral(folder, torch.float64)
        with torch.no_grad():
            true = exact(tokens)
            low = load_mixtral(folder, torch.bfloat16)(tokens)
            assert low.dtype == torch.bfloat16
            for i, got in enumerate((low, reference(tokens).logits)):
                errors[i] += (got.double() - true).square().mean()
    assert errors[0].sqrt() <= 2 * errors[1].sqrt()


def test_past_the_longest_text(tmp_path):
    model, tokens = Mixtral(OURS), text()
    caches = model.new_caches()
    model(tokens, caches)
    with pytest.raises(ValueError, match=r"9 tokens seen and 4 new .* max_seq_len 12"):
        model(tokens[:, :4], caches)
    assert caches.seen == T
    model(tokens[:, :3], caches)


def test_the_published_size():
    """46.7 billion parameters, of which a token uses 12.9 (Jiang et al. 2024, §1)."""
    with torch.device("meta"):
        model = Mixtral(MIXTRAL_8X7B)
    total = sum(x.numel() for x in model.parameters())
    experts = [x for name, x in model.named_parameters() if ".experts." in name]
    unused = sum(x.numel() for x in experts) * 6 // 8
    assert total == 46_702_792_704
    assert math.isclose(total - unused, 12.9e9, abs_tol=0.05e9)


def test_a_new_model_starts_small_and_uses_its_experts():
    torch.manual_seed(0)
    model = Mixtral(OURS)
    with record_routing(model) as seen:
        out = model(text())
    assert out.std() < 0.5 and out.isfinite().all()
    assert all(len(r.experts.unique()) == 5 for r in seen.values())


# The loader


def test_shards_and_half_precision(tmp_path):
    reference = theirs()
    one = load_mixtral(saved(reference, tmp_path / "one"), torch.float64)
    folder = saved(reference, tmp_path / "many", shard="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    many = load_mixtral(folder, torch.float64)
    for name, x in one.state_dict().items():
        assert torch.equal(x, many.get_parameter(name)), name
    assert not many.training and many.config == one.config
    low = load_mixtral(folder, torch.bfloat16)
    assert {x.dtype for x in low.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type = 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_local_experts": None}, "num_local_experts is missing"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    ],
)
def test_what_is_not_computed_is_refused(change, message, tmp_path):
    saved(theirs(), tmp_path)
    path = tmp_path / "config.json"
    settings = json.loads(path.read_text()) | change
    settings = {k: v for k, v in settings.items() if v is not None}
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        load_mixtral(tmp_path)


def test_one_message_lists_all_that_does_not_fit(tmp_path):
    saved(theirs(), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    moe = "model.layers.1.block_sparse_moe."
    del tensors[moe + "experts.2.w1.weight"], tensors["model.norm.weight"]
    tensors[moe + "experts.9.odd.weight"] = torch.zeros(1)
    tensors[moe + "gate.weight"] = torch.zeros(5, 15, dtype=torch.float64)
    save_file(tensors, path)
    with pytest.raises(ValueError) as caught:
        load_mixtral(tmp_path)
    for part in (
        "blocks.1.feedforward.experts.gate lacks parts; it has only 0, 1, 3, 4",
        "missing (2): blocks.1.feedforward.experts.gate, norm.weight",
        "experts.9.odd.weight",
        "router.weight is (5, 15), expected (5, 16)",
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
    model = Mixtral(OURS)
    caches = model.new_caches()
    with pytest.raises(error, match=message):
        model(tokens, caches)
    assert caches.seen == 0
    with pytest.raises(ValueError, match="layers need as many caches"):
        model(text(), Caches(caches[:1]))
