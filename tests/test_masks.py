# SPDX-License-Identifier: MIT
"""Rules against their definition, cell by cell."""

from dataclasses import replace
from itertools import product

import pytest
import torch

from deepdive.masks import Causal, Everyone, Rule, as_tensor

SIZES = list(product(range(7), repeat=2))
KEEP = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 1, 0]]).bool()
RULES = {
    "everyone": Everyone(),
    "everyone, padded": Everyone(KEEP),
    "causal": Causal(),
    "causal, padded": Causal(keep=KEEP),
    "window": Causal(window=2),
    "prefix": Causal(prefix=3),
    "window, prefix, padded": Causal(window=2, prefix=2, keep=KEEP),
}


def causal_by_definition(T, S, window, prefix):
    """Row i stands at position S − T + i: bottom-right aligned."""
    out = torch.zeros(T, S, dtype=torch.bool)
    for i, s in product(range(T), range(S)):
        t = S - T + i
        behind = s <= t and (window is None or s > t - window)
        out[i, s] = behind or (0 <= t < prefix and s < prefix)
    return out


@pytest.mark.parametrize("window", [None, 1, 2, 4, 9])
@pytest.mark.parametrize("prefix", [0, 1, 3, 6])
def test_causal_is_its_definition(window, prefix):
    rule = Causal(window, prefix)
    for T, S in SIZES:
        expected = causal_by_definition(T, S, window, prefix)
        assert torch.equal(rule.tensor(T, S), expected), (T, S)


@pytest.mark.parametrize("T, S", [(1, 5), (3, 3), (5, 2), (0, 4)])
def test_everyone_sees_everything(T, S):
    assert Everyone().tensor(T, S).all() and Everyone().tensor(T, S).shape == (T, S)


def test_causal_is_torchs_triangle_for_equal_lengths():
    assert torch.equal(Causal().tensor(6, 6), torch.ones(6, 6).tril().bool())


def test_the_last_query_stands_beside_the_last_key():
    assert Causal().tensor(1, 4).all(), "one new token sees all that came before"
    assert Causal().tensor(2, 4).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert Causal().tensor(4, 2).int().tolist() == [[0, 0], [0, 0], [1, 0], [1, 1]]


@pytest.mark.parametrize("name", [name for name in RULES if "padded" in name])
def test_keep_blocks_columns_and_nothing_else(name):
    rule = RULES[name]
    bare = replace(rule, keep=None).tensor(3, 5)
    mask = rule.tensor(3, 5)
    assert mask.shape == (2, 1, 3, 5)
    for b, t, s in product(range(2), range(3), range(5)):
        assert mask[b, 0, t, s] == (bare[t, s] and KEEP[b, s])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("T", [2, 5, 7])
def test_any_tile_is_a_slice_of_the_whole(name, T):
    rule, S = RULES[name], 5
    whole, start = rule.tensor(T, S), S - T
    spans = [(a, b) for a in range(T + 1) for b in range(a, T + 1)]
    for (t0, t1), (s0, s1) in product(spans, [(0, 5), (1, 3), (2, 2), (4, 5)]):
        tile = rule.tile(start + t0, start + t1, s0, s1)
        assert torch.equal(tile, whole[..., t0:t1, s0:s1])


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("rows, columns", [(2, 2), (3, 4), (1, 5), (7, 1)])
def test_tiles_tile_the_tensor(name, rows, columns):
    rule, T, S = RULES[name], 6, 5
    strips = []
    for t in range(S - T, S, rows):
        ends = [(s, min(s + columns, S)) for s in range(0, S, columns)]
        tiles = [rule.tile(t, min(t + rows, S), s0, s1) for s0, s1 in ends]
        strips.append(torch.cat(tiles, -1))
    assert torch.equal(torch.cat(strips, -2), rule.tensor(T, S))


def test_plain_means_nothing_but_the_triangle():
    assert Causal().plain
    for rule in (Causal(window=3), Causal(prefix=1), Causal(keep=KEEP)):
        assert not rule.plain


def test_as_tensor():
    mask = torch.ones(2, 3).bool()
    assert as_tensor(None, 2, 3, "cpu") is None
    assert as_tensor(mask, 2, 3, "cpu") is mask
    assert torch.equal(as_tensor(Causal(), 2, 3, "cpu"), Causal().tensor(2, 3))
    padded = as_tensor(Everyone(KEEP), 2, 5, "cpu")
    assert torch.equal(padded, KEEP[:, None, None].expand(2, 1, 2, 5))
    assert as_tensor(Everyone(), 2, 3, "cpu") is None, "nothing is blocked: no mask"


def test_a_rule_of_ones_own_says_allowed_and_nothing_else():
    class Neighbours(Rule):
        def allowed(self, query, key):
            return (query - key).abs() <= 1

    bare = [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert Neighbours().tensor(4, 5).int().tolist() == bare
    padded = Neighbours(KEEP).tensor(4, 5)
    assert torch.equal(padded, torch.tensor(bare).bool() & KEEP[:, None, None])
    with pytest.raises(TypeError, match="abstract"):
        Rule()


def test_a_pass_over_new_tokens_makes_one_mask():
    """Every layer asks the rule anew; the tensor is made once."""
    made, rule = [], Causal()
    tile = Causal.tile
    try:
        Causal.tile = lambda *a, **k: made.append(a) or tile(*a, **k)
        tensors = [as_tensor(rule, 4, 9, None) for _ in range(6)]
        wide = Causal(window=9)
        tensors += [as_tensor(wide, 4, 9, None) for _ in range(6)]
    finally:
        Causal.tile = tile
    assert len(made) == 2
    assert all(torch.equal(x, tensors[0]) for x in tensors)


def test_a_rule_does_not_change_with_its_keep():
    keep = torch.ones(1, 3).bool()
    rule = Everyone(keep)
    keep[0, 0] = False
    assert rule.tensor(1, 3).all()
