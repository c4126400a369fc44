# SPDX-License-Identifier: MIT
"""Decoding against brute force, against `transformers`, and against its own laws."""

import itertools
import math
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepdive.cache import (
    Caches,
    DecoderLayerCache,
    GrowingCache,
    Memory,
    PreallocatedCache,
    WindowedCache,
)
from deepdive.configs import GptConfig, LlamaConfig
from deepdive.decoding import (
    CachedStep,
    UncachedStep,
    beam_search,
    greedy,
    length_penalty,
    min_p,
    probabilities,
    sample,
    speculative,
    stream,
    temperature,
    top_k,
    top_p,
)
from deepdive.kernels import equation
from deepdive.masks import Everyone
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama

# ── Models small enough to enumerate all that they may write ─────────────────────────


class Hashed:
    """Logits that depend on the whole prefix: a random row for each hash of it."""

    def __init__(self, V, seed, spread=2.0, rows=997, dtype=torch.float64):
        generator = torch.Generator().manual_seed(seed)
        draw = torch.randn(rows, V, generator=generator, dtype=torch.float64)
        self.table = (spread * draw).to(dtype)

    def __call__(self, ids):
        hashes, h = [], torch.zeros(len(ids), dtype=torch.int64)
        for column in ids.T:
            h = (h * 31 + column + 7) % len(self.table)
            hashes.append(h)
        return self.table[torch.stack(hashes, dim=1)]

    def log_probs(self, prefix):
        return self(torch.tensor([prefix]))[0, -1].log_softmax(-1).tolist()


class Markov:
    """The quickest step: the next word depends on the last one, nothing is kept."""

    def __init__(self, V, seed):
        self.table = Hashed(V, seed, spread=1.0, rows=V, dtype=torch.float32).table

    def __call__(self, ids):
        return self.table[ids]

    def truncate(self, n):
        pass


class Counted:
    """A step that counts its calls and the tokens it read."""

    def __init__(self, step):
        self.step, self.calls, self.tokens = step, 0, 0

    def last(self, ids, count=1):
        self.calls, self.tokens = self.calls + 1, self.tokens + ids.shape[1]
        return self.step.last(ids, count)

    def __call__(self, ids):
        return self.last(ids, ids.shape[1])

    def __getattr__(self, name):
        return getattr(self.step, name)


def continuations(model, prompt, max_new, stop=()):
    """Every text that may be written, with its log-probability."""
    V, found = model.table.shape[1], {}
    for text in itertools.product(range(V), repeat=max_new):
        ends = [n for n, token in enumerate(text, 1) if token in stop]
        text = text[: ends[0]] if ends else text
        if text not in found:
            found[text] = sum(
                model.log_probs(prompt + list(text[:n]))[token]
                for n, token in enumerate(text)
            )
    return found


def worth(log_prob, length, alpha):
    """Wu et al. 2016, eq. 14, in their own form."""
    return log_prob / ((5 + length) ** alpha / (5 + 1) ** alpha)


def slow_beams(model, prompt, beams, max_new, stop, alpha):
    """Beam search in lists, which never stops early: (score, text) of the best."""
    live, ended = [(0.0, ())], []
    for _ in range(max_new):
        longer = []
        for total, text in live:
            log_probs = model.log_probs(prompt + list(text))
            longer += [(total + x, (*text, w)) for w, x in enumerate(log_probs)]
        longer.sort(key=lambda pair: -pair[0])
        ended += [pair for pair in longer[:beams] if pair[1][-1] in stop]
        live = [pair for pair in longer if pair[1][-1] not in stop][:beams]
    scored = [(worth(total, len(t), alpha), t) for total, t in ended + live]
    return max(scored, key=lambda pair: pair[0])


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def chi_square(counts, probs, N):
    """Σ (n − Np)² / Np, and the value that one seed in about 10,000 exceeds."""
    kept = [(counts.get(cell, 0), N * p) for cell, p in probs.items() if p > 0]
    assert sum(n for n, _ in kept) == N  # nothing impossible was written
    freedom = len(kept) - 1
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
    return sum((n - e) ** 2 / e for n, e in kept), limit


# ── Greedy, sampling, streaming ──────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(5))
def test_greedy_by_hand(seed):
    model, prompts = Hashed(5, seed), [[0, 1, 2], [3, 3, 1]]
    got = greedy(UncachedStep(model), ids(*prompts), 7)
    for prompt, row in zip(prompts, got.rows(), strict=True):
        for token in row:
            log_probs = model.log_probs(prompt)
            assert token == log_probs.index(max(log_probs))
            prompt = [*prompt, token]
    assert got.ids.shape == (2, 7) and got.lengths.tolist() == [7, 7]


@pytest.mark.parametrize("seed", range(4))
def test_stop_tokens(seed):
    """Each row ends with its first stop token, then pads, and is as it is alone."""
    model, stop = Hashed(6, seed), {1, 4}
    prompts = ids(*itertools.product(range(6), repeat=2))
    free = greedy(UncachedStep(model), prompts, 9)
    got = greedy(UncachedStep(model), prompts, 9, stop=stop, pad=5)
    assert len(set(got.lengths.tolist())) > 3  # rows end at different times
    for row, (text, whole) in enumerate(zip(got.rows(), free.rows(), strict=True)):
        ends = [n for n, token in enumerate(whole, 1) if token in stop]
        assert text == whole[: ends[0] if ends else 9]
        assert got.ids[row, len(text) :].eq(5).all()
        alone = greedy(UncachedStep(model), prompts[row : row + 1], 9, stop=stop)
        assert alone.rows() == [text]


def test_generation_ends_when_every_row_has_stopped():
    after = torch.eye(4)[[1, 2, 3, 3]]  # 0 → 1 → 2 → 3
    calls = []
    step = lambda x: calls.append(1) or after[x]  # noqa: E731
    got = greedy(step, ids([2, 0], [3, 1]), 50, stop=[3])
    assert got.rows() == [[1, 2, 3], [2, 3]]
    assert got.ids.tolist() == [[1, 2, 3], [2, 3, 0]] and len(calls) == 3


def test_a_pad_that_is_a_stop_token():
    after = torch.eye(4)[[1, 2, 3, 3]]
    got = greedy(lambda x: after[x], ids([0], [2]), 9, stop=[3], pad=3)
    assert got.rows() == [[1, 2, 3], [3]]


def test_stream_gives_each_token_before_the_next_is_computed():
    step = Counted(UncachedStep(Hashed(7, 0)))
    tokens = []
    for n, token in enumerate(stream(step, ids([1, 2], [3, 4]), 5), 1):
        assert token.shape == (2,) and token.dtype == torch.int64
        assert step.calls == n
        tokens.append(token)
    expected = greedy(UncachedStep(Hashed(7, 0)), ids([1, 2], [3, 4]), 5)
    assert torch.stack(tokens, 1).equal(expected.ids)


def test_a_step_can_go_on():
    """It has read all but the last token, which begins the next prompt."""
    model, step = Hashed(7, 3), UncachedStep(Hashed(7, 3))
    first = greedy(step, ids([1, 2]), 4).ids
    assert step.seen == 5
    more = greedy(step, torch.cat([first[:, -1:], ids([6, 0])], 1), 4).ids
    text = torch.cat([ids([1, 2]), first, ids([6, 0])], 1)
    assert more.equal(greedy(UncachedStep(model), text, 4).ids)


@pytest.mark.parametrize(
    "choose", [(), (temperature(0.6), top_k(2)), top_p(0.8), min_p(0.3)]
)
def test_sampled_texts_have_their_probabilities(choose):
    """The joint distribution of three words, over 20,000 rows."""
    model, N, probs = Hashed(3, 8), 20_000, {}
    for text in itertools.product(range(3), repeat=3):
        probs[text] = math.prod(
            probabilities(model(ids([2, *text[:n]]))[0, -1], choose)[w].item()
            for n, w in enumerate(text)
        )
    got = sample(
        UncachedStep(model), ids([2]).expand(N, 1), 3, choose, (), 0, seeded(1)
    )
    counts = {}
    for row in got.rows():
        counts[tuple(row)] = counts.get(tuple(row), 0) + 1
    value, limit = chi_square(counts, probs, N)
    assert value < limit


def test_the_seed_decides():
    texts = [
        sample(UncachedStep(Hashed(9, 0)), ids([1, 2]), 20, generator=seeded(s)).rows()
        for s in (5, 5, 6)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_nothing_asked_for_nothing_done():
    step = Counted(UncachedStep(Hashed(5, 0)))
    assert greedy(step, ids([1], [2]), 0).ids.shape == (2, 0)
    assert sample(step, ids([1]), 0).rows() == [[]]
    found = beam_search(step, ids([1], [2]), 0, 3)
    assert found.rows() == [[], []] and found.scores.tolist() == [0, 0]
    assert speculative(step, step, ids([1]), 0).rows() == [[]]
    assert step.calls == 0


# ── Beam search ──────────────────────────────────────────────────────────────────────

ALPHAS = [0.0, 0.6, 1.0, 2.5, -0.7]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("stop", [(), (0,), (0, 2)])
def test_enough_beams_search_everything(alpha, stop):
    """V^L beams find the best of all continuations, each prompt its own."""
    for seed in range(6):
        model, prompts = Hashed(3, seed, spread=1.0), [[1, 2], [0, 1], [2, 2]]
        found = beam_search(UncachedStep(model), ids(*prompts), 4, 81, stop, alpha)
        for row, prompt in enumerate(prompts):
            every = continuations(model, prompt, 4, stop).items()
            best = max(every, key=lambda pair: worth(pair[1], len(pair[0]), alpha))
            assert found.rows()[row] == list(best[0])
            expected = worth(best[1], len(best[0]), alpha)
            assert found.scores[row].item() == pytest.approx(expected, abs=1e-12)


@given(
    seed=st.integers(0, 10**6),
    V=st.integers(2, 5),
    beams=st.integers(1, 6),
    max_new=st.integers(1, 6),
    stop=st.sets(st.integers(0, 4), max_size=2),
    alpha=st.sampled_from(ALPHAS),
)
@settings(max_examples=80, deadline=None)
def test_beams_by_hand(seed, V, beams, max_new, stop, alpha):
    """Batched, and stopped early: still what the slow search in lists finds."""
    model, stop = Hashed(V, seed, spread=1.0), {s % V for s in stop}
    prompts = [[0, 1], [1, 1], [1, 0]]
    found = beam_search(UncachedStep(model), ids(*prompts), max_new, beams, stop, alpha)
    for row, prompt in enumerate(prompts):
        score, text = slow_beams(model, prompt, beams, max_new, stop, alpha)
        assert found.scores[row].item() == pytest.approx(score, abs=1e-12)
        assert found.rows()[row] == list(text)
        assert found.ids[row, len(text) :].eq(0).all()


@pytest.mark.parametrize("stop", [(), (2,), (0, 3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_one_beam_without_penalty_is_greedy(stop, dtype):
    for seed in range(10):
        model = Hashed(4, seed, dtype=dtype)
        model.table[::3, 1] = model.table[::3].amax(1)  # equal logits too
        prompts = ids(*itertools.product(range(4), repeat=2))
        expected = greedy(UncachedStep(model), prompts, 8, stop)
        got = beam_search(UncachedStep(model), prompts, 8, 1, stop, alpha=0.0)
        assert got.rows() == expected.rows()


def test_it_stops_when_no_beam_can_win_and_not_before():
    """Word 0 ends the text at once with 0.6; or 1, with 0.4, and then 2 for ever."""
    table = torch.tensor([[0.6, 0.4, 0], [0, 0, 1.0], [0, 0, 1.0]]).log()
    for alpha, calls, text in ((0.0, 1, [0]), (1.0, 30, [1] + [2] * 29)):
        # log 0.6 = −0.51 against log 0.4 = −0.92, but 30 words are divided by 5.8^α.
        step = Counted(UncachedStep(lambda x: table[x]))
        found = beam_search(step, ids([0]), 30, 2, stop=[0], alpha=alpha)
        assert found.rows() == [text] and step.calls == calls
    assert found.scores.item() == pytest.approx(math.log(0.4) * 6 / 35, rel=1e-6)


@pytest.mark.parametrize("stop", [None, 3])
def test_search_is_transformers(stop):
    """Greedy and beams of a random GPT-2 of `transformers`, by its own `generate`."""
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=32, n_embd=16, n_layer=2, n_head=2,
        initializer_range=1.5, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).double().eval()
    prompt = torch.randint(17, (4, 5), generator=seeded(0))
    stops = () if stop is None else (stop,)
    for beams in (1, 3, 4):
        expected = theirs.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8,
            num_beams=beams, do_sample=False, length_penalty=0.0,
            early_stopping="never" if beams > 1 else None,
            eos_token_id=stop, pad_token_id=0,
        )[:, 5:]  # fmt: skip
        step = UncachedStep(lambda x: theirs(x).logits)
        got = beam_search(step, prompt, 8, beams, stops, alpha=0.0)
        assert got.ids.tolist() == expected.tolist()
        if beams == 1:
            step = UncachedStep(lambda x: theirs(x).logits)
            assert greedy(step, prompt, 8, stops).ids.tolist() == expected.tolist()


# ── Speculative decoding ─────────────────────────────────────────────────────────────


@given(
    seed=st.integers(0, 10**6),
    draft_length=st.integers(1, 6),
    max_new=st.integers(0, 12),
    stop=st.sets(st.integers(0, 3), max_size=2),
    likeness=st.sampled_from([0.0, 0.7, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_greedy_speculation_is_greedy(seed, draft_length, max_new, stop, likeness):
    """Whatever the draft; and both steps have then read all but the last token."""
    target, draft = Hashed(4, seed), Hashed(4, seed + 1)
    draft.table = likeness * target.table + (1 - likeness) * draft.table
    step, draft_step = UncachedStep(target), UncachedStep(draft)
    got = speculative(
        step, draft_step, ids([1, 2, 0]), max_new, draft_length, stop=stop
    )
    expected = greedy(UncachedStep(target), ids([1, 2, 0]), max_new, stop)
    assert got.rows() == expected.rows()
    text = torch.cat([ids([1, 2, 0]), got.ids], 1)
    if max_new:
        assert step.ids.equal(text[:, :-1]) and draft_step.ids.equal(text[:, :-1])
    assert got.accepted <= got.proposed <= got.rounds * draft_length
    assert got.accepted + got.rounds - len(got.rows()[0]) in (0, 1)
    if likeness == 1.0 and not stop:
        assert got.accepted == got.proposed
        assert got.rounds == math.ceil(max_new / (draft_length + 1))


def distribution(model, last, length, choose, stop=()):
    """The probability of every text of a Markov model, ended by a stop token."""
    step = probabilities(model.table, choose).double().tolist()
    probs = {(): 1.0}
    for _ in range(length):
        longer = {}
        for text, p in probs.items():
            if text and text[-1] in stop:
                longer[text] = p
                continue
            for w, q in enumerate(step[text[-1] if text else last]):
                longer[(*text, w)] = p * q
        probs = longer
    assert sum(probs.values()) == pytest.approx(1)
    return probs


@pytest.mark.parametrize(
    ("choose", "stop"),
    [((), ()), ((), (1,)), ((temperature(0.8), top_k(2)), ()), (top_p(0.8), (0,))],
)
def test_speculation_has_the_targets_distribution(choose, stop):
    """All texts of three words, against a draft that is often wrong."""
    target, draft, N = Markov(3, 4), Markov(3, 5), 1200
    counts, generator = {}, seeded(7)
    accepted = proposed = 0
    for _ in range(N):
        got = speculative(target, draft, ids([0, 2]), 3, 2, choose, stop, generator)
        text = tuple(got.rows()[0])
        counts[text] = counts.get(text, 0) + 1
        accepted, proposed = accepted + got.accepted, proposed + got.proposed
    value, limit = chi_square(counts, distribution(target, 2, 3, choose, stop), N)
    assert value < limit
    assert 0.1 < accepted / proposed < 0.9  # drafts were kept, and refused


@pytest.mark.parametrize("likeness", [0.3, 0.8, 1.0])
def test_the_acceptance_rate_is_what_the_paper_derives(likeness):
    """β = Σ min(p, q) for one draft (Leviathan et al. 2022, §3.2)."""
    target, draft, N = Markov(5, 1), Markov(5, 2), 600
    draft.table = likeness * target.table + (1 - likeness) * draft.table
    p, q = (model.table[3].softmax(-1) for model in (target, draft))
    beta, generator = torch.minimum(p, q).sum().item(), seeded(0)
    accepted = sum(
        speculative(target, draft, ids([3]), 2, 1, (), generator=generator).accepted
        for _ in range(N)
    )
    assert abs(accepted / N - beta) <= 4 * abs(beta * (1 - beta) / N) ** 0.5 + 1e-6


def test_speculation_saves_steps_of_the_target():
    target = Counted(UncachedStep(Hashed(6, 0)))
    got = speculative(target, UncachedStep(Hashed(6, 0)), ids([1, 2]), 20, 4)
    assert (target.calls, got.rounds, got.accepted) == (4, 4, 16)
    assert target.tokens == 2 + 20 - 1  # and nothing was read twice


def test_speculation_is_repeatable():
    texts = [
        speculative(UncachedStep(Hashed(9, 0)), UncachedStep(Hashed(9, 1)), ids([1]),
                    20, 3, (), generator=seeded(s)).rows()
        for s in (5, 5, 6)
    ]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]


# ── Cached = uncached, with the package's models ─────────────────────────────────────


def gpt(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 13, "d_model": 12, "n_layers": 2, "n_heads": 3, "d_ff": 16}
    return loud(Gpt(GptConfig(**sizes | {"max_seq_len": 32} | changes)))


def llama(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 13, "d_model": 16, "n_layers": 2, "n_heads": 4, "d_ff": 16}
    return loud(Llama(LlamaConfig(**sizes | {"n_kv_heads": 2} | changes)))


def loud(model):
    """Weights so large that the logits differ clearly, in float64."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.6)
    return model.double().eval()


def windowed(model, window=3, spare=4):
    return Caches(WindowedCache(window, spare) for _ in model.blocks)


DECODERS = {
    "gpt growing": (gpt, lambda m: m.new_caches()),
    "gpt room": (gpt, lambda m: m.new_caches(32)),
    "llama": (llama, lambda m: m.new_caches()),
    "llama room": (llama, lambda m: Caches(PreallocatedCache(40) for _ in m.blocks)),
    "mistral": (partial(llama, window=3), windowed),
}
SEARCHES = {
    "greedy": lambda step, x: greedy(step, x, 9, stop=(4,)),
    "sample": lambda step, x: sample(step, x, 9, top_p(0.9), (4,), 0, seeded(0)),
    "beams": lambda step, x: beam_search(step, x, 9, 3, stop=(4,)),
    "one beam": lambda step, x: beam_search(step, x, 9, 1),
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", DECODERS)
def test_cached_is_uncached(name, search):
    make, caches = DECODERS[name]
    for seed in range(2):
        model = make(seed)
        prompt = torch.randint(13, (3, 5), generator=seeded(seed))
        expected = SEARCHES[search](UncachedStep(model), prompt)
        got = SEARCHES[search](CachedStep(model, caches(model)), prompt)
        assert got.ids.tolist() == expected.ids.tolist()
        assert got.lengths.tolist() == expected.lengths.tolist()


@pytest.mark.parametrize("search", [name for name in SEARCHES if name != "sample"])
@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("cached", [True, False])
def test_a_left_padded_batch_is_each_text_alone(name, search, cached):
    make, caches = DECODERS[name]
    model, texts = make(3), [[5, 6, 7], [1], [9, 8, 7, 6, 5]]
    prompt, keep = torch.zeros(3, 5, dtype=torch.int64), torch.zeros(3, 5).bool()
    for row, text in enumerate(texts):
        prompt[row, 5 - len(text) :] = torch.tensor(text)
        keep[row, 5 - len(text) :] = True

    def step(keep=None):
        if cached:
            return CachedStep(model, caches(model), keep)
        return UncachedStep(model, keep)

    got = SEARCHES[search](step(keep), prompt).rows()
    assert got == [SEARCHES[search](step(), ids(text)).rows()[0] for text in texts]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("choose", [None, (temperature(1.2), top_k(6))])
def test_speculation_with_caches(name, choose):
    make, caches = DECODERS[name]
    target, draft = make(0), make(0)
    for seed in range(3):
        for x, y in zip(draft.parameters(), target.parameters(), strict=True):
            noise = torch.randn(x.shape, generator=seeded(seed), dtype=x.dtype)
            x.data = y.data + 0.03 * noise
        prompt = torch.randint(13, (1, 4), generator=seeded(seed))
        plain, quick = (
            speculative(*steps, prompt, 16, 3, choose, generator=seeded(seed))
            for steps in (
                (UncachedStep(target), UncachedStep(draft)),
                (CachedStep(target, caches(target)), CachedStep(draft, caches(draft))),
            )
        )
        assert quick.rows() == plain.rows()
        assert (quick.accepted, quick.rounds) == (plain.accepted, plain.rounds)
        assert 0 < quick.accepted < quick.proposed
        if choose is None:
            assert quick.rows() == greedy(UncachedStep(target), prompt, 16).rows()


@pytest.mark.parametrize("name", DECODERS)
def test_steps_agree_in_chunks_after_truncate_and_reorder(name):
    make, caches = DECODERS[name]
    model = make(1)
    keep = torch.ones(3, 6).bool()
    keep[1, :2] = False
    steps = UncachedStep(model, keep), CachedStep(model, caches(model), keep)
    x = torch.randint(13, (3, 6), generator=seeded(0))
    rows = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        for read in (
            lambda step: step(x[:, :4]),
            lambda step: step.last(x[:, 4:], 2),
            lambda step: step.truncate(1) or step(x[:, 1:4]),
            lambda step: step.reorder(rows) or step(x[:, :1][rows]),
            lambda step: step.last(x[:, :3][rows], 1),
        ):
            plain, quick = (read(step) for step in steps)
            torch.testing.assert_close(plain, quick, rtol=0, atol=1e-9)
            assert steps[0].seen == steps[1].seen
    assert steps[0].keep.equal(steps[1].keep) and steps[0].keep.shape == (4, 8)


def test_only_the_last_logits_are_computed():
    """A prompt of 30 words and one of 50,257 would otherwise cost 30 rows of them."""
    model, widths = gpt(), []
    model.output.register_forward_hook(lambda _, __, out: widths.append(out.shape[1]))
    greedy(CachedStep(model, model.new_caches()), ids([1, 2, 3, 4]), 3)
    greedy(UncachedStep(model), ids([1, 2, 3, 4]), 3)
    assert widths == [1] * 6


def test_no_graph_is_built():
    model = gpt()
    step = CachedStep(model, model.new_caches())
    found = beam_search(step, ids([1, 2]), 3, 2)
    assert not found.scores.requires_grad
    assert not any(x.requires_grad for cache in step.caches for x in cache.entries)


# ── An encoder's memory beside the text ──────────────────────────────────────────────


class Translator(nn.Module):
    """One layer of cross-attention: `decode` as the package's models offer it."""

    def __init__(self, V=9, width=8):
        super().__init__()
        self.token = nn.Embedding(V, width)
        self.qkv, self.q = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        loud(self)

    def decode(self, tgt, memory, memory_keep=None, caches=None):
        x, cache = self.token(tgt), caches[0] if caches else None
        q, *kv = (part[:, None] for part in self.qkv(x).chunk(3, dim=-1))
        kv = cache.own.append(*kv) if cache else kv
        x = x + equation(q, *kv, mask=_causal(q, kv[0]))[:, 0]
        kv = cache.memory.entries if cache else ()
        if not kv:
            kv = tuple(part[:, None] for part in self.kv(memory).chunk(2, dim=-1))
            kv = cache.memory.append(*kv) if cache else kv
        x = x + equation(self.q(x)[:, None], *kv, mask=Everyone(memory_keep))[:, 0]
        return x @ self.token.weight.T


def _causal(q, k):
    return torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool()


@pytest.mark.parametrize("search", SEARCHES)
def test_an_encoder_decoder(search):
    """Cached = uncached = each source alone, of its own length and without padding."""
    torch.manual_seed(0)
    model = Translator()
    memory = torch.randn(3, 5, 8).double()
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]]).bool()
    start = ids([0], [0], [0])

    def cached(memory, keep):
        caches = Caches([DecoderLayerCache(GrowingCache(), Memory())])
        return CachedStep(model.decode, caches, memory=memory, memory_keep=keep)

    plain = UncachedStep(model.decode, memory=memory, memory_keep=keep)
    expected = SEARCHES[search](plain, start)
    assert SEARCHES[search](cached(memory, keep), start).rows() == expected.rows()
    if search != "sample":
        for row in range(3):
            alone = cached(memory[row : row + 1, keep[row]], None)
            assert SEARCHES[search](alone, ids([0])).rows() == [expected.rows()[row]]


# ── Errors ───────────────────────────────────────────────────────────────────────────

STEP = UncachedStep(Hashed(5, 0))
ONE = ids([1, 2])
CALLS = {
    "greedy": lambda step, x, n, **how: greedy(step, x, n, **how),
    "sample": lambda step, x, n, **how: sample(step, x, n, **how),
    "stream": lambda step, x, n, **how: stream(step, x, n, **how),
    "beams": lambda step, x, n, **how: beam_search(step, x, n, 2, **how),
    "target": lambda step, x, n, **how: speculative(step, STEP, x, n, **how),
    "draft": lambda step, x, n, **how: speculative(STEP, step, x, n, **how),
}
REQUESTS = {
    "empty prompt": ((ids([]), 3), {}, ValueError, "(1, 0)"),
    "no rows": ((torch.zeros(0, 3).long(), 3), {}, ValueError, "(0, 3)"),
    "one axis": ((torch.tensor([1, 2]), 3), {}, ValueError, "(2,)"),
    "floats": ((torch.ones(1, 2), 3), {}, TypeError, "float32"),
    "a list": (([[1, 2]], 3), {}, TypeError, "list"),
    "max_new −1": ((ONE, -1), {}, ValueError, "-1"),
    "max_new 2.0": ((ONE, 2.0), {}, TypeError, "2.0"),
    "max_new True": ((ONE, True), {}, TypeError, "True"),
    "stop −1": ((ONE, 3), {"stop": [-1]}, ValueError, "-1"),
    "stop 13": ((ONE, 3), {"stop": [1, 13]}, ValueError, "0 … 12, got 13"),
    "stop 1": ((ONE, 3), {"stop": 1}, TypeError, "int"),
    "stop a word": ((ONE, 3), {"stop": "1"}, TypeError, "str"),
    "stop of floats": ((ONE, 3), {"stop": (1.0,)}, TypeError, "1.0"),
    "too long": ((ONE, 31), {}, ValueError, "32"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", REQUESTS)
def test_wrong_requests_are_refused_before_any_work(call, name):
    arguments, how, error, words = REQUESTS[name]
    model = gpt()
    step = Counted(CachedStep(model, model.new_caches()))
    with pytest.raises(error) as caught:
        CALLS[call](step, *arguments, **how)
    assert words in str(caught.value)
    assert step.calls == 0


@pytest.mark.parametrize("call", ["greedy", "sample", "stream", "beams"])
@pytest.mark.parametrize("pad", [-1, 13, 0.0])
def test_wrong_padding_is_refused(call, pad):
    with pytest.raises((TypeError, ValueError), match=str(pad)):
        CALLS[call](UncachedStep(gpt()), ONE, 2, pad=pad)


@pytest.mark.parametrize("call", CALLS)
def test_a_stop_id_outside_an_unnamed_vocabulary(call):
    with pytest.raises(ValueError, match=r"0 … 4, got 5"):
        list(CALLS[call](UncachedStep(Hashed(5, 1)), ONE, 3, stop=[5]))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_broken_logits_are_an_error_not_a_text(call, bad):
    class Broken(Hashed):
        def __call__(self, ids):
            return super().__call__(ids) * 0 + bad

    with pytest.raises(ValueError, match="NaN"):
        list(CALLS[call](UncachedStep(Broken(5, 0)), ONE, 3))


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (lambda x: x, TypeError, "int64"),
        (lambda x: None, TypeError, "NoneType"),
        (lambda x: torch.zeros(1, 5), ValueError, r"\(1, 5\)"),
        (lambda x: torch.zeros(1, 1, 5), ValueError, r"\(1, 1, 5\)"),
        (lambda x: torch.zeros(2, 2, 5), ValueError, r"\(2, 2, 5\)"),
        (lambda x: torch.zeros(1, 2, 0), ValueError, r"\(1, 2, 0\)"),
    ],
)
def test_an_answer_that_is_no_logits(answer, error, words):
    with pytest.raises(error, match=words):
        greedy(answer, ONE, 2)


def test_what_is_no_step():
    with pytest.raises(TypeError, match="step must be callable, got str"):
        greedy("model", ONE, 2)
    plain = lambda x: torch.zeros(*x.shape, 5)  # noqa: E731
    with pytest.raises(TypeError, match="`reorder`; function"):
        beam_search(plain, ONE, 3, 2)
    for pair in ((plain, STEP), (STEP, plain)):
        with pytest.raises(TypeError, match="`truncate`"):
            speculative(*pair, ONE, 3)


@pytest.mark.parametrize(
    ("beams", "alpha", "error", "words"),
    [
        (0, 0.6, ValueError, "0"),
        (2.0, 0.6, TypeError, "2.0"),
        (2, math.nan, ValueError, "nan"),
        (2, math.inf, ValueError, "inf"),
        (2, None, TypeError, "None"),
    ],
)
def test_wrong_beams(beams, alpha, error, words):
    with pytest.raises(error, match=words):
        beam_search(STEP, ONE, 3, beams, alpha=alpha)


def test_wrong_speculation():
    with pytest.raises(ValueError, match="got B = 2"):
        speculative(STEP, STEP, ids([1], [2]), 3)
    for wrong, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match=str(wrong)):
            speculative(STEP, STEP, ONE, 3, draft_length=wrong)
    with pytest.raises(ValueError, match="5 and 4 words"):
        speculative(UncachedStep(Hashed(5, 0)), UncachedStep(Hashed(4, 0)), ONE, 3)
    small, large = gpt(), gpt(vocab_size=14)
    with pytest.raises(ValueError, match="13 and 14 words"):
        speculative(UncachedStep(small), UncachedStep(large), ONE, 3)


def test_wrong_steps_back():
    step = UncachedStep(Hashed(5, 0))
    step(ONE)
    for n in (-1, 3):
        with pytest.raises(ValueError, match=f"{n} tokens: 2 were seen"):
            step.truncate(n)


def test_the_longest_text_that_fits():
    """32 positions: 2 words and 30 new ones; what was read before counts."""
    model = gpt()
    step = CachedStep(model, model.new_caches())
    assert greedy(step, ONE, 30).ids.shape == (1, 30)
    with pytest.raises(ValueError, match="31 tokens seen, a prompt of 1 and 1 new"):
        greedy(step, ids([1]), 1)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_length_penalty_is_the_papers(alpha):
    for length in range(1, 9):
        assert -2 / length_penalty(length, alpha) == pytest.approx(
            worth(-2, length, alpha)
        )


def test_a_model_is_no_step():
    """It would read each new token alone, and write nonsense without a word."""
    model = torch.nn.Embedding(3, 3)
    with pytest.raises(TypeError, match=r"CachedStep\(model, model.new_caches\(\)\)"):
        greedy(model, ids([1]), 2)
