# SPDX-License-Identifier: MIT
"""Does the table say what the papers say, and does it change when a model does?"""

import dataclasses

import pytest
import torch
from torch import nn

from deepdive import accounting, configs
from deepdive.anatomy import (
    Anatomy,
    anatomy,
    as_html,
    dependence,
    difference,
    family_table,
    layer_maps,
    markdown,
    mask_words,
    measured_activation_bytes,
    reach,
    shrunken,
)
from deepdive.attention import MultiHeadAttention, record
from deepdive.blocks import Block, Stack, post_norm, pre_norm
from deepdive.configs import DeepSeekV2Config, GptConfig, LlamaConfig
from deepdive.feedforward import FeedForward
from deepdive.kernels import equation
from deepdive.masks import Causal, Everyone
from deepdive.models.bert import Bert, MaskedLM
from deepdive.models.deepseek import DeepSeek
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.models.mixtral import Mixtral
from deepdive.models.t5 import T5
from deepdive.models.transformer2017 import Transformer
from deepdive.norms import RMSNorm
from deepdive.positions import Alibi, LearnedPositions

BOTH = "encoder: everyone; decoder: causal; cross: everyone"

# What each paper says, row by row: the builder, then the fields that are compared.
PAPERS = {
    "TRANSFORMER_BASE": (
        Transformer,  # Vaswani et al. 2017, §3 and Table 3
        ("encoder and decoder", BOTH, "multi-head", "sinusoidal", "embedding"),
        ("LayerNorm", "post", "ReLU", None, "all", True),
        (6, 512, 8, 8, "64", "2048", 1024),
    ),
    "BERT_BASE": (
        Bert,  # Devlin et al. 2018, §3
        ("encoder", "everyone", "multi-head", "learned", "embedding"),
        ("LayerNorm", "post", "GELU", None, "all", None),
        (12, 768, 12, 12, "64", "3072", None),
    ),
    "GPT2_SMALL": (
        Gpt,  # Radford et al. 2019, §2.3 and Table 2
        ("decoder", "causal", "multi-head", "learned", "embedding"),
        ("LayerNorm", "pre", "GELU", None, "all", True),
        (12, 768, 12, 12, "64", "3072", 1536),
    ),
    "T5_SMALL": (
        T5,  # Raffel et al. 2019, §2.1
        ("encoder and decoder", BOTH, "multi-head", "relative bias", "scores"),
        ("RMSNorm", "pre", "ReLU", None, "none", True),
        (6, 512, 8, 8, "64", "2048", 1024),
    ),
    "T5_1_1_SMALL": (
        T5,  # Shazeer 2020; the release of version 1.1
        ("encoder and decoder", BOTH, "multi-head", "relative bias", "scores"),
        ("RMSNorm", "pre", "GEGLU", None, "none", False),
        (8, 512, 6, 6, "64", "1024", 768),
    ),
    "LLAMA_7B": (
        Llama,  # Touvron et al. 2023, §2.2 and Table 2
        ("decoder", "causal", "multi-head", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", None, "none", False),
        (32, 4096, 32, 32, "128", "11008", 8192),
    ),
    "LLAMA_2_70B": (
        Llama,  # Touvron et al. 2023b, §2.2
        ("decoder", "causal", "grouped-query", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", None, "none", False),
        (80, 8192, 64, 8, "128", "28672", 2048),
    ),
    "MISTRAL_7B": (
        Llama,  # Jiang et al. 2023, §2 and Table 1
        ("decoder", "causal, window 4096", "grouped-query", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", None, "none", False),
        (32, 4096, 32, 8, "128", "14336", 2048),
    ),
    "MIXTRAL_8X7B": (
        Mixtral,  # Jiang et al. 2024, Table 1
        ("decoder", "causal", "grouped-query", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", (8, 2, 0), "none", False),
        (32, 4096, 32, 8, "128", "14336", 2048),
    ),
    "DEEPSEEK_V2": (
        DeepSeek,  # arXiv:2405.04434, §3.1.2
        ("decoder", "causal", "latent", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", (160, 6, 2), "none", False),
        (60, 5120, 128, 1, "128 + 64, value 128", "12288 (1), 1536 (59)", 576),
    ),
    "DEEPSEEK_V3": (
        DeepSeek,  # arXiv:2412.19437, §4.2
        ("decoder", "causal", "latent", "rotary", "q and k"),
        ("RMSNorm", "pre", "SwiGLU", (256, 8, 1), "none", False),
        (61, 7168, 128, 1, "128 + 64, value 128", "18432 (3), 2048 (58)", 576),
    ),
}
FIELDS = (
    ("halves", "mask", "attention", "positions", "enter"),
    ("norm", "norm_place", "feedforward", "experts", "biases", "tied"),
    ("layers", "d_model", "heads", "kv_heads", "head_dim", "d_ff", "kv_numbers"),
)


@pytest.fixture(scope="module")
def rows() -> dict[str, Anatomy]:
    return {
        name: anatomy(build, getattr(configs, name), name)
        for name, (build, *_) in PAPERS.items()
    }


@pytest.mark.parametrize("name", PAPERS)
def test_a_row_says_what_the_paper_says(name, rows):
    _, *expected = PAPERS[name]
    for names, values in zip(FIELDS, expected, strict=True):
        got = {field: getattr(rows[name], field) for field in names}
        assert got == dict(zip(names, values, strict=True))
    assert rows[name].name == name


@pytest.mark.parametrize("name", PAPERS)
def test_the_counts_are_the_predicted_ones(name, rows):
    row, counted = rows[name], accounting.parameters(getattr(configs, name))
    assert row.parts == {part: counted[part] for part in row.parts}
    assert (row.parameters, row.used) == (counted["total"], counted["used"])
    if row.kv_numbers is not None:
        kept = accounting.kv_numbers(getattr(configs, name), 1)
        assert row.kv_numbers * row.layers == kept


def test_all_fields_but_the_counts_are_compared():
    compared = {field for group in FIELDS for field in group}
    rest = {"name", "parameters", "used", "parts"}
    assert compared | rest == {f.name for f in dataclasses.fields(Anatomy)}


# A built model, and faults

SMALL = GptConfig(
    vocab_size=11, d_model=8, n_layers=2, n_heads=4, d_ff=12, max_seq_len=32
)
ROTARY = LlamaConfig(
    vocab_size=11, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=12
)


def changed(model: nn.Module, than: nn.Module) -> dict:
    """The fields of the rows that differ: after the change."""
    return {k: new for k, (_, new) in difference(anatomy(than), anatomy(model)).items()}


def test_a_built_model_is_left_as_it_was():
    model = Gpt(SMALL).bfloat16().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    row = anatomy(model)
    anatomy(Gpt, SMALL)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and model.token.weight.dtype == torch.bfloat16
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert row == anatomy(Gpt, SMALL) == anatomy(model)


@pytest.mark.parametrize("seed", range(4))
def test_rows_do_not_depend_on_the_weights(seed):
    torch.manual_seed(seed)
    wanted = anatomy(Llama, dataclasses.replace(ROTARY, window=3))
    assert anatomy(Llama(dataclasses.replace(ROTARY, window=3))) == wanted


def test_post_norm_is_seen():
    model = Gpt(SMALL)
    for block in model.blocks:
        block.residual = post_norm
    assert changed(model, Gpt(SMALL)) == {"norm_place": "post"}
    model.blocks[0].residual = pre_norm
    assert anatomy(model).norm_place == "pre / post"


def test_a_norm_that_is_neither_is_seen():
    model = Gpt(SMALL)
    for block in model.blocks:
        block.residual = lambda x, sublayer, norm: x + norm(sublayer(x))
    assert anatomy(model).norm_place == "other"


def test_a_dropped_causal_mask_is_seen():
    class Blind(Gpt):
        def hidden(self, tokens, caches=None, keep=None, positions=None):
            x = self.token(tokens) + self.position.first(tokens.shape[1])
            return self.norm(self.blocks(x, caches))

    found = changed(Blind(SMALL), Gpt(SMALL))
    assert found == {"halves": "encoder", "mask": "everyone"}


def test_a_mask_that_the_kernel_ignores_is_seen():
    model = Gpt(SMALL)
    for block in model.blocks:
        block.attention.kernel = lambda q, k, v, mask=None, **how: equation(q, k, v)
    assert anatomy(model).mask == "everyone"


def test_a_window_that_the_kernel_ignores_is_seen():
    def deaf(q, k, v, mask=None, **how):
        return equation(q, k, v, mask=Causal())

    def build(config):
        model = Llama(config)
        for block in model.blocks:
            block.attention.kernel = deaf
        return model

    assert anatomy(build, configs.MISTRAL_7B).mask == "causal"
    longer = dataclasses.replace(ROTARY, window=11)  # than the usual test text
    assert anatomy(build(longer)).mask == "causal"


@pytest.mark.parametrize(("window", "words"), [(1, 1), (4, 4), (11, 11), (4096, 4096)])
def test_windows_of_a_built_model(window, words):
    model = Llama(dataclasses.replace(ROTARY, window=window))
    assert anatomy(model).mask == f"causal, window {words}"


def test_a_causal_encoder_is_seen():
    class OneWay(T5):
        def encode(self, src, keep=None):
            return self.encoder(self.token(src), mask=Causal(keep=keep))

    row = anatomy(OneWay, configs.T5_SMALL)
    assert row.mask == BOTH.replace("encoder: everyone", "encoder: causal")
    assert row.enter == "scores"  # the decoder's are left


def test_a_decoder_that_reads_one_source_word_is_seen():
    """The encoder has mixed its words, so from word to word nothing is missing."""

    class Narrow(T5):
        def decode(self, tgt, memory, memory_keep=None, caches=None, keep=None):
            return super().decode(tgt, memory[:, -1:], memory_keep, caches, keep)

    model = Narrow(shrunken(configs.T5_SMALL))
    assert reach(model)["cross"].all()
    assert torch.equal(layer_maps(model)["cross"], Everyone().tensor(7, 8) & LAST)
    assert anatomy(model).mask == BOTH.replace("cross: everyone", "cross: other")


LAST = torch.arange(8) == 7


def test_a_cross_attention_that_may_not_look_ahead_is_seen():
    class Shy(Transformer):
        def decode(self, tgt, memory, memory_keep=None, caches=None, keep=None):
            words = self.tgt_token(tgt)
            x = self.embed(words, self.tgt_positions(torch.arange(len(tgt[0]))))
            x = self.decoder(x, mask=Causal(), memory=memory, memory_mask=Causal())
            return self.output(x)

    row = anatomy(Shy(shrunken(configs.TRANSFORMER_BASE)))
    assert row.mask == BOTH.replace("cross: everyone", "cross: causal")
    assert (row.enter, row.kv_numbers) == ("embedding", 0)  # it keeps nothing


def test_an_encoder_that_hides_a_word_is_seen():
    class Hiding(T5):
        def encode(self, src, keep=None):
            x = self.encoder_norm(self.token(src))
            return x * (torch.arange(src.shape[1]) > 0)[:, None]

    model = Hiding(shrunken(configs.T5_SMALL))
    assert anatomy(model).mask.endswith("cross: other")


def test_other_key_value_heads_are_seen():
    one = dataclasses.replace(ROTARY, n_kv_heads=1)
    found = changed(Llama(one), Llama(ROTARY))
    assert set(found) == {
        *("attention", "kv_heads", "kv_numbers", "parameters", "used")
    }
    assert found["attention"] == "multi-query"
    assert (found["kv_heads"], found["kv_numbers"]) == (1, 8)


def test_lost_positions_are_seen():
    class Lost(Llama):
        def hidden(self, tokens, caches=None, keep=None, positions=None):
            x = self.token(tokens)
            return self.norm(self.blocks(x, caches, mask=Causal()))

    assert changed(Lost(ROTARY), Llama(ROTARY)) == {"enter": "nowhere"}


def test_a_rotation_by_nothing_is_seen():
    class Still(Llama):
        def hidden(self, tokens, caches=None, keep=None, positions=None):
            return super().hidden(tokens, caches, keep, torch.zeros_like(tokens))

    assert anatomy(Still(ROTARY)).enter == "nowhere"


def test_positions_in_two_places():
    class Two(Gpt):
        def __init__(self, config):
            super().__init__(config)
            self.alibi = Alibi(config.n_heads)

        def hidden(self, tokens, caches=None, keep=None, positions=None):
            at = torch.arange(tokens.shape[1], device=tokens.device)
            x = self.token(tokens) + self.position(at)
            how = {"mask": Causal(), "bias": self.alibi(at, at)}
            return self.norm(self.blocks(x, caches, **how))

    found = changed(Two(SMALL), Gpt(SMALL))
    assert found == {"positions": "learned / ALiBi", "enter": "embedding, scores"}


def test_learned_positions_in_the_first_model():
    config = shrunken(configs.TRANSFORMER_BASE)
    tables = [LearnedPositions(32, config.d_model) for _ in range(2)]
    row = anatomy(Transformer(config, pre_norm, *tables))
    assert (row.positions, row.norm_place) == ("learned", "pre")


def test_the_head_of_bert():
    row = anatomy(MaskedLM, configs.BERT_BASE)
    assert (row.name, row.tied, row.halves) == ("MaskedLM", True, "encoder")
    untied = MaskedLM(shrunken(configs.BERT_BASE))
    untied.output.weight = nn.Parameter(untied.output.weight.clone())
    assert anatomy(untied).tied is False


def test_other_parts_are_seen():
    model = Gpt(SMALL)
    for block in model.blocks:
        block.feedforward = FeedForward(8, 12, nn.ReLU(), bias=False)
        block.attention_norm, block.feedforward_norm = RMSNorm(8), RMSNorm(8)
    found = changed(model, Gpt(SMALL))
    for field in ("parameters", "used"):
        found.pop(field)
    assert found == {"feedforward": "ReLU", "norm": "RMSNorm", "biases": "some"}


def test_more_work_per_token_is_seen():
    model = Mixtral(shrunken(configs.MIXTRAL_8X7B))
    row = anatomy(model)
    for block in model.blocks:
        block.feedforward.router.top_k = 3
    found = changed(model, Mixtral(shrunken(configs.MIXTRAL_8X7B)))
    one = 3 * 16 * 6 * 2  # matrices, d_model, d_expert, layers
    assert found == {"experts": (4, 3, 0), "used": row.used + one}


# Who depends on whom


def test_a_window_reaches_further_with_every_layer():
    """L · (window − 1) words back: three layers of window 3 see 6."""
    model = Llama(dataclasses.replace(ROTARY, window=3))
    (one,) = layer_maps(model, 12).values()
    (all_layers,) = reach(model, 12).values()
    assert torch.equal(one, Causal(3).tensor(12, 12))
    assert torch.equal(all_layers, Causal(1 + 3 * 2).tensor(12, 12))


def test_the_maps_of_both_halves():
    model = T5(shrunken(configs.T5_SMALL))
    for maps in (layer_maps(model, 6), reach(model, 6)):
        assert list(maps) == ["encoder", "decoder", "cross"]
        assert torch.equal(maps["encoder"], Everyone().tensor(6, 6))
        assert torch.equal(maps["decoder"], Causal().tensor(5, 5))
        assert torch.equal(maps["cross"], Everyone().tensor(5, 6))


@pytest.mark.parametrize("name", ["MIXTRAL_8X7B", "DEEPSEEK_V2", "DEEPSEEK_V3"])
def test_experts_hide_nothing_and_show_nothing(name):
    """A token's expert sees that token alone; the map is the attention's."""
    model = PAPERS[name][0](shrunken(getattr(configs, name)))
    assert torch.equal(reach(model)["decoder"], Causal().tensor(8, 8))


def test_weights_too_small_for_float32_are_seen():
    """A sharp attention in float32 gives zeros where float64 does not."""
    torch.manual_seed(0)
    model = Gpt(dataclasses.replace(SMALL, n_layers=1))
    with torch.no_grad():
        model.blocks[0].attention.q_proj.weight.mul_(200_000)
    with record(model) as seen:
        model(torch.arange(8)[None])
    (weights,) = seen.values()
    assert (weights[0].amax(0).tril() == 0)[Causal().tensor(8, 8)].any()
    assert anatomy(model).mask == "causal"


class Free(nn.Module):
    """One layer of attention with any mask, for the names of maps."""

    def __init__(self, rule):
        super().__init__()
        self.token, self.rule = nn.Embedding(5, 8), rule
        attention = MultiHeadAttention(8, 2)
        network = FeedForward(8, 8, nn.ReLU())
        norms = [nn.LayerNorm(8) for _ in range(2)]
        self.blocks = Stack([Block(attention, network, *norms, pre_norm)])

    def forward(self, tokens):
        return self.blocks(self.token(tokens), mask=self.rule)


@pytest.mark.parametrize(
    ("rule", "half", "words"),
    [
        (None, "encoder", "everyone"),
        (Everyone(), "encoder", "everyone"),
        (Causal(), "decoder", "causal"),
        (Causal(window=2), "decoder", "causal, window 2"),
        (Causal(prefix=3), "decoder", "causal, prefix 3"),
        (Causal(window=3, prefix=5), "decoder", "causal, window 3, prefix 5"),
    ],
)
def test_every_rule_is_found_again(rule, half, words):
    row = anatomy(Free(rule))
    assert (row.halves, row.mask, row.kv_numbers) == (half, words, None)
    (seen,) = layer_maps(Free(rule), 7).values()
    assert mask_words(seen) == words


def test_a_map_without_a_name():
    seen = Causal().tensor(6, 6).clone()
    seen[4, 1] = False
    assert mask_words(seen) == "other"


def test_dependence_of_what_does_not_depend():
    x = torch.zeros(1, 3, 2, requires_grad=True)
    assert not dependence(torch.zeros(1, 4, 2), x).any()
    other = torch.zeros(1, 4, 2, requires_grad=True)
    assert dependence(other * 2, x).shape == (4, 3)
    assert not dependence(other * 2, x).any()


def test_a_normalised_output_hides_nothing():
    """The sum of a layer norm's numbers is constant; a random direction is not."""
    x = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    assert torch.equal(
        dependence(nn.functional.layer_norm(x, (8,)), x), torch.eye(4) > 0
    )


# Shrunken configs

PUBLISHED = [n for n in vars(configs) if n.isupper()]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_shrunken_config_keeps_the_design(name):
    config = getattr(configs, name)
    small = shrunken(config)
    assert type(small) is type(config)
    assert accounting.parameters(small)["total"] < 30_000
    kept = ("tied", "gated", "normalise_gates", "rope_scaling", "norm_eps")
    none = ("window", "head_dim", "q_lora_rank")
    for f in dataclasses.fields(config):
        was, now = getattr(config, f.name), getattr(small, f.name)
        assert f.name not in kept or was == now
        assert f.name not in none or (was is None) == (now is None)
    if hasattr(config, "n_kv_heads"):
        before, after = (c.n_heads == c.n_kv_heads for c in (config, small))
        assert before == after
    assert shrunken(small) == small


def test_dense_layers_stay_all_or_one():
    dense = dataclasses.replace(configs.DEEPSEEK_V2, n_layers=3, n_dense_layers=3)
    assert anatomy(DeepSeek, dense).experts is None
    none = dataclasses.replace(dense, n_dense_layers=0)
    assert anatomy(DeepSeek, none).d_ff == "1536"


# Tables


def test_what_changed_from_gpt2_to_llama_to_mistral(rows):
    first = difference(rows["GPT2_SMALL"], rows["LLAMA_7B"])
    for field, pair in {
        "positions": ("learned", "rotary"),
        "enter": ("embedding", "q and k"),
        "norm": ("LayerNorm", "RMSNorm"),
        "feedforward": ("GELU", "SwiGLU"),
        "biases": ("all", "none"),
        "tied": (True, False),
    }.items():
        assert first[field] == pair
    assert not {"mask", "norm_place", "attention", "halves", "name"} & set(first)
    second = difference(rows["LLAMA_7B"], rows["MISTRAL_7B"])
    sizes = {"kv_heads", "d_ff", "parameters", "used", "kv_numbers"}
    assert set(second) == {"mask", "attention", *sizes}
    assert difference(rows["LLAMA_7B"], rows["LLAMA_7B"]) == {}


def test_the_table_in_words(rows):
    table = family_table([rows["MIXTRAL_8X7B"], rows["BERT_BASE"]])
    assert "parts" not in table[0]
    assert table[0]["experts"] == "2 of 8" and table[1]["experts"] == "–"
    assert table[0]["parameters"] == "46,702,792,704"
    assert table[0]["tied"] == "no" and table[1]["tied"] == "–"
    row = rows["DEEPSEEK_V2"]
    some = family_table([row], ("name", "experts", "kv_heads", "parts"))
    assert some == [
        {
            "name": "DEEPSEEK_V2",
            "experts": "6 of 160 + 2 shared",
            "KV heads": "1",
            "parts": ", ".join(
                f"{k} {v:,}" for k, v in rows["DEEPSEEK_V2"].parts.items()
            ),
        }
    ]


def test_the_table_on_a_page():
    table = [{"name": "a<b", "mask": "x|y"}, {"name": "c", "mask": "–"}]
    assert markdown(table).splitlines()[2:] == ["| a<b | x\\|y |", "| c | – |"]
    page = as_html(table, "One & two")
    assert "<caption>One &amp; two</caption>" in page
    assert page.count('<th scope="col">') == page.count('<th scope="row">') == 2
    assert '<th scope="row">a&lt;b</th><td>x|y</td>' in page


# Memory for the backward pass


def test_bytes_kept_are_each_storage_once():
    layer = nn.Linear(4, 4)
    x = torch.ones(3, 4)
    size = x.nbytes
    assert measured_activation_bytes(layer, lambda f: f(x)) == size
    assert measured_activation_bytes(layer, lambda f: f(x) + f(x)) == size
    assert measured_activation_bytes(layer, lambda f: f(f(x))) == 2 * size
    assert measured_activation_bytes(layer, lambda f: f(x[:2])) == size  # kept whole
    assert measured_activation_bytes(layer, lambda f: f(x).relu()) == 2 * size
    both = nn.Sequential(layer, nn.ReLU(), layer)
    with torch.no_grad():
        assert measured_activation_bytes(both, lambda f: f(x)) == 2 * size


def test_the_formula_keeps_maps_that_grow_with_the_square():
    """Three of them a layer: torch keeps what softmax gave, and its copies if any."""
    layer = MultiHeadAttention(8, 2, kernel=equation)
    T = (16, 32, 64)
    kept = [
        measured_activation_bytes(layer, lambda f, t=t: f(torch.zeros(1, t, 8)))
        for t in T
    ]
    # kept(T) = a T² + b T: from three lengths, a and what is left of the third.
    a = (kept[1] - 2 * kept[0]) / (T[1] ** 2 - 2 * T[0] ** 2)
    assert kept[2] - 2 * kept[1] == a * (T[2] ** 2 - 2 * T[1] ** 2)
    assert a == accounting.score_bytes(2, 1)


def test_memory_needs_no_numbers():
    """At full size without storage: the meta device counts the same."""
    config = shrunken(configs.GPT2_SMALL)
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    real = measured_activation_bytes(
        with_formula(Gpt(config)), lambda model: model(tokens)
    )
    with torch.device("meta"):
        ghost = with_formula(Gpt(config))
    got = measured_activation_bytes(ghost, lambda model: model(tokens.to("meta")))
    assert got == real


def with_formula(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        block.attention.kernel = equation
    return model


# Errors


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: anatomy(3), TypeError, "expected a model or its class, got int"),
        (lambda: anatomy(Gpt), TypeError, "expected a model's config, got None"),
        (lambda: anatomy(Gpt, GptConfig), TypeError, "expected a model's config"),
        (lambda: anatomy(Gpt(SMALL), SMALL), TypeError, "config must be None"),
        (lambda: anatomy(nn.Linear(2, 2)), ValueError, "Linear holds no stack"),
        (lambda: anatomy(nn.Sequential(Stack())), ValueError, "holds no stack"),
        (lambda: anatomy(lambda c: 3, SMALL), TypeError, "expected a model, got int"),
        (lambda: shrunken(None), TypeError, "expected a model's config, got None"),
        (lambda: shrunken(configs.LinearScaling(2.0)), TypeError, "LinearScaling"),
        (lambda: layer_maps(3), TypeError, "expected a model, got int"),
        (lambda: layer_maps(Gpt(SMALL), 0), ValueError, "length must be ≥ 1, got 0"),
        (lambda: layer_maps(Gpt(SMALL), 2.0), TypeError, "must be an integer"),
        (lambda: reach(Gpt(SMALL), -1), ValueError, "length must be ≥ 1, got -1"),
        (lambda: reach(Gpt(SMALL), 33), ValueError, "max_seq_len"),
        (lambda: reach(nn.ReLU()), ValueError, "ReLU holds no stack"),
        (lambda: mask_words([[True]]), TypeError, "bool tensor"),
        (lambda: mask_words(torch.ones(2, 2)), TypeError, "bool tensor"),
        (lambda: mask_words(torch.ones(2) > 0), ValueError, r"\(T, S\), got \(2,\)"),
        (lambda: difference(1, 2), TypeError, "rows that `anatomy` gave"),
        (lambda: family_table([]), ValueError, "at least one row"),
        (lambda: family_table([{}]), TypeError, "rows that `anatomy` gave"),
        (lambda: markdown([]), ValueError, "at least one row"),
        (lambda: as_html([], "t"), ValueError, "at least one row"),
        (lambda: measured_activation_bytes(3, print), TypeError, "nn.Module, got int"),
        (lambda: measured_activation_bytes(nn.ReLU(), 3), TypeError, "run must be"),
    ],
)
def test_wrong_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_wrong_tensors():
    x = torch.zeros(1, 2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"out must be \(1, T, any\), got \(2, 2, 3\)"):
        dependence(torch.zeros(2, 2, 3), x)
    with pytest.raises(ValueError, match="x must be"):
        dependence(x, x[0])
    with pytest.raises(ValueError, match="x must ask for its gradient"):
        dependence(x, torch.zeros(1, 2, 3))


def test_unknown_columns(rows):
    row = rows["GPT2_SMALL"]
    with pytest.raises(ValueError, match="unknown columns \\['colour'\\]"):
        family_table([row], ("name", "colour"))
    with pytest.raises(TypeError, match="rows that `anatomy` gave"):
        family_table(row)


def test_a_model_without_numbers():
    with torch.device("meta"):
        model = Gpt(SMALL)
    with pytest.raises(ValueError, match="no numbers"):
        anatomy(model)


def test_a_wrong_config_is_no_other_models():
    with pytest.raises((TypeError, AttributeError)):
        anatomy(Gpt, DeepSeekV2Config())
