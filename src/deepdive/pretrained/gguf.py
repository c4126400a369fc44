# SPDX-License-Identifier: MIT
"""How are weights stored in 4 bits, and how does one get them back?

A GGUF file is one file for everything: named settings (sizes, tokenizer, licence), then
a table of tensors, then their bytes. A quantised tensor is a row of blocks of 32
weights, each block with a scale d of its own, and sometimes a least value m:

    Q8_0  w = d·q,        q in −128 … 127       34 bytes for 32 weights
    Q4_0  w = d·(q − 8),  q in 0 … 15           18
    Q4_1  w = d·q + m,    q in 0 … 15           20

Source: the format's description in ggml's repository, docs/gguf.md, versions 2 and 3.

Taught in: book/08_gpt.ipynb
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deepdive.tokenizers import Tokenizer, byte_level_bpe

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {  # value types by their number in the file; 8 is a string, 9 an array
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_BLOCK = 32  # weights
_Q8_0 = np.dtype([("d", "<f2"), ("q", "i1", _BLOCK)])
_Q4_0 = np.dtype([("d", "<f2"), ("q", "u1", _BLOCK // 2)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", _BLOCK // 2)])


class Kind(NamedTuple):
    """A way to store weights: its name, one block of it, and the way back to float."""

    name: str
    block: np.dtype
    weights: int  # in a block
    unpack: Callable[[np.ndarray], np.ndarray]


def _plain(blocks: np.ndarray) -> np.ndarray:
    return blocks.astype("f4")


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks["q"] * blocks["d"].astype("f4")[:, None]  # (blocks, 32)


def _nibbles(q: np.ndarray) -> np.ndarray:
    """Bytes → 4-bit numbers: the low halves are weights 0 … 15, the high 16 … 31."""
    out = np.empty((len(q), _BLOCK), "f4")
    np.bitwise_and(q, 15, out=out[:, : _BLOCK // 2], casting="unsafe")
    np.right_shift(q, 4, out=out[:, _BLOCK // 2 :], casting="unsafe")
    return out


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    out = _nibbles(blocks["q"])  # (blocks, 32)
    out -= 8
    out *= blocks["d"].astype("f4")[:, None]
    return out


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    out = _nibbles(blocks["q"])  # (blocks, 32)
    out *= blocks["d"].astype("f4")[:, None]
    out += blocks["m"].astype("f4")[:, None]
    return out


_KINDS = {
    0: Kind("F32", np.dtype("<f4"), 1, _plain),
    1: Kind("F16", np.dtype("<f2"), 1, _plain),
    2: Kind("Q4_0", _Q4_0, _BLOCK, _q4_0),
    3: Kind("Q4_1", _Q4_1, _BLOCK, _q4_1),
    8: Kind("Q8_0", _Q8_0, _BLOCK, _q8_0),
}
_UNREAD = {  # names for the message; no file that this book meets holds them
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K",
    14: "Q6_K", 15: "Q8_K", 30: "BF16",
}  # fmt: skip


class Packed(NamedTuple):
    """One tensor of the file: how it is stored, how large it is, where it begins."""

    kind: Kind
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) // self.kind.weights * self.kind.block.itemsize


class GgufTensors(Mapping[str, Tensor]):
    """The tensors of a file by name; each is unpacked to float32 when it is asked for.

    Nothing is kept: asking twice unpacks twice. `packed` tells how one is stored.
    """

    def __init__(self, data: np.ndarray, packed: Mapping[str, Packed]):
        self._data, self.packed = data, dict(packed)

    def __getitem__(self, name: str) -> Tensor:
        kind, shape, start = found = self.packed[name]
        blocks = self._data[start : start + found.nbytes].view(kind.block)
        return torch.from_numpy(kind.unpack(blocks)).view(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)


class Gguf(NamedTuple):
    """What a file holds: its settings, and its tensors under the names it uses."""

    metadata: dict[str, Any]
    tensors: GgufTensors


def read_gguf(path: str | Path) -> Gguf:
    """Read a GGUF file; the weights stay on disk until they are asked for.

    Shapes:
        as PyTorch has them: a matrix is (out, in); the file lists them the other way

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not GGUF, another version of it, cut short, or a tensor is stored
            in a way that is not read here (the message names both).

    Taught in: book/11_rope.ipynb
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    size = path.stat().st_size
    data = np.memmap(path, "u1", mode="r") if size else np.empty(0, "u1")
    read = _Reader(path, data)
    if read.bytes(4) != _MAGIC:
        raise ValueError(f"{path} is not a GGUF file")
    version = read.number("<u4")
    if version not in _VERSIONS:
        raise ValueError(f"{path} is GGUF version {version}; versions 2 and 3 are read")
    n_tensors, n_settings = read.number("<u8"), read.number("<u8")
    metadata = {}
    for _ in range(n_settings):
        name = read.string()
        metadata[name] = read.value(read.number("<u4"))
    table = [read.entry() for _ in range(n_tensors)]
    align = metadata.get("general.alignment", 32)
    if not isinstance(align, int) or align < 1:
        raise ValueError(f"{path}: general.alignment is {align!r}")
    begin = -(-read.at // align) * align
    packed = {
        name: Packed(kind, shape, begin + start) for name, kind, shape, start in table
    }
    if len(packed) != n_tensors:
        raise ValueError(f"{path} holds a tensor twice")
    for name, tensor in packed.items():
        if tensor.start + tensor.nbytes > size:
            raise ValueError(f"{path} ends at byte {size}, inside tensor {name}")
    return Gguf(metadata, GgufTensors(data, packed))


class _Reader:
    """Reads a file's head value by value, and says so when it ends too early."""

    def __init__(self, path: Path, data: np.ndarray):
        self.path, self.data, self.at = path, memoryview(data), 0

    def bytes(self, n: int) -> memoryview:
        if n > len(self.data) - self.at:
            raise ValueError(
                f"{self.path} ends at byte {len(self.data)}, inside its head"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, kind: str) -> int | float | bool:
        return self.numbers(kind, 1)[0]

    def numbers(self, kind: str, n: int) -> list:
        of = np.dtype(kind)
        return np.frombuffer(self.bytes(n * of.itemsize), of).tolist()

    def string(self) -> str:
        raw = bytes(self.bytes(self.number("<u8")))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path}: {error}") from None

    def value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            raise ValueError(f"{self.path} holds a value of unknown type {kind}")
        of, n = self.number("<u4"), self.number("<u8")
        if of in _NUMBERS:
            return self.numbers(_NUMBERS[of], n)
        if of == _ARRAY:
            raise ValueError(f"{self.path} holds an array of arrays")
        return [self.value(of) for _ in range(n)]

    def entry(self) -> tuple[str, Kind, tuple[int, ...], int]:
        """One line of the table of tensors: name, kind, shape, where it begins."""
        name = self.string()
        shape = tuple(reversed(self.numbers("<u8", self.number("<u4"))))
        number, start = self.number("<u4"), self.number("<u8")
        if number not in _KINDS:
            known = ", ".join(kind.name for kind in _KINDS.values())
            raise ValueError(
                f"{self.path}: {name} is stored as {_UNREAD.get(number, 'type')} "
                f"({number}), which is not read here (known: {known})"
            )
        kind = _KINDS[number]
        if not shape or min(shape) < 1 or shape[-1] % kind.weights:
            raise ValueError(f"{self.path}: {name} has shape {shape} as {kind.name}")
        return name, kind, shape, start


_CONTROL = 3  # token_type: written by the template, never by a reader's text


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer that a GGUF file carries in its settings.

    Raises:
        ValueError: another kind of tokenizer, or another way to cut text into words
            before the pairs are merged, than GPT-2's (`gpt-2`) and SmolLM's (`smollm`:
            every digit on its own); or a setting is missing.

    Taught in: book/08_gpt.ipynb
    """
    name = "tokenizer.ggml."
    needed = ("model", "pre", "tokens", "merges", "token_type")
    if missing := [key for key in needed if name + key not in metadata]:
        raise ValueError(
            f"no {', '.join(name + key for key in missing)} in the settings"
        )
    model, pre, tokens, merges, kinds = (metadata[name + key] for key in needed)
    if model != "gpt2" or pre not in ("gpt-2", "smollm"):
        raise ValueError(
            f"tokenizer {model!r} with pre-tokenizer {pre!r} is not read here (known: "
            "'gpt2' with 'gpt-2' or 'smollm')"
        )
    if metadata.get(name + "add_bos_token"):
        raise ValueError(
            f"{name}add_bos_token is set; such a tokenizer is not read here"
        )
    ends = [metadata.get(f"{name}{key}_token_id") for key in ("eos", "eot")]
    return byte_level_bpe(
        tokens,
        [tuple(pair.split(" ")) for pair in merges],
        special=[t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL],
        split_digits=pre == "smollm",
        pad_id=metadata.get(name + "padding_token_id", 0),
        end_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
    )
