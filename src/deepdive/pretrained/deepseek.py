# SPDX-License-Identifier: MIT
"""How do the names of a DeepSeek-V2 or V3 checkpoint map onto this book's parts?

Taught in: book/15_deepseek.ipynb
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import DeepSeekV2Config, DeepSeekV3Config
from deepdive.models.deepseek import DeepSeek
from deepdive.pretrained.huggingface import (
    Change,
    Renamed,
    check_supported,
    load_into,
    read_config,
    read_tensors,
    renamed,
    rope,
    unfilled,
)

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "q_lora_rank": "q_lora_rank",
    "kv_lora_rank": "kv_lora_rank",
    "qk_nope_head_dim": "qk_nope_head_dim",
    "qk_rope_head_dim": "qk_rope_head_dim",
    "v_head_dim": "v_head_dim",
    "intermediate_size": "d_ff",
    "first_k_dense_replace": "n_dense_layers",
    "moe_intermediate_size": "d_expert",
    "n_routed_experts": "n_experts",
    "n_shared_experts": "n_shared_experts",
    "num_experts_per_tok": "top_k",
    "routed_scaling_factor": "routed_scale",
    "max_position_embeddings": "max_seq_len",
    "rms_norm_eps": "norm_eps",
}
_GROUPS = {"n_group": "n_groups", "topk_group": "top_groups"}

# What this book's DeepSeek computes; any other value would be another function.
_BOTH = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "moe_layer_freq": (1,),
    "tie_word_embeddings": (False,),
}
_V2 = {
    "scoring_func": ("softmax",),
    "topk_method": ("greedy", "group_limited_greedy"),
    # If true, the released code leaves out the factor, and transformers the division.
    "norm_topk_prob": (False, None),
}
_V3 = {
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "norm_topk_prob": (True, False),
    "rope_interleave": (True,),
}
_KINDS = {
    "deepseek_v2": (DeepSeekV2Config, _V2, ("topk_method",)),
    "deepseek_v3": (DeepSeekV3Config, _V3, ("norm_topk_prob", *_GROUPS)),
}


def load_deepseek(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> DeepSeek:
    """Read a DeepSeek-V2 or V3 from a folder in Hugging Face's layout, in eval mode.

    V3's files hold one layer more, which predicts a second token in training
    (`num_nextn_predict_layers`); it is no part of the decoder and is left out.

    Args:
        ignoring: further tensors whose names begin so are left out.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this DeepSeek does not compute, such
            as V3's own 8-bit weights, or the tensors do not fit; one message lists
            every unknown, missing and wrongly shaped one.

    Note:
        The bias of V3's router stays float32, whatever `dtype` is.

    Taught in: book/15_deepseek.ipynb
    """
    settings = read_config(folder)
    check_supported(folder, settings, {"model_type": tuple(_KINDS)}, ("model_type",))
    _, supported, needed = _KINDS[settings["model_type"]]
    # Keys and values have as many heads as queries: the latent serves them all.
    heads = {"num_key_value_heads": (settings.get("num_attention_heads"), None)}
    check_supported(
        folder, settings, _BOTH | supported | heads, needed=(*_SIZES, *needed)
    )
    config = deepseek_config(settings, folder)
    model = unfilled(lambda: DeepSeek(config))
    extra = range(settings.get("num_nextn_predict_layers") or 0)
    ignoring += tuple(f"model.layers.{config.n_layers + i}." for i in extra)
    given = deepseek_names(read_tensors(folder), config, ignoring)
    exact = {
        name: tensor.float()
        for name, tensor in given.tensors.items()
        if name.endswith("selection_bias")
    }
    load_into(model, given, folder, dtype).load_state_dict(exact, strict=False)
    return model


def deepseek_config(
    settings: Mapping[str, Any], folder: str | Path = ""
) -> DeepSeekV2Config:
    """The sizes of a `config.json` under this book's names.

    Args:
        folder: named in the message where the rotary positions are not known.
    """
    kind, _, _ = _KINDS[settings["model_type"]]
    base, scaling = rope(folder, settings)
    sizes = {ours: settings[theirs] for theirs, ours in _SIZES.items()}
    if settings.get("topk_method") == "greedy":
        sizes |= {"n_groups": 1, "top_groups": 1}  # whatever the config says
    else:
        sizes |= {ours: settings.get(theirs) for theirs, ours in _GROUPS.items()}
    return kind(
        **sizes | {"n_shared_experts": sizes["n_shared_experts"] or 0},
        normalise_gates=bool(settings.get("norm_topk_prob")),
        rope_base=base,
        rope_scaling=scaling,
    )


def deepseek_names(
    tensors: Mapping[str, Tensor],
    config: DeepSeekV2Config,
    ignoring: tuple[str, ...] = (),
) -> Renamed:
    """Hugging Face's names → this book's; the experts of a layer become one stack.

    Two of their matrices are two of ours laid together: the latent's and the rotary
    key's one below the other, keys' and values' in turn, head by head.
    """
    return renamed(tensors, _names(config), prefix="model.", ignoring=ignoring)


def _names(config: DeepSeekV2Config) -> dict:
    layer, block = "layers.{}.", "blocks.{}."
    theirs, ours = layer + "self_attn.", block + "attention."
    mlp, feedforward = layer + "mlp.", block + "feedforward."
    down, rope = config.kv_lora_rank, config.qk_rope_head_dim
    nope, value, heads = config.qk_nope_head_dim, config.v_head_dim, config.n_heads
    table = {
        "embed_tokens": "token",
        "norm": "norm",
        "lm_head": "output",
        layer + "input_layernorm": block + "attention_norm",
        layer + "post_attention_layernorm": block + "feedforward_norm",
        theirs + "q_proj": ours + "q_up",  # where queries are not compressed
        theirs + "q_a_proj": ours + "q_down",
        theirs + "q_a_layernorm": ours + "q_norm",
        theirs + "q_b_proj": ours + "q_up",
        theirs + "kv_a_proj_with_mqa": [
            (ours + "kv_down", _rows(1, down, rope, part=0)),
            (ours + "k_rope", _rows(1, down, rope, part=1)),
        ],
        theirs + "kv_a_layernorm": ours + "kv_norm",
        theirs + "kv_b_proj": [
            (ours + "k_up", _rows(heads, nope, value, part=0)),
            (ours + "v_up", _rows(heads, nope, value, part=1)),
        ],
        theirs + "o_proj": ours + "o_proj",
        theirs + "rotary_emb.inv_freq": None,  # a table that older files store
        mlp + "gate": feedforward + "router",
        mlp + "gate.e_score_correction_bias": feedforward + "router.selection_bias",
    }
    for part in ("gate", "up", "down"):
        table |= {
            mlp + f"{part}_proj": feedforward + part,
            mlp + f"shared_experts.{part}_proj": feedforward + f"shared.{part}",
            mlp + f"experts.{{}}.{part}_proj.weight": (
                feedforward + f"experts.{part}[{{}}]"
            ),
        }
    return table


def _rows(times: int, first: int, second: int, part: int) -> Change:
    """The first or the second rows of each of `times` equal blocks of a matrix."""

    def cut(tensor: Tensor) -> Tensor:
        if tensor.dim() != 2 or tensor.shape[0] != times * (first + second):
            raise ValueError(f"expected {times} × ({first} + {second}) rows")
        blocks = tensor.unflatten(0, (times, first + second))
        return blocks.split((first, second), dim=1)[part].flatten(0, 1)

    return cut
