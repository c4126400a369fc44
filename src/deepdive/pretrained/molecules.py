# SPDX-License-Identifier: MIT
"""Is there a trained model of the 2017 shape at hand? One, and it writes molecules.

AnnaLog's network reads a molecule as a line of SMILES, atoms and bonds as letters, and
writes a related one: 3 + 3 layers, post-norm, learned positions, an output layer of its
own. 4.05 million weights.
"""

import re

import torch

from deepdive.blocks import post_norm
from deepdive.configs import TransformerConfig
from deepdive.models.transformer2017 import Transformer
from deepdive.positions import LearnedPositions
from deepdive.pretrained.files import find
from deepdive.pretrained.huggingface import load_into, renamed, unfilled
from deepdive.pretrained.pickles import load_pickle, load_tensors
from deepdive.tokenizers import Encoded

_MAX_LEN = 102
_CONFIG = TransformerConfig(
    59, 59, d_model=256, n_layers=3, n_heads=8, d_ff=512, tied=False
)

_PARTS = {
    "self_attention": "attention",
    "encoder_attention": "cross_attention",
    "self_attn_layer_norm": "attention_norm",
    "enc_attn_layer_norm": "cross_norm",
    "ff_layer_norm": "feedforward_norm",
    "positionwise_feedforward.fc_1": "feedforward.up",
    "positionwise_feedforward.fc_2": "feedforward.down",
}


def _names() -> dict[str, str]:
    names = {"decoder.fc_out": "output"}
    for half, side in (("encoder", "src"), ("decoder", "tgt")):
        names[f"{half}.tok_embedding"] = f"{side}_token"
        names[f"{half}.pos_embedding"] = f"{side}_positions"
        for theirs, ours in _PARTS.items():
            stem, block = f"{half}.layers.{{}}.{theirs}", f"{half}.{{}}.{ours}"
            if theirs.endswith("attention"):
                names |= {f"{stem}.fc_{p}": f"{block}.{p}_proj" for p in "qkvo"}
            else:
                names[stem] = block
    return names


class Smiles:
    """The vocabulary: each atom or bond a token, by the longest name that fits.

    Shapes:
        a line of n tokens → ids (1, n + 2), with the start and the end around them

    Raises:
        ValueError: the line holds something that is no token, or is too long.

    >>> Smiles(["<unk>", "<pad>", "<sos>", "<eos>", "C", "Cl", "="]).tokens("C=CCl")
    ['C', '=', 'C', 'Cl']

    Taught in: book/06_transformer_2017.ipynb
    """

    unknown, pad, start, end = range(4)

    def __init__(self, words: list[str]):
        self.words, self.ids = words, {word: i for i, word in enumerate(words)}
        longest_first = sorted(words[4:], key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)))

    def tokens(self, line: str) -> list[str]:
        """The line's tokens as strings."""
        found = self.pattern.findall(line)
        if "".join(found) != line or not found:
            raise ValueError(f"{line!r} holds something that is no token here")
        return found

    def encode(self, line: str) -> Encoded:
        """Ids of one line, framed by <sos> and <eos>."""
        ids = [self.start, *(self.ids[t] for t in self.tokens(line)), self.end]
        if len(ids) > _MAX_LEN:
            raise ValueError(f"{len(ids)} tokens; this model has {_MAX_LEN} positions")
        tensor = torch.tensor([ids])
        return Encoded(tensor, torch.zeros_like(tensor), torch.ones_like(tensor).bool())

    def decode(self, ids) -> str:
        """One row of ids as a line, without the frame and what follows it."""
        words = []
        for i in map(int, ids):
            if i == self.end:
                break
            if i >= 4:
                words.append(self.words[i])
        return "".join(words)


def annalog() -> tuple[Transformer, Smiles]:
    """AnnaLog's trained encoder–decoder, in eval mode, and its vocabulary.

    Raises:
        WeightsMissing: the files are not on this machine; the message says what to do.

    Taught in: book/06_transformer_2017.ipynb
    """
    folder = find("annalog")
    positions = [LearnedPositions(_MAX_LEN, _CONFIG.d_model) for _ in range(2)]
    model = unfilled(lambda: Transformer(_CONFIG, post_norm, *positions))
    given = renamed(load_tensors(folder / "Lev_extended.pt"), _names())
    load_into(model, given, folder)
    words = load_pickle(folder / "stereo_experiment_vocab_ttf.pkl")["itos"]
    return model, Smiles(list(words))
