# SPDX-License-Identifier: MIT
"""How large is each model? Frozen sizes, readable without importing torch.

Field names are the book's (`book/notation.md`); the papers' symbols stand beside them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class BertConfig:
    """Sizes of a BERT encoder (Devlin et al. 2018, §3).

    Taught in: book/03_multi_head.ipynb
    """

    vocab_size: int = 30_522  # WordPiece, lower-cased English
    d_model: int = 768  # H in the paper
    n_layers: int = 12  # L
    n_heads: int = 12  # A
    d_ff: int = 3072  # 4 H
    max_seq_len: int = 512  # rows of the learned position table
    n_segments: int = 2  # sentence A, sentence B
    norm_eps: float = 1e-12  # added to the variance, not to its root

    def __post_init__(self):
        for name, value in vars(self).items():
            if name != "norm_eps" and not isinstance(value, int):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if name != "norm_eps" and value < 1:
                raise ValueError(f"{name} must be ≥ 1, got {value}")
        if not self.norm_eps > 0:
            raise ValueError(f"norm_eps must be > 0, got {self.norm_eps}")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} is not a multiple of n_heads {self.n_heads}"
            )


BERT_BASE = BertConfig()
BERT_LARGE = BertConfig(d_model=1024, n_layers=24, n_heads=16, d_ff=4096)
MINILM_L6 = BertConfig(d_model=384, n_layers=6, n_heads=12, d_ff=1536)
