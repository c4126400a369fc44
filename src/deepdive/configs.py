# SPDX-License-Identifier: MIT
"""How large is each model? Frozen sizes, readable without importing torch.

Field names are the book's (`book/notation.md`); the papers' symbols stand beside them.
A wrong size raises `TypeError` (not a number of the right kind) or `ValueError` (out of
range, or at odds with another size).
"""

import math
from dataclasses import dataclass, fields

# How a rotary model is made to read further than it was trained (`positions.Rotary`).


@dataclass(frozen=True)
class LinearScaling:
    """Every position divided by `factor` (position interpolation, Chen et al. 2023).

    Taught in: book/11_rope.ipynb
    """

    factor: float

    def __post_init__(self):
        _check(self)


@dataclass(frozen=True)
class NTKScaling:
    """A larger base: slow angles are slowed by `factor`, fast ones hardly at all.

    Taught in: book/11_rope.ipynb
    """

    factor: float

    def __post_init__(self):
        _check(self)


@dataclass(frozen=True)
class YarnScaling:
    """Slow angles divided by `factor`, fast ones kept (YaRN, Peng et al. 2023, §3.2).

    The thresholds are the paper's. Between them the share that is divided grows with
    the pair's number, as in the released code; the paper's grows with the turns, which
    is what `Llama3Scaling` computes.

    Args:
        beta_fast, beta_slow: angles that turn more often than `beta_fast` times within
            `original_max_seq_len` are kept; fewer than `beta_slow` times, divided.
        mscale, mscale_all_dim: DeepSeek's two factors on the logits' temperature; None
            where a model does not give them.

    Taught in: book/11_rope.ipynb
    """

    factor: float
    original_max_seq_len: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self):
        _check(self)


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's: by wavelength, with a smooth ramp between kept and divided.

    Source: Meta's released code.

    Taught in: book/11_rope.ipynb
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_seq_len: int = 8192

    def __post_init__(self):
        _check(self)
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )


RopeScaling = LinearScaling | NTKScaling | YarnScaling | Llama3Scaling


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of the 2017 Transformer (Vaswani et al. 2017, §3 and Table 3).

    Taught in: book/06_transformer_2017.ipynb
    """

    src_vocab_size: int = 37_000  # one shared byte-pair vocabulary (§5.1)
    tgt_vocab_size: int = 37_000
    d_model: int = 512
    n_layers: int = 6  # N, in each half
    n_heads: int = 8  # h
    d_ff: int = 2048
    dropout: float = 0.0  # P_drop; the paper trains with 0.1
    norm_eps: float = 1e-5
    tied: bool = True  # both embeddings and the output layer share one matrix (§3.4)

    def __post_init__(self):
        _check(self)
        _check_heads(self)
        if self.tied and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError(
                f"tied embeddings need one vocabulary, got {self.src_vocab_size} and "
                f"{self.tgt_vocab_size}"
            )


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT encoder (Devlin et al. 2018, §3).

    Taught in: book/03_multi_head.ipynb, book/07_bert.ipynb
    """

    vocab_size: int = 30_522  # WordPiece, lower-cased English
    d_model: int = 768  # H in the paper
    n_layers: int = 12  # L
    n_heads: int = 12  # A
    d_ff: int = 3072  # 4 H
    max_seq_len: int = 512  # rows of the learned position table
    n_segments: int = 2  # sentence A, sentence B
    norm_eps: float = 1e-12  # added to the variance, not to its root
    dropout: float = 0.0  # 0.1 when the paper trains

    def __post_init__(self):
        _check(self)
        _check_heads(self)


@dataclass(frozen=True)
class GptConfig:
    """Sizes of a GPT-2 (Radford et al. 2019, Table 2).

    Taught in: book/08_gpt.ipynb
    """

    vocab_size: int = 50_257  # byte-level byte pairs
    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072  # 4 d_model
    max_seq_len: int = 1024  # rows of the learned position table
    norm_eps: float = 1e-5
    dropout: float = 0.0

    def __post_init__(self):
        _check(self)
        _check_heads(self)


@dataclass(frozen=True)
class T5Config:
    """Sizes of a T5 (Raffel et al. 2019, §2.1 and §3.7; version 1.1: gated, untied).

    Taught in: book/09_t5.ipynb
    """

    vocab_size: int = 32_128
    d_model: int = 512
    n_layers: int = 6  # in each half
    n_heads: int = 8
    head_dim: int = 64  # d_kv; n_heads · head_dim need not be d_model
    d_ff: int = 2048
    n_buckets: int = 32  # of the relative position bias
    max_distance: int = 128  # beyond it all distances share a bucket
    norm_eps: float = 1e-6
    dropout: float = 0.0
    gated: bool = False  # 1.1: GEGLU in the place of ReLU
    tied: bool = True  # 1.0: output layer = embedding, and logits · d_model^−½

    def __post_init__(self):
        _check(self)


@dataclass(frozen=True)
class LlamaConfig:
    """Sizes of a Llama (Touvron et al. 2023) or, with `window`, a Mistral 7B v0.1.

    Taught in: book/08_gpt.ipynb, book/11_rope.ipynb,
    book/12_grouped_query_attention.ipynb
    """

    vocab_size: int = 32_000
    d_model: int = 4096
    n_layers: int = 32
    n_heads: int = 32  # H
    n_kv_heads: int = 32  # G; G < H is grouped-query attention
    d_ff: int = 11_008
    max_seq_len: int = 4096
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    window: int | None = None  # keys a query may see, itself included
    head_dim: int | None = None  # d_model / n_heads unless given
    tied: bool = False

    def __post_init__(self):
        _check(self)
        _check_kv_heads(self)


@dataclass(frozen=True)
class MixtralConfig:
    """Sizes of Mixtral (Jiang et al. 2024, Table 1): a Llama whose FFN is 8 experts.

    Taught in: book/14_mixture_of_experts.ipynb
    """

    vocab_size: int = 32_000
    d_model: int = 4096
    n_layers: int = 32
    n_heads: int = 32
    n_kv_heads: int = 8
    d_expert: int = 14_336
    n_experts: int = 8  # E
    top_k: int = 2  # K, experts per token
    max_seq_len: int = 32_768
    rope_base: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    window: int | None = None
    head_dim: int | None = None
    tied: bool = False

    def __post_init__(self):
        _check(self)
        _check_kv_heads(self)
        _check_experts(self)


@dataclass(frozen=True)
class DeepSeekV2Config:
    """Sizes of DeepSeek-V2 (2024, arXiv:2405.04434, §3.1.2): MLA and many experts.

    Taught in: book/15_deepseek.ipynb
    """

    vocab_size: int = 102_400
    d_model: int = 5120
    n_layers: int = 60
    n_heads: int = 128
    q_lora_rank: int | None = 1536  # d_c'; None: queries are not compressed
    kv_lora_rank: int = 512  # d_c, the latent that is cached
    qk_nope_head_dim: int = 128  # d_h, the part without position
    qk_rope_head_dim: int = 64  # d_h^R, the rotated part; its key is shared by all
    v_head_dim: int = 128
    d_ff: int = 12_288  # of the first, dense layers
    n_dense_layers: int = 1
    d_expert: int = 1536
    n_experts: int = 160  # routed ones
    n_shared_experts: int = 2
    top_k: int = 6
    n_groups: int = 8  # experts stand in groups (devices, in training)
    top_groups: int = 3  # a token reaches at most this many
    normalise_gates: bool = False  # divide the chosen gates by their sum
    routed_scale: float = 16.0  # factor on what the routed experts give
    max_seq_len: int = 163_840
    rope_base: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6

    def __post_init__(self):
        _check(self, may_be_zero=("n_dense_layers", "n_shared_experts"))
        _check_experts(self)
        if self.n_experts % self.n_groups or self.top_groups > self.n_groups:
            raise ValueError(
                f"n_groups {self.n_groups} must divide n_experts {self.n_experts} and "
                f"be at least top_groups {self.top_groups}"
            )
        reach = self.n_experts // self.n_groups * self.top_groups
        if self.top_k > reach:
            raise ValueError(
                f"top_k {self.top_k} is more than the {reach} experts of "
                f"{self.top_groups} groups"
            )
        if self.n_dense_layers > self.n_layers:
            raise ValueError(
                f"n_dense_layers {self.n_dense_layers} is more than n_layers "
                f"{self.n_layers}"
            )


@dataclass(frozen=True)
class DeepSeekV3Config(DeepSeekV2Config):
    """Sizes of DeepSeek-V3 (2024, arXiv:2412.19437, §4.2): sigmoid gates, a bias for
    balance. Its extra layer that predicts a second token is not part of this book.

    Taught in: book/15_deepseek.ipynb
    """

    vocab_size: int = 129_280
    d_model: int = 7168
    n_layers: int = 61
    d_ff: int = 18_432
    n_dense_layers: int = 3
    d_expert: int = 2048
    n_experts: int = 256
    n_shared_experts: int = 1
    top_k: int = 8
    top_groups: int = 4
    normalise_gates: bool = True
    routed_scale: float = 2.5


@dataclass(frozen=True)
class AttentionConfig:
    """Sizes of a model's attention alone, by default Falcon-7B's: its cache's cost.

    For models that the book counts and does not build, because their other parts are
    not among the book's. `accounting.kv_bytes` takes it; what needs a whole model does
    not.

    Taught in: book/12_grouped_query_attention.ipynb
    """

    d_model: int = 4544
    n_layers: int = 32
    n_heads: int = 71  # H
    n_kv_heads: int = 1  # G
    head_dim: int = 64  # D
    window: int | None = None

    def __post_init__(self):
        _check(self)
        _check_kv_heads(self)


def _check(config, may_be_zero: tuple[str, ...] = ()) -> None:
    """Every field by its annotation: integers ≥ 1, finite floats > 0, dropout < 1."""
    for item in fields(config):
        name, value, kind = item.name, getattr(config, item.name), item.type
        optional = "None" in str(kind)
        if value is None and optional:
            continue
        if name == "rope_scaling":
            if not isinstance(value, RopeScaling):
                raise TypeError(f"{name} must be one of configs' scalings, got {value}")
        elif kind is bool:
            if not isinstance(value, bool):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        elif "int" in str(kind):
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            least = 0 if name in may_be_zero else 1
            if value < least:
                raise ValueError(f"{name} must be ≥ {least}, got {value}")
        else:
            _check_float(name, value)


def _check_float(name: str, value) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if name == "dropout":
        if not 0 <= value < 1:
            raise ValueError(f"dropout must lie in 0 … 1, 1 excluded, got {value}")
    elif not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be finite and > 0, got {value}")


def _check_heads(config) -> None:
    if config.d_model % config.n_heads:
        raise ValueError(
            f"d_model {config.d_model} is not a multiple of n_heads {config.n_heads}"
        )


def _check_kv_heads(config) -> None:
    if config.n_heads % config.n_kv_heads:
        raise ValueError(
            f"n_kv_heads {config.n_kv_heads} does not divide n_heads {config.n_heads}"
        )
    if config.head_dim is None:
        _check_heads(config)


def _check_experts(config) -> None:
    if config.top_k > config.n_experts:
        raise ValueError(
            f"top_k {config.top_k} is more than n_experts {config.n_experts}"
        )


# Published sizes. Sources: the papers above; for Llama, Mistral and DeepSeek also the
# releases' model cards. DeepSeek-V2's 0.707 is its report's √t = 0.0707 ln s + 1;
# configs in circulation for later V2 releases say 1.0.

TRANSFORMER_BASE = TransformerConfig(dropout=0.1)
TRANSFORMER_BIG = TransformerConfig(d_model=1024, n_heads=16, d_ff=4096, dropout=0.3)

BERT_BASE = BertConfig()
BERT_LARGE = BertConfig(d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
MINILM_L6 = BertConfig(d_model=384, n_layers=6, n_heads=12, d_ff=1536)

GPT2_SMALL = GptConfig()
GPT2_MEDIUM = GptConfig(d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
GPT2_LARGE = GptConfig(d_model=1280, n_layers=36, n_heads=20, d_ff=5120)
GPT2_XL = GptConfig(d_model=1600, n_layers=48, n_heads=25, d_ff=6400)

T5_SMALL = T5Config()
T5_BASE = T5Config(d_model=768, n_layers=12, n_heads=12, d_ff=3072)
T5_LARGE = T5Config(d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
T5_3B = T5Config(d_model=1024, n_layers=24, n_heads=32, head_dim=128, d_ff=16_384)
T5_11B = T5Config(d_model=1024, n_layers=24, n_heads=128, head_dim=128, d_ff=65_536)
T5_1_1_SMALL = T5Config(n_layers=8, n_heads=6, d_ff=1024, gated=True, tied=False)
T5_1_1_BASE = T5Config(
    d_model=768, n_layers=12, n_heads=12, d_ff=2048, gated=True, tied=False
)

LLAMA_7B = LlamaConfig(max_seq_len=2048, norm_eps=1e-6)
LLAMA_2_7B = LlamaConfig()
LLAMA_2_13B = LlamaConfig(
    d_model=5120, n_layers=40, n_heads=40, n_kv_heads=40, d_ff=13_824
)
LLAMA_2_70B = LlamaConfig(
    d_model=8192, n_layers=80, n_heads=64, n_kv_heads=8, d_ff=28_672
)
LLAMA_3_8B = LlamaConfig(
    vocab_size=128_256,
    n_kv_heads=8,
    d_ff=14_336,
    max_seq_len=8192,
    rope_base=500_000.0,
)
LLAMA_3_1_8B = LlamaConfig(
    vocab_size=128_256,
    n_kv_heads=8,
    d_ff=14_336,
    max_seq_len=131_072,
    rope_base=500_000.0,
    rope_scaling=Llama3Scaling(),
)
LLAMA_3_70B = LlamaConfig(
    vocab_size=128_256,
    d_model=8192,
    n_layers=80,
    n_heads=64,
    n_kv_heads=8,
    d_ff=28_672,
    max_seq_len=8192,
    rope_base=500_000.0,
)
LLAMA_3_1_70B = LlamaConfig(  # and 3.3
    vocab_size=128_256,
    d_model=8192,
    n_layers=80,
    n_heads=64,
    n_kv_heads=8,
    d_ff=28_672,
    max_seq_len=131_072,
    rope_base=500_000.0,
    rope_scaling=Llama3Scaling(),
)
LLAMA_3_1_405B = LlamaConfig(
    vocab_size=128_256,
    d_model=16_384,
    n_layers=126,
    n_heads=128,
    n_kv_heads=8,
    d_ff=53_248,
    max_seq_len=131_072,
    rope_base=500_000.0,
    rope_scaling=Llama3Scaling(),
)
MISTRAL_7B = LlamaConfig(  # v0.1
    n_kv_heads=8, d_ff=14_336, max_seq_len=32_768, window=4096
)
DEEPSEEK_67B = LlamaConfig(
    vocab_size=102_400,
    d_model=8192,
    n_layers=95,
    n_heads=64,
    n_kv_heads=8,
    d_ff=22_016,
    norm_eps=1e-6,
)
SMOLLM2_135M = LlamaConfig(
    vocab_size=49_152,
    d_model=576,
    n_layers=30,
    n_heads=9,
    n_kv_heads=3,
    d_ff=1536,
    max_seq_len=8192,
    rope_base=100_000.0,
    tied=True,
)

MIXTRAL_8X7B = MixtralConfig()

DEEPSEEK_V2 = DeepSeekV2Config(
    rope_scaling=YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)
)
DEEPSEEK_V2_LITE = DeepSeekV2Config(
    d_model=2048,
    n_layers=27,
    n_heads=16,
    q_lora_rank=None,
    d_ff=10_944,
    d_expert=1408,
    n_experts=64,
    n_groups=1,
    top_groups=1,
    routed_scale=1.0,
    rope_scaling=YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707),
)
DEEPSEEK_V3 = DeepSeekV3Config(
    rope_scaling=YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
)

# Models of which the attention alone is counted here. The names of those above stand
# for models that can be built; these are no such names, but keys.
# Falcon-7B adds attention and a two-layer network side by side (Almazrouei et al. 2023,
# arXiv:2311.16867, and the release's configuration). Gemma's gate is a GELU (Gemma Team
# 2024, arXiv:2403.08295, Table 1); the 7B's heads are together wider than d_model.
attention_alone = {
    "FALCON_7B": AttentionConfig(),
    "GEMMA_2B": AttentionConfig(
        d_model=2048, n_layers=18, n_heads=8, n_kv_heads=1, head_dim=256
    ),
    "GEMMA_7B": AttentionConfig(
        d_model=3072, n_layers=28, n_heads=16, n_kv_heads=16, head_dim=256
    ),
}
