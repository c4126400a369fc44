# SPDX-License-Identifier: MIT
"""How much faster is a language model read from 8-bit weights, word by word?

A Llama of SmolLM2-135M's shape with random weights: 30 layers, 576 wide, 9 query and 3
key/value heads. One step for one text, and one for eight, behind 64 words. Beside it
run `transformers` with the same weights in float32 and, where the package xllamacpp is
installed, llama.cpp with them in its q8_0 (blocks of 32 numbers of 8 bits) and float32.

    python benchmarks/speed/decode_int8.py
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepdive.configs import LlamaConfig
from deepdive.inference import Int8Linear, for_inference
from deepdive.models.llama import Llama
from deepdive.timing import Goal, Row, installed, main, reading

CONFIG = LlamaConfig(
    vocab_size=49_152, d_model=576, n_layers=30, n_heads=9, n_kv_heads=3, d_ff=1536,
    max_seq_len=512, rope_base=100_000.0, norm_eps=1e-5, tied=True,
)  # fmt: skip
SMALL = replace(CONFIG, vocab_size=4_096, n_layers=4)
BEHIND = 64  # words that were read before
STEPS = 8  # words written one by one in a call


def build(config: LlamaConfig) -> Llama:
    """A model whose weights are as large as a trained one's."""
    torch.manual_seed(0)
    return Llama(config).eval()


def ours(model: Llama, ids: Tensor) -> Callable[[], Tensor]:
    """Write the last ids one by one behind the first: the logits of the last."""
    caches = model.new_caches(ids.shape[1])
    model(ids[:, :BEHIND], caches)

    def call() -> Tensor:
        for i in range(BEHIND, ids.shape[1]):
            logits = model(ids[:, i : i + 1], caches)
        caches.truncate(BEHIND)
        return logits[:, -1]

    return call


def transformers(model: Llama, ids: Tensor) -> Callable[[], Tensor]:
    """The same by `transformers`, with its growing cache and our weights."""
    from transformers import DynamicCache

    theirs = as_transformers(model)
    cache = DynamicCache(config=theirs.config)
    theirs(ids[:, :BEHIND], past_key_values=cache, use_cache=True)

    def call() -> Tensor:
        for i in range(BEHIND, ids.shape[1]):
            out = theirs(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
        cache.crop(-STEPS)
        return out.logits[:, -1]

    return call


def as_transformers(model: Llama):
    """Our weights in their model."""
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    c = model.config
    config = TheirConfig(
        vocab_size=c.vocab_size, hidden_size=c.d_model, num_hidden_layers=c.n_layers,
        num_attention_heads=c.n_heads, num_key_value_heads=c.n_kv_heads,
        intermediate_size=c.d_ff, max_position_embeddings=c.max_seq_len,
        rms_norm_eps=c.norm_eps, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
    )  # fmt: skip
    theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(their_names(model), strict=False)
    theirs.tie_weights()
    return theirs


def their_names(model: Llama) -> dict[str, Tensor]:
    """The model's weights under the names of Hugging Face."""
    other = {
        "token.": "model.embed_tokens.", "output.": "lm_head.", "norm.": "model.norm.",
        "blocks.": "model.layers.", ".attention_norm.": ".input_layernorm.",
        ".feedforward_norm.": ".post_attention_layernorm.",
        ".attention.": ".self_attn.", ".feedforward.gate.": ".mlp.gate_proj.",
        ".feedforward.up.": ".mlp.up_proj.", ".feedforward.down.": ".mlp.down_proj.",
    }  # fmt: skip
    found = {}
    for name, weight in model.state_dict().items():
        for old, new in other.items():
            if name.startswith(old) or (old[0] == "." and old in name):
                name = name.replace(old, new, 1)
        found[name] = weight
    return found


def row(batch: int, config: LlamaConfig = CONFIG) -> Row:
    """One row of the table: so many texts side by side."""
    from peers import llama_cpp  # beside this script

    model = build(config)
    torch.manual_seed(1)
    ids = torch.randint(config.vocab_size, (batch, BEHIND + STEPS))
    ways: dict[str, Callable] = {}
    if installed("transformers"):
        ways["transformers"] = transformers(model, ids)
    ways["float32"] = ours(for_inference(model), ids)
    fast = for_inference(model, Int8Linear)
    ways["int8"] = ours(fast, ids)
    named = {}
    try:
        for name, kind in (("f32", llama_cpp.F32), ("q8_0", llama_cpp.Q8_0)):
            peer = llama_cpp.LlamaCpp(model, kind, batch)
            ways[f"llama.cpp {name}"] = llama_cpp.step(peer, ids, BEHIND)
    except OSError as missing:
        named["llama.cpp"] = (
            f"q8_0 4.6 … 4.8 × transformers for one text (November 2026, two-core x86 "
            f"machine; not run here: {missing})"
        )
    weights = sum(w.numel() for w in model.parameters())  # one byte each
    goals = [
        Goal("int8", "transformers", 2.5 if batch == 1 else 4.0),
        Goal("int8", "llama.cpp q8_0", 0.6, why="a stretch: 0.6 of llama.cpp"),
    ]
    return Row(
        name="decode, Llama shape of SmolLM2-135M, 8-bit weights",
        sizes=f"{batch} {'text' if batch == 1 else 'texts'}, {BEHIND} words before, "
        f"{STEPS} steps",
        ways=ways,
        goals=tuple(g for g in goals if g.against in ways),
        limits={"reading 8-bit weights": reading(STEPS * weights)},
        named=named,
        tolerance=0.1,  # 8 bits; llama.cpp keeps its cache in 16
    )


FULL = (lambda: row(1), lambda: row(8))
QUICK = (lambda: row(1, SMALL), lambda: row(8, SMALL))

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
