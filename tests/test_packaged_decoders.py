# SPDX-License-Identifier: MIT
"""Trained decoders give what they gave where they come from: SmolLM2 equals
`transformers` on the same dequantised weights, glassllm its own code's stored logits.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from deepdive.configs import SMOLLM2_135M, LlamaConfig
from deepdive.decoding.generate import greedy
from deepdive.decoding.steps import CachedStep, UncachedStep
from deepdive.models.llama import Llama
from deepdive.positions import half_split, interleaved
from deepdive.pretrained import glassllm, llama_from_gguf, smollm, smollm2
from deepdive.pretrained.gguf import Gguf
from deepdive.pretrained.llama import llama_names
from deepdive.tokenizers import chat_prompt
from tests.compare import close

os.environ["HF_HUB_OFFLINE"] = "1"
GOLDEN = Path(__file__).parent / "golden" / "glassllm.npz"
QUESTION = chat_prompt([{"role": "user", "content": "What is the capital of France?"}])
STORY = "Once upon a time, there was a little girl named"
TEXT = (
    "The old lighthouse keeper counted the waves every evening, because his "
    "grandmother had told him that the seventh one always brings a letter from "
    "somebody who is far away."
)


def swapped(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of q or k, interleaved pairs → half-split pairs: what GGUF undid."""
    pairs = x.unflatten(0, (-1, head_dim // 2, 2))  # (heads, D/2, 2, d_model)
    return pairs.transpose(1, 2).flatten(0, 2)


def perplexity(model, ids) -> float:
    with torch.no_grad():
        logits = model(ids)[0, :-1]
    return torch.nn.functional.cross_entropy(logits, ids[0, 1:]).exp().item()


# SmolLM2


@pytest.fixture(scope="module")
def chat():
    return smollm2()


@pytest.fixture(scope="module")
def reference(chat):
    """`transformers`' Llama with the same tensors, q and k in its own order."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    sizes = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, num_hidden_layers=30,
        num_attention_heads=9, num_key_value_heads=3, intermediate_size=1536,
        max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )  # fmt: skip
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(sizes)
    ours = chat[0].state_dict()
    names = llama_names({name: x for name, x in model.state_dict().items()})
    theirs = {names.origin[name]: x for name, x in ours.items() if name in names.origin}
    for name, x in theirs.items():
        if "q_proj" in name or "k_proj" in name:
            theirs[name] = swapped(x, 64)
    theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"]
    model.load_state_dict(theirs, assign=True)
    rotary = type(model.model.rotary_emb)(sizes)  # its angles are on meta still
    model.model.rotary_emb = rotary
    return model.eval()


@pytest.mark.weights
def test_smollm2_is_the_published_size_and_answers(chat):
    model, tokenizer = chat
    assert model.config == SMOLLM2_135M and not model.training
    assert sum(x.numel() for x in model.parameters()) == 134_515_008
    ids = tokenizer.encode(QUESTION).ids
    step = CachedStep(model, model.new_caches(64))
    with torch.no_grad():
        answer = greedy(step, ids, 24, stop=tokenizer.end_ids)
    assert tokenizer.decode(answer.rows()[0]) == "The capital of France is Paris."


@pytest.mark.weights
@torch.no_grad()
def test_smollm2_equals_transformers(chat, reference):
    model, tokenizer = chat
    for text in (TEXT, QUESTION):
        ids = tokenizer.encode(text).ids
        got, expected = model(ids), reference(ids).logits
        close(got, expected, 1e-4 * expected.abs().max().item())
        assert torch.equal(got.argmax(-1), expected.argmax(-1))


@pytest.mark.weights
@pytest.mark.slow
@torch.no_grad()
def test_smollm2_writes_the_same_with_and_without_a_cache(chat):
    model, tokenizer = chat
    ids = tokenizer.encode(STORY).ids
    written = greedy(CachedStep(model, model.new_caches()), ids, 24).rows()[0]
    assert written == greedy(UncachedStep(model), ids, 24).rows()[0]
    assert len(written) == 24
    # in a batch, beside a longer text and padded on the left, too (case B15)
    longer = tokenizer.encode(TEXT).ids
    n = longer.shape[1] - ids.shape[1]
    both = torch.cat((torch.nn.functional.pad(ids, (n, 0)), longer))
    keep = torch.ones_like(both, dtype=torch.bool)
    keep[0, :n] = False
    step = CachedStep(model, model.new_caches(both.shape[1] + 8), keep)
    assert greedy(step, both, 8).rows()[0] == written[:8]


@pytest.mark.weights
@torch.no_grad()
def test_the_wrong_pairing_sounds_fluent_and_is_caught(chat, reference):
    model, tokenizer = chat  # case B41
    ids = tokenizer.encode(TEXT).ids
    expected = reference(ids).logits
    right = perplexity(model, ids)
    model.rotary.pairing = half_split
    try:
        wrong, got = perplexity(model, ids), model(ids)
    finally:
        model.rotary.pairing = interleaved
    assert ids.shape == (1, 31)
    assert 1.5 * right < wrong < 10 * right  # worse, and no garbage
    assert (got - expected).abs().max() > 0.1 * expected.abs().max()
    with pytest.raises(AssertionError):
        close(got, expected, 1e-4 * expected.abs().max().item())


# Any Llama in GGUF: `transformers`' tiny one under GGUF's names, q and k as it has them


METADATA = {
    "general.architecture": "llama", "llama.vocab_size": 61,
    "llama.embedding_length": 24, "llama.block_count": 2,
    "llama.attention.head_count": 6, "llama.attention.head_count_kv": 3,
    "llama.feed_forward_length": 40, "llama.context_length": 32,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.rope.freq_base": 500.0, "llama.rope.dimension_count": 4,
}  # fmt: skip


def tiny_gguf(tied=False):
    """A file's content, and the `Llama` that has the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(61, 24, 2, 6, 3, 40, 32, rope_base=500.0, tied=tied)
    model = Llama(config)
    for x in model.parameters():
        torch.nn.init.normal_(x, std=0.3)
    theirs = (
        ("attention_norm", "attn_norm"), ("attention.q_proj", "attn_q"),
        ("attention.k_proj", "attn_k"), ("attention.v_proj", "attn_v"),
        ("attention.o_proj", "attn_output"), ("feedforward_norm", "ffn_norm"),
        ("feedforward.gate", "ffn_gate"), ("feedforward.up", "ffn_up"),
        ("feedforward.down", "ffn_down"), ("blocks", "blk"), ("token", "token_embd"),
        ("norm.w", "output_norm.w"),
    )  # fmt: skip
    tensors = {}
    for name, x in model.state_dict().items():
        if tied and name == "output.weight":
            continue
        for ours, other in theirs:
            done = ours == "norm.w" and "_norm" in name
            name = name if done else name.replace(ours, other)
        if "attn_q" in name or "attn_k" in name:  # half-split rows → interleaved ones
            x = x.unflatten(0, (-1, 2, 2)).transpose(1, 2).flatten(0, 2)
        tensors[name] = x
    return Gguf(dict(METADATA), tensors), model


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_gguf_llama_is_the_same_function(monkeypatch, tied):
    content, model = tiny_gguf(tied)
    monkeypatch.setattr(smollm, "read_gguf", lambda path: content)
    got = llama_from_gguf("tiny.gguf")
    assert got.config == model.config
    ids = torch.randint(61, (2, 9))
    close(got(ids), model(ids), 1e-5)
    content.tensors["rope_freqs.weight"] = torch.ones(2)
    del content.tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ValueError) as error:
        llama_from_gguf("tiny.gguf")
    for part in ("tiny.gguf", "rope_freqs.weight", "blocks.1.feedforward.up.weight"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("'qwen2'", {"general.architecture": "qwen2"}),
        ("dimension_count = 2", {"llama.rope.dimension_count": 2}),
        ("scaling.type = 'yarn'", {"llama.rope.scaling.type": "yarn"}),
        ("expert_count = 8", {"llama.expert_count": 8}),
        ("value_length = 8", {"llama.attention.value_length": 8}),
        ("lacks llama.block_count", {"llama.block_count": None}),
    ],
)
def test_another_function_in_gguf_is_refused(named, wrong):
    metadata = {k: v for k, v in (METADATA | wrong).items() if v is not None}
    with pytest.raises(ValueError, match=named):
        smollm.gguf_config(metadata, "tiny.gguf")


def test_the_head_width_may_be_given_in_gguf():
    metadata = METADATA | {
        "llama.attention.key_length": 8,
        "llama.attention.value_length": 8,
        "llama.rope.dimension_count": 8,
    }
    assert smollm.gguf_config(metadata).head_dim == 8


# glassllm


@pytest.fixture(scope="module", params=["en", "pt"])
def glass(request):
    golden = np.load(GOLDEN)
    language = request.param
    names = [n for n in golden.files if n.startswith(language)]
    cases = [
        {part: golden[f"{language}_{i}_{part}"] for part in parts}
        for i in range(3)
        for parts in [[n[5:] for n in names if n.startswith(f"{language}_{i}_")]]
    ]
    return *glassllm(language), cases


@pytest.mark.weights
@torch.no_grad()
def test_glassllm_gives_its_own_codes_logits(glass):
    model, _, cases = glass
    assert sum(x.numel() for x in model.parameters()) == 852_608
    for case in cases:
        expected = torch.from_numpy(case["logits"])
        got = model(torch.from_numpy(case["ids"])[None])[0, -3:]
        close(got, expected, 1e-5 * expected.abs().max().item())


@pytest.mark.weights
@torch.no_grad()
def test_glassllm_reads_and_writes_the_same_tokens(glass):
    model, tokenizer, cases = glass
    assert tokenizer.max_len == model.config.max_seq_len == 128
    for case in cases:
        ids = tokenizer.encode(str(case["text"])).ids
        assert ids[0].tolist() == case["ids"].tolist()
        if "greedy" in case:
            for step in (CachedStep(model, model.new_caches()), UncachedStep(model)):
                written = greedy(step, ids, 24).rows()[0]
                assert written == case["greedy"].tolist()
    with pytest.raises(ValueError, match="more than max_seq_len 128"):
        model(torch.zeros(1, 129, dtype=torch.long))


@pytest.mark.weights
@torch.no_grad()
def test_glassllm_in_chunks_is_all_at_once(glass):
    model, _, cases = glass
    ids = torch.from_numpy(cases[2]["ids"])[None]
    caches, whole = model.new_caches(128), model(ids)
    parts = [model(part, caches) for part in ids.split([100, 1, 20, 7], dim=1)]
    close(torch.cat(parts, 1), whole, 1e-5 * whole.abs().max().item())


def test_glassllm_knows_two_languages():
    with pytest.raises(ValueError, match="'fr'"):
        glassllm("fr")
