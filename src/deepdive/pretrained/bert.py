# SPDX-License-Identifier: MIT
"""How do the names of a published BERT checkpoint map onto this book's parts?

A checkpoint in Hugging Face's layout is a folder: `config.json` with the sizes and one
or more `.safetensors` files with named tensors. Loading is renaming, plus the checks
that make a wrong file fail at once instead of computing nonsense.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from deepdive.configs import BertConfig
from deepdive.models.bert import Bert
from deepdive.pretrained.files import find
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
    "quantization_config": (None,),
}

_OUTSIDE = {
    "embeddings.word_embeddings": "embeddings.token",
    "embeddings.position_embeddings": "embeddings.position",
    "embeddings.token_type_embeddings": "embeddings.segment",
    "embeddings.LayerNorm": "embeddings.norm",
    "pooler.dense": "pooler",
}

_INSIDE = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "feedforward.up",
    "output.dense": "feedforward.down",
    "output.LayerNorm": "feedforward_norm",
}

# Tables that older files store and that are no weights: 0, 1, 2, … and zeros.
_BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}

_OLD_NORM = {"gamma": "weight", "beta": "bias"}  # names of the first release's files


def load_bert(folder: str | Path, dtype: torch.dtype = torch.float32) -> Bert:
    """Read a BERT encoder from a folder in Hugging Face's layout, in eval mode.

    Raises:
        FileNotFoundError: `config.json` or a weight file is missing.
        ValueError: the config asks for something this Bert does not compute, or the
            tensors do not fit; one message lists every unknown, missing and wrongly
            shaped one.

    Taught in: book/03_multi_head.ipynb
    """
    folder = Path(folder)
    model = Bert(read_config(folder)).to(dtype)
    wanted = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    given, unknown = rename(read_tensors(folder))
    missing = sorted(wanted.keys() - given.keys())
    unknown += sorted(given.keys() - wanted.keys())
    misshapen = [
        f"{name} is {tuple(given[name].shape)}, expected {shape}"
        for name, shape in wanted.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    faults = [
        f"{kind} ({len(names)}): {', '.join(names)}"
        for kind, names in (
            ("unknown", unknown),
            ("missing", missing),
            ("wrong shape", misshapen),
        )
        if names
    ]
    if faults:
        raise ValueError(f"{folder} does not fit Bert:\n  " + "\n  ".join(faults))
    model.load_state_dict(given)
    return model.eval()


def read_config(folder: Path) -> BertConfig:
    """The sizes in `config.json`, after refusing what this Bert does not compute."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"no config.json in {folder}")
    config = json.loads(path.read_text(encoding="utf-8"))
    refused = [
        f"{key} = {config[key]!r} (supported: {', '.join(map(repr, allowed))})"
        for key, allowed in _SUPPORTED.items()
        if key in config and config[key] not in allowed
    ]
    refused += [f"{key} is missing" for key in _SIZES if key not in config]
    if refused:
        raise ValueError(f"{path}: " + "; ".join(refused))
    return BertConfig(**{ours: config[theirs] for theirs, ours in _SIZES.items()})


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index names."""
    index = folder / "model.safetensors.index.json"
    shards = ["model.safetensors"]
    if index.is_file():
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        shards = sorted(set(places))
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        path = folder / shard
        if Path(shard).name != shard or not path.is_file():
            raise FileNotFoundError(f"no weight file {shard!r} in {folder}")
        try:
            part = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if twice := sorted(tensors.keys() & part.keys()):
            raise ValueError(f"{folder} holds twice: {', '.join(twice)}")
        tensors |= part
    return tensors


def rename(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Hugging Face's names → this book's; and the names that have no counterpart.

    A leading `bert.`, which files with a task's head carry, is dropped. The heads
    themselves (`cls.…`) are unknown here: they are no part of the encoder.
    """
    given: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in tensors.items():
        theirs = name.removeprefix("bert.")
        ours = _ours(theirs)
        if ours is not None and ours not in given:
            given[ours] = tensor
        elif theirs not in _BUFFERS:
            unknown.append(name)
    return given, sorted(unknown)


def _ours(theirs: str) -> str | None:
    """One name translated; None if there is no such part."""
    stem, _, leaf = theirs.rpartition(".")
    leaf = _OLD_NORM.get(leaf, leaf) if stem.endswith("LayerNorm") else leaf
    if stem in _OUTSIDE:
        return f"{_OUTSIDE[stem]}.{leaf}"
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", stem)
    if layer and layer[2] in _INSIDE:
        return f"blocks.{layer[1]}.{_INSIDE[layer[2]]}.{leaf}"
    return None


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
