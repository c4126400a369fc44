# SPDX-License-Identifier: MIT
"""How is llama.cpp given our weights, and asked for the numbers of one step?

The package xllamacpp carries llama.cpp's library with its C functions; here they are
called as they are. A Llama is written into a GGUF file first, with its matrices in
float32 or in q8_0: blocks of 32 numbers of 8 bits with one scale.

    Used by benchmarks/speed/decode_int8.py
"""

import ctypes
import struct
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from deepdive.models.llama import Llama

ALIGN = 32
F32, Q8_0 = 0, 8  # kinds of tensor
UINT32, FLOAT32, STRING = 4, 6, 8  # kinds of metadata
BLOCK = 32


class Settings(ctypes.Structure):
    """llama.cpp's settings, of which only the first numbers are known here."""

    _fields_ = [("numbers", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    """Tokens with their places in their texts."""

    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class LlamaCpp:
    """A Llama in llama.cpp, on one thread.

    Args:
        model: half-split, tied; its weights are written to a file that is read again.
        kind: of its matrices.
        texts: how many are read side by side.

    Raises:
        OSError: the package, or what is asked of it, is not there.
    """

    def __init__(self, model: Llama, kind: int, texts: int):
        self.library, self.size = library(), model.config.vocab_size
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(path, model, kind)
            settings = self.library.llama_model_default_params()
            self.model = self.library.llama_model_load_from_file(
                str(path).encode(), settings
            )
        if not self.model:
            raise OSError("llama.cpp refused the file")
        settings = self.library.llama_context_default_params()
        if list(settings.numbers[:4]) != [512, 2048, 512, 1]:
            raise OSError("llama.cpp has other settings than expected")
        settings.numbers[0], settings.numbers[3] = 256 * texts, texts
        self.context = self.library.llama_init_from_model(self.model, settings)
        if not self.context:
            raise OSError("llama.cpp made no context")
        self.library.llama_set_n_threads(self.context, 1, 1)
        self.batch = self.library.llama_batch_init(512, 0, 1)

    def __call__(self, ids: Tensor, start: int) -> Tensor:
        """Read ids (B, T), the first at place `start`: the last logits (B, V)."""
        B, T = ids.shape
        batch, last = self.batch, []
        for i, (b, t) in enumerate((b, t) for b in range(B) for t in range(T)):
            batch.token[i], batch.pos[i] = int(ids[b, t]), start + t
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, b
            batch.logits[i] = t == T - 1
            if t == T - 1:
                last.append(i)
        batch.n_tokens = B * T
        if self.library.llama_decode(self.context, batch):
            raise OSError("llama.cpp did not read the words")
        rows = [self.library.llama_get_logits_ith(self.context, i) for i in last]
        return torch.stack(
            [
                torch.from_numpy(np.ctypeslib.as_array(row, (self.size,)).copy())
                for row in rows
            ]
        )

    def truncate(self, n: int) -> None:
        """Forget all but the first n words of every text."""
        memory = self.library.llama_get_memory(self.context)
        self.library.llama_memory_seq_rm(memory, -1, n, -1)

    def __del__(self):
        if getattr(self, "context", None):
            self.library.llama_batch_free(self.batch)
            self.library.llama_free(self.context)
        if getattr(self, "model", None):
            self.library.llama_model_free(self.model)


def library() -> ctypes.CDLL:
    """llama.cpp's functions, with what they give back.

    Raises:
        OSError: the package xllamacpp is not installed, or has no such functions.
    """
    found = find_spec("xllamacpp")
    if found is None:
        raise OSError("xllamacpp is not installed")
    (path,) = Path(found.origin).parent.glob("xllamacpp*.so")
    calls = ctypes.CDLL(str(path))
    pointer, integer = ctypes.c_void_p, ctypes.c_int32
    kinds: dict[str, tuple] = {
        "llama_model_default_params": (Settings, ()),
        "llama_context_default_params": (Settings, ()),
        "llama_model_load_from_file": (pointer, (ctypes.c_char_p, Settings)),
        "llama_init_from_model": (pointer, (pointer, Settings)),
        "llama_set_n_threads": (None, (pointer, integer, integer)),
        "llama_batch_init": (Batch, (integer, integer, integer)),
        "llama_batch_free": (None, (Batch,)),
        "llama_decode": (integer, (pointer, Batch)),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), (pointer, integer)),
        "llama_get_memory": (pointer, (pointer,)),
        "llama_memory_seq_rm": (ctypes.c_bool, (pointer, integer, integer, integer)),
        "llama_free": (None, (pointer,)),
        "llama_model_free": (None, (pointer,)),
        "llama_log_set": (None, (pointer, pointer)),
    }
    for name, (gives, takes) in kinds.items():
        try:
            call = getattr(calls, name)
        except AttributeError as error:
            raise OSError(f"xllamacpp has no {name}") from error
        call.restype, call.argtypes = gives, takes
    calls.llama_log_set(ctypes.cast(_SILENT, pointer), None)
    return calls


_SILENT = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
    lambda level, text, data: None
)


# The file


def write_gguf(path: Path, model: Llama, kind: int) -> None:
    """Write a Llama whose rotary pairs are half-split, in GGUF's order of pairs."""
    c = model.config
    about = {
        "general.architecture": "llama",
        "general.alignment": ALIGN,
        "llama.vocab_size": c.vocab_size,
        "llama.context_length": c.max_seq_len,
        "llama.embedding_length": c.d_model,
        "llama.block_count": c.n_layers,
        "llama.feed_forward_length": c.d_ff,
        "llama.attention.head_count": c.n_heads,
        "llama.attention.head_count_kv": c.n_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": float(c.norm_eps),
        "llama.rope.freq_base": float(c.rope_base),
        "llama.rope.dimension_count": c.d_model // c.n_heads,
        "tokenizer.ggml.model": "no_vocab",
    }
    tensors = {name: _packed(w, kind) for name, w in _their_names(model).items()}
    head, offset = [], 0
    for name, (shape, its, data) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_text(name) + sizes + struct.pack("<IQ", its, offset))
        offset += len(data) + -len(data) % ALIGN
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(about)))
        for key, value in about.items():
            file.write(_text(key) + _value(value))
        file.writelines(head)
        file.write(b"\0" * (-file.tell() % ALIGN))
        for _, _, data in tensors.values():
            file.write(data + b"\0" * (-len(data) % ALIGN))


def _their_names(model: Llama) -> dict[str, Tensor]:
    """The weights under GGUF's names; queries and keys in its order of pairs."""
    H, G = model.config.n_heads, model.config.n_kv_heads
    found = {"token_embd.weight": model.token.weight}
    found["output_norm.weight"] = model.norm.weight
    for i, block in enumerate(model.blocks):
        mine = {
            "attn_norm": block.attention_norm.weight,
            "attn_q": _pairs(block.attention.q_proj.weight, H),
            "attn_k": _pairs(block.attention.k_proj.weight, G),
            "attn_v": block.attention.v_proj.weight,
            "attn_output": block.attention.o_proj.weight,
            "ffn_norm": block.feedforward_norm.weight,
            "ffn_gate": block.feedforward.gate.weight,
            "ffn_up": block.feedforward.up.weight,
            "ffn_down": block.feedforward.down.weight,
        }
        found |= {f"blk.{i}.{name}.weight": w for name, w in mine.items()}
    return found


def _pairs(weight: Tensor, heads: int) -> Tensor:
    """Rows that turn together, side by side."""
    out, width = weight.shape
    halves = weight.view(heads, 2, out // heads // 2, width)
    return halves.transpose(1, 2).reshape(out, width)


def _packed(weight: Tensor, kind: int) -> tuple[tuple[int, ...], int, bytes]:
    """Shape, kind and bytes; vectors stay float32."""
    x = weight.detach().float().numpy()
    if x.ndim == 1 or kind == F32:
        return x.shape, F32, x.tobytes()
    blocks = x.reshape(-1, BLOCK)
    scales = np.abs(blocks).max(1, keepdims=True) / 127
    whole = np.rint(blocks / np.maximum(scales, 1e-30)).astype(np.int8)
    made = np.empty(len(blocks), [("scale", "<f2"), ("whole", "i1", BLOCK)])
    made["scale"], made["whole"] = scales[:, 0], whole
    return x.shape, Q8_0, made.tobytes()


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: str | int | float) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    return struct.pack("<II", UINT32, value)


def step(model: LlamaCpp, ids: Tensor, behind: int) -> Callable[[], Tensor]:
    """Write the last ids one by one behind the first: the logits of the last."""
    model(ids[:, :behind], 0)

    def call() -> Tensor:
        for i in range(behind, ids.shape[1]):
            logits = model(ids[:, i : i + 1], i)
        model.truncate(behind)
        return logits

    return call
