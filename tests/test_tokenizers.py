# SPDX-License-Identifier: MIT
"""Ids, padding and refusals of `deepdive.tokenizers`, on a WordPiece of our own."""

import json

import pytest
import torch

from deepdive.configs import BertConfig
from deepdive.models.bert import Bert
from deepdive.tokenizers import load_tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cats", "chase", "mice", "mouse", "##s"]


@pytest.fixture
def folder(tmp_path):
    """A `tokenizer.json` that, like MiniLM's, pads to a fixed length and cuts."""
    import tokenizers as library
    from tokenizers import models, normalizers, pre_tokenizers, processors

    raw = library.Tokenizer(
        models.WordPiece({p: i for i, p in enumerate(PIECES)}, unk_token="[UNK]")
    )
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    raw.add_special_tokens(PIECES[:4])
    raw.enable_padding(length=12, pad_id=0, pad_token="[PAD]")
    raw.enable_truncation(4)
    raw.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_neither_the_files_padding_nor_its_cut_survives(folder):
    assert load_tokenizer(folder).tokens("Cats chase mice") == [
        "[CLS]", "cats", "chase", "mice", "[SEP]",
    ]  # fmt: skip


def test_a_batch_is_padded_to_its_longest_text(folder):
    ids, segments, keep = load_tokenizer(folder).encode(["cats", "cats chase mouses"])
    assert ids.tolist() == [[2, 4, 3, 0, 0, 0], [2, 4, 5, 7, 8, 3]]
    assert keep.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    assert segments.sum() == 0
    assert (ids.dtype, keep.dtype) == (torch.long, torch.bool)


def test_a_model_reads_what_a_tokenizer_wrote(folder):
    """The order is the same, and each of the three has its effect."""
    batch = load_tokenizer(folder).encode([("cats", "chase mice"), "mice"])
    torch.manual_seed(0)
    model = Bert(BertConfig(9, 12, 1, 3, 16, 8)).double().eval()
    out = model(*batch)
    named = model(tokens=batch.ids, segments=batch.segments, keep=batch.keep)
    assert torch.equal(out, named)
    assert not torch.allclose(out, model(batch.ids, keep=batch.keep))
    assert not torch.allclose(out[1], model(batch.ids, batch.segments)[1])


def test_one_text_is_a_batch_of_one_and_the_file_may_be_named(folder):
    batch = load_tokenizer(folder / "tokenizer.json").encode("mice")
    assert batch.ids.tolist() == [[2, 6, 3]]


def test_a_pair_has_two_segments(folder):
    batch = load_tokenizer(folder).encode(("cats", "chase mice"))
    assert batch.ids.tolist() == [[2, 4, 3, 5, 6, 3]]
    assert batch.segments.tolist() == [[0, 0, 0, 1, 1, 1]]


def test_padding_takes_the_files_own_id(folder):
    content = json.loads((folder / "tokenizer.json").read_text())
    content["padding"]["pad_id"] = 8
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(folder).encode(["cats", "cats mice"]).ids[0, -1] == 8


def test_decode_goes_back(folder):
    tokenizer = load_tokenizer(folder)
    ids = tokenizer.encode("cats chase mice").ids[0]
    assert tokenizer.decode(ids) == "cats chase mice"
    assert tokenizer.decode(ids, skip_special=False) == "[CLS] cats chase mice [SEP]"


def test_a_long_text_is_refused_with_both_numbers(folder):
    tokenizer = load_tokenizer(folder, max_len=4)
    tokenizer.encode("cats mice")
    with pytest.raises(ValueError, match=r"text 1 has 5 pieces.*limit is 4"):
        tokenizer.encode(["cats", "cats chase mice"])


@pytest.mark.parametrize("text", [None, 3, [None], [b"cats"], [("a", "b", "c")]])
def test_what_is_not_text_is_named(folder, text):
    with pytest.raises(TypeError, match="expected"):
        load_tokenizer(folder).encode(text)


def test_nothing_to_encode(folder):
    with pytest.raises(ValueError, match="at least one text"):
        load_tokenizer(folder).encode([])


@pytest.mark.parametrize("ids", [[[2, 4]], [99], [-1]])
def test_ids_that_cannot_be_decoded(folder, ids):
    with pytest.raises(ValueError, match=r"one row|not in 0"):
        load_tokenizer(folder).decode(ids)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        load_tokenizer(tmp_path)
