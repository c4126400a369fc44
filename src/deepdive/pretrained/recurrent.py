# SPDX-License-Identifier: MIT
"""Two trained recurrent networks without attention, in this book's own classes.

`g2p` turns the spelling of an English word into its sounds, `cn2en` translates short
Chinese sentences into English. Both squeeze their whole source into one vector of 256
numbers; longer sentences show what that costs.

Taught in: book/01_recurrence.ipynb
"""

import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from deepdive.pretrained.files import find
from deepdive.pretrained.huggingface import load_into, renamed, unfilled
from deepdive.pretrained.pickles import load_pickle, load_tensors
from deepdive.recurrent import Decoder, Encoder, GruCell, Seq2Seq

_WIDTH = 256  # of every vector in both models

_G2P_NAMES = {
    "enc_emb": "encoder.embedding.weight",
    "dec_emb": "decoder.embedding.weight",
    "fc_w": "decoder.head.weight",
    "fc_b": "decoder.head.bias",
} | {
    f"{side}_{theirs}": f"{part}.cell.{ours}"
    for side, part in (("enc", "encoder"), ("dec", "decoder"))
    for theirs, ours in (
        ("w_ih", "x_proj.weight"),
        ("w_hh", "h_proj.weight"),
        ("b_ih", "x_proj.bias"),
        ("b_hh", "h_proj.bias"),
    )
}

_CN2EN_NAMES = {"decoder.out": "decoder.head"} | {
    f"{part}.{theirs}": f"{part}.{ours}"
    for part in ("encoder", "decoder")
    for theirs, ours in (
        ("embedding", "embedding"),
        ("gru.weight_ih_l0", "cell.x_proj.weight"),
        ("gru.weight_hh_l0", "cell.h_proj.weight"),
        ("gru.bias_ih_l0", "cell.x_proj.bias"),
        ("gru.bias_hh_l0", "cell.h_proj.bias"),
    )
}

_VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW"
_CONSONANTS = "B CH D DH F G HH JH K L M N NG P R S SH T TH V W Y Z ZH"


@dataclass(frozen=True)
class Vocabulary:
    """Words, letters or sounds by number.

    Attributes:
        words: the one with number i stands at place i.
        start, end: the numbers that open and close a target.
        unknown: the number of what is not in the list; None leaves it out.

    Taught in: book/01_recurrence.ipynb
    """

    words: tuple[str, ...]
    start: int
    end: int
    unknown: int | None = None

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _number(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def ids(self, pieces: Iterable[str]) -> list[int]:
        """Their numbers, and the end: what an encoder reads."""
        found = [self._number.get(piece, self.unknown) for piece in pieces]
        return [i for i in found if i is not None] + [self.end]

    def text(self, ids: Iterable[int]) -> str:
        """The words of some numbers, with spaces between them, up to the end."""
        words = []
        for i in ids:
            if i == self.end:
                break
            words.append(self.words[i])
        return " ".join(words)


def g2p() -> tuple[Seq2Seq, Vocabulary, Vocabulary]:
    """A trained speller of sounds: the model, its letters, its phonemes.

    A GRU that reads letters and a GRU that writes phonemes of the CMU dictionary, with
    the stress as a digit; 834,890 weights. Use it by `pronounce`.

    Raises:
        WeightsMissing: the files are not on this machine; the message says what to do.
        ValueError: they do not hold this model; the message lists why.

    Taught in: book/01_recurrence.ipynb
    """
    return load_g2p(find("g2p"))


def load_g2p(folder: str | Path) -> tuple[Seq2Seq, Vocabulary, Vocabulary]:
    """The same, from the folder that holds `checkpoint20.npz`."""
    path = Path(folder) / "checkpoint20.npz"
    letters = Vocabulary(
        ("<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"), 2, 2, unknown=1
    )
    phonemes = Vocabulary(("<pad>", "<unk>", "<s>", "</s>", *_phonemes()), 2, 3)
    model = unfilled(lambda: _model(len(letters), len(phonemes)))
    given = renamed(_arrays(path), _G2P_NAMES)
    return load_into(model, given, path), letters, phonemes


def cn2en() -> tuple[Seq2Seq, Vocabulary, Vocabulary]:
    """A trained translator of short sentences: the model, its Chinese, its English.

    A GRU that reads characters and a GRU that writes words; 4,614,076 weights. The
    decoder alone applies a ReLU to its embeddings. Use it by `translate`.

    Raises:
        WeightsMissing: the files are not on this machine; the message says what to do.
        ValueError: they do not hold this model; the message lists why.

    Taught in: book/01_recurrence.ipynb
    """
    return load_cn2en(find("cn2en"))


def load_cn2en(folder: str | Path) -> tuple[Seq2Seq, Vocabulary, Vocabulary]:
    """The same, from the folder that holds `model.pth` and the two word lists."""
    folder = Path(folder)
    chinese, english = (
        _word_list(folder / f"{s}_lang.pkl") for s in ("input", "output")
    )
    model = unfilled(lambda: _model(len(chinese), len(english), nn.ReLU()))
    path = folder / "model.pth"
    given = renamed(_flat(load_tensors(path), path), _CN2EN_NAMES)
    return load_into(model, given, path), chinese, english


def pronounce(
    model: Seq2Seq, letters: Vocabulary, phonemes: Vocabulary, words: Sequence[str]
) -> list[str]:
    """The sounds of each word, such as "AH0 T EH1 N SH AH0 N", greedily.

    Words are read letter by letter in lower case; a letter that is not a–z is read as
    the unknown one. At most 20 phonemes are written, as in the package.

    Taught in: book/01_recurrence.ipynb
    """
    sources = [letters.ids(word.lower()) for word in _texts("words", words)]
    return [phonemes.text(ids) for ids in _greedy(model, sources, phonemes, 20)]


def translate(
    model: Seq2Seq, chinese: Vocabulary, english: Vocabulary, sentences: Sequence[str]
) -> list[str]:
    """Each sentence in English, greedily, with at most 100 words.

    Sentences are read character by character (Latin words whole); a character that the
    model does not know is left out.

    Taught in: book/01_recurrence.ipynb
    """
    cut = [
        re.findall(r"[a-z'\"]+|[^a-z'\"\s]", sentence.lower())
        for sentence in _texts("sentences", sentences)
    ]
    sources = [chinese.ids(pieces) for pieces in cut]
    return [english.text(ids) for ids in _greedy(model, sources, english, 100)]


@torch.no_grad()
def _greedy(
    model: Seq2Seq, sources: list[list[int]], target: Vocabulary, limit: int
) -> list[list[int]]:
    """The likeliest next word again and again, all rows side by side."""
    device = next(model.parameters()).device
    longest = max(map(len, sources))
    src = torch.tensor([s + [0] * (longest - len(s)) for s in sources], device=device)
    lengths = torch.tensor([[len(s)] for s in sources], device=device)
    step = model.start(src, torch.arange(longest, device=device) < lengths)
    tokens = torch.full((len(sources), 1), target.start, device=device)
    written: list[Tensor] = []
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    while len(written) < limit and not ended.all():
        tokens = step(tokens).argmax(dim=-1)  # (B, 1)
        ended |= tokens == target.end
        written.append(tokens)
    return torch.cat(written, dim=1).tolist()


def _model(
    n_source: int, n_target: int, activation: nn.Module | None = None
) -> Seq2Seq:
    return Seq2Seq(
        Encoder(nn.Embedding(n_source, _WIDTH), GruCell(_WIDTH, _WIDTH)),
        Decoder(
            nn.Embedding(n_target, _WIDTH),
            GruCell(_WIDTH, _WIDTH),
            nn.Linear(_WIDTH, n_target),
            activation=activation,
        ),
    )


def _phonemes() -> list[str]:
    """The CMU dictionary's 70 sounds in alphabetic order; vowels carry a stress."""
    stressed = [vowel + stress for vowel in _VOWELS.split() for stress in "012"]
    return sorted([*stressed, *_CONSONANTS.split(), "UW"])


def _arrays(path: Path) -> dict[str, Tensor]:
    """All arrays of a `.npz`; numbers only, a pickle inside is refused."""
    if not path.is_file():
        raise FileNotFoundError(f"no {path.name} in {path.parent}")
    try:
        with np.load(path, allow_pickle=False) as held:
            return {name: torch.from_numpy(held[name]) for name in held.files}
    except (ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _flat(held: Any, path: Path) -> dict[str, Tensor]:
    """{"encoder": {name: tensor}, "loss": 2.6, …} → {"encoder.name": tensor, …}."""
    if not isinstance(held, dict):
        raise ValueError(f"{path} must hold a dict, got {type(held).__name__}")
    flat = {}
    for part, inside in held.items():
        if isinstance(inside, float):  # the loss and the learning rate of its training
            continue
        named = inside if isinstance(inside, dict) else {"": inside}
        flat |= {f"{part}.{name}": tensor for name, tensor in named.items()}
    if odd := [name for name, tensor in flat.items() if not isinstance(tensor, Tensor)]:
        raise ValueError(f"{path} must hold tensors, and these are none: {odd}")
    return flat


class _Lang:
    """Stands for the package's class of a word list; its code is never imported."""


def _word_list(path: Path) -> Vocabulary:
    """The package's pickled word list: number 0 starts, number 1 ends."""
    held = load_pickle(path, {"__main__.Lang": _Lang})
    words = getattr(held, "index2word", None)
    if not isinstance(words, dict) or sorted(words) != list(range(len(words))):
        raise ValueError(f"{path} holds no list of words numbered from 0")
    return Vocabulary(tuple(words[i] for i in range(len(words))), start=0, end=1)


def _texts(name: str, texts: Sequence[str]) -> list[str]:
    """A list of strings, and at least one; a string alone is refused."""
    if isinstance(texts, str) or not all(isinstance(t, str) for t in texts):
        raise TypeError(f"{name} must be a list of strings, got {texts!r}")
    if not texts:
        raise ValueError(f"{name} must hold at least one")
    return list(texts)
