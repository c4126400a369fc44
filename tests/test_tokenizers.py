# SPDX-License-Identifier: MIT
"""Ids, padding and refusals of `deepdive.tokenizers`, on tokenizers of our own."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.configs import BertConfig
from deepdive.models.bert import Bert
from deepdive.pretrained.files import WeightsMissing, find
from deepdive.tokenizers import (
    END,
    byte_level_bpe,
    byte_tokenizer,
    character_tokenizer,
    chat_prompt,
    glassllm_tokenizer,
    load_tokenizer,
    pad_left,
    train_bpe,
    train_wordpiece,
    visible,
)

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


# -------------------------------------------------------------- sides, ends and errors


def test_padding_on_the_left_moves_the_rows_and_changes_nothing_else(folder):
    texts = ["cats", "cats chase mouses", ("mice", "cats")]
    right = load_tokenizer(folder).encode(texts)
    left = load_tokenizer(folder, side=pad_left).encode(texts)
    assert left.keep[:, -1].all() and right.keep[:, 0].all()
    for a, b in zip(left, right, strict=True):
        for row in range(3):
            assert torch.equal(a[row][left.keep[row]], b[row][right.keep[row]])
    assert not left.ids[~left.keep].any() and not left.segments[~left.keep].any()


def test_the_folder_says_what_ends_a_text(folder):
    assert load_tokenizer(folder).end_ids == ()
    (folder / "config.json").write_text('{"eos_token_id": 3}')
    assert load_tokenizer(folder).end_ids == (3,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 0]}')
    assert load_tokenizer(folder).end_ids == (3, 0)
    (folder / "generation_config.json").write_text('{"eos_token_id": 99}')
    with pytest.raises(ValueError, match=r"0 … 8, got 99"):
        load_tokenizer(folder)


def test_a_piece_by_its_name(folder):
    assert load_tokenizer(folder).id_of("[SEP]") == 3
    with pytest.raises(ValueError, match="'dogs' is not in the vocabulary"):
        load_tokenizer(folder).id_of("dogs")


# ------------------------------------------------------------------ trained on a text

TEXT = [
    "the cats chase the mice, and the mice chase the cheese",
    "that is what the cats say; the cheese says nothing",
] * 3
anything = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(TEXT, 290)


@pytest.fixture(scope="module")
def single_bytes():
    return byte_tokenizer()


@settings(deadline=None)
@given(anything)
def test_bytes_lose_no_text(bpe, single_bytes, text):
    for tokenizer in (bpe, single_bytes):
        assert tokenizer.decode(tokenizer.encode(text).ids[0]) == text
    assert single_bytes.encode(text).ids[0].tolist() == list(text.encode())


def test_a_trained_bpe_merges_what_is_frequent(bpe):
    assert bpe.vocab_size == 290
    assert bpe.tokens("the mice") == ["the", "Ġmice"]
    assert (bpe.pad_id, bpe.end_ids, bpe.id_of(END)) == (0, (0,), 0)
    assert bpe.encode(f"the{END}").ids[0, -1] == 0
    again = train_bpe(TEXT, 290)
    assert again.raw.get_vocab() == bpe.raw.get_vocab()
    assert train_bpe(TEXT, 10_000).vocab_size < 1000  # no pairs are left
    with pytest.raises(ValueError, match="at least 257, got 256"):
        train_bpe(TEXT, 256)


def test_the_first_merge_is_the_most_frequent_pair():
    tokenizer = train_bpe(["ab ab ab", "bc bc", "ac"], 258)
    assert tokenizer.raw.id_to_token(257) == "ab"


def test_two_lists_give_gpt2s_tokenizer():
    transformers = pytest.importorskip("transformers")
    pieces = [*sorted(byte_tokenizer().raw.get_vocab()), "at", "Ġc", "Ġcat"]
    merges = [("a", "t"), ("Ġ", "c"), ("Ġc", "at")]
    ours = byte_level_bpe([*pieces, END], merges, special=[END], end_ids=(259,))
    vocab = {piece: i for i, piece in enumerate([*pieces, END])}
    theirs = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    for text in ("a cat, it's cats' 42  cat\n\nat", " cat é🙂", f"at{END} at"):
        assert ours.encode(text).ids[0].tolist() == theirs(text)["input_ids"]
    digits = byte_level_bpe([*pieces, "12"], [*merges, ("1", "2")])
    alone = byte_level_bpe([*pieces, "12"], [*merges, ("1", "2")], split_digits=True)
    assert digits.tokens("at 12") == ["at", "Ġ", "12"]
    assert alone.tokens("at 12") == ["at", "Ġ", "1", "2"]


def test_a_trained_wordpiece_reads_as_bert_does():
    tokenizer = train_wordpiece(TEXT, 60)
    assert tokenizer.tokens(("The MICE", "chéese 7")) == [
        "[CLS]", "the", "mice", "[SEP]", "cheese", "[UNK]", "[SEP]",
    ]  # fmt: skip
    batch = tokenizer.encode(("the mice", "cheese"))
    assert batch.segments.tolist() == [[0, 0, 0, 0, 1, 1]]
    assert [tokenizer.id_of(p) for p in PIECES[:4]] == [0, 1, 2, 3]
    assert tokenizer.id_of("[MASK]") == 4
    assert tokenizer.decode(batch.ids[0]) == "the mice cheese"
    with pytest.raises(ValueError, match="above 5, got 5"):
        train_wordpiece(TEXT, 5)


@settings(deadline=None)
@given(anything)
def test_characters_are_ids_in_their_order(text):
    tokenizer = character_tokenizer([text])
    expected = [sorted(set(text)).index(c) for c in text]
    assert tokenizer.encode(text).ids[0].tolist() == expected
    assert tokenizer.decode(expected) == text


def test_text_that_has_no_ids_is_refused():
    with pytest.raises(ValueError, match=r"text 1 cannot be cut"):
        character_tokenizer(["cats"]).encode(["cat", "dog"])
    with pytest.raises(ValueError, match=r"text 0 has no pieces: ''"):
        byte_tokenizer().encode("")
    for train in (character_tokenizer, lambda t: train_bpe(t, 300)):
        with pytest.raises(TypeError, match="several texts"):
            train("one text")
    with pytest.raises(ValueError, match=r"0 … 255, got 256"):
        byte_tokenizer(end_ids=(256,))
    assert byte_tokenizer(["<end>"], end_ids=(256,)).encode("<end>").ids == 256


def test_a_piece_as_readers_see_it(bpe, folder):
    assert [visible(byte_tokenizer(), byte) for byte in "é x\n\t!".encode()] == [
        "⟨C3⟩", "⟨A9⟩", "·", "x", "↵", "⇥", "!",
    ]  # fmt: skip
    unseen = [visible(byte_tokenizer(), byte) for byte in (0, 13, 173, 255)]
    assert unseen == ["⟨00⟩", "⟨0D⟩", "⟨AD⟩", "⟨FF⟩"]
    names = [visible(bpe, i) for i in range(bpe.vocab_size)]
    assert END in names and len(set(names)) == bpe.vocab_size
    for i, name in enumerate(names):
        if name.startswith("⟨"):
            raw = bytes.fromhex(name.strip("⟨⟩"))
        else:
            raw = name.replace("·", " ").replace("↵", "\n").replace("⇥", "\t").encode()
        read = bpe.decode([i], skip_special=False)
        assert raw.decode(errors="replace") == read
    rare = character_tokenizer(["a\x07\u200b"])
    assert [visible(rare, i) for i in range(3)] == ["\x07", "a", "\u200b"], "no bytes"
    assert visible(load_tokenizer(folder), PIECES.index("[PAD]")) == "[PAD]"


@pytest.mark.parametrize(
    ("i", "error", "words"),
    [
        (256, ValueError, "id 256 is not in 0 … 255"),
        (-1, ValueError, "id -1 is not in 0 … 255"),
        (1.0, TypeError, "an integer, got 1.0"),
        (True, TypeError, "an integer, got True"),
        (torch.tensor(3), TypeError, "an integer, got tensor"),
    ],
)
def test_what_is_no_piece_is_not_shown(i, error, words):
    with pytest.raises(error, match=words):
        visible(byte_tokenizer(), i)
    with pytest.raises(TypeError, match="must be a Tokenizer, got None"):
        visible(None, i)


def test_glassllms_pieces(tmp_path):
    path = tmp_path / "tokenizer.json"
    merges = [["\n", "a"], ["▁", "c"], ["a", "t"], ["▁c", "at"]]  # never the first
    alphabet = ["\n", "a", "c", "t", "é", "▁"]
    content = {"version": 1, "alphabet": alphabet, "merges": merges}
    path.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = glassllm_tokenizer(path)
    text = "cat  cat\nat te\u0301"
    assert tokenizer.tokens(text) == [
        "c", "at", "▁", "▁cat", "\n", "at", "▁", "t", "é",
    ]  # fmt: skip
    assert tokenizer.decode(tokenizer.encode(text).ids[0]) == "cat  cat\nat té"
    assert tokenizer.tokens("dot") == ["<unk>", "<unk>", "t"]
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.end_ids) == (14, 0, (3,))
    path.write_text(json.dumps(content | {"version": 2}))
    with pytest.raises(ValueError, match="version 1"):
        glassllm_tokenizer(path)


@pytest.mark.weights
@pytest.mark.parametrize("language", ["en", "pt"])
def test_glassllms_pieces_are_its_own_packages(language):
    """The ids that glassllm's own code gives, kept in `golden/glassllm.npz`."""
    try:
        folder = find("glassllm")
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    stored = np.load(Path(__file__).parent / "golden/glassllm.npz")
    tokenizer = glassllm_tokenizer(folder / f"{language}.tokenizer.json")
    for n in range(3):
        ids, text = (stored[f"{language}_{n}_{what}"] for what in ("ids", "text"))
        got = tokenizer.encode(str(text)).ids[0].tolist()
        assert got[: len(ids)] == ids.tolist()  # the longest was cut at 128


# ------------------------------------------------------------------------------ chats


def test_a_chat_begins_with_a_system_message():
    user = {"role": "user", "content": "Hi"}
    ours = chat_prompt([user], system="Be brief.")
    told = chat_prompt([{"role": "system", "content": "Be brief."}, user], system="Not")
    assert ours == told
    assert ours.endswith("Hi<|im_end|>\n<|im_start|>assistant\n")
    assert chat_prompt([user], answer=False).endswith("Hi<|im_end|>\n")


@pytest.mark.parametrize(
    "messages",
    [["Hi"], [{"role": "user"}], [{"role": "user", "content": 3}], [None],
     [{"role": "user", "content": "Hi", "name": "me"}]],
)  # fmt: skip
def test_what_is_no_message_is_named(messages):
    with pytest.raises(TypeError, match="message 0 must have"):
        chat_prompt(messages)
    with pytest.raises(ValueError, match="at least one message"):
        chat_prompt([])


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text('{"version": "1.0"', encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.json is damaged"):
        load_tokenizer(tmp_path)
