# SPDX-License-Identifier: MIT
"""How does text become numbers? A tokenizer cuts it into pieces that have ids.

Thin over the `tokenizers` library, which reads the `tokenizer.json` that a checkpoint
brings along and trains new ones. What this file adds: padded tensors with a mask of
what is real, a plain error where a text is too long (many such files silently cut), and
the layout of a chat.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

Text = str | tuple[str, str]
Side = Callable[[int, int], slice]

END = "<|endoftext|>"  # GPT-2's name for the piece that ends a text


def pad_right(n: int, T: int) -> slice:
    """Where the n pieces of a text stand in a row of T: at its start.

    Taught in: book/08_gpt.ipynb
    """
    return slice(0, n)


def pad_left(n: int, T: int) -> slice:
    """At its end, so that every text's last piece stands in the last column.

    For generation in batches: the next piece then belongs into the same new column
    for all rows.

    Taught in: book/10_kv_cache.ipynb
    """
    return slice(T - n, T)


class Encoded(NamedTuple):
    """A padded batch: what `Bert.forward` takes, in the same order.

    Shapes:
        ids (B, T) int64, segments (B, T) int64 (0 = first text, 1 = second text of a
        pair), keep (B, T) bool (True = a real token, False = padding)

    Taught in: book/08_gpt.ipynb
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
        pad_id: what fills a row; unless given, the file's own, else 0. It is never
            looked at: `keep` says what is real.
        end_ids: pieces after which a generated text is over.
        side: where padding stands, `pad_right` (before it, the text) or `pad_left`.

    Note:
        Special pieces are recognised in a text, too: "[SEP]" or "<|im_end|>" typed by
        a user is the piece itself.

    Taught in: book/03_multi_head.ipynb, book/08_gpt.ipynb
    """

    def __init__(
        self,
        raw,
        max_len: int | None = None,
        pad_id: int | None = None,
        end_ids: tuple[int, ...] = (),
        side: Side = pad_right,
    ):
        if max_len is not None and max_len < 1:
            raise ValueError(f"max_len must be at least 1, got {max_len}")
        if pad_id is None:
            pad_id = (raw.padding or {}).get("pad_id", raw.token_to_id("[PAD]"))
        self.pad_id: int = 0 if pad_id is None else pad_id
        for i in (self.pad_id, *end_ids):
            if not 0 <= i < raw.get_vocab_size():
                last = raw.get_vocab_size() - 1
                raise ValueError(f"pad and end ids must lie in 0 … {last}, got {i}")
        raw.no_padding()
        raw.no_truncation()
        self.raw = raw
        self.max_len, self.end_ids, self.side = max_len, tuple(end_ids), side

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
            ValueError: no text at all, one without a piece, one longer than `max_len`,
                or a character that the vocabulary does not have.
        """
        rows = [self._pieces(item, i) for i, item in enumerate(_as_list(text))]
        if not rows:
            raise ValueError("expected at least one text, got an empty list")
        B, T = len(rows), max(len(row.ids) for row in rows)
        ids = torch.full((B, T), self.pad_id, dtype=torch.long)
        keep = torch.zeros(B, T, dtype=torch.bool)
        segments = torch.zeros(B, T, dtype=torch.long)
        for b, row in enumerate(rows):
            place = self.side(len(row.ids), T)
            ids[b, place] = torch.tensor(row.ids, dtype=torch.long)
            segments[b, place] = torch.tensor(row.type_ids, dtype=torch.long)
            keep[b, place] = True
        return Encoded(ids, segments, keep)

    def tokens(self, text: Text) -> list[str]:
        """The pieces of one text as strings, special tokens included."""
        return list(self._pieces(text, 0).tokens)

    def id_of(self, piece: str) -> int:
        """The id of one piece, such as "[MASK]".

        Raises:
            ValueError: the vocabulary does not have it.
        """
        found = self.raw.token_to_id(piece)
        if found is None:
            raise ValueError(f"{piece!r} is not in the vocabulary")
        return found

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
        try:
            row = self.raw.encode(*parts)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"text {i} cannot be cut into pieces: {error}") from None
        if not row.ids:
            raise ValueError(f"text {i} has no pieces: {item!r}")
        if self.max_len is not None and len(row.ids) > self.max_len:
            raise ValueError(
                f"text {i} has {len(row.ids)} pieces, special tokens included; "
                f"the limit is {self.max_len}"
            )
        return row


def load_tokenizer(
    path: str | Path, max_len: int | None = None, side: Side = pad_right
) -> Tokenizer:
    """Read a `tokenizer.json`, given the file or the folder that holds it.

    Where the folder says which pieces end a text (`eos_token_id` of
    `generation_config.json` or `config.json`), they become `end_ids`.

    Raises:
        FileNotFoundError: there is no such file.  ValueError: it is damaged.

    Taught in: book/08_gpt.ipynb
    """
    import tokenizers  # not at the top: the library takes a moment to load

    path = Path(path)
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"no tokenizer at {path}")
    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no kind of its own
        raise ValueError(f"{path} is damaged: {error}") from None
    return Tokenizer(raw, max_len, end_ids=_end_ids(path.parent), side=side)


def _end_ids(folder: Path) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            found = json.loads((folder / name).read_text(encoding="utf-8"))
            ends = found.get("eos_token_id")
            if ends is not None:
                return tuple(ends) if isinstance(ends, list) else (ends,)
    return ()


def visible(tokenizer: Tokenizer, i: int) -> str:
    """A piece as readers see it: "·that"; a part of a character as its bytes, "⟨E2⟩".

    A space is written ·, the end of a line ↵, a tabulator ⇥; special pieces as they
    are.

    Args:
        i: the piece's id.

    Raises:
        TypeError: not a `Tokenizer`, or an id that is no integer.
        ValueError: an id outside the vocabulary.

    >>> [visible(byte_tokenizer(), byte) for byte in "a €".encode()]
    ['a', '·', '⟨E2⟩', '⟨82⟩', '⟨AC⟩']

    Taught in: book/08_gpt.ipynb
    """
    if not isinstance(tokenizer, Tokenizer):
        raise TypeError(f"tokenizer must be a Tokenizer, got {tokenizer!r}")
    if not isinstance(i, int) or isinstance(i, bool):
        raise TypeError(f"the id of a piece must be an integer, got {i!r}")
    text = tokenizer.decode([i], skip_special=False)
    text = text.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥")
    if text.isprintable() and text and "\ufffd" not in text:
        return text
    piece = tokenizer.raw.id_to_token(i)
    codes = [_letters().get(letter) for letter in piece]
    if None in codes:
        return piece
    return "⟨" + " ".join(f"{code:02X}" for code in codes) + "⟩"


# ------------------------------------------------------------ other ways to make one


def byte_level_bpe(
    pieces: Sequence[str],
    merges: Sequence[tuple[str, str]],
    special: Sequence[str] = (),
    split_digits: bool = False,
    **how,
) -> Tokenizer:
    """GPT-2's kind of tokenizer from its two lists: any text can be cut, none is lost.

    Text is UTF-8 bytes; words are cut off with their leading space; then the pair of
    neighbours that stands first in `merges` is merged, again and again.

    Args:
        pieces: in the order of their ids, each byte written as one visible character.
        special: those of the pieces that are no text.
        split_digits: every digit on its own, as SmolLM does.
        how: what `Tokenizer` takes.

    Source: Sennrich et al. 2016 (arXiv:1508.07909); Radford et al. 2019, §2.2.

    Taught in: book/08_gpt.ipynb
    """
    from tokenizers import AddedToken, models, pre_tokenizers

    ids = {piece: i for i, piece in enumerate(pieces)}
    raw = _byte_level(models.BPE(ids, list(merges)))
    raw.add_special_tokens([AddedToken(s, normalized=False) for s in special])
    if split_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        raw.pre_tokenizer = pre_tokenizers.Sequence([digits, raw.pre_tokenizer])
    return Tokenizer(raw, **how)


def train_bpe(
    texts: Iterable[str], vocab_size: int, special: Sequence[str] = (END,), **how
) -> Tokenizer:
    """Learn a byte-level BPE from texts: merge the most frequent pair, and again.

    Args:
        vocab_size: at most this many pieces: the special ones, 256 bytes, merges.
        special: the first of them ends a text and fills rows.
        how: what `Tokenizer` takes.

    Raises:
        ValueError: vocab_size has no room for the bytes and the special pieces.

    >>> tokenizer = train_bpe(["low lower lowest"] * 3, vocab_size=260)
    >>> tokenizer.tokens("low tide")
    ['low', 'Ġ', 't', 'i', 'd', 'e']

    Taught in: book/08_gpt.ipynb
    """
    from tokenizers import models, pre_tokenizers, trainers

    least = 256 + len(special)
    if vocab_size < least:
        raise ValueError(f"vocab_size must be at least {least}, got {vocab_size}")
    raw = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_texts(texts), trainer)
    ends = {"pad_id": 0, "end_ids": (0,)} if special else {}
    return Tokenizer(raw, **(ends | how))


def train_wordpiece(texts: Iterable[str], vocab_size: int, **how) -> Tokenizer:
    """Learn BERT's kind of tokenizer from texts: lower case, [CLS] … [SEP] around.

    A word is cut into the longest pieces from its start; what continues a word begins
    with ##. A word with a character that the texts lacked is [UNK].

    Source: Schuster & Nakajima 2012; Devlin et al. 2018, §3.

    Taught in: book/07_bert.ipynb
    """
    from tokenizers import Tokenizer as Library
    from tokenizers import (
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if vocab_size <= len(special):
        raise ValueError(f"vocab_size must be above {len(special)}, got {vocab_size}")
    raw = Library(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, special_tokens=special, show_progress=False
    )
    raw.train_from_iterator(_texts(texts), trainer)
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(s, raw.token_to_id(s)) for s in ("[CLS]", "[SEP]")],
    )
    return Tokenizer(raw, **how)


def character_tokenizer(texts: Iterable[str], **how) -> Tokenizer:
    """One id for each character of the texts, in the characters' own order.

    >>> tokenizer = character_tokenizer(["cats chase mice"])
    >>> tokenizer.encode("ice").ids.tolist()
    [[5, 2, 3]]

    Taught in: book/08_gpt.ipynb
    """
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    characters = sorted({c for text in _texts(texts) for c in text})
    ids = {c: i for i, c in enumerate(characters)}
    raw = Library(models.WordLevel(ids, unk_token="none"))  # not there: an error
    raw.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    raw.decoder = decoders.Fuse()
    return Tokenizer(raw, **how)


def byte_tokenizer(special: Sequence[str] = (), **how) -> Tokenizer:
    """No training at all: the ids are the UTF-8 bytes, special pieces come after 255.

    >>> byte_tokenizer().encode("né").ids.tolist()
    [[110, 195, 169]]

    Taught in: book/08_gpt.ipynb
    """
    from tokenizers import models

    raw = _byte_level(models.BPE(_letters(), []), words=False)
    raw.add_special_tokens(list(special))
    return Tokenizer(raw, **how)


def glassllm_tokenizer(path: str | Path, **how) -> Tokenizer:
    """The tokenizer of the packaged models `glassllm`: BPE over characters.

    Its file lists an alphabet and the merges; a space is written ▁ and belongs to the
    word after it.

    Raises:
        FileNotFoundError: there is no such file.  ValueError: another version of it.

    Taught in: book/08_gpt.ipynb
    """
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    found = json.loads(Path(path).read_text(encoding="utf-8"))
    if found.get("version") != 1 or not {"alphabet", "merges"} <= found.keys():
        raise ValueError(f"{path} is no glassllm tokenizer of version 1")
    special = ["<pad>", "<unk>", "<bos>", "<eos>"]
    merges = [(a, b) for a, b in found["merges"]]
    pieces = [*special, *found["alphabet"], *(a + b for a, b in merges)]
    ids = {piece: i for i, piece in enumerate(pieces)}
    raw = Library(models.BPE(ids, merges, unk_token="<unk>"))
    space = normalizers.Replace(" ", "▁")
    raw.normalizer = normalizers.Sequence([normalizers.NFC(), space])
    chunks = Regex(r"\n|▁*[^▁\n]+|▁+")
    raw.pre_tokenizer = pre_tokenizers.Split(chunks, "isolated")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
    raw.add_special_tokens([s for s in special if s != "<unk>"])
    return Tokenizer(raw, **({"pad_id": 0, "end_ids": (3,)} | how))


# ------------------------------------------------------------------------------ chat

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat_prompt(
    messages: Sequence[Mapping[str, str]], answer: bool = True, system: str = _SYSTEM
) -> str:
    """Lay out a conversation as SmolLM2 was trained to read it.

    Each turn stands between <|im_start|> and <|im_end|>, after the name of its role; a
    system message comes first, the model's usual one if none is given.

    Args:
        messages: `{"role": "user", "content": "Hello"}` and so on, oldest first.
        answer: open the assistant's turn, for the model to fill in.

    Raises:
        TypeError: a message is no mapping of these two keys to text.
        ValueError: no message.

    >>> print(chat_prompt([{"role": "user", "content": "Hi"}], system="Be brief."))
    <|im_start|>system
    Be brief.<|im_end|>
    <|im_start|>user
    Hi<|im_end|>
    <|im_start|>assistant
    <BLANKLINE>

    Taught in: book/12_grouped_query_attention.ipynb
    """
    turns = []
    for i, message in enumerate(messages):
        known = isinstance(message, Mapping) and message.keys() == {"role", "content"}
        if not known or not all(isinstance(v, str) for v in message.values()):
            raise TypeError(
                f"message {i} must have the texts 'role' and 'content', got {message!r}"
            )
        turns.append((message["role"], message["content"]))
    if not turns:
        raise ValueError("expected at least one message, got none")
    if turns[0][0] != "system":
        turns.insert(0, ("system", system))
    text = "".join(f"<|im_start|>{role}\n{said}<|im_end|>\n" for role, said in turns)
    return text + ("<|im_start|>assistant\n" if answer else "")


@cache
def _letters() -> dict[str, int]:
    """The 256 letters in which GPT-2 writes bytes, each with its byte."""
    from tokenizers import pre_tokenizers

    own = {ord(c) for c in pre_tokenizers.ByteLevel.alphabet() if ord(c) < 256}
    others = [byte for byte in range(256) if byte not in own]
    letters = {chr(byte): byte for byte in own}
    return letters | {chr(256 + i): byte for i, byte in enumerate(others)}


def _byte_level(model, words: bool = True):
    """A library tokenizer whose pieces are bytes, with or without GPT-2's words."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, pre_tokenizers

    raw = Library(model)
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=words
    )
    raw.decoder = decoders.ByteLevel()
    return raw


def _texts(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise TypeError(f"expected several texts, got {texts!r:.60}")
    return texts


def _as_list(text) -> list:
    if isinstance(text, (str, tuple)):
        return [text]
    if not isinstance(text, Iterable):
        raise TypeError(f"expected text or a list of texts, got {text!r}")
    return list(text)
