# SPDX-License-Identifier: MIT
"""How fast is a text written in float32, word by word?

A Llama of SmolLM2-135M's shape for one text and for eight, and a small GPT-2 behind 256
words, with random weights. Live: `transformers` with our weights and its growing cache,
llama.cpp where the package xllamacpp is installed, and our own model as built, beside
its copy prepared by `for_inference`.

    python benchmarks/speed/decode.py

The limit is reading once a step the bytes that must be read: the weights, of which the
output layer is the embedding table too, and what is cached.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from deepdive.configs import SMOLLM2_135M, GptConfig, LlamaConfig
from deepdive.halves import Decoder
from deepdive.inference import for_inference
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.pretrained.gpt import gpt_names
from deepdive.pretrained.llama import llama_names
from deepdive.timing import Goal, Row, installed, main, reading

STEPS = 8  # words written one by one in a call
LLAMA = replace(SMOLLM2_135M, max_seq_len=512)
SMALL_LLAMA = replace(LLAMA, vocab_size=4_096, n_layers=2)
GPT = GptConfig(
    vocab_size=8_192, d_model=384, n_layers=6, n_heads=6, d_ff=1536, max_seq_len=512,
)  # fmt: skip
SMALL_GPT = replace(GPT, vocab_size=512, n_layers=2)


def llama(batch: int, config: LlamaConfig = LLAMA) -> Row:
    """So many texts side by side, 64 words behind each."""
    model, ids = built(Llama, config, batch, behind=64)
    ways, named = {}, {}
    if installed("transformers"):
        ways["transformers"] = theirs(transformers_llama(model), ids, 64)
    ways["ours"] = ours(model, ids, 64)
    ways["prepared"] = ours(for_inference(model), ids, 64)
    if batch == 1:
        add_llama_cpp(ways, named, model, ids)
        goals = [
            Goal("prepared", "transformers", 1.6),
            Goal("prepared", "reading", 0.5),
        ]
    else:
        goals = [Goal("prepared", "transformers", 1.0)]
    return Row(
        name="decode, Llama shape of SmolLM2-135M, float32",
        sizes=f"{batch} {'text' if batch == 1 else 'texts'}, 64 words before, "
        f"{STEPS} steps",
        ways=ways,
        goals=tuple(goal for goal in goals if goal.against in (*ways, "reading")),
        limits={"reading": reading(STEPS * bytes_of_a_step(model, batch, 64))},
        named=named,
        tolerance=1e-2 if "llama.cpp f32" in ways else 1e-3,  # its cache has 16 bits
    )


def gpt2(context: int, config: GptConfig = GPT) -> Row:
    """One text of a small GPT-2; the whole text read again for each word, or cached."""
    model, ids = built(Gpt, config, 1, behind=context)
    ways = {"uncached": lambda: uncached(model, ids, context)}
    if installed("transformers"):
        ways["transformers"] = theirs(transformers_gpt2(model), ids, context)
    ways["ours"] = ours(model, ids, context)
    ways["prepared"] = ours(for_inference(model), ids, context)
    goals = [
        Goal("prepared", "uncached", 12, why="the work that nanoGPT does, our model"),
        Goal("prepared", "transformers", 12 / 8.6, why="12 × nanoGPT, which was 1/8.6"),
    ]
    return Row(
        name="decode, GPT-2 shape",
        sizes=f"{config.n_layers} layers of {config.d_model}, {context} words before, "
        f"{STEPS} steps",
        ways=ways,
        goals=tuple(goal for goal in goals if goal.against in ways),
        limits={"reading": reading(STEPS * bytes_of_a_step(model, 1, context))},
        named={
            "LLMs-from-scratch, cached": "6.2 … 8.1 × nanoGPT, which has no cache "
            "(November 2026, two-core x86 machine, torch 2.13; not run here)"
        },
    )


def built(kind: type, config, batch: int, behind: int) -> tuple[Decoder, Tensor]:
    """A model with random weights, and the texts that are written."""
    torch.manual_seed(0)
    model = kind(config).eval()
    return model, torch.randint(config.vocab_size, (batch, behind + STEPS))


def bytes_of_a_step(model: Decoder, batch: int, context: int) -> int:
    """All weights, and the keys and values of the text in the middle of the steps."""
    weights = sum(x.nbytes for x in model.parameters())  # a tied matrix counts once
    caches = model.new_caches()
    model.hidden(torch.zeros(1, 1, dtype=torch.long), caches)
    return weights + batch * (context + STEPS // 2) * caches.nbytes


def ours(model: Decoder, ids: Tensor, behind: int) -> Callable[[], Tensor]:
    """Write the last ids one by one: the logits of the last."""
    caches = model.new_caches(ids.shape[1])
    model.hidden(ids[:, :behind], caches)

    def call() -> Tensor:
        for new in ids[:, behind:].split(1, dim=1):
            logits = model(new, caches)
        caches.truncate(behind)
        return logits[:, -1]

    return call


def uncached(model: Decoder, ids: Tensor, behind: int) -> Tensor:
    """The same, the whole text read again for each; only the last logits are made."""
    for end in range(behind + 1, ids.shape[1] + 1):
        logits = model.logits(model.hidden(ids[:, :end])[:, -1:])
    return logits[:, -1]


def theirs(model, ids: Tensor, behind: int) -> Callable[[], Tensor]:
    """The same by `transformers`, with its growing cache."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    model(ids[:, :behind], past_key_values=cache, use_cache=True)

    def call() -> Tensor:
        for new in ids[:, behind:].split(1, dim=1):
            logits = model(new, past_key_values=cache, use_cache=True).logits
        cache.crop(-STEPS)
        return logits[:, -1]

    return call


def transformers_llama(model: Llama):
    """A Llama of `transformers`, with our weights in it."""
    import transformers

    c = model.config
    made = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=c.vocab_size, hidden_size=c.d_model, intermediate_size=c.d_ff,
            num_hidden_layers=c.n_layers, num_attention_heads=c.n_heads,
            num_key_value_heads=c.n_kv_heads, max_position_embeddings=c.max_seq_len,
            rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tied,
            rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        )
    ).eval()  # fmt: skip
    return filled(made, llama_names(made.state_dict()).tensors, model)


def transformers_gpt2(model: Gpt):
    """A GPT-2 of `transformers`, with our weights in it."""
    import transformers

    c = model.config
    made = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=c.vocab_size, n_embd=c.d_model, n_layer=c.n_layers,
            n_head=c.n_heads, n_inner=c.d_ff, n_positions=c.max_seq_len,
            layer_norm_epsilon=c.norm_eps,
        )
    ).eval()  # fmt: skip
    return filled(made, gpt_names(made.state_dict()).tensors, model)


def filled(made, named: dict[str, Tensor], model: Decoder):
    """Under our names their tensors, not copies: what is written here, they hold."""
    for name, weight in model.state_dict().items():
        named[name].copy_(weight)
    return made


def add_llama_cpp(ways: dict, named: dict, model: Llama, ids: Tensor) -> None:
    """llama.cpp with our weights in float32, or what is known of it."""
    from peers import llama_cpp  # beside this script

    try:
        peer = llama_cpp.LlamaCpp(model, llama_cpp.F32, 1)
        ways["llama.cpp f32"] = llama_cpp.step(peer, ids, 64)
    except OSError as missing:
        named["llama.cpp f32"] = (
            f"1.8 × transformers (November 2026, two-core x86 machine; not run here: "
            f"{missing})"
        )


FULL = (lambda: llama(1), lambda: llama(8), lambda: gpt2(256))
QUICK = (
    lambda: llama(1, SMALL_LLAMA),
    lambda: llama(8, SMALL_LLAMA),
    lambda: gpt2(32, SMALL_GPT),
)

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
