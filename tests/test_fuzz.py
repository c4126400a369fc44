# SPDX-License-Identifier: MIT
"""Thousands of random inputs, right and wrong: the result is right, or it is refused.

The law of test_errors_public.py, with many arguments thrown at once. Where an input is
taken, shape and dtype are as promised, no number is NaN, and the numbers are those of
another way to compute them. Every throw is counted, and the last test asks how many.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from deepdive import decoding, moe, objectives
from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, place, post_norm, pre_norm
from deepdive.cache import (
    Caches,
    GrowingCache,
    Memory,
    PreallocatedCache,
    WindowedCache,
)
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.kernels import equation, fused, tiled
from deepdive.masks import Causal, Everyone, Rule
from deepdive.norms import RMSNorm
from deepdive.positions import (
    Alibi,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    half_split,
    interleaved,
)
from deepdive.recurrent import cells
from tests.public_calls import DECODERS, built

THROWN: Counter = Counter()  # per part: how many, and of them how many were taken
LEAST = 5_000

# ── Throwing ─────────────────────────────────────────────────────────────────────────


def spoil(dice, shape):
    """Another shape: an axis longer, empty, missing, too many, or exchanged."""
    shape, i = list(shape), dice.randrange(len(shape))
    how = dice.randrange(5)
    if how == 0:
        shape[i] += dice.choice([1, 2])
    elif how == 1:
        shape[i] = dice.choice([0, 1])
    elif how == 2:
        del shape[i]
    elif how == 3:
        shape.insert(i, dice.choice([1, 2]))
    else:
        dice.shuffle(shape)
    return tuple(shape)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.int64, torch.bool]
DTYPES += [torch.complex64, torch.bfloat16, torch.uint8]
JUNK = [None, 1.5, "causal", [[1.0]], object(), (2, 3), True]


def tensor(dice, shape, dtype=torch.float64, p=0.12, size=2.0):
    """A tensor that is now and then of another shape, another dtype, or junk."""
    if dice.random() < p / 4:
        return dice.choice(JUNK)
    if dice.random() < p and len(shape):
        shape = spoil(dice, shape)
    if dice.random() < p / 2:
        dtype = dice.choice(DTYPES)
    numbers = torch.Generator().manual_seed(dice.randrange(2**31))
    return (torch.randn(shape, generator=numbers, dtype=torch.float64) * size).to(dtype)


def any_ids(dice, shape, below, p=0.12):
    """Ids that are now and then outside, of another shape, another dtype, or junk."""
    if dice.random() < p / 4:
        return dice.choice(JUNK)
    if dice.random() < p / 2:
        shape = spoil(dice, shape)
    numbers = torch.Generator().manual_seed(dice.randrange(2**31))
    ids = torch.randint(0, below, shape, generator=numbers)
    if ids.numel() and dice.random() < p / 2:
        ids.view(-1)[dice.randrange(ids.numel())] = dice.choice([-1, below, 10**6])
    return ids.to(dice.choice(DTYPES)) if dice.random() < p / 3 else ids


def any_keep(dice, shape, p=0.12):
    """Which are real: now and then no tensor of this shape, sometimes none at all."""
    if dice.random() < 0.4:
        return None
    keep = tensor(dice, shape, torch.bool, p)
    if isinstance(keep, Tensor) and keep.dtype == torch.bool:
        numbers = torch.Generator().manual_seed(dice.randrange(2**31))
        keep = torch.rand(keep.shape, generator=numbers) < 0.8
    return keep


def number(dice, good, p=0.12):
    """A number that is now and then out of range or none."""
    bad = [0, -1, 1.5, float("nan"), float("inf"), "3", None, 10**3]
    return dice.choice(bad) if dice.random() < p else good


def outcome(part: str, call: Callable, *arguments, **named):
    """The result, or the refusal; any other exception fails the test."""
    THROWN[part] += 1
    try:
        result = call(*arguments, **named)
    except (ValueError, TypeError) as refusal:
        assert str(refusal)
        return refusal
    THROWN[f"{part}, taken"] += 1
    return result


def refused(*results) -> bool:
    """True when all are refusals, False when none is; they have to agree."""
    kinds = {isinstance(result, Exception) for result in results}
    assert len(kinds) == 1, results
    return kinds.pop()


def same(a: Tensor, b: Tensor, tolerance: float = 1e-10) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape)
    assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), (a - b).abs().max()


def throws(n: int, part: int = 0):
    """So many dice, each with its own seed."""
    return (random.Random(1_000_000 * part + seed) for seed in range(n))


# ── Kernels and the layer around them ────────────────────────────────────────────────


def formula(q, k, v, mask, bias, scale):
    """Equation 1 in float64, with no check at all."""
    q, k, v = q.double(), k.double(), v.double()
    _, H, T, D = q.shape
    k, v = (t.repeat_interleave(H // t.shape[1], 1) for t in (k, v))
    scores = q @ k.mT * (D**-0.5 if scale is None else scale)
    scores = scores + (0 if bias is None else bias)
    if isinstance(mask, Rule):
        mask = mask.tensor(T, k.shape[2])
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ v


def any_mask(dice, B, H, T, S):
    full = dice.choice([(T, S), (B, H, T, S), (S,), (B, 1, 1, S), (), (H, T, 1)])
    keep = tensor(dice, (B, S), torch.bool)
    kind = dice.randrange(6)
    if kind < 2:
        return None
    if kind == 2:
        return tensor(dice, full, torch.bool) if full else torch.tensor(True)
    if kind == 3:
        return Everyone(keep)
    window, prefix = dice.choice([None, 1, 2, 0]), dice.choice([0, 2, -1, 1.5])
    return Causal(window, prefix if dice.random() < 0.2 else 0)


def matches(out, arguments):
    expected = formula(*arguments)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4}.get(out.dtype, 0.1)
    assert out.shape == expected.shape
    assert torch.allclose(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(5))
def test_kernels(seed):
    dice, right, wrong = random.Random(seed), 0, 0
    for _ in range(500):
        B, G, T, S, D, Dv = (dice.randint(1, 3) for _ in range(6))
        H = G * dice.randint(1, 2)
        shapes = (B, H, T, D), (B, G, S, D), (B, G, S, Dv)
        arguments = [tensor(dice, shape) for shape in shapes]
        mask = outcome("masks", any_mask, dice, B, H, T, S)
        if isinstance(mask, Exception):
            continue  # the rule itself was refused
        bias = tensor(dice, (H, T, S)) if dice.random() < 0.3 else None
        scale = dice.choice([None, None, 1.0, 0.25, 2, float("nan"), "1"])
        arguments += [mask, bias, scale]
        size = dice.choice([1, 2, 5])
        results = [
            outcome("kernels", equation, *arguments),
            outcome("kernels", fused, *arguments),
            outcome("kernels", tiled, *arguments, block_size=size),
        ]
        if refused(*results):
            wrong += 1
            continue
        right += 1
        for out in results:
            assert out.dtype == arguments[0].dtype
            matches(out, arguments)
    assert right > 100 and wrong > 200, "it must reach the kernels, not only checks"


@pytest.mark.parametrize("seed", range(4))
def test_layer(seed):
    dice, right = random.Random(100 + seed), 0
    for _ in range(300):
        B, T, S, G = (dice.randint(1, 3) for _ in range(4))
        sizes = dice.choice([4, 6, 12, 0, -1]), dice.choice([G, 2 * G, 0, -2])
        head_dim = dice.choice([None, None, None, 2, 0])
        layer = outcome("layer", MultiHeadAttention, *sizes, G, head_dim)
        if isinstance(layer, Exception):
            continue
        layer.double()
        d_model, H = sizes
        x = tensor(dice, (B, T, d_model))
        context = tensor(dice, (B, S, d_model)) if dice.random() < 0.5 else None
        keys = T if context is None else S
        mask = outcome("masks", any_mask, dice, B, H, T, keys)
        bias = tensor(dice, (H, T, keys)) if dice.random() < 0.3 else None
        if isinstance(mask, Exception):
            continue
        out = outcome("layer", layer, x, context, mask, bias)
        if isinstance(out, Exception):
            continue
        right += 1
        source = x if context is None else context
        q = layer.q_proj(x).unflatten(-1, (H, -1)).transpose(1, 2)
        k, v = (
            p(source).unflatten(-1, (G, -1)).transpose(1, 2)
            for p in (layer.k_proj, layer.v_proj)
        )
        heads = formula(q, k, v, mask, bias, None)
        same(out, layer.o_proj(heads.transpose(1, 2).flatten(2)))
    assert 20 < right < 150


def test_layer_with_cache_and_rotation():
    """In random chunks behind one another = all at once, whatever the cache."""
    for dice in throws(80, 1):
        B, G, T, window = (dice.randint(1, n) for n in (2, 2, 7, 4))
        window = dice.choice([None, window])
        D = 2 * dice.randint(1, 2)
        layer = MultiHeadAttention(6, 2 * G, G, D).double()
        rotary = Rotary(D, pairing=dice.choice([half_split, interleaved]))
        x = tensor(dice, (B, T, 6), p=0)
        rotate = rotary(torch.arange(T))
        whole = outcome("layer", layer, x, mask=Causal(window), rotate=rotate)
        kinds = [GrowingCache(), PreallocatedCache(T)]
        kinds += [] if window is None else [WindowedCache(window)]
        cache, done, outs = dice.choice(kinds), 0, []
        while done < T:
            n = dice.randint(1, T - done)
            at = rotary(torch.arange(done, done + n))
            chunk = x[:, done : done + n]
            how = {"mask": Causal(window), "rotate": at, "cache": cache}
            wrong = tensor(dice, (B, n, 6), p=1)
            if isinstance(outcome("layer", layer, wrong, **how), Exception):
                assert cache.seen == done, "a refused call must leave the cache alone"
            else:  # as good as any: take it back
                cache.seen == done or cache.truncate(done)
            outs.append(outcome("layer", layer, chunk, **how))
            done += n
        same(torch.cat(outs, 1), whole)


# ── Masks and caches ─────────────────────────────────────────────────────────────────


def test_masks():
    """A rule's tensor is what its words say, and every tile is a part of it."""
    for dice in throws(500, 2):
        B, T, S = dice.randint(1, 2), dice.randint(0, 4), dice.randint(0, 5)
        keep = any_keep(dice, (B, S))
        window, prefix = number(dice, dice.randint(1, 4)), dice.choice([0, 0, 2, -1])
        rule = outcome("masks", Causal, window, prefix, keep=keep)
        if isinstance(rule, Exception):
            continue
        whole = outcome("masks", rule.tensor, number(dice, T), number(dice, S))
        if isinstance(whole, Exception) or whole.shape[-2:] != (T, S):
            continue
        for t, s in itertools.product(range(T), range(S)):
            at = t + S - T
            allowed = s <= at and (window is None or s > at - window)
            allowed = allowed or (0 <= at < prefix and s < prefix)
            for b in range(1 if keep is None else len(keep)):
                real = keep is None or bool(keep[b, s])
                got = whole[b, 0, t, s] if whole.dim() == 4 else whole[t, s]
                assert bool(got) == (allowed and real)
        t0, t1, s0, s1 = (dice.randint(-1, 5) for _ in range(4))
        tile = outcome("masks", rule.tile, t0 + S - T, t1 + S - T, s0, s1)
        if not isinstance(tile, Exception) and t0 >= 0 and t1 <= T and s1 <= S:
            assert torch.equal(tile, whole[..., t0:t1, s0:s1])


def test_caches():
    """Whatever is done to them, each holds what a plain list of tokens would hold."""
    for dice in throws(60, 3):
        B, window, room = (dice.randint(1, n) for n in (3, 4, 12))
        caches = GrowingCache(), PreallocatedCache(room), WindowedCache(window, 2)
        cache = dice.choice(caches)
        text = torch.zeros(B, 2, 0, 3, dtype=torch.float64)
        for _ in range(10):
            seen, held = cache.seen, cache.held
            kind = dice.randrange(3)
            if kind == 0:
                new = tensor(dice, (text.shape[0], 2, dice.randint(1, 3), 3))
                got = outcome("caches", cache.append, new)
                if not isinstance(got, Exception):
                    if text.shape[2] == 0:
                        text = new[..., :0, :]
                    text = torch.cat([text, new], 2)
                    assert torch.equal(got[0], text[..., -got[0].shape[2] :, :])
            elif kind == 1:
                n = number(dice, dice.randint(0, seen), p=0.3)
                if not isinstance(outcome("caches", cache.truncate, n), Exception):
                    text = text[..., :n, :]
            else:
                rows = any_ids(dice, (dice.randint(1, 3),), max(1, len(text)), p=0.3)
                got = outcome("caches", cache.reorder, rows)
                if not isinstance(got, Exception) and cache.entries and seen:
                    text = text[rows]
                got = None if cache.entries else got
            if isinstance(got if kind != 1 else None, Exception):
                assert (cache.seen, cache.held) == (seen, held)
            assert cache.seen == text.shape[2]
            if cache.held:
                assert torch.equal(cache.entries[0], text[..., -cache.held :, :])


# ── Positions ────────────────────────────────────────────────────────────────────────


def test_positions():
    for dice in throws(200, 4):
        B, T, D = (dice.randint(1, 4) for _ in range(3))
        at = any_ids(dice, dice.choice([(T,), (B, T)]), 50, p=0.3)
        table = outcome("positions", SinusoidalPositions, number(dice, 2 * D))
        if not isinstance(table, Exception):
            out = outcome("positions", table, at)
            if not isinstance(out, Exception):
                assert out.shape == (*at.shape, table.d_model)
                assert (out.abs() <= 1).all()
        pairing = dice.choice([half_split, interleaved])
        rotary = outcome("positions", Rotary, number(dice, 2 * D), pairing=pairing)
        if isinstance(rotary, Exception):
            continue
        rotate = outcome("positions", rotary, at)
        if isinstance(rotate, Exception):
            continue
        x = tensor(dice, (B, 2, T, rotary.head_dim), p=0.3)
        out = outcome("positions", rotate, x)
        if not isinstance(out, Exception):  # a turn keeps the length
            loose = 1e-5 if x.dtype in (torch.float32, torch.float64) else 5e-2
            same(out.norm(dim=-1).double(), x.norm(dim=-1).double(), loose * 10)


def test_biases_and_places():
    for dice in throws(200, 5):
        B, T, S, H = (dice.randint(1, 4) for _ in range(4))
        queries, keys = (any_ids(dice, (n,), 30) for n in (T, S))
        sizes = number(dice, 8), number(dice, 16)
        t5 = outcome("positions", RelativeBias, H, dice.random() < 0.5, *sizes)
        for bias in (t5, outcome("positions", Alibi, number(dice, H))):
            if not isinstance(bias, Exception):
                out = outcome("positions", bias, queries, keys)
                if not isinstance(out, Exception):
                    heads = H if bias is t5 else bias.n_heads
                    assert out.shape == (1, heads, len(queries), len(keys))
                    assert out.isfinite().all()
        tokens = any_ids(dice, (B, T), 9)
        seen = dice.randint(0, 3)
        caches = Caches([GrowingCache()])
        if seen:
            caches[0].append(torch.zeros(B, 1, seen, 2))
        caches = dice.choice([caches, caches, None, [GrowingCache()], "x"])
        keep = any_keep(dice, (B, (seen if isinstance(caches, Caches) else 0) + T))
        given = any_ids(dice, (B, T), 9) if dice.random() < 0.3 else None
        window, most = number(dice, 3), number(dice, 20)
        here = outcome("place", place, tokens, caches, keep, given, window, most)
        if not isinstance(here, Exception):
            length = tokens.shape[1]
            columns = length if caches is None else caches.columns(length)
            made = here.mask.tensor(length, columns)
            assert here.positions.shape[-1] == length and made.shape[-1] == columns


# ── Blocks and models ────────────────────────────────────────────────────────────────


def test_blocks():
    for dice in throws(150, 6):
        B, T, S = (dice.randint(1, 3) for _ in range(3))
        cross, residual = dice.random() < 0.5, dice.choice([pre_norm, post_norm])
        parts = [MultiHeadAttention(4, 2), FeedForward(4, 3, nn.ReLU())]
        norms = [dice.choice([nn.LayerNorm, RMSNorm])(4) for _ in range(3)]
        more = [MultiHeadAttention(4, 2), norms[2]] if cross else []
        wrong = dice.choice([None, 3, "x"])
        if dice.random() < 0.1:
            parts[dice.randrange(2)] = wrong
        block = outcome("blocks", Block, *parts, *norms[:2], residual, *more)
        if isinstance(block, Exception):
            continue
        block.double()
        x = tensor(dice, (B, T, 4))
        memory = tensor(dice, (B, S, 4)) if dice.random() < 0.6 else None
        mask = outcome("masks", any_mask, dice, B, 2, T, T)
        if isinstance(mask, Exception):
            continue
        cache = dice.choice([None, GrowingCache(), Memory(), wrong])
        out = outcome("blocks", block, x, memory, cache=cache, mask=mask)
        if not isinstance(out, Exception):
            assert out.shape == x.shape and out.isfinite().all()


@pytest.mark.parametrize("kind", DECODERS)
def test_decoders(kind):
    """In chunks with a cache = all at once; and wrong tokens leave no trace."""
    model = built(kind)
    for dice in throws(30, 7):
        B, T = dice.randint(1, 2), dice.randint(1, 8)
        tokens = any_ids(dice, (B, T), 9, p=0)
        keep = any_keep(dice, (B, T), p=0)
        whole = outcome(kind, model, tokens, keep=keep)
        assert whole.shape == (B, T, 9) and whole.isfinite().all()
        caches, done, outs = model.new_caches(), 0, []
        while done < T:
            n = dice.randint(1, T - done)
            part = None if keep is None else keep[:, : done + n]
            wrong = any_ids(dice, (B, n), 9, p=1)
            wrong_keep = any_keep(dice, (B, done + n), p=1)
            other = dice.choice([Caches([GrowingCache()]), "x", [GrowingCache()]])
            at = any_ids(dice, (n,), 9, p=1)
            for bad in (
                {"tokens": wrong},
                {"tokens": tokens[:, :n], "keep": wrong_keep},
                {"tokens": tokens[:, :n], "positions": at},
            ):
                copies = model.new_caches()
                if done:
                    model(tokens[:, :done], copies)
                out = outcome(kind, model, caches=copies, **bad)
                if isinstance(out, Exception):
                    assert copies.seen == done
                else:
                    assert out.isfinite().all()
            assert isinstance(outcome(kind, model, tokens, other), Exception)
            chunk = tokens[:, done : done + n]
            outs.append(outcome(kind, model, chunk, caches, part))
            done += n
        if keep is None:
            same(torch.cat(outs, 1), whole, 1e-5)
        else:  # what stands at padding is of no use
            same(torch.cat(outs, 1)[keep], whole[keep], 1e-5)


@pytest.mark.parametrize("kind", ["t5", "2017", "seq2seq"])
def test_encoder_decoders(kind):
    model = built(kind)
    for dice in throws(80, 8):
        B, S, T = (dice.randint(1, 3) for _ in range(3))
        src, tgt = any_ids(dice, (B, S), 9), any_ids(dice, (B, T), 9)
        keeps = any_keep(dice, (B, S)), any_keep(dice, (B, T))
        out = outcome(kind, model, src, tgt, *keeps)
        memory = outcome(kind, model.encode, src, keeps[0])
        if isinstance(memory, Exception):
            assert isinstance(out, Exception)
            continue
        steps = outcome(kind, model.decode, tgt, memory, keeps[0])
        if isinstance(out, Exception):
            continue
        assert out.shape == (*tgt.shape, 9) and out.isfinite().all()
        if keeps[1] is None:
            same(steps, out, 1e-5)
            caches, parts = model.new_caches(), []
            for t in range(tgt.shape[1]):
                word = tgt[:, t : t + 1]
                parts.append(model.decode(word, memory, keeps[0], caches))
                wrong = tensor(dice, (B, S, 8), torch.float32, p=1)
                if kind != "seq2seq" and t:
                    again = outcome(kind, model.decode, word, wrong, None, caches)
                    isinstance(again, Exception) or caches.truncate(t + 1)
            same(torch.cat(parts, 1), out, 1e-5)


def test_bert():
    for dice in throws(120, 9):
        B, T = dice.randint(1, 3), dice.randint(1, 13)
        tokens, segments = any_ids(dice, (B, T), 9), any_ids(dice, (B, T), 2)
        segments = None if dice.random() < 0.5 else segments
        keep = any_keep(dice, (B, T))
        outs = [
            outcome("bert", built(k), tokens, segments, keep) for k in ("bert", "mlm")
        ]
        if not refused(*outs):
            assert all(out.isfinite().all() for out in outs)
            assert outs[0].shape == (*tokens.shape, 8) and T <= 12


# ── Experts and recurrence ───────────────────────────────────────────────────────────


def test_experts():
    """Sorted by expert = every expert asked; the balance losses are finite."""
    for dice in throws(300, 10):
        E, K, N, d = number(dice, 4), dice.randint(0, 4), dice.randint(1, 5), 3
        groups = outcome("experts", moe.Groups, number(dice, 2), number(dice, 1))
        groups = None if isinstance(groups, Exception) else groups
        scale = number(dice, 1.5)
        kinds = {
            moe.SoftmaxTopKRouter: (dice.random() < 0.5, scale, groups),
            moe.SigmoidRouter: (dice.random() < 0.5, scale, groups),
            moe.NoisyTopKRouter: (),
        }
        kind = dice.choice(list(kinds))
        router = outcome("experts", kind, d, E, K, *kinds[kind])
        if isinstance(router, Exception):
            continue
        router.weight.data.normal_(generator=torch.Generator().manual_seed(0))
        if dice.random() < 0.3:
            capped = outcome("experts", moe.Capped, router, number(dice, 1.0))
            router = router if isinstance(capped, Exception) else capped
        networks = dice.choice([moe.Experts, moe.TwoLayerExperts])(4, d, 2).double()
        x = tensor(dice, (N, d))
        routing = outcome("experts", router.double(), x)
        if isinstance(routing, Exception):
            continue
        if groups is not None and kind is not moe.NoisyTopKRouter:
            machine = routing.experts // (E // groups.n_groups)
            assert all(len(set(row)) <= groups.top_groups for row in machine.tolist())
        assert torch.equal(moe.expert_counts(routing).sum(), torch.tensor(len(x) * K))
        outs = [outcome("experts", f, x, routing) for f in (networks, networks.dense)]
        if not refused(*outs):
            same(*outs)
        sequences = number(dice, 1)
        losses = [
            outcome("experts", moe.switch_balance_loss, routing),
            outcome("experts", moe.importance_loss, routing),
            outcome("experts", moe.load_loss, routing),
            outcome("experts", moe.router_z_loss, routing),
            outcome("experts", moe.sequence_balance_loss, routing, sequences),
        ]
        assert all(isinstance(one, Exception) or one.isfinite() for one in losses)


def test_recurrence():
    """Unrolled = one step after another, and padding lets the state pass."""
    for dice in throws(150, 11):
        B, T, d, h = (dice.randint(1, 3) for _ in range(4))
        kind = dice.choice([cells.ElmanCell, cells.GruCell, cells.LstmCell])
        cell = outcome("recurrence", kind, number(dice, d), number(dice, h))
        if isinstance(cell, Exception) or (cell.d_in, cell.d_hidden) != (d, h):
            continue
        cell.double()
        x, keep = tensor(dice, (B, T, d)), any_keep(dice, (B, T))
        state = tensor(dice, (B, cell.d_state)) if dice.random() < 0.5 else None
        out = outcome("recurrence", cells.unroll, cell, x, state, keep)
        if isinstance(out, Exception):
            continue
        state = x.new_zeros(B, cell.d_state) if state is None else state
        for t in range(T):
            new = outcome("recurrence", cell, x[:, t], state)
            real = torch.ones(B).bool() if keep is None else keep[:, t]
            state = torch.where(real[:, None], new, state)
            same(out[:, t], state)


# ── Practice ─────────────────────────────────────────────────────────────────────────


def any_logits(dice, shape):
    logits = tensor(dice, shape, dice.choice([torch.float32, torch.bfloat16]), size=5)
    if isinstance(logits, Tensor) and logits.is_floating_point() and logits.dim():
        if dice.random() < 0.2:  # words out of the question, but not all
            logits[..., 1:] = -torch.inf
        if dice.random() < 0.2:
            logits = logits.clamp(-1, 1).round()  # ties
    return logits


def test_choices():
    """Whatever is chosen from: probabilities, and the most probable word among them."""
    makers = decoding.temperature, decoding.top_k, decoding.top_p, decoding.min_p
    for dice in throws(400, 12):
        B, V = dice.randint(1, 3), dice.randint(1, 6)
        logits = any_logits(dice, (B, V))
        chosen = []
        for maker in dice.sample(makers, dice.randint(0, 3)):
            good = dice.randint(1, 4) if maker is decoding.top_k else dice.random()
            one = outcome("choices", maker, number(dice, good))
            chosen += [] if isinstance(one, Exception) else [one]
        chosen = dice.choice(JUNK) if dice.random() < 0.05 else chosen
        probs = outcome("choices", decoding.probabilities, logits, chosen)
        word = outcome("choices", decoding.draw, logits, chosen)
        if isinstance(probs, Exception):
            assert isinstance(word, Exception)
            continue
        assert probs.shape == logits.shape and not probs.isnan().any()
        same(probs.sum(-1).double(), torch.ones(logits.shape[:-1]).double(), 1e-4)
        best = logits.float().argmax(-1, keepdim=True)
        assert (probs.gather(-1, best) > 0).all()
        if not isinstance(word, Exception):
            assert (probs.gather(-1, word[:, None]) > 0).all()


class Table:
    """A step that knows one row of logits for each word; it forgets as asked."""

    def __init__(self, logits: Tensor):
        self.logits, self.seen = logits, 0

    def __call__(self, ids: Tensor) -> Tensor:
        self.seen += ids.shape[1]
        return self.logits[ids % len(self.logits)]

    def truncate(self, n: int) -> None:
        self.seen = n

    def reorder(self, rows: Tensor) -> None:
        pass


def test_decoding():
    """Texts end where they should, and speculation writes the target's own text."""
    for dice in throws(250, 13):
        B, T, V = dice.randint(1, 2), dice.randint(1, 3), dice.randint(2, 6)
        more = dice.choice([0, 0, 0, 3])  # a draft of another vocabulary
        target, draft = (tensor(dice, (n, n), torch.float32) for n in (V, V + more))
        if not all(isinstance(x, Tensor) and x.dim() == 2 for x in (target, draft)):
            continue
        prompt = any_ids(dice, (B, T), V)
        stop = dice.choice([(), (0,), (0, 1), (-1,), (99,), 3, "x", [1.5]])
        pad, new = number(dice, 0), number(dice, dice.randint(0, 5))
        new = min(new, 9) if isinstance(new, int) else new
        if isinstance(pad, int) and pad >= V:
            stop = (pad,)
        greedy = outcome(
            "decoding", decoding.greedy, Table(target), prompt, new, stop, pad
        )
        beam = outcome(
            "decoding",
            decoding.beam_search,
            Table(target),
            prompt,
            new,
            1,
            stop,
            0.0,
            pad,
        )
        if not refused(greedy, beam):
            assert torch.equal(greedy.ids, beam.ids)
            assert greedy.ids.shape[1] <= new
            for row in greedy.rows():
                assert all(0 <= id < target.shape[1] for id in row)
                assert not set(row[:-1]) & set(stop)
        many = number(dice, 3)
        many = many if many != 10**3 else 4
        outcome(
            "decoding", decoding.beam_search, Table(target), prompt, new, many, stop
        )
        one = prompt[:1] if isinstance(prompt, Tensor) and prompt.dim() else prompt
        ahead = number(dice, 2)
        fast = outcome(
            "decoding",
            decoding.speculative,
            Table(target),
            Table(draft),
            one,
            new,
            ahead if ahead != 10**3 else 4,
            None,
            stop,
        )
        if not isinstance(fast, Exception) and not isinstance(greedy, Exception):
            assert fast.rows()[0] == greedy.rows()[0]


def test_objectives():
    for dice in throws(250, 14):
        B, T, V = dice.randint(1, 2), dice.randint(1, 5), dice.randint(2, 6)
        logits, labels = any_logits(dice, (B, T, V)), any_ids(dice, (B, T), V)
        keep = any_keep(dice, (B, T))
        eps = number(dice, 0.1)
        for loss in (
            outcome("objectives", objectives.cross_entropy, logits, labels),
            outcome("objectives", objectives.causal_lm, logits, labels, keep),
            outcome("objectives", objectives.label_smoothed, logits, labels, 0, eps),
        ):
            if not isinstance(loss, Exception):
                assert not loss.mean.isnan()
                finite = logits.isfinite().all()
                assert not finite or (loss.mean.isfinite() and loss.total >= -1e-4)
        cut = outcome("objectives", objectives.prefix_lm_batch, labels, keep)
        if not isinstance(cut, Exception):
            assert 1 <= cut[0] < labels.shape[1]
        hidden = outcome(
            "objectives", objectives.masked_lm_batch, labels, V, V - 1, [0], rate=0.5
        )
        if not isinstance(hidden, Exception):
            asked = hidden[1] != objectives.IGNORED
            assert torch.equal(hidden[0][~asked], labels[~asked])
        text = any_ids(dice, (dice.randint(1, 12),), 9)
        rate, span = number(dice, 0.3), number(dice, 2.0)
        marks = list(range(20, 20 + dice.randint(0, 8)))
        pair = outcome(
            "objectives", objectives.span_corruption, text, marks, None, rate, span
        )
        if not isinstance(pair, Exception):
            back = outcome("objectives", objectives.fill_spans, *pair, marks)
            assert torch.equal(back, text)


def test_configs():
    """Every config that is accepted can be built, where it is small."""
    build = "bert", "gpt", "llama", "mixtral", "v2", "t5", "2017"
    for dice in throws(350, 15):
        kind = dice.choice(build)
        model = built(kind)
        fields = dict(vars(model.config))
        for name in dice.sample(list(fields), dice.randint(1, 3)):
            value = fields[name]
            if isinstance(value, bool):
                fields[name] = dice.choice([True, False, "x"])
            elif isinstance(value, int):
                fields[name] = number(dice, dice.randint(1, 9), p=0.3)
            elif isinstance(value, float):
                fields[name] = number(dice, dice.random(), p=0.3)
            else:
                fields[name] = dice.choice([None, "x", 3])
        config = outcome("configs", type(model.config), **fields)
        if isinstance(config, Exception) or 1000 in fields.values():
            continue
        made = outcome("configs", type(model), config)
        if isinstance(made, Exception):  # only what positions ask beyond the sizes
            assert any(word in str(made) for word in ("n_buckets", "head_dim")), made


# ── Large numbers ────────────────────────────────────────────────────────────────────

LARGE = {torch.float32: 1e4, torch.bfloat16: 1e4, torch.float16: 100.0}


@pytest.mark.parametrize("dtype", LARGE, ids=str)
def test_no_nan_from_large_numbers(dtype):
    """Finite in, no NaN out: up to 10⁴, in float16 up to 100."""
    for dice in throws(60, 16):
        B, T, S = (dice.randint(1, 4) for _ in range(3))

        def x(*shape, dice=dice):
            spread = dice.choice([1e-3, 1.0, 1e3])
            top = LARGE[dtype]
            if dice.random() < 0.3:  # all alike, so that sums grow as they can
                return torch.full(shape, top, dtype=dtype)
            return (
                tensor(dice, shape, p=0, size=top * spread).clamp(-top, top).to(dtype)
            )

        mask = dice.choice([None, Causal(), Everyone(torch.zeros(B, S).bool())])
        q, k, v = x(B, 2, T, 64), x(B, 1, S, 64), x(B, 1, S, 4)
        bias = dice.choice([None, x(T, S)])
        outs = [
            outcome("large", f, q, k, v, mask, bias) for f in (equation, fused, tiled)
        ]
        layers = [
            MultiHeadAttention(8, 2),
            FeedForward(8, 6, nn.ReLU()),
            GatedFeedForward(8, 6, nn.SiLU()),
            RMSNorm(8),
            Block(
                MultiHeadAttention(8, 2),
                FeedForward(8, 6, nn.GELU()),
                nn.LayerNorm(8),
                RMSNorm(8),
                dice.choice([pre_norm, post_norm]),
            ),
            moe.MixtureOfExperts(moe.SigmoidRouter(8, 4, 2), moe.Experts(4, 8, 5)),
            moe.MixtureOfExperts(moe.SoftmaxTopKRouter(8, 4, 2), moe.Experts(4, 8, 5)),
            moe.MixtureOfExperts(moe.SwitchRouter(8, 4), moe.TwoLayerExperts(4, 8, 5)),
        ]
        outs += [outcome("large", f.to(dtype), x(B, T, 8)) for f in layers]
        for kind in (cells.ElmanCell, cells.GruCell, cells.LstmCell):
            cell = kind(8, 4).to(dtype)
            outs.append(outcome("large", cells.unroll, cell, x(B, T, 8)))
        logits = x(B, T, 9)
        labels = any_ids(dice, (B, T), 9, p=0)
        outs += [
            outcome("large", decoding.probabilities, logits, decoding.top_p(0.9)),
            outcome(
                "large", decoding.probabilities, logits, decoding.temperature(1e-3)
            ),
            outcome("large", objectives.cross_entropy, logits, labels).mean,
            outcome("large", objectives.causal_lm, logits, labels).mean,
        ]
        for out in outs:
            assert isinstance(out, Tensor) and not out.isnan().any()


def test_as_many_as_promised():
    """Counted where this file runs as a whole, in one process."""
    if len(THROWN) < 20:
        pytest.skip("only a part of this file was run")
    total = sum(n for part, n in THROWN.items() if not part.endswith(", taken"))
    taken = sum(n for part, n in THROWN.items() if part.endswith(", taken"))
    assert total >= LEAST and LEAST / 5 < taken < total - LEAST / 5, THROWN
