# SPDX-License-Identifier: MIT
"""Every token once an epoch, the same batch for the same number, little padding."""

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.data import (
    PairBatches,
    Windows,
    padded,
    read_pronunciations,
    split_items,
    split_stream,
    without_stress,
)

small = settings(deadline=None, max_examples=60)

# ---------------------------------------------------------------------------- windows


@small
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5))
def test_an_epoch_reads_every_token_at_most_once(n, length, batch, seed):
    length = min(length, n)
    windows = Windows(torch.arange(n), length, batch, seed)
    per_epoch = n // length
    rows = torch.cat([windows(i) for i in range(-(-3 * per_epoch // batch))])
    assert rows.shape[1] == length
    assert (rows.diff(dim=1) == 1).all()  # a window is a stretch of the text
    for epoch in range(3):
        read = rows[epoch * per_epoch : (epoch + 1) * per_epoch].flatten().tolist()
        assert len(set(read)) == len(read) == n - n % length
        assert sorted(read) == list(range(min(read), max(read) + 1))  # ends only


def test_windows_are_a_function_of_their_number():
    text = torch.randint(100, (5000,))
    windows = Windows(text, 16, 4, seed=7)
    forward = [windows(i) for i in range(200)]
    again = Windows(text, 16, 4, seed=7)
    for i in reversed(range(200)):
        assert torch.equal(again(i), forward[i])
    other = Windows(text, 16, 4, seed=8)
    assert not torch.equal(other(0), forward[0])


def test_each_epoch_has_its_own_order_and_its_own_seams():
    windows = Windows(torch.arange(1003), 10, 100)
    epochs = [windows(i) for i in range(20)]
    starts = [epoch[:, 0].tolist() for epoch in epochs]
    assert len({tuple(s) for s in starts}) == 20
    assert {s[0] % 10 for s in starts} == {0, 1, 2, 3}  # what is left over is 3


SAME = """
import json, torch
from deepdive.data import PairBatches, Windows
w = Windows(torch.arange(1000), 7, 5, seed=3)
p = PairBatches([([i] * (1 + i % 9), [i]) for i in range(50)], 8, seed=3)
print(json.dumps([w(30).tolist(), p(9).src.tolist()]))
"""


@pytest.mark.slow
def test_another_process_reads_the_same():
    def here():
        windows = Windows(torch.arange(1000), 7, 5, seed=3)
        pairs = PairBatches([([i] * (1 + i % 9), [i]) for i in range(50)], 8, seed=3)
        return [windows(30).tolist(), pairs(9).src.tolist()]

    torch.manual_seed(123)  # of no influence
    first = here()
    torch.rand(10)
    assert here() == first
    told = subprocess.check_output([sys.executable, "-c", SAME], text=True)
    assert json.loads(told) == first


def test_seeds_and_epochs_are_not_confused():
    """Torch keeps 32 bits of a seed: seed and epoch must both be among them."""
    orders = {
        tuple(Windows(torch.arange(64), 1, 64, seed)(epoch).flatten().tolist())
        for seed in (0, 1, 2**32, 2**40)
        for epoch in range(4)
    }
    assert len(orders) == 16


# ------------------------------------------------------------------------------ pairs


@small
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 3), st.data())
def test_an_epoch_reads_every_pair_once(n, batch, seed, data):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    pairs = [([i + 1] * k, [i + 1, k]) for i, k in enumerate(lengths)]
    batches = PairBatches(pairs, batch, pad=0, seed=seed)
    for epoch in (0, 2):
        read = []
        for place in range(batches.n_batches):
            got = batches(epoch * batches.n_batches + place)
            assert len(got.src) <= batch
            assert torch.equal(got.src_keep, got.src > 0)
            for row, keep, target in zip(*got[:1], got.src_keep, got.tgt, strict=True):
                assert len(row[keep]) == target[1] and (row[keep] == target[0]).all()
                read.append(target[0].item())
        assert sorted(read) == list(range(1, n + 1))


def test_pairs_of_like_length_share_a_batch():
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 23, (6000, 2), generator=g)
    lengths[:, 1] = (lengths[:, 0] * 0.8).round().clamp(1)  # as phonemes to letters
    pairs = [([1] * s, [1] * t) for s, t in lengths.tolist()]

    def padding(batches):
        keeps = [
            keep
            for i in range(batches.n_batches)
            for keep in (batches(i).src_keep, batches(i).tgt_keep)
        ]
        cells = sum(keep.numel() for keep in keeps)
        return 1 - sum(int(keep.sum()) for keep in keeps) / cells

    assert padding(PairBatches(pairs, 64)) < 0.03
    firsts = [int(PairBatches(pairs, 64, seed=s)(0).src.shape[1]) for s in range(20)]
    assert len(set(firsts)) > 5  # short and long batches in mixed order


def test_pairs_are_a_function_of_their_number():
    pairs = [([i], [i, i]) for i in range(100)]
    batches = PairBatches(pairs, 8, seed=1)
    asked = [0, 30, 1, 13, 30, 0]
    got = [batches(i).src.flatten().tolist() for i in asked]
    fresh = [PairBatches(pairs, 8, seed=1)(i).src.flatten().tolist() for i in asked]
    assert got == fresh


# --------------------------------------------------------------------------- the rest


@small
@given(st.integers(2, 50), st.integers(1, 20), st.integers(1, 20), st.integers(0, 4))
def test_parts_are_disjoint_and_lose_nothing(n, a, b, seed):
    if a + b >= n:
        with pytest.raises(ValueError, match="leave a rest"):
            split_items(range(n), a, b, seed=seed)
        return
    rest, first, second = split_items(range(n), a, b, seed=seed)
    assert (len(first), len(second)) == (a, b)
    assert sorted(rest + first + second) == list(range(n))
    assert (rest, first, second) == split_items(range(n), a, b, seed=seed)


def test_another_seed_is_another_split():
    assert split_items(range(50), 10) != split_items(range(50), 10, seed=1)


@small
@given(st.integers(2, 200), st.floats(0.01, 0.99))
def test_a_stream_is_cut_once(n, share):
    if not 0 < round(n * share) < n:
        with pytest.raises(ValueError, match="one part empty"):
            split_stream(torch.arange(n), share)
        return
    train, held_out = split_stream(torch.arange(n), share)
    assert torch.equal(torch.cat([train, held_out]), torch.arange(n))
    assert len(held_out) == round(n * share)


def test_a_dictionary_of_pronunciations(tmp_path):
    path = tmp_path / "words.dict"
    path.write_text(
        ";;; a remark\n'bout B AW1 T\naalborg AO1 L B # place, danish\n"
        "aalborg(2) AA1 L B\n\nnaïve N AA0\n",
        encoding="utf-8",
    )
    words = read_pronunciations(path)
    assert words == {
        "'bout": [("B", "AW1", "T")],
        "aalborg": [("AO1", "L", "B"), ("AA1", "L", "B")],
        "naïve": [("N", "AA0")],
    }
    assert without_stress(words["aalborg"][0]) == ("AO", "L", "B")
    path.write_text("a AH0\nbroken # no sounds\n")
    with pytest.raises(ValueError, match=r"line 2: no phonemes for 'broken'"):
        read_pronunciations(path)
    with pytest.raises(FileNotFoundError):
        read_pronunciations(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Windows([1, 2], 1, 1), TypeError),
        (lambda: Windows(torch.ones(2, 2), 1, 1), ValueError),
        (lambda: Windows(torch.arange(3), 4, 1), ValueError),
        (lambda: Windows(torch.arange(3), 1, 0), ValueError),
        (lambda: Windows(torch.arange(3), 1, 1)(-1), ValueError),
        (lambda: Windows(torch.arange(3), 1, 1)(1.0), ValueError),
        (lambda: PairBatches([], 1), ValueError),
        (lambda: PairBatches([([1], [])], 1), ValueError),
        (lambda: PairBatches([([1], [1])], 0), ValueError),
        (lambda: PairBatches([([1], [1])], 1)(True), ValueError),
        (lambda: padded([]), ValueError),
        (lambda: padded([[1], []]), ValueError),
        (lambda: split_items([1], 0), ValueError),
        (lambda: split_stream(torch.arange(9), 1.5), ValueError),
        (lambda: split_stream(torch.arange(9), float("nan")), ValueError),
    ],
)
def test_what_cannot_be_is_refused(call, error):
    with pytest.raises(error):
        call()
