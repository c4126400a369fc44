# SPDX-License-Identifier: MIT
"""How do the names of a published BERT checkpoint map onto this book's parts?

Taught in: book/03_multi_head.ipynb, book/07_bert.ipynb
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepdive.configs import BertConfig
from deepdive.models.bert import Bert, MaskedLM
from deepdive.pretrained.files import find
from deepdive.pretrained.huggingface import (
    Renamed,
    check_supported,
    load_into,
    read_config,
    read_tensors,
    renamed,
    unfilled,
)
from deepdive.tokenizers import Tokenizer, load_tokenizer

_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "max_position_embeddings": "max_seq_len",
    "type_vocab_size": "n_segments",
    "layer_norm_eps": "norm_eps",
}

# What this book's Bert computes; any other value would be another function.
_SUPPORTED = {
    "model_type": ("bert",),
    "hidden_act": ("gelu",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}

_LAYER, _BLOCK = "encoder.layer.{}.", "blocks.{}."

_NAMES = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.segment",
    "embeddings.LayerNorm": "embeddings.norm",
    _LAYER + "attention.self.query": _BLOCK + "attention.q_proj",
    _LAYER + "attention.self.key": _BLOCK + "attention.k_proj",
    _LAYER + "attention.self.value": _BLOCK + "attention.v_proj",
    _LAYER + "attention.output.dense": _BLOCK + "attention.o_proj",
    _LAYER + "attention.output.LayerNorm": _BLOCK + "attention_norm",
    _LAYER + "intermediate.dense": _BLOCK + "feedforward.up",
    _LAYER + "output.dense": _BLOCK + "feedforward.down",
    _LAYER + "output.LayerNorm": _BLOCK + "feedforward_norm",
    "pooler.dense": "pooler",
    # Tables that older files store and that are no weights: 0, 1, 2, … and zeros.
    "embeddings.position_ids": None,
    "embeddings.token_type_ids": None,
}

_HEAD = {theirs: ours and f"bert.{ours}" for theirs, ours in _NAMES.items()} | {
    "cls.predictions.transform.dense": "dense",
    "cls.predictions.transform.LayerNorm": "norm",
    "cls.predictions.decoder": "output",  # the embedding's matrix, once more
    "cls.predictions.bias": "output.bias",
}


def _with_old_names(names: Mapping[str, str | None]) -> dict[str, str | None]:
    """The first release's files call a norm's weight gamma and its bias beta."""
    old = {
        f"{theirs}.{old}": f"{ours}.{new}"
        for theirs, ours in names.items()
        if theirs.endswith("LayerNorm")
        for old, new in (("gamma", "weight"), ("beta", "bias"))
    }
    return {**old, **names}


def load_bert(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> Bert:
    """Read a BERT encoder from a folder in Hugging Face's layout, in eval mode.

    Args:
        ignoring: tensors whose names begin so are left out, such as `("cls.",)`: the
            heads of a pretrained BERT, which are no part of the encoder.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this Bert does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Taught in: book/03_multi_head.ipynb, book/07_bert.ipynb
    """
    settings = read_config(folder)
    check_supported(folder, settings, _SUPPORTED, needed=_SIZES)
    model = unfilled(lambda: Bert(bert_config(settings)))
    given = bert_names(read_tensors(folder), ignoring)
    return load_into(model, given, folder, dtype)


def bert_config(settings: Mapping[str, Any]) -> BertConfig:
    """The sizes of a `config.json` under this book's names."""
    return BertConfig(**{ours: settings[theirs] for theirs, ours in _SIZES.items()})


def bert_names(
    tensors: Mapping[str, Tensor], ignoring: tuple[str, ...] = ()
) -> Renamed:
    """Hugging Face's names → this book's, the first release's names included.

    A leading `bert.`, which files with a task's head carry, is dropped. The heads
    themselves (`cls.…`) are unknown here: they are no part of the encoder.
    """
    return renamed(tensors, _with_old_names(_NAMES), "bert.", ignoring)


def load_masked_lm(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    ignoring: tuple[str, ...] = (),
) -> MaskedLM:
    """Read a BERT with the head that guesses masked words, in eval mode.

    Args:
        ignoring: tensors whose names begin so are left out, such as
            `("cls.seq_relationship.",)`, the head for the next sentence.

    Raises:
        FileNotFoundError, ValueError: as `load_bert`.

    Note:
        Most such files have no pooler, which this head does not need; the model then
        has none either.

    Taught in: book/07_bert.ipynb
    """
    settings = read_config(folder)
    check_supported(
        folder, settings, _SUPPORTED | {"tie_word_embeddings": (True,)}, needed=_SIZES
    )
    model = unfilled(lambda: MaskedLM(bert_config(settings)))
    tensors = read_tensors(folder)
    if not any(name.removeprefix("bert.").startswith("pooler.") for name in tensors):
        del model.bert.pooler
    given = renamed(tensors, _with_old_names(_HEAD), "bert.", ignoring)
    return load_into(model, given, folder, dtype)


def minilm() -> tuple[Bert, Tokenizer]:
    """all-MiniLM-L6-v2, a trained sentence encoder, and its tokenizer.

    Six layers of twelve heads, d_model 384; distilled from a larger BERT (Wang et al.
    2020), then trained on pairs of sentences that belong together. 22.7 million
    weights.

    Raises:
        WeightsMissing: the files are not on this machine; the message says what to do.

    Note:
        Its position table has 512 rows, and longer texts are refused; the sentences
        it was trained on were cut at 128 pieces.

    Taught in: book/03_multi_head.ipynb
    """
    folder = find("minilm")
    model = load_bert(folder)
    return model, load_tokenizer(folder, max_len=model.config.max_seq_len)


@torch.no_grad()
def sentence_embedding(
    model: Bert, tokenizer: Tokenizer, sentences: str | Iterable[str]
) -> Tensor:
    """One vector per sentence: the mean over its tokens, scaled to length 1.

        e = m / ‖m‖,  m = Σₜ keepₜ xₜ / Σₜ keepₜ

    The recipe with which all-MiniLM-L6-v2 was trained; [CLS] and [SEP] count as tokens.

    Shapes:
        N sentences → (N, d_model)

    Taught in: book/03_multi_head.ipynb
    """
    ids, segments, keep = (t.to(_device(model)) for t in tokenizer.encode(sentences))
    return pool(model(ids, segments, keep), keep)


def pool(hidden: Tensor, keep: Tensor) -> Tensor:
    """Mean over the kept positions, at length 1: (B, T, d_model) → (B, d_model)."""
    if not keep.any(dim=1).all():
        raise ValueError(f"every row needs a kept token, got keep {keep.tolist()}")
    weight = keep.to(hidden.dtype).unsqueeze(-1)  # (B, T, 1)
    mean = (hidden * weight).sum(1) / weight.sum(1)
    return torch.nn.functional.normalize(mean, dim=1)


def similarity(a: Tensor, b: Tensor | None = None) -> Tensor:
    """Cosines between the rows of a and of b (of a itself unless given).

    Shapes:
        a (N, d), b (M, d) → (N, M)
    """
    b = a if b is None else b
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(
            f"expected (N, d) and (M, d), got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    unit = torch.nn.functional.normalize
    return unit(a, dim=1) @ unit(b, dim=1).T


def _device(model: Bert) -> torch.device:
    return next(model.parameters()).device
