# SPDX-License-Identifier: MIT
"""Text in: a trained tokenizer turns words into the ids that a model was trained on.

Thin over the `tokenizers` library, which reads the `tokenizer.json` that a checkpoint
brings along. What this file adds: padded tensors with a mask of what is real, and a
plain error where a text is too long (many such files silently cut).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

Text = str | tuple[str, str]


class Encoded(NamedTuple):
    """A padded batch: what `Bert.forward` takes, in the same order.

    Shapes:
        ids (B, T) int64, segments (B, T) int64 (0 = first text, 1 = second text of a
        pair), keep (B, T) bool (True = a real token, False = padding)
    """

    ids: torch.Tensor
    segments: torch.Tensor
    keep: torch.Tensor


class Tokenizer:
    """A tokenizer read from a file, without that file's own padding and cutting.

    Args:
        raw: a `tokenizers.Tokenizer`. Its padding and truncation are switched off:
            MiniLM's file, for one, pads every text to 128 pieces and cuts there.
        max_len: refuse texts with more pieces than this; None leaves it to the model.

    Taught in: book/03_multi_head.ipynb
    """

    def __init__(self, raw, max_len: int | None = None):
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len must be at least 1, got {max_len}")
        padding = raw.padding or {}
        pad_id = padding.get("pad_id", raw.token_to_id("[PAD]"))
        self.pad_id: int = 0 if pad_id is None else pad_id
        raw.no_padding()
        raw.no_truncation()
        self.raw = raw
        self.max_len = max_len

    @property
    def vocab_size(self) -> int:
        """How many different pieces there are."""
        return self.raw.get_vocab_size()

    def encode(self, text: Text | Iterable[Text]) -> Encoded:
        """Turn one text, or several, into one padded batch.

        Args:
            text: a string, a pair of strings (two segments), or a list of these.

        Shapes:
            → ids, segments, keep, each (B, T); T is the longest text's length

        Raises:
            TypeError: an item is not text.
            ValueError: no text at all, or one longer than `max_len`.
        """
        rows = [self._pieces(item, i) for i, item in enumerate(_as_list(text))]
        if not rows:
            raise ValueError("expected at least one text, got an empty list")
        B, T = len(rows), max(len(row.ids) for row in rows)
        ids = torch.full((B, T), self.pad_id, dtype=torch.long)
        keep = torch.zeros(B, T, dtype=torch.bool)
        segments = torch.zeros(B, T, dtype=torch.long)
        for b, row in enumerate(rows):
            n = len(row.ids)
            ids[b, :n] = torch.tensor(row.ids, dtype=torch.long)
            segments[b, :n] = torch.tensor(row.type_ids, dtype=torch.long)
            keep[b, :n] = True
        return Encoded(ids, segments, keep)

    def tokens(self, text: Text) -> list[str]:
        """The pieces of one text as strings, special tokens included."""
        return list(self._pieces(text, 0).tokens)

    def decode(self, ids: Sequence[int] | torch.Tensor, skip_special=True) -> str:
        """Join the pieces of one row of ids to a text again.

        Raises:
            ValueError: ids has more than one row, or an id is outside the vocabulary.
        """
        ids = torch.as_tensor(ids, dtype=torch.long)
        if ids.dim() != 1:
            raise ValueError(f"expected one row of ids, got shape {tuple(ids.shape)}")
        row = ids.tolist()
        for i in row:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is not in 0 … {self.vocab_size - 1}")
        return self.raw.decode(row, skip_special_tokens=skip_special)

    def _pieces(self, item: Text, i: int):
        pair = isinstance(item, tuple)
        parts = item if pair else (item,)
        if len(parts) > 2 or not all(isinstance(p, str) for p in parts):
            raise TypeError(f"text {i}: expected a string or a pair, got {item!r}")
        # One at a time: the library's batch call starts threads, and then warns at
        # every later fork.
        row = self.raw.encode(*parts)
        if self.max_len is not None and len(row.ids) > self.max_len:
            raise ValueError(
                f"text {i} has {len(row.ids)} pieces, special tokens included; "
                f"the limit is {self.max_len}"
            )
        return row


def load_tokenizer(path: str | Path, max_len: int | None = None) -> Tokenizer:
    """Read a `tokenizer.json`, given the file or the folder that holds it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    import tokenizers  # not at the top: the library takes a moment to load

    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer at {path}")
    return Tokenizer(tokenizers.Tokenizer.from_file(str(path)), max_len)


def _as_list(text) -> list:
    if isinstance(text, (str, tuple)):
        return [text]
    if not isinstance(text, Iterable):
        raise TypeError(f"expected text or a list of texts, got {text!r}")
    return list(text)
