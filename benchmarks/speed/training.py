# SPDX-License-Identifier: MIT
"""How long does one step of training take, beside others from the same weights?

Each way trains on: a call makes the next two steps on one batch, without dropout,
gradients clipped to length 1. So the losses that are compared stand before and after an
update. Peers use `torch.optim.AdamW` as it comes, and once more with `fused=True`, as
`training.adamw` sets it: the difference is the optimiser's, the rest the model's and
the loss's. Ours run through `fit`, and as the bare loop; the GPT also without logits.

Live: `transformers`, `nn.TransformerEncoder` and `nn.Transformer`. Named only: nanoGPT,
LLMs-from-scratch and the Annotated Transformer, which are no packages.

What was tried for the GPT, beyond the fused optimiser, and the step's time after it
(torch 2.13, one thread of an AMD EPYC 9004, medians of several runs): the loss by rows,
0.98 of that before; no logits, 0.94 … 1.02, and fewer page faults, which took 3–6 %
in a process of its own; q, k and v as one product, nothing; oneDNN's products for y and
dx (`products`), 0.89 … 0.97 with logits and 0.90 … 0.94 without. In the last run of
five rounds it was 1.10 × `nn.TransformerEncoder`, the goal, and 1.16 (1.11 … 1.23) of
1.22 × `transformers`. Products are 77 % of such a step, at the limit's own pace;
attention is 10 %, at two thirds of it. The 2017 model's goals were reached without.

    python benchmarks/speed/training.py
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.accounting import flops
from deepdive.blocks import Block
from deepdive.configs import GptConfig, TransformerConfig
from deepdive.models.gpt import Gpt
from deepdive.models.transformer2017 import Transformer
from deepdive.objectives import (
    Loss,
    causal_lm,
    label_smoothed,
    next_tokens,
    projected_cross_entropy,
)
from deepdive.positions import SinusoidalPositions
from deepdive.pretrained.gpt import gpt_names
from deepdive.products import fast_products
from deepdive.timing import Goal, Row, installed, main, multiplying
from deepdive.training import adamw, fit

STEPS, RATE, DECAY, CLIP = 2, 1e-3, 0.01, 1.0  # decay: AdamW's own
PAD, SMOOTHING = 0, 0.1
WHEN = "(November 2026, one thread of a two-core x86 machine, torch 2.13; not run here)"
FIT = Goal("fit", "loop", 0.98, "records and checks may take 2 %")


def gpt(config: GptConfig, B: int, T: int) -> Row:
    """GPT on B texts of T tokens."""
    torch.manual_seed(0)
    tokens = torch.randint(config.vocab_size, (B, T))
    first = Gpt(config)
    ways = both("nn.TransformerEncoder", partial(encoder_as_gpt, first, tokens))
    why = "nanoGPT's pace, or better: these two were as fast"
    best = "fit, no logits"
    goals = [Goal(best, "nn.TransformerEncoder", 1.08, why), FIT]
    if installed("transformers"):
        ways |= both("transformers", partial(transformers_gpt, first, tokens))
        why = "1.08 × nanoGPT, which was 1/0.885 of transformers"
        goals.insert(0, Goal(best, "transformers", round(1.08 / 0.885, 2), why))
    return Row(
        name="training step, GPT",
        sizes=f"{config.n_layers} layers of {config.d_model}, {B} texts of {T} tokens, "
        f"vocabulary {config.vocab_size}; {STEPS} steps",
        ways=ways
        | ours(partial(copied, first), tokens, next_token)
        | {"fit, no logits": through_fit(copied(first), tokens, next_token_projected)},
        goals=tuple(goals),
        limits={"operations": step_operations(flops(config, T, batch=B))},
        named={
            "nanoGPT": f"1/0.885 of transformers, 0.83 of the operations' limit {WHEN}",
            "LLMs-from-scratch": f"0.76–0.80 × nanoGPT {WHEN}",
        },
        tolerance=1e-4,
    )


def transformer(config: TransformerConfig, B: int, T: int) -> Row:
    """The 2017 model on B sentences and translations of up to T tokens, padded."""
    torch.manual_seed(0)
    src, tgt = (
        sentences(config.src_vocab_size, B, T),
        sentences(config.tgt_vocab_size, B, T + 1),
    )
    first = Transformer(config)
    ways = both("nn.Transformer", partial(torch_transformer, first, src, tgt))
    why = "1.12 × the Annotated Transformer, which was 1/1.07 of nn.Transformer"
    goals = [Goal("fit", "nn.Transformer", round(1.12 / 1.07, 2), why), FIT]
    counted = flops(config, T, source=T, batch=B)
    limits = {"operations": step_operations(counted)}
    if installed("transformers"):
        name = "transformers T5"  # of equal sizes, but another model: other numbers
        limits[name] = transformers_t5(config, src, tgt)
        why = "1.12 × the Annotated Transformer, which was 1/1.03 of T5"
        goals.append(Goal("fit", name, round(1.12 / 1.03, 2), why))
    return Row(
        name="training step, 2017 encoder–decoder",
        sizes=f"{config.n_layers} + {config.n_layers} layers of {config.d_model}, {B} "
        f"pairs of up to {T} tokens, vocabulary {config.tgt_vocab_size}; {STEPS} steps",
        ways=ways | ours(partial(copied, first), (src, tgt), smoothed),
        goals=tuple(goals),
        limits=limits,
        named={"Annotated Transformer": f"1/1.07 of nn.Transformer {WHEN}"},
        tolerance=1e-4,
    )


def sentences(vocab_size: int, B: int, T: int) -> Tensor:
    """Random words; all sentences but the first are shorter than T, and padded."""
    words = torch.randint(PAD + 1, vocab_size, (B, T))
    lengths = torch.randint(T // 2, T, (B, 1))
    lengths[0] = T
    return words.masked_fill(torch.arange(T) >= lengths, PAD)


# Ours


def ours(
    make: Callable[[], nn.Module], batch, loss: Callable[..., Loss]
) -> dict[str, Callable[[], Tensor]]:
    """The bare loop with `fit`'s choice of products, and the same through `fit`."""
    model = make()
    around = fast_products(model)

    def mean() -> Tensor:
        with around(batch):
            return loss(model, batch).mean

    loop = steps(model, adamw(model, RATE, DECAY), mean)
    return {"loop": loop, "fit": through_fit(make(), batch, loss)}


def through_fit(
    model: nn.Module, batch, loss: Callable[..., Loss]
) -> Callable[[], Tensor]:
    """A call of `fit` that makes the next steps, and returns their losses."""
    optimiser = adamw(model, RATE, DECAY)
    how = {"steps": STEPS, "clip": CLIP, "progress": False}

    def call() -> Tensor:
        with torch.enable_grad():
            records = fit(model, lambda i: batch, loss, optimiser, **how)
        return torch.tensor([record["loss"] for record in records])

    return call


def copied(model: nn.Module) -> nn.Module:
    """Another model with the same weights."""
    other = type(model)(model.config)
    other.load_state_dict(model.state_dict())
    return other


def next_token(model: nn.Module, tokens: Tensor) -> Loss:
    return causal_lm(model(tokens), tokens)


def next_token_projected(model: Gpt, tokens: Tensor) -> Loss:
    """The same loss; the logits never exist as a whole."""
    hidden = model.hidden(tokens)
    return projected_cross_entropy(hidden, model.output.weight, next_tokens(tokens))


def smoothed(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Loss:
    src, tgt = pair
    read, asked = tgt[:, :-1], tgt[:, 1:]
    logits = model(src, read, src != PAD, read != PAD)
    return label_smoothed(logits, asked, PAD, SMOOTHING)


# Peers


def both(
    name: str, make: Callable[[], tuple[nn.Module, Callable[[], Tensor]]]
) -> dict[str, Callable[[], Tensor]]:
    """A peer with AdamW as it comes, and with its fused form."""
    ways = {}
    for kind, fused in ((name, None), (f"{name}, fused AdamW", True)):
        model, loss = make()
        optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, fused=fused)
        ways[kind] = steps(model, optimiser, loss)
    return ways


def steps(
    model: nn.Module, optimiser: torch.optim.Optimizer, loss: Callable[[], Tensor]
) -> Callable[[], Tensor]:
    """A call that makes the next steps, and returns their losses."""

    def call() -> Tensor:
        losses = []
        with torch.enable_grad():
            for _ in range(STEPS):
                optimiser.zero_grad()
                mean = loss()
                mean.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
                optimiser.step()
                losses.append(mean.detach())
        return torch.stack(losses)

    return call


def transformers_gpt(
    ours: Gpt, tokens: Tensor
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """GPT-2 from `transformers`, with our weights, and its own loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = ours.config
    theirs = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_seq_len,
            n_embd=config.d_model,
            n_layer=config.n_layers,
            n_head=config.n_heads,
            n_inner=config.d_ff,
            layer_norm_epsilon=config.norm_eps,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    ).train()
    with torch.no_grad():  # under our names the same tensors: what is written, it holds
        for name, its in gpt_names(theirs.state_dict()).tensors.items():
            its.copy_(ours.state_dict()[name])
    return theirs, lambda: theirs(tokens, labels=tokens).loss


class EncoderAsGpt(nn.Module):
    """What one builds from `nn.TransformerEncoder`: a causal mask makes it a GPT."""

    def __init__(self, config: GptConfig):
        super().__init__()
        d_model = config.d_model
        layer = nn.TransformerEncoderLayer(
            d_model,
            config.n_heads,
            config.d_ff,
            dropout=0.0,
            activation=partial(F.gelu, approximate="tanh"),
            layer_norm_eps=config.norm_eps,
            batch_first=True,
            norm_first=True,
        )
        self.token = nn.Embedding(config.vocab_size, d_model)
        self.position = nn.Embedding(config.max_seq_len, d_model)
        norm = nn.LayerNorm(d_model, eps=config.norm_eps)
        self.encoder = nn.TransformerEncoder(
            layer, config.n_layers, norm, enable_nested_tensor=False
        )
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        x = self.token(tokens) + self.position(torch.arange(T))
        return self.output(self.encoder(x, mask=mask, is_causal=True))


def encoder_as_gpt(ours: Gpt, tokens: Tensor) -> tuple[nn.Module, Callable[[], Tensor]]:
    """`nn.TransformerEncoder` with our weights."""
    theirs = EncoderAsGpt(ours.config)
    for part in ("token", "position"):
        getattr(theirs, part).load_state_dict(getattr(ours, part).state_dict())
    theirs.encoder.norm.load_state_dict(ours.norm.state_dict())
    for block, layer in zip(ours.blocks, theirs.encoder.layers, strict=True):
        layer.load_state_dict(torch_names(block))

    def loss() -> Tensor:
        logits = theirs(tokens)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return theirs, loss


class TorchTransformer(nn.Module):
    """What one builds around `nn.Transformer`: embeddings, positions, an output layer.

    It has not the two norms that `nn.Transformer` puts behind its stacks: the paper's
    model has none there, and the numbers are to be the same.
    """

    def __init__(self, config: TransformerConfig, longest: int):
        super().__init__()
        self.scale = config.d_model**0.5
        self.token = nn.Embedding(config.src_vocab_size, config.d_model)
        self.transformer = nn.Transformer(
            config.d_model,
            config.n_heads,
            config.n_layers,
            config.n_layers,
            config.d_ff,
            dropout=0.0,
            layer_norm_eps=config.norm_eps,
            batch_first=True,
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.output = nn.Linear(config.d_model, config.tgt_vocab_size, bias=False)
        self.output.weight = self.token.weight
        table = SinusoidalPositions(config.d_model)(torch.arange(longest))
        self.register_buffer("positions", table)

    def embed(self, words: Tensor) -> Tensor:
        return self.token(words) * self.scale + self.positions[: words.shape[1]]

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        T, blocked = tgt.shape[1], src == PAD
        mask = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.bool)
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=mask,
            src_key_padding_mask=blocked,
            tgt_key_padding_mask=tgt == PAD,
            memory_key_padding_mask=blocked,
            tgt_is_causal=True,
        )
        return self.output(hidden)


def torch_transformer(
    ours: Transformer, src: Tensor, tgt: Tensor
) -> tuple[nn.Module, Callable[[], Tensor]]:
    """`nn.Transformer` with our weights."""
    theirs = TorchTransformer(ours.config, longest=max(src.shape[1], tgt.shape[1]))
    theirs.token.load_state_dict(ours.tgt_token.state_dict())
    halves = (
        (ours.encoder, theirs.transformer.encoder),
        (
            ours.decoder,
            theirs.transformer.decoder,
        ),
    )
    for blocks, stack in halves:
        for block, layer in zip(blocks, stack.layers, strict=True):
            layer.load_state_dict(torch_names(block))
    read, asked = tgt[:, :-1], tgt[:, 1:].flatten()

    def loss() -> Tensor:
        return F.cross_entropy(
            theirs(src, read).flatten(0, 1),
            asked,
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
        )

    return theirs, loss


def torch_names(block: Block) -> dict[str, Tensor]:
    """One layer's weights, as torch's layers call them."""
    attentions = {"self_attn": block.attention, "multihead_attn": block.cross_attention}
    norms = [block.attention_norm, block.cross_norm, block.feedforward_norm]
    parts = {"linear1": block.feedforward.up, "linear2": block.feedforward.down}
    there = (norm for norm in norms if norm is not None)
    parts |= {f"norm{i}": norm for i, norm in enumerate(there, start=1)}
    named = {}
    for name, attention in attentions.items():
        if attention is None:
            continue
        parts[f"{name}.out_proj"] = attention.o_proj
        three = attention.q_proj, attention.k_proj, attention.v_proj
        for kind in ("weight", "bias"):
            joined = torch.cat([getattr(one, kind) for one in three])
            named[f"{name}.in_proj_{kind}"] = joined
    for name, part in parts.items():
        named |= {f"{name}.{kind}": getattr(part, kind) for kind in ("weight", "bias")}
    return named


def transformers_t5(
    config: TransformerConfig, src: Tensor, tgt: Tensor
) -> Callable[[], Tensor]:
    """T5 of the same sizes, trained as its users train it."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=config.tgt_vocab_size,
            d_model=config.d_model,
            d_kv=config.d_model // config.n_heads,
            d_ff=config.d_ff,
            num_layers=config.n_layers,
            num_heads=config.n_heads,
            dropout_rate=0.0,
            decoder_start_token_id=PAD,
            use_cache=False,
        )
    ).train()
    asked = tgt[:, 1:]
    labels = asked.masked_fill(asked == PAD, -100)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE)
    call = partial(model, input_ids=src, attention_mask=src != PAD, labels=labels)
    return steps(model, optimiser, lambda: call().loss)


def step_operations(counted: dict[str, int]) -> Callable:
    """The products of the steps: backward takes two for each of the forward pass."""
    return multiplying(STEPS * 3 * counted["total"])


GPT = GptConfig(8192, max_seq_len=256, d_model=384, n_layers=6, n_heads=6, d_ff=1536)
PAPER = TransformerConfig(8192, 8192, d_model=512, n_layers=3, n_heads=8, d_ff=2048)
FULL = (lambda: gpt(GPT, B=4, T=256), lambda: transformer(PAPER, B=8, T=64))
SMALL = GptConfig(500, max_seq_len=32, d_model=48, n_layers=2, n_heads=3, d_ff=192)
PAIRS = TransformerConfig(500, 500, d_model=48, n_layers=2, n_heads=3, d_ff=192)
QUICK = (lambda: gpt(SMALL, B=2, T=32), lambda: transformer(PAIRS, B=2, T=16))

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
