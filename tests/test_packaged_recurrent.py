# SPDX-License-Identifier: MIT
"""The packaged GRU models answer as their own packages do; wrong files are refused.

`golden/g2p.json` and `golden/cn2en.json` were written by the packages' own code.
"""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from deepdive.pretrained import Vocabulary, WeightsMissing, pronounce, translate
from deepdive.pretrained import recurrent as loaders
from deepdive.pretrained.files import find
from deepdive.recurrent import Decoder, Seq2Seq

GOLDEN = Path(__file__).parent / "golden"
G2P = json.loads((GOLDEN / "g2p.json").read_text(encoding="utf-8"))
CN2EN = json.loads((GOLDEN / "cn2en.json").read_text(encoding="utf-8"))["sentences"]
weights = pytest.mark.weights


def real(load):
    """A model with its files; without them the tests skip, but in CI they fail."""
    try:
        return load()
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def g2p():
    return real(loaders.g2p)


@pytest.fixture(scope="module")
def cn2en():
    return real(loaders.cn2en)


# ── The real models ──────────────────────────────────────────────────────────────────


@weights
def test_g2p_says_200_of_200_words_as_its_package_does(g2p):
    words = G2P["words"]
    assert len(words) == 200
    together = dict(zip(words, pronounce(*g2p, list(words)), strict=True))
    assert together == words
    alone = {word: pronounce(*g2p, [word])[0] for word in words}
    assert alone == words


@weights
def test_g2p_reads_capitals_and_knows_the_books_example(g2p):
    assert pronounce(*g2p, ["attention", "ATTENTION"]) == ["AH0 T EH1 N SH AH0 N"] * 2


@weights
def test_cn2en_translates_the_four_sentences_as_its_package_does(cn2en):
    assert len(CN2EN) == 4
    assert translate(*cn2en, list(CN2EN)) == list(CN2EN.values())
    assert [translate(*cn2en, [s])[0] for s in CN2EN] == list(CN2EN.values())


@weights
def test_the_relu_of_cn2en_is_needed(cn2en):
    model, *words = cn2en
    old = model.decoder
    without = Seq2Seq(model.encoder, Decoder(old.embedding, old.cell, old.head))
    assert translate(without, *words, list(CN2EN)) != list(CN2EN.values())


@weights
def test_characters_that_cn2en_does_not_know_are_left_out(cn2en):
    assert translate(*cn2en, ["我🙂喜\n歡 你。"]) == ["i like you ."]


@weights
def test_sizes_are_the_published_ones(g2p, cn2en):
    sizes = [sum(p.numel() for p in model.parameters()) for model, *_ in (g2p, cn2en)]
    assert sizes == [834_890, 4_614_076]
    assert [len(words) for words in (*g2p[1:], *cn2en[1:])] == [29, 74, 3277, 5820]
    assert not g2p[0].training and not cn2en[0].training


# ── Without the files ────────────────────────────────────────────────────────────────


def random_g2p(folder, **changes):
    """A file like g2p's with random numbers; `None` removes an array."""
    rng = np.random.default_rng(0)
    shapes = {"enc_emb": (29, 256), "dec_emb": (74, 256), "fc_w": (74, 256)}
    shapes |= {"fc_b": (74,)}
    for side in ("enc", "dec"):
        shapes |= {f"{side}_w_ih": (768, 256), f"{side}_w_hh": (768, 256)}
        shapes |= {f"{side}_b_ih": (768,), f"{side}_b_hh": (768,)}
    arrays = {n: rng.normal(0, 0.1, s).astype(np.float32) for n, s in shapes.items()}
    arrays = {n: a for n, a in (arrays | changes).items() if a is not None}
    np.savez(folder / "checkpoint20.npz", **arrays)
    return arrays


class Lang:
    """What the pickles of cn2en name, in the module that wrote them."""


def random_cn2en(folder, monkeypatch, **changes):
    """Files like cn2en's: 3 Chinese and 4 English words, random numbers."""
    import __main__

    monkeypatch.setattr(Lang, "__module__", "__main__")
    monkeypatch.setattr(__main__, "Lang", Lang, raising=False)
    for side, words in (
        ("input", ["SOS", "EOS", "我"]),
        ("output", ["SOS", "EOS", "i", "."]),
    ):
        lang = Lang()
        lang.index2word = dict(enumerate(words))
        (folder / f"{side}_lang.pkl").write_bytes(pickle.dumps(lang))
    torch.manual_seed(0)
    held = {"loss": 2.5, "learning_rate": 0.01}
    for part, V in (("encoder", 3), ("decoder", 4)):
        gru = torch.nn.GRU(256, 256).state_dict()
        held[part] = {f"gru.{name}": tensor for name, tensor in gru.items()}
        held[part]["embedding.weight"] = torch.randn(V, 256)
    held["decoder"] |= {"out.weight": torch.randn(4, 256), "out.bias": torch.randn(4)}
    torch.save(held | changes, folder / "model.pth")
    return held


def test_the_vocabulary_of_g2p_is_the_packages(tmp_path):
    random_g2p(tmp_path)
    _, letters, phonemes = loaders.load_g2p(tmp_path)
    assert list(letters.words) == G2P["letters"]
    assert list(phonemes.words) == G2P["phonemes"]


def test_every_array_of_g2p_lands_where_torch_would_put_it(tmp_path):
    arrays = random_g2p(tmp_path)
    model, _, _ = loaders.load_g2p(tmp_path)
    given = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ids, tgt = torch.randint(29, (1, 5)), torch.randint(74, (1, 4))
    grus = []
    for side in ("enc", "dec"):
        gru = torch.nn.GRU(256, 256, batch_first=True)
        names = (("weight_ih", "w_ih"), ("weight_hh", "w_hh"), ("bias_ih", "b_ih"))
        state = {f"{ours}_l0": given[f"{side}_{n}"] for ours, n in names}
        gru.load_state_dict(state | {"bias_hh_l0": given[f"{side}_b_hh"]})
        grus.append(gru)
    _, last = grus[0](given["enc_emb"][ids])
    out, _ = grus[1](given["dec_emb"][tgt], last)
    expected = out @ given["fc_w"].T + given["fc_b"]
    torch.testing.assert_close(model(ids, tgt), expected, rtol=0, atol=2e-5)


def test_one_error_lists_all_that_does_not_fit(tmp_path):
    odd = np.zeros((768, 255), dtype=np.float32)
    random_g2p(tmp_path, fc_b=None, enc_w_hh=odd, dec_extra=odd)
    with pytest.raises(ValueError) as error:
        loaders.load_g2p(tmp_path)
    for part in (
        "unknown (1): dec_extra",
        "missing (1): decoder.head.bias",
        "wrong shape (1): encoder.cell.h_proj.weight is (768, 255), expected (768, ",
    ):
        assert part in str(error.value)


def test_damaged_absent_and_pickled_arrays_are_refused(tmp_path):
    path = tmp_path / "checkpoint20.npz"
    with pytest.raises(FileNotFoundError, match=r"no checkpoint20\.npz"):
        loaders.load_g2p(tmp_path)
    random_g2p(tmp_path, fc_b=np.array([{}], dtype=object))  # a pickle inside
    with pytest.raises(ValueError, match=r"npz is damaged: .*allow_pickle"):
        loaders.load_g2p(tmp_path)
    random_g2p(tmp_path)
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], b"no archive", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"npz is damaged"):
            loaders.load_g2p(tmp_path)


def test_cn2en_is_read_from_its_three_files(tmp_path, monkeypatch):
    held = random_cn2en(tmp_path, monkeypatch)
    model, chinese, english = loaders.load_cn2en(tmp_path)
    assert chinese.words == ("SOS", "EOS", "我") and english.words[2:] == ("i", ".")
    head = model.decoder.head
    assert torch.equal(head.weight, held["decoder"]["out.weight"])
    recurrent = model.decoder.cell.h_proj.weight
    assert torch.equal(recurrent, held["decoder"]["gru.weight_hh_l0"])
    assert isinstance(model.decoder.activation, torch.nn.ReLU)
    assert isinstance(model.encoder.activation, torch.nn.Identity)
    assert len(translate(model, chinese, english, ["我", "他"])) == 2


def test_a_wrong_file_of_cn2en_is_named(tmp_path, monkeypatch):
    random_cn2en(tmp_path, monkeypatch, encoder={"gru.weight_ih_l0": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"missing \(4\): .*\n.*wrong shape \(1\)"):
        loaders.load_cn2en(tmp_path)
    random_cn2en(tmp_path, monkeypatch, decoder=[1.0])
    with pytest.raises(ValueError, match=r"these are none: \['decoder\.'\]"):
        loaders.load_cn2en(tmp_path)
    torch.save([torch.zeros(1)], tmp_path / "model.pth")
    with pytest.raises(ValueError, match="must hold a dict, got list"):
        loaders.load_cn2en(tmp_path)
    (tmp_path / "output_lang.pkl").write_bytes(pickle.dumps({"i": 1}))
    with pytest.raises(ValueError, match="no list of words numbered from 0"):
        loaders.load_cn2en(tmp_path)
    (tmp_path / "output_lang.pkl").write_bytes(pickle.dumps(print))
    with pytest.raises(pickle.UnpicklingError, match=r"builtins\.print"):
        loaders.load_cn2en(tmp_path)


def test_a_vocabulary_leaves_out_or_marks_what_it_does_not_know():
    words = ("SOS", "EOS", "cats", "chase")
    assert Vocabulary(words, 0, 1).ids(["cats", "dogs"]) == [2, 1]
    assert Vocabulary(words, 0, 1, unknown=3).ids(["cats", "dogs"]) == [2, 3, 1]
    assert Vocabulary(words, 0, 1).text([2, 3, 1, 2]) == "cats chase"


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        ("attention", TypeError, "list of strings, got 'attention'"),
        ([3], TypeError, r"got \[3\]"),
        ([], ValueError, "words must hold at least one"),
    ],
)
def test_words_must_be_a_list_of_strings(tmp_path, words, kind, message):
    random_g2p(tmp_path)
    with pytest.raises(kind, match=message):
        pronounce(*loaders.load_g2p(tmp_path), words)


@weights
def test_the_packages_are_not_imported(g2p, cn2en):
    import sys

    assert not {"g2p_en", "cn2en", "nltk"} & set(sys.modules)
    assert find("g2p").is_dir() and find("cn2en").is_dir()
