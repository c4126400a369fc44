# SPDX-License-Identifier: MIT
"""Every cache against the plain way: keep all that was appended in one tensor."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.attention import MultiHeadAttention
from deepdive.cache import (
    Caches,
    DecoderLayerCache,
    GrowingCache,
    Memory,
    PreallocatedCache,
    WindowedCache,
)
from deepdive.masks import Causal
from tests.compare import close


def entries(T, B=2, G=3, width=4, seed=0):
    gen = torch.Generator().manual_seed(seed)
    k = torch.randn(B, G, T, width, generator=gen, dtype=torch.float64)
    return k, torch.randn(B, G, T, width + 1, generator=gen, dtype=torch.float64)


CHUNKS = st.lists(st.integers(1, 4), min_size=1, max_size=6)
MAKERS = {
    "growing": GrowingCache,
    "preallocated": lambda: PreallocatedCache(40),
    "windowed, wide": lambda: WindowedCache(40),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@settings(max_examples=25, deadline=None)
@given(chunks=CHUNKS)
def test_what_comes_back_is_all_that_went_in(make, chunks):
    cache, k, v = make(), *entries(sum(chunks))
    end = 0
    for T in chunks:
        expected_columns = cache.columns(T)
        got = cache.append(k[:, :, end : end + T], v[:, :, end : end + T])
        end += T
        assert (cache.seen, cache.held) == (end, end)
        assert expected_columns == got[0].shape[2] == end
        for one, whole in zip(got, (k, v), strict=True):
            assert torch.equal(one, whole[:, :, :end])
        for one, whole in zip(cache.entries, (k, v), strict=True):
            assert torch.equal(one, whole[:, :, :end])


@settings(max_examples=60, deadline=None)
@given(window=st.integers(1, 6), chunks=CHUNKS, spare=st.integers(0, 2))
def test_a_windowed_cache_gives_each_query_its_whole_window(window, chunks, spare):
    cache, (k, _) = WindowedCache(window, spare), entries(sum(chunks))
    end = 0
    for T in chunks:
        columns = cache.columns(T)
        (got,) = cache.append(k[:, :, end : end + T])
        start, end = end, end + T
        first = max(0, start - window + 1)  # of the first new query's window
        assert torch.equal(got, k[:, :, first:end])
        assert columns == end - first
        assert cache.held == min(end, window + spare)
        assert cache.nbytes == cache.held * 2 * 3 * 4 * 8


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("cuts", [(3, 1, 1, 4), (1,) * 9, (9,), (2, 7)])
def test_windowed_cache_equals_windowed_mask(window, cuts):
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 6, n_kv_heads=2).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    full, cache = layer(x, mask=Causal(window)), WindowedCache(window)
    steps = [layer(part, mask=Causal(window), cache=cache) for part in x.split(cuts, 1)]
    close(torch.cat(steps, 1), full)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_truncate_is_as_if_the_rest_had_never_been_appended(make):
    k, v = entries(9)
    cache = make()
    cache.append(k[:, :, :5], v[:, :, :5])
    cache.append(k[:, :, 5:7], v[:, :, 5:7])
    cache.truncate(3)
    assert (cache.seen, cache.held) == (3, 3)
    got, _ = cache.append(k[:, :, 7:], v[:, :, 7:])
    assert torch.equal(got, torch.cat((k[:, :, :3], k[:, :, 7:]), 2))
    cache.truncate(0)
    assert cache.append(k, v)[0].shape[2] == 9


def test_a_windowed_cache_refuses_to_go_back_to_what_it_dropped():
    k, _ = entries(8)
    cache = WindowedCache(3)
    cache.append(k)  # holds 5, 6, 7
    cache.truncate(7)  # a query at 7 needs 5 and 6: both here
    with pytest.raises(ValueError, match="cannot go back to 6 tokens"):
        cache.truncate(6)
    roomy = WindowedCache(3, spare=2)
    roomy.append(k)
    roomy.truncate(5)
    (got,) = roomy.append(k[:, :, :1])
    assert torch.equal(got, torch.cat((k[:, :, 3:5], k[:, :, :1]), 2))


def test_a_windowed_cache_lets_go_of_what_it_drops():
    """A view of the newest would keep the whole text in memory."""
    k, _ = entries(100)
    cache = WindowedCache(4)
    cache.append(k)
    (store,) = cache.entries
    assert store.untyped_storage().nbytes() == cache.nbytes == 2 * 3 * 4 * 4 * 8


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_reorder_moves_whole_rows(make):
    k, v = entries(5, B=3)
    cache = make()
    cache.append(k, v)
    rows = torch.tensor([2, 2, 0, 1])
    cache.reorder(rows)
    assert torch.equal(cache.entries[0], k[rows])
    got, _ = cache.append(k[rows], v[rows])
    assert torch.equal(got[:, :, 5:], k[rows])


def test_preallocated_takes_its_memory_once_and_writes_in_place():
    k, v = entries(3)
    cache = PreallocatedCache(10)
    first, _ = cache.append(k, v)
    assert cache.nbytes == 10 * 2 * 3 * (4 + 5) * 8
    later, _ = cache.append(k, v)
    assert first.data_ptr() == later.data_ptr()
    with pytest.raises(ValueError, match="holds 6 and cannot take 5 more"):
        cache.append(*entries(5))
    assert cache.seen == 6  # the refusal left no trace


def test_a_latent_is_one_tensor():
    """Latent attention appends one tensor; the values are a view of its first part."""
    latent = torch.randn(2, 1, 4, 12)
    cache = GrowingCache()
    (got,) = cache.append(latent)
    assert torch.equal(got, latent) and cache.nbytes == 2 * 4 * 12 * 4


def test_memory_is_filled_once():
    k, v = entries(4)
    memory = Memory()
    assert memory.held == 0
    memory.append(k, v)
    assert torch.equal(memory.entries[1], v) and memory.held == 4
    with pytest.raises(ValueError, match="already holds 4"):
        memory.append(k, v)
    memory.truncate(0)
    assert memory.held == 4
    memory.reorder(torch.tensor([1]))
    assert torch.equal(memory.entries[0], k[1:])


def test_cross_attention_projects_the_memory_once():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3).double()
    x, context = (torch.randn(2, n, 12, dtype=torch.float64) for n in (4, 7))
    full, memory, calls = layer(x, context), Memory(), []
    layer.k_proj.register_forward_hook(lambda *_: calls.append(1))
    steps = [layer(x[:, t : t + 1], context, cache=memory) for t in range(4)]
    close(torch.cat(steps, 1), full)
    assert len(calls) == 1


def test_a_stack_of_caches_speaks_as_one():
    def layer():
        return DecoderLayerCache(GrowingCache(), Memory())

    caches = Caches([layer(), layer()])
    assert (caches.seen, caches.held, caches.nbytes, caches.columns(2)) == (0, 0, 0, 2)
    k, v = entries(4)
    for cache in caches:
        cache.own.append(k, v)
        cache.memory.append(k, v)
    one = 4 * 2 * 3 * 9 * 8
    assert (caches.seen, caches.held, caches.nbytes) == (4, 4, 4 * one)
    caches.truncate(3)
    caches.reorder(torch.tensor([1]))
    assert caches[1].seen == 3 and caches.nbytes == 2 * (one * 3 // 4 + one) // 2
    assert Caches().seen == 0


X = torch.zeros(1, 2, 3, 4)
FAULTS = {
    "nothing": ((), ValueError, "at least one"),
    "a list": (([1.0],), TypeError, "list"),
    "three axes": ((X[0],), ValueError, r"\(2, 3, 4\)"),
    "no tokens": ((X[:, :, :0],), ValueError, r"\(1, 2, 0, 4\)"),
    "lengths differ": ((X, X[:, :, :2]), ValueError, "differ"),
    "one is missing": ((X,), ValueError, "2 tensors are held, got 1"),
    "other heads": ((X[:, :1], X), ValueError, "do not fit"),
    "another batch": ((X.expand(2, 2, 3, 4),) * 2, ValueError, "do not fit"),
    "another dtype": ((X.double(), X.double()), TypeError, "float64"),
}


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS.keys())
def test_what_does_not_fit_is_refused(case):
    given_, error, message = case
    cache = GrowingCache()
    cache.append(X, X)
    with pytest.raises(error, match=message):
        cache.append(*given_)
    assert cache.seen == 3 and cache.held == 3


def test_wrong_numbers_are_refused():
    for make in (lambda: PreallocatedCache(0), lambda: WindowedCache(0)):
        with pytest.raises(ValueError, match="≥ 1, got 0"):
            make()
    with pytest.raises(ValueError, match="spare"):
        WindowedCache(2, spare=-1)
    cache = GrowingCache()
    cache.append(X, X)
    for n in (-1, 4):
        with pytest.raises(ValueError, match=f"go back to {n} tokens: 3 were seen"):
            cache.truncate(n)
    with pytest.raises(TypeError, match="integer"):
        cache.truncate(1.0)
    with pytest.raises(ValueError, match=r"0 … 0, got \[1\]"):
        cache.reorder(torch.tensor([1]))
    with pytest.raises(TypeError, match="int64"):
        cache.reorder([0])
    with pytest.raises(TypeError, match="Memory"):
        DecoderLayerCache(GrowingCache(), GrowingCache())


def test_rows_are_checked_once_for_all_layers(monkeypatch):
    from deepdive import cache as module

    k, v = entries(4)
    caches = Caches([GrowingCache() for _ in range(5)])
    for one in caches:
        one.append(k, v)
    asked, check = [], module._check_rows
    monkeypatch.setattr(module, "_check_rows", lambda *a: asked.append(a) or check(*a))
    caches.reorder(torch.tensor([1, 1]))
    assert len(asked) == 1
    assert all(torch.equal(one.entries[0], k[[1, 1]]) for one in caches)
    with pytest.raises(ValueError, match="0 … 1"):
        caches.reorder(torch.tensor([2]))


def test_what_is_kept_is_not_a_view_into_something_larger():
    joined = torch.randn(1, 2, 3, 12)
    cache = GrowingCache()
    cache.append(joined[..., :4], joined[..., 4:8])
    sizes = [x.untyped_storage().nbytes() for x in cache.entries]
    assert sum(sizes) == cache.nbytes
