# SPDX-License-Identifier: MIT
"""How fast does latent attention read a long text for one new word?

The sizes are DeepSeek-V2-Lite's. Live: the attention of `transformers`, with the same
weights and its own growing cache; ours with every head's keys and values rebuilt from
the latents, and with the latents read as they are, as built and prepared.

    python benchmarks/speed/latent.py

The limit is reading the weights and the latents once. For 16 heads a latent that is
read is multiplied 32 times, which takes longer than reading it: no arrangement of
matrix products comes nearer to the limit than these two allow.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from deepdive.cache import PreallocatedCache
from deepdive.configs import DEEPSEEK_V2_LITE, DeepSeekV2Config
from deepdive.inference import for_inference
from deepdive.kernels.layout import merge_heads
from deepdive.latent_attention import LatentAttention
from deepdive.positions import Rotary, interleaved
from deepdive.timing import Goal, Row, installed, main, reading

TINY = DeepSeekV2Config(
    d_model=64, n_heads=4, q_lora_rank=None, kv_lora_rank=64, qk_nope_head_dim=16,
    qk_rope_head_dim=8, v_head_dim=16,
)  # fmt: skip


def latent(S: int, c: DeepSeekV2Config, least: float | None = None) -> Row:
    """One new word behind S older ones, the projections and the cache included.

    Args:
        least: how many times as fast as `transformers` it is to be.
    """
    torch.manual_seed(0)
    layer = LatentAttention(
        c.d_model, c.n_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim,
        c.v_head_dim, c.q_lora_rank,
    ).eval()  # fmt: skip
    prepared = for_inference(nn.ModuleList([layer]))[0]
    rotary = Rotary(c.qk_rope_head_dim, c.rope_base, interleaved)
    x, last = torch.randn(1, S + 1, c.d_model), rotary(torch.tensor([S]))
    held = layer.latent(x[:, :S], rotary(torch.arange(S)))
    new, ways = x[:, S:], {}
    if installed("transformers"):
        ways["transformers"] = transformers_step(layer, c, held, new)
    ways["rebuilt"] = step(lambda *a: rebuilt(layer, *a), held, new, last)
    ways["absorbed"] = step(layer, held, new, last)
    ways["prepared"] = step(prepared, held, new, last)
    goals = [Goal("prepared", "reading", 0.27)]
    if least is not None and "transformers" in ways:
        goals.append(Goal("prepared", "transformers", least))
    numbers = sum(p.numel() for p in layer.parameters()) + held.numel()
    return Row(
        name="latent attention, one new word",
        sizes=f"{S} words before, d_model {c.d_model}, {c.n_heads} heads of "
        f"{c.qk_nope_head_dim} + {c.qk_rope_head_dim}, latents of {c.kv_lora_rank} + "
        f"{c.qk_rope_head_dim}",
        ways=ways,
        goals=tuple(goals),
        limits={"reading": reading(4 * numbers)},
    )


def step(
    attend: Callable[..., Tensor], held: Tensor, new: Tensor, last: Callable
) -> Callable[[], Tensor]:
    """A call that reads one new word, with a cache that has room for it."""
    S = held.shape[-2]
    cache = PreallocatedCache(S + 1)
    cache.append(held)

    def call() -> Tensor:
        out = attend(new, None, last, cache)
        cache.truncate(S)
        return out

    return call


def rebuilt(layer: LatentAttention, x: Tensor, mask, rotate, cache) -> Tensor:
    """What `LatentAttention` computes, always by every head's keys and values."""
    q, kept = layer.queries(x, rotate), layer.latent(x, rotate)
    (kept,) = cache.append(kept)
    return layer.o_proj(merge_heads(layer.expanded(q, kept, mask)))


def transformers_step(
    layer: LatentAttention, c: DeepSeekV2Config, held: Tensor, new: Tensor
) -> Callable[[], Tensor]:
    """The same, by `transformers`: its attention with our weights, its own cache."""
    import transformers
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as theirs

    S = held.shape[-2]
    config = transformers.DeepseekV2Config(
        hidden_size=c.d_model, num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_heads, q_lora_rank=c.q_lora_rank,
        kv_lora_rank=c.kv_lora_rank, qk_nope_head_dim=c.qk_nope_head_dim,
        qk_rope_head_dim=c.qk_rope_head_dim, v_head_dim=c.v_head_dim,
        max_position_embeddings=S + 1, head_dim=c.qk_rope_head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    attention = theirs.DeepseekV2Attention(config, 0).eval()
    attention.load_state_dict(as_theirs(layer))
    angles = theirs.DeepseekV2RotaryEmbedding(config)(new, torch.tensor([[S]]))
    cache = transformers.DynamicCache()
    c_and_r = (c.kv_lora_rank, c.qk_rope_head_dim)
    cache.update(*(part.contiguous() for part in held.split(c_and_r, dim=-1)), 0)

    def call() -> Tensor:
        out, _ = attention(new, position_embeddings=angles, cache=cache)
        cache.crop(-1)
        return out

    return call


def as_theirs(layer: LatentAttention) -> dict[str, Tensor]:
    """Our weights under the names of `transformers`, head by head where they join."""
    per_head = (layer.n_heads, -1, layer.kv_lora_rank)
    k_up, v_up = (each.weight.view(per_head) for each in (layer.k_up, layer.v_up))
    down = (layer.kv_down.weight, layer.k_rope.weight)
    state = {
        "kv_a_proj_with_mqa.weight": torch.cat(down),
        "kv_a_layernorm.weight": layer.kv_norm.weight,
        "kv_b_proj.weight": torch.cat((k_up, v_up), dim=1).flatten(0, 1),
        "o_proj.weight": layer.o_proj.weight,
    }
    if not isinstance(layer.q_down, nn.Linear):
        return state | {"q_proj.weight": layer.q_up.weight}
    return state | {
        "q_a_proj.weight": layer.q_down.weight,
        "q_a_layernorm.weight": layer.q_norm.weight,
        "q_b_proj.weight": layer.q_up.weight,
    }


FULL = (
    lambda: latent(4096, DEEPSEEK_V2_LITE, least=33.0),
    lambda: latent(8192, DEEPSEEK_V2_LITE, least=42.0),
)
QUICK = (lambda: latent(256, TINY),)

if __name__ == "__main__":
    main(__doc__, FULL, QUICK)
