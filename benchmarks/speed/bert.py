# SPDX-License-Identifier: MIT
"""How fast does BERT read a batch of texts, beside others with the same weights?

Live: `transformers`' BertModel, as it comes; and torch's `nn.TransformerEncoder`, whose
fast path computes a layer in one call, behind our embeddings. Ours: the plain model,
and its copy prepared by `for_inference`.

    python benchmarks/speed/bert.py
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.accounting import flops
from deepdive.blocks import Block
from deepdive.configs import MINILM_L6, BertConfig
from deepdive.inference import for_inference
from deepdive.models.bert import Bert
from deepdive.pretrained.bert import bert_names
from deepdive.timing import Goal, Row, installed, main, multiplying


def reading(config: BertConfig, B: int, T: int) -> Row:
    """Hidden states of B texts of T tokens, none of them padded."""
    torch.manual_seed(0)
    ours = Bert(config).eval()
    tokens = torch.randint(config.vocab_size, (B, T))
    ways, goals = {}, [Goal("prepared", "torch", 1.0, "not behind its fast path")]
    if installed("transformers"):
        ways["transformers"] = transformers_bert(ours, tokens)
        goals.append(Goal("prepared", "transformers", 1.04))
        goals.append(Goal("ours", "transformers", 1.0, "as built, not behind"))
    encoder, prepared = torch_encoder(ours), for_inference(ours)
    ways["torch"] = lambda: encoder(ours.embeddings(tokens))
    ways["ours"] = lambda: ours(tokens)
    ways["prepared"] = lambda: prepared(tokens)
    counted = flops(config, T, batch=B)
    return Row(
        name="BERT, forward",
        sizes=f"{config.n_layers} layers of {config.d_model}, {B} texts of {T}",
        ways=ways,
        goals=tuple(goals),
        limits={"operations": multiplying(counted["total"] - counted["output"])},
    )


def transformers_bert(ours: Bert, tokens: Tensor) -> Callable[[], Tensor]:
    """The same encoder from `transformers`, with our weights in it."""
    from transformers import BertConfig as Sizes
    from transformers import BertModel

    config = ours.config
    theirs = BertModel(
        Sizes(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.n_layers,
            num_attention_heads=config.n_heads,
            intermediate_size=config.d_ff,
            max_position_embeddings=config.max_seq_len,
            type_vocab_size=config.n_segments,
            layer_norm_eps=config.norm_eps,
        ),
        add_pooling_layer=False,
    ).eval()
    # Under our names the same tensors, not copies: what is written here, they hold.
    named = bert_names(theirs.state_dict()).tensors
    for name, theirs_weight in named.items():
        theirs_weight.copy_(ours.state_dict()[name])
    return lambda: theirs(tokens).last_hidden_state


def torch_encoder(ours: Bert) -> nn.TransformerEncoder:
    """Torch's stack of encoder layers, with our weights in it."""
    config = ours.config
    layer = nn.TransformerEncoderLayer(
        config.d_model,
        config.n_heads,
        config.d_ff,
        activation="gelu",
        layer_norm_eps=config.norm_eps,
        batch_first=True,
    )
    encoder = nn.TransformerEncoder(
        layer, config.n_layers, enable_nested_tensor=False
    ).eval()
    for block, their in zip(ours.blocks, encoder.layers, strict=True):
        their.load_state_dict(torch_names(block))
    return encoder


def torch_names(block: Block) -> dict[str, Tensor]:
    """One layer's weights, as torch's layer calls them."""
    attention, network = block.attention, block.feedforward
    three = attention.q_proj, attention.k_proj, attention.v_proj
    parts = {
        "self_attn.out_proj": attention.o_proj,
        "linear1": network.up,
        "linear2": network.down,
        "norm1": block.attention_norm,
        "norm2": block.feedforward_norm,
    }
    named = {}
    for kind in ("weight", "bias"):
        joined = torch.cat([getattr(one, kind) for one in three])
        named[f"self_attn.in_proj_{kind}"] = joined
        named |= {f"{name}.{kind}": getattr(x, kind) for name, x in parts.items()}
    return named


FULL = (lambda: reading(MINILM_L6, B=8, T=128),)
SMALL = BertConfig(vocab_size=500, d_model=96, n_layers=2, n_heads=4, d_ff=384)
QUICK = (lambda: reading(SMALL, B=2, T=32),)

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
