# SPDX-License-Identifier: MIT
"""Do the predictions hold? Each formula against the model that it speaks of."""

import dataclasses
import itertools
import subprocess
import sys
from functools import cache

import pytest
import torch
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from deepdive import configs
from deepdive.accounting import (
    causal_pairs,
    decode_bytes,
    flops,
    kv_bytes,
    kv_numbers,
    parameters,
    plan_of,
    roofline,
    score_bytes,
)
from deepdive.attention import MultiHeadAttention, record
from deepdive.blocks import Block, Stack, place, pre_norm
from deepdive.configs import (
    AttentionConfig,
    BertConfig,
    DeepSeekV2Config,
    DeepSeekV3Config,
    GptConfig,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    TransformerConfig,
)
from deepdive.halves import Decoder
from deepdive.kernels import equation
from deepdive.models.bert import Bert
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.moe import MixtureOfExperts


class Attentions(Decoder):
    """Layers of attention and nothing else, of the sizes of an `AttentionConfig`."""

    def __init__(self, config: AttentionConfig):
        super().__init__()
        self.config = config
        heads = config.n_heads, config.n_kv_heads, config.head_dim
        self.blocks = Stack(
            Block(
                attention=MultiHeadAttention(config.d_model, *heads),
                feedforward=nn.Identity(),
                attention_norm=nn.Identity(),
                feedforward_norm=nn.Identity(),
                residual=pre_norm,
            )
            for _ in range(config.n_layers)
        )

    def hidden(self, tokens, caches=None, keep=None, positions=None):
        first = self.blocks[0].attention.q_proj.weight
        x = first.new_zeros(*tokens.shape, self.config.d_model)
        here = place(tokens, caches, keep, positions, self.config.window)
        return self.blocks(x, caches, mask=here.mask)


MODELS = {
    TransformerConfig: Transformer,
    BertConfig: Bert,
    GptConfig: Gpt,
    T5Config: T5,
    LlamaConfig: Llama,
    MixtralConfig: Mixtral,
    DeepSeekV2Config: DeepSeek,
    DeepSeekV3Config: DeepSeek,
}
PUBLISHED = {
    name: value for name, value in vars(configs).items() if type(value) in MODELS
}
DECODERS = {n: c for n, c in PUBLISHED.items() if type(c) is not BertConfig}
MOE = {"n_experts": 4, "top_k": 2, "d_expert": 6}
LATENT = {"kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2}
SMALL = {"vocab_size": 11, "d_model": 8, "n_layers": 2, "n_heads": 4, "max_seq_len": 64}
DEEP = {**SMALL, **MOE, **LATENT, "v_head_dim": 5, "d_ff": 12, "n_groups": 2}
FAMILIES = {
    "transformer": TransformerConfig(11, 11, 8, 2, 4, 12),
    "untied transformer": TransformerConfig(11, 13, 8, 2, 4, 12, tied=False),
    "bert": BertConfig(**SMALL, d_ff=12),
    "gpt": GptConfig(**SMALL, d_ff=12),
    "t5": T5Config(11, 8, 2, 4, 3, 12),
    "gated t5": T5Config(11, 8, 2, 4, 3, 12, gated=True, tied=False),
    "llama": LlamaConfig(**SMALL, d_ff=12, n_kv_heads=2),
    "mistral": LlamaConfig(**SMALL, d_ff=12, n_kv_heads=1, head_dim=6, window=4),
    "tied llama": LlamaConfig(**SMALL, d_ff=12, n_kv_heads=4, tied=True),
    "mixtral": MixtralConfig(**SMALL, **MOE, n_kv_heads=2),
    "deepseek v2": DeepSeekV2Config(
        **DEEP, q_lora_rank=7, top_groups=1, n_shared_experts=2
    ),
    "lite": DeepSeekV2Config(
        **DEEP, q_lora_rank=None, top_groups=2, n_shared_experts=0
    ),
    "deepseek v3": DeepSeekV3Config(
        **DEEP, q_lora_rank=5, top_groups=1, n_dense_layers=1
    ),
}
WITH_CACHE = [n for n, c in FAMILIES.items() if type(c) is not BertConfig]
TWO_HALVES = (TransformerConfig, T5Config)


def build(config, device="cpu") -> nn.Module:
    with torch.device(device):
        model = {**MODELS, AttentionConfig: Attentions}[type(config)](config)
    for layer in model.modules():
        if callable(getattr(layer, "kernel", None)):
            layer.kernel = equation
        if device == "meta" and isinstance(layer, MixtureOfExperts):
            # The experts' rows are counted in numbers, which a meta tensor has not.
            layer.experts.forward = lambda x, routing: x
    return model.eval()


@cache
def built(name: str) -> nn.Module:
    return build(FAMILIES[name])


def ids(T: int, B: int = 1, device="cpu") -> torch.Tensor:
    generator = torch.Generator().manual_seed(T)
    return torch.randint(0, 11, (B, T), generator=generator).to(device)


def run(model, T: int, caches=None, S: int = 3, memory=None, B: int = 1):
    """One forward pass; an encoder–decoder reads a source of S words first."""
    device = next(model.parameters()).device
    if isinstance(model, Bert):
        return model.pooled(model(ids(T, B, device)))
    if not hasattr(model, "encode"):
        return model(ids(T, B, device), caches)
    if memory is None:
        memory = model.encode(ids(S, B, device))
    return model.decode(ids(T, B, device), memory, caches=caches)


# Parameters

PARTS = {
    "embedding": ("token", "position", "segment", "bias.table"),
    "norms": ("norm",),
    "output": ("output", "pooler"),
}


def by_part(model: nn.Module) -> dict[str, int]:
    """Parameters by the words in their names, tied ones once."""
    found = dict.fromkeys(("embedding", "attention", "feedforward", "norms"), 0)
    found["output"] = 0
    for name, x in model.named_parameters():
        if ".attention." in name or ".cross_attention." in name:
            part = "attention"
        elif ".feedforward." in name:
            part = "feedforward"
        else:
            (part,) = (
                part
                for part in ("norms", "output", "embedding")
                if any(word in name.replace("embeddings.", "") for word in PARTS[part])
            )
        found[part] += x.numel()
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_predicted_parameters(name):
    config = PUBLISHED[name]
    counted = parameters(config)
    got = by_part(on_meta(config))
    assert {part: counted[part] for part in got} == got
    assert counted["total"] == sum(got.values())


sizes = st.integers(1, 5)
widths = st.integers(1, 3).map(lambda n: 2 * n)


@st.composite
def any_config(draw):
    """A random small config of any family."""
    kind = draw(st.sampled_from(list(MODELS)))
    names = {f.name for f in dataclasses.fields(kind)}
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 3))
    given = {name: draw(sizes) for name in ("n_layers", "d_ff", "n_buckets")}
    given |= {"n_buckets": 4 * given["n_buckets"], "max_distance": 64}
    given |= {name: draw(sizes) for name in ("d_expert", "n_segments", "max_seq_len")}
    given |= {name: draw(sizes) for name in ("kv_lora_rank", "qk_nope_head_dim")}
    given |= {"v_head_dim": draw(sizes), "qk_rope_head_dim": draw(widths)}
    given |= {"n_heads": H, "n_kv_heads": G, "d_model": 2 * H * draw(sizes)}
    given["vocab_size"] = given["src_vocab_size"] = draw(sizes)
    given["tied"] = draw(st.booleans())
    given["tgt_vocab_size"] = given["vocab_size"] if given["tied"] else draw(sizes)
    given |= {"gated": draw(st.booleans()), "window": draw(st.none() | sizes)}
    given["head_dim"] = draw(widths)
    given["q_lora_rank"] = draw(st.none() | sizes)
    given |= {"n_groups": 2, "top_groups": 1, "n_experts": 2 * draw(sizes)}
    given["top_k"] = draw(st.integers(1, given["n_experts"] // 2))
    given["n_shared_experts"] = draw(st.integers(0, 2))
    given["n_dense_layers"] = draw(st.integers(0, given["n_layers"]))
    return kind(**{name: value for name, value in given.items() if name in names})


@settings(max_examples=60, deadline=None)
@given(any_config())
def test_any_model_has_the_predicted_parameters(config):
    counted, got = parameters(config), by_part(build(config, "meta"))
    assert {part: counted[part] for part in got} == got
    assert counted["total"] == sum(got.values())


@pytest.mark.parametrize("name", ["mixtral", "deepseek v2", "lite", "deepseek v3"])
def test_used_weights_are_those_that_get_a_gradient(name):
    """One token's gradient reaches the used weights and no others."""
    model = build(FAMILIES[name]).double()
    (model(ids(1)) ** 2).sum().backward()
    reached = sum(
        # of E experts whole matrices, first axis; the embedding is counted whole
        int((p.grad != 0).any(dim=(1, 2)).sum()) * p[0].numel()
        if p.dim() == 3
        else p.numel()
        for p in model.parameters()
    )
    assert parameters(FAMILIES[name])["used"] == reached


@pytest.mark.parametrize(
    ("name", "total", "used"),
    [
        ("BERT_BASE", 110, 110),
        ("GPT2_SMALL", 124, 124),
        ("GPT2_XL", 1558, 1558),
        ("T5_11B", 11_000, 11_000),
        ("LLAMA_7B", 6_700, 6_700),
        ("MISTRAL_7B", 7_240, 7_240),
        ("MIXTRAL_8X7B", 46_700, 12_900),
        ("DEEPSEEK_V2", 236_000, 21_000),
        ("LLAMA_3_1_405B", 405_000, 405_000),
    ],
)
def test_the_papers_say_the_same(name, total, used):
    """Within 3 % of the millions that the papers and model cards give, rounded."""
    counted = parameters(PUBLISHED[name])
    assert counted["total"] / 1e6 == pytest.approx(total, rel=0.03)
    assert counted["used"] / 1e6 == pytest.approx(used, rel=0.03)


@pytest.mark.parametrize(
    ("name", "total", "used"),
    [("DEEPSEEK_V2_LITE", 15_700, 2_400), ("DEEPSEEK_V3", 671_000, 36_700)],
)
def test_deepseek_counts_without_the_table_of_words(name, total, used):
    """V2-Lite's 2.4 B and V3's 36.7 B are reached without the input embedding."""
    config = PUBLISHED[name]
    counted = parameters(config)
    table = config.vocab_size * config.d_model
    assert counted["total"] / 1e6 == pytest.approx(total, rel=0.001)
    assert (counted["used"] - table) / 1e6 == pytest.approx(used, rel=0.025)


@pytest.mark.parametrize(
    ("name", "paper", "ours"),
    [("TRANSFORMER_BASE", 65, 63.1), ("BERT_LARGE", 340, 335.1)],
)
def test_where_a_paper_rounds_otherwise(name, paper, ours):
    """The 2017 paper's vocabulary is “about 37000”; BERT's 340 M has no breakdown."""
    total = parameters(PUBLISHED[name])["total"] / 1e6
    assert total == pytest.approx(ours, abs=0.05)
    assert total == pytest.approx(paper, rel=0.03)


# The cache


def measured_cache(model, tokens: int, B: int = 1, S: int = 3) -> int:
    caches = model.new_caches()
    with torch.no_grad():
        run(model, tokens, caches, S=S, B=B)
    return caches.nbytes


def check_cache(config) -> None:
    model = build(config, "meta").bfloat16()
    source = 3 if type(config) in TWO_HALVES else 0
    for tokens in (1, min(4096, getattr(config, "max_seq_len", 4096))):
        assert kv_bytes(config, tokens, source=source) == measured_cache(model, tokens)


@pytest.mark.parametrize("name", DECODERS)
def test_published_caches_have_the_predicted_bytes(name):
    """Two layers of the published widths are run, and the depth is a factor."""
    config = DECODERS[name]
    shallow = {"n_layers": 2}
    if isinstance(config, DeepSeekV2Config):
        shallow["n_dense_layers"] = 1
    shallow = dataclasses.replace(config, **shallow)
    check_cache(shallow)
    assert 2 * kv_bytes(config, 4096) == config.n_layers * kv_bytes(shallow, 4096)


def test_caches_of_two_halves_at_the_full_depth():
    check_cache(configs.T5_SMALL)


# KiB of a token, and GiB of 4,096, in 16 bits, as the book's tables give them.
IN_THE_BOOK = {
    "GPT2_SMALL": (36, 0.14),
    "LLAMA_7B": (512, 2.00),
    "LLAMA_2_7B": (512, 2.00),
    "LLAMA_2_13B": (800, 3.13),
    "LLAMA_2_70B": (320, 1.25),
    "LLAMA_3_8B": (128, 0.50),
    "LLAMA_3_1_8B": (128, 0.50),
    "LLAMA_3_70B": (320, 1.25),
    "LLAMA_3_1_70B": (320, 1.25),
    "LLAMA_3_1_405B": (504, 1.97),
    "MISTRAL_7B": (128, 0.50),
    "MIXTRAL_8X7B": (128, 0.50),
    "FALCON_7B": (8, 0.03),
    "GEMMA_2B": (18, 0.07),
    "GEMMA_7B": (448, 1.75),
    "DEEPSEEK_67B": (380, 1.48),
    "DEEPSEEK_V2": (67.5, 0.26),
    "DEEPSEEK_V3": (68.625, 0.27),
    "DEEPSEEK_V2_LITE": (30.375, 0.12),
}
COUNTED = {**PUBLISHED, **configs.attention_alone}


@pytest.mark.parametrize("name", IN_THE_BOOK)
def test_the_book_gives_these_sizes(name):
    kib, gib = IN_THE_BOOK[name]
    assert kv_bytes(COUNTED[name], 1) / 2**10 == kib
    at_4k = kv_bytes(COUNTED[name], 4096) / 2**30
    assert at_4k == pytest.approx(gib, abs=0.006)


@cache
def on_meta(config) -> nn.Module:
    """All of a model's layers, without numbers; what changes no size is not computed.

    That is norms and networks between the attentions, and the mixing inside these.
    """
    model = build(config, "meta").bfloat16()
    for name, layer in model.named_modules():
        if hasattr(layer, "kernel"):
            layer.kernel = lambda q, k, v, **how: q.new_empty(*q.shape[:3], v.shape[3])
        if name.endswith((".feedforward", "_norm")):
            layer.forward = lambda x: x
    return model


def long_enough(config, tokens: int = 4096):
    """The same model, were its positions enough; a cache is as large without them."""
    if getattr(config, "max_seq_len", tokens) >= tokens:
        return config
    return dataclasses.replace(config, max_seq_len=tokens)


def read(model, caches, T: int):
    """T more tokens through all the blocks."""
    with torch.no_grad():
        model.hidden(ids(T, device="meta"), caches)
    return caches


@pytest.mark.parametrize("name", IN_THE_BOOK)
def test_every_models_caches_are_measured_to_the_byte(name):
    """Of one token, and of 4,096, growing to them and with room for them."""
    config = COUNTED[name]
    model = on_meta(long_enough(config))
    growing, with_room = model.new_caches(), model.new_caches(4096)
    assert len(growing) == len(with_room) == config.n_layers
    assert read(model, growing, 1).nbytes == kv_bytes(config, 1)
    assert read(model, growing, 4095).nbytes == kv_bytes(config, 4096)
    assert read(model, with_room, 4096).nbytes == kv_bytes(config, 4096)
    assert growing.held == with_room.held == 4096


@pytest.mark.parametrize("name", ["GPT2_SMALL", "FALCON_7B", "DEEPSEEK_V2_LITE"])
def test_room_for_one_token_and_room_that_is_not_used(name):
    config = COUNTED[name]
    model = on_meta(long_enough(config))
    for room in (1, 7):
        caches = read(model, model.new_caches(room), 1)
        assert caches.nbytes == kv_bytes(config, room) and caches.held == 1


@pytest.mark.parametrize("spare", [0, 3])
def test_a_windows_caches_stop_growing(spare):
    """What is held for taking back a draft comes on top of what the window needs."""
    config = configs.MISTRAL_7B
    model = on_meta(config)
    caches = model.new_caches(spare=spare)
    for T in (4096, 1, 1000):
        read(model, caches, T)
        held = min(caches.seen, 4096 + spare)
        extra = (held - 4096) * kv_bytes(config, 1)
        assert caches.nbytes == kv_bytes(config, caches.seen) + extra
        assert caches.held == held


def test_a_window_is_a_cap():
    at = [kv_bytes(configs.MISTRAL_7B, n) / 2**20 for n in (4095, 4096, 4097, 10**6)]
    assert at == [511.875, 512, 512, 512]


@pytest.mark.parametrize("name", WITH_CACHE)
def test_caches_of_batches_beyond_the_window(name):
    config, source = FAMILIES[name], 0
    if type(config) in TWO_HALVES:
        source = 5
    for tokens, B in ((1, 1), (7, 2)):
        predicted = kv_bytes(config, tokens, B, source, bytes_per_number=4)
        assert predicted == measured_cache(built(name), tokens, B, S=5)


# Operations


def counted(model, *args, **how) -> dict[str, int]:
    """What torch counts, by the book's parts."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(model, *args, **how)
    found = dict.fromkeys(("attention", "feedforward", "output"), 0)
    for module, kinds in counter.get_flop_counts().items():
        last, count = module.split(".")[-1], sum(kinds.values())
        if last in ("attention", "cross_attention"):
            found["attention"] += count
        elif last == "feedforward":
            found["feedforward"] += count
        elif last in ("output", "pooler", "Linear"):  # outside any `forward`: its class
            found["output"] += count
    return {**found, "total": counter.get_total_flops()}


def predicted(config, tokens: int, **how) -> dict[str, int]:
    found = flops(config, tokens, skip_blocked=False, **how)
    return {
        "attention": found["projections"] + found["scores"],
        "feedforward": found["feedforward"],
        "output": found["output"],
        "total": found["total"],
    }


@pytest.mark.parametrize("name", FAMILIES)
def test_operations_of_a_whole_text(name):
    config, model = FAMILIES[name], built(name)
    for T, B in ((1, 1), (6, 1), (9, 2)):
        source = 3 if type(config) in TWO_HALVES else 0
        assert predicted(config, T, source=source, batch=B) == counted(model, T, B=B)


@pytest.mark.parametrize("name", WITH_CACHE)
def test_operations_behind_a_cache(name):
    """Both forms of latent attention occur: one token is absorbed, many are not."""
    config, model = FAMILIES[name], built(name)
    memory = model.encode(ids(3)).detach() if hasattr(model, "encode") else None
    kept = 3 if memory is not None else 0
    for seen, T in ((1, 1), (5, 1), (9, 3), (2, 12)):
        caches = model.new_caches()
        with torch.no_grad():
            run(model, seen, caches, memory=memory)
        got = counted(model, T, caches, memory=memory)
        assert predicted(config, T, seen=seen, memory=kept) == got


@pytest.mark.parametrize("name", ["deepseek v2", "lite"])
def test_both_forms_of_latent_attention_are_met(name):
    """The test above would prove little if one of the two were never taken."""
    attention = built(name).blocks[0].attention
    ways = [attention.absorbing_is_cheaper(T, s + T) for s, T in ((5, 1), (2, 12))]
    assert ways == [True, False]


@pytest.mark.parametrize("name", ["transformer", "gated t5"])
def test_operations_of_the_encoder_alone(name):
    config, model = FAMILIES[name], built(name)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.encode(ids(7))
    assert counter.get_total_flops() == flops(config, 0, source=7)["total"]


@pytest.mark.parametrize("name", ["gpt", "llama", "mistral"])
def test_skipping_blocked_pairs_changes_the_scores_alone(name):
    config = FAMILIES[name]
    full, less = (flops(config, 9, skip_blocked=skip) for skip in (False, True))
    pairs = causal_pairs(9, window=getattr(config, "window", None))
    assert less["scores"] * 81 == full["scores"] * pairs
    for part in ("projections", "feedforward", "output"):
        assert less[part] == full[part]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.integers(0, 12), st.none() | st.integers(1, 15))
def test_causal_pairs_are_counted(T, seen, window):
    brute = sum(
        key <= query and (window is None or key > query - window)
        for query in range(seen, seen + T)
        for key in range(seen + T)
    )
    assert causal_pairs(T, seen, window) == brute


@settings(max_examples=40, deadline=None)
@given(any_config(), st.integers(1, 9), st.integers(1, 9))
def test_a_text_in_two_parts_costs_the_same(config, first, second):
    """With a cache and masked pairs skipped, splitting changes no operation.

    Latent attention is excepted: it chooses its form by the lengths.
    """
    if type(config) in (BertConfig, DeepSeekV2Config, DeepSeekV3Config):
        return
    two = type(config) in TWO_HALVES
    whole = flops(config, first + second, source=4 if two else 0)
    begun = flops(config, first, source=4 if two else 0)
    ended = flops(config, second, seen=first, memory=4 if two else 0)
    assert whole == {part: begun[part] + ended[part] for part in whole}


# Bytes


class Reads(TorchDispatchMode):
    """The parts of the parameters that operations read, views and lookups left out."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.seen: dict[tuple[int, int], int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and "embedding" not in str(func):
            for x in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(x, torch.Tensor):
                    where = x.untyped_storage().data_ptr()
                    if where in self.owned:
                        self.seen[where, x.storage_offset()] = x.numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_decoding_step_reads_the_predicted_bytes(name):
    config, model = FAMILIES[name], built(name)
    memory = model.encode(ids(3)).detach() if hasattr(model, "encode") else None
    caches, seen, source = model.new_caches(), 9, 0 if memory is None else 3
    with torch.no_grad():
        run(model, seen, caches, memory=memory)
        older = caches.columns(1) - 1
        with Reads(model) as reads:
            run(model, 1, caches, memory=memory)
    got = decode_bytes(config, seen, source=source, weight_bytes=1, cache_bytes=4)
    assert got["weights"] == sum(reads.seen.values())
    whole = caches.nbytes // (caches.held + source)  # of each token; all layers
    assert got["cache"] == whole * (older + source)


def test_the_expected_number_of_experts_is_the_mean_over_all_choices():
    config = FAMILIES["mixtral"]
    choices = list(itertools.combinations(range(4), 2))
    one, batch = decode_bytes(config, 5), decode_bytes(config, 5, batch=2)
    mean = sum(len({*a, *b}) for a in choices for b in choices) / len(choices) ** 2
    weights_of_one = 3 * 8 * 6
    more = config.n_layers * (mean - 2) * weights_of_one * 2
    assert batch["weights"] - one["weights"] == more
    assert batch["cache"] == 2 * one["cache"]


def test_a_large_batch_meets_every_expert():
    config = FAMILIES["mixtral"]
    table = config.vocab_size * config.d_model
    got = decode_bytes(config, 0, batch=200, weight_bytes=1)["weights"]
    assert got == parameters(config)["total"] - table


def test_a_models_score_maps_have_the_predicted_bytes():
    model = built("gpt")
    with record(model) as seen, torch.no_grad():
        model(ids(9, B=2))
    for weights in seen.values():
        assert weights.nbytes == score_bytes(4, 9, batch=2)
    assert score_bytes(4, 9, 20) == 4 * 4 * 9 * 20


def test_the_roofline_is_the_slower_limit():
    assert roofline(6.0, 1.0, 2.0, 1.0) == 3.0
    assert roofline(2.0, 5.0, 2.0, 1.0) == 5.0
    where_they_meet = [roofline(x, 1.0, 4.0, 1.0) for x in (3.9, 4.0, 8.0)]
    close(torch.tensor(where_they_meet), [1.0, 1.0, 2.0])


# Errors

GPT, BERT, FIRST = FAMILIES["gpt"], FAMILIES["bert"], FAMILIES["transformer"]


@pytest.mark.parametrize("function", [parameters, plan_of, lambda c: flops(c, 1)])
@pytest.mark.parametrize("config", [None, 3, GptConfig, {"d_model": 8}])
def test_what_is_no_config(function, config):
    with pytest.raises(TypeError, match="expected a model's config"):
        function(config)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: kv_numbers(BERT, 1), TypeError, "BertConfig decodes nothing"),
        (lambda: kv_bytes(BERT, 1), TypeError, "BertConfig decodes nothing"),
        (lambda: decode_bytes(BERT, 1), TypeError, "BertConfig decodes nothing"),
        (lambda: parameters(AttentionConfig()), TypeError, "got AttentionConfig"),
        (lambda: decode_bytes(AttentionConfig(), 1), TypeError, "got AttentionConfig"),
        (lambda: kv_bytes(AttentionConfig(), 1, source=1), ValueError, "no encoder"),
        (lambda: AttentionConfig(n_kv_heads=2), ValueError, "does not divide"),
        (lambda: kv_numbers(GPT, -1), ValueError, "tokens must be ≥ 0, got -1"),
        (lambda: kv_numbers(GPT, 1.0), TypeError, "tokens must be an integer"),
        (lambda: kv_numbers(GPT, True), TypeError, "tokens must be an integer"),
        (lambda: kv_numbers(GPT, 1, 2), ValueError, "source must be 0, got 2"),
        (lambda: kv_bytes(GPT, 1, batch=-2), ValueError, "batch must be ≥ 0"),
        (lambda: kv_bytes(GPT, 1, source=1), ValueError, "has no encoder"),
        (lambda: kv_bytes(GPT, 1, bytes_per_number=0.5), TypeError, "0.5"),
        (lambda: flops(GPT, -1), ValueError, "tokens must be ≥ 0, got -1"),
        (lambda: flops(GPT, "1"), TypeError, "tokens must be an integer"),
        (lambda: flops(GPT, 1, seen=-1), ValueError, "seen must be ≥ 0"),
        (lambda: flops(GPT, 1, batch=-1), ValueError, "batch must be ≥ 0"),
        (lambda: flops(GPT, 1, source=5), ValueError, "source must be 0, got 5"),
        (lambda: flops(GPT, 1, memory=5), ValueError, "memory must be 0, got 5"),
        (lambda: flops(BERT, 1, seen=2), ValueError, "seen must be 0"),
        (lambda: flops(BERT, 1, source=2), ValueError, "has no encoder"),
        (lambda: flops(FIRST, 1), ValueError, "source 0 and memory 0 for 1"),
        (lambda: flops(FIRST, 1, source=2, memory=2), ValueError, "either"),
        (lambda: flops(FIRST, 0, memory=2), ValueError, "encoder alone"),
        (lambda: causal_pairs(-1), ValueError, "T must be ≥ 0"),
        (lambda: causal_pairs(1, -1), ValueError, "seen must be ≥ 0"),
        (lambda: causal_pairs(1, 1, 0), ValueError, "window must be ≥ 1"),
        (lambda: causal_pairs(1, 1, 2.5), TypeError, "window must be an integer"),
        (lambda: decode_bytes(GPT, -1), ValueError, "seen must be ≥ 0"),
        (lambda: decode_bytes(GPT, 1, batch=1.5), TypeError, "batch"),
        (lambda: decode_bytes(GPT, 1, source=1), ValueError, "has no encoder"),
        (lambda: decode_bytes(GPT, 1, weight_bytes=-1), ValueError, "weight_bytes"),
        (lambda: decode_bytes(GPT, 1, cache_bytes=None), TypeError, "cache_bytes"),
        (lambda: score_bytes(-1, 2), ValueError, "n_heads must be ≥ 0"),
        (lambda: score_bytes(1, 2, 3.0), TypeError, "S must be an integer"),
        (lambda: score_bytes(1, 2, batch=-1), ValueError, "batch must be ≥ 0"),
        (lambda: roofline(1, 1, 0, 1), ValueError, "speeds must be > 0"),
        (lambda: roofline(1, -1, 1, 1), ValueError, "amounts ≥ 0"),
        (lambda: roofline(float("nan"), 1, 1, 1), ValueError, "finite"),
        (lambda: roofline(1, 1, float("inf"), 1), ValueError, "finite"),
        (lambda: roofline("1", 1, 1, 1), TypeError, "must be numbers, got '1'"),
        (lambda: roofline(True, 1, 1, 1), TypeError, "must be numbers"),
    ],
)
def test_wrong_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_no_torch_is_needed():
    program = (
        "import sys, deepdive.accounting as a, deepdive.configs as c; "
        "a.parameters(c.GPT2_SMALL); a.flops(c.DEEPSEEK_V3, 9); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_built_model_may_stand_for_its_config():
    config = FAMILIES["llama"]
    model = build(config, "cpu")
    assert parameters(model) == parameters(config)
    assert flops(model, 5) == flops(config, 5)
    assert kv_bytes(model, 7) == kv_bytes(config, 7)
    del model.output
    with pytest.raises(ValueError, match="its config's model"):
        parameters(model)


def test_what_is_neither_model_nor_config_is_refused():
    for thing in ("gpt2", None, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match="expected a model's config"):
            parameters(thing)
