# SPDX-License-Identifier: MIT
"""What is asked and what a wrong guess costs, against torch's own and against laws."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.configs import GptConfig
from deepdive.models.gpt import Gpt
from deepdive.objectives import (
    IGNORED,
    Loss,
    bits_per_byte,
    causal_lm,
    cross_entropy,
    fill_spans,
    label_smoothed,
    losses,
    masked_lm,
    masked_lm_batch,
    next_tokens,
    perplexity,
    prefix_lm_batch,
    projected_cross_entropy,
    rows,
    seq2seq_shift,
    span_corruption,
)
from deepdive.objectives import projected as projecting


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def some(*shape, V=11, seed=0, dtype=torch.float64):
    """Random logits and labels."""
    g = rng(seed)
    logits = torch.randn(*shape, V, generator=g, dtype=dtype, requires_grad=True)
    return logits, torch.randint(0, V, shape, generator=g)


# ── Cross-entropy ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(7,), (2, 5), (2, 3, 4)])
def test_cross_entropy_is_torchs(shape):
    logits, labels = some(*shape)
    labels.view(-1)[::3] = IGNORED
    loss = cross_entropy(logits, labels)
    expected = F.cross_entropy(logits.view(-1, 11), labels.view(-1))
    close(loss.mean, expected)
    assert int(loss.count) == int((labels != IGNORED).sum())
    close(*(torch.autograd.grad(x, logits)[0] for x in (loss.mean, expected)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_summed_in_float32(dtype):
    logits = torch.randn(512, 50, generator=rng()).to(dtype)
    labels = torch.randint(0, 50, (512,), generator=rng())
    loss = cross_entropy(logits, labels)
    assert loss.total.dtype == torch.float32
    exact = F.cross_entropy(logits.double(), labels, reduction="sum")
    assert abs(loss.total.item() - exact.item()) < 1e-3


@pytest.mark.parametrize("size", [1e4, 3e4])
def test_hard_logits_stay_finite(size):
    logits = torch.tensor([[size, -size, 0.0]], requires_grad=True)
    for loss in (
        cross_entropy(logits, torch.tensor([1])),
        label_smoothed(logits, torch.tensor([1]), pad=0, eps=0.1),
    ):
        loss.mean.backward()
        assert loss.total.isfinite() and logits.grad.isfinite().all()


def test_nothing_to_guess_costs_nothing():
    logits, labels = some(2, 5)
    for loss in (
        masked_lm(logits, torch.full_like(labels, IGNORED)),
        causal_lm(logits, labels, torch.zeros(2, 5).bool()),
        causal_lm(logits[:, :1], labels[:, :1]),
        label_smoothed(logits, torch.zeros_like(labels), pad=0, eps=0.1),
    ):
        assert int(loss.count) == 0 and loss.mean.item() == 0
        (gradient,) = torch.autograd.grad(loss.mean, logits)
        assert (gradient == 0).all()


def test_totals_and_counts_add_up_to_the_whole():
    logits, labels = some(6, 5)
    labels[4:] = IGNORED
    labels[0, 1:] = IGNORED
    whole = cross_entropy(logits, labels)
    parts = [cross_entropy(logits[i : i + 2], labels[i : i + 2]) for i in (0, 2, 4)]
    joined = Loss(sum(p.total for p in parts), sum(p.count for p in parts))
    close(joined.mean, whole.mean)


def test_plus_adds_to_the_mean():
    loss = Loss(torch.tensor(6.0), torch.tensor(3)).plus(torch.tensor(0.5))
    assert loss.mean.item() == 2.5 and int(loss.count) == 3


# ── Some rows at a time ──────────────────────────────────────────────────────────────


@pytest.fixture
def by_rows(monkeypatch):
    """Every loss goes by rows, three at a time for V = 11."""
    monkeypatch.setattr(rows, "PIECE", 33)
    monkeypatch.setattr(losses, "many", lambda *sizes: True)


def both(logits, labels, eps):
    """The sum of the losses by torch, and by rows."""
    theirs = F.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), label_smoothing=eps, reduction="sum"
    )
    return theirs, label_smoothed(logits, labels, IGNORED, eps).total


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("shape", [(1,), (7,), (4, 3), (2, 3, 5)])
def test_by_rows_is_torchs_loss_and_gradient(by_rows, shape, eps):
    logits, labels = some(*shape)
    labels.view(-1)[1::3] = IGNORED
    theirs, mine = both(logits, labels, eps)
    assert "ByRows" in mine.grad_fn.name()
    close(mine, theirs)
    close(*(torch.autograd.grad(x * 0.3, logits)[0] for x in (mine, theirs)))


@given(
    N=st.integers(1, 20),
    V=st.integers(1, 40),
    piece=st.integers(1, 100),
    eps=st.sampled_from([0.0, 0.2]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_pieces_of_any_size_give_the_same(N, V, piece, eps, seed):
    logits, labels = some(N, V=V, seed=seed)
    labels[torch.rand(N, generator=rng(seed)) < 0.3] = IGNORED
    theirs = rows.cross_entropy_sum(logits, labels, eps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "PIECE", piece)
        mine = rows.cross_entropy_by_rows(logits, labels, eps)
        gradients = [torch.autograd.grad(x, logits)[0] for x in (mine, theirs)]
    close(mine, theirs)
    close(*gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_by_rows_low_precision_logits_get_their_own_gradient(by_rows, dtype):
    logits, labels = some(5, 4, dtype=torch.float32)
    low = logits.detach().to(dtype).requires_grad_()
    mine = cross_entropy(low, labels).mean
    theirs = F.cross_entropy(low.flatten(0, 1).float(), labels.flatten())
    assert mine.dtype == torch.float32
    close(mine, theirs, tolerance=1e-6)
    gradients = [torch.autograd.grad(x, low)[0] for x in (mine, theirs)]
    assert all(g.dtype == dtype for g in gradients)
    close(*gradients, tolerance=1e-2)  # both are rounded to few bits


def test_by_rows_can_be_differentiated_twice_and_walked_back_twice(by_rows):
    logits, labels = some(2, 4)
    labels[0, 1] = IGNORED
    flat = labels.flatten()
    for eps in (0.0, 0.1):
        assert torch.autograd.gradcheck(
            lambda x, e=eps: label_smoothed(x, labels, IGNORED, e).total, logits
        )
        assert torch.autograd.gradgradcheck(
            lambda x, e=eps: label_smoothed(x, labels, IGNORED, e).total, logits
        )
    total = cross_entropy(logits, labels).total
    twice = [torch.autograd.grad(total, logits, retain_graph=True)[0] for _ in "ab"]
    assert torch.equal(*twice)
    by_func = torch.func.grad(lambda x: cross_entropy(x, labels).total)(logits)
    expected = F.cross_entropy(logits.flatten(0, 1), flat, reduction="sum")
    close(by_func, torch.autograd.grad(expected, logits)[0])


def test_by_rows_nothing_to_guess_costs_nothing(by_rows):
    logits, labels = some(2, 5)
    loss = cross_entropy(logits, torch.full_like(labels, IGNORED))
    (gradient,) = torch.autograd.grad(loss.mean, logits)
    assert int(loss.count) == 0 and loss.mean.item() == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("size", [1e4, 3e4])
def test_by_rows_hard_logits_stay_finite(by_rows, size):
    logits = torch.tensor([[size, -size, 0.0]], requires_grad=True)
    label_smoothed(logits, torch.tensor([1]), pad=0, eps=0.1).mean.backward()
    assert logits.grad.isfinite().all()


def test_many_logits_go_by_rows_and_nothing_of_their_size_is_kept():
    V = 2**12
    logits = torch.randn(rows.MANY // V, V, generator=rng(), requires_grad=True)
    labels = torch.randint(V, (len(logits),), generator=rng())
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, id):
        loss = cross_entropy(logits, labels)
    large = [x for x in kept if x.numel() >= logits.numel()]
    assert [x.data_ptr() for x in large] == [logits.data_ptr()]
    assert "ByRows" in loss.total.grad_fn.name()
    few = cross_entropy(logits[1:], labels[1:])
    assert "ByRows" not in few.total.grad_fn.name()
    assert not rows.many(4 * rows.MANY, 1, torch.device("meta"))


# ── Without logits ───────────────────────────────────────────────────────────────────


@pytest.fixture
def projected(monkeypatch):
    """Four rows at a time."""
    monkeypatch.setattr(projecting, "ROWS", 4)
    monkeypatch.setattr(projecting, "PIECE", 0)
    monkeypatch.setattr(projecting, "many", lambda *sizes: True)


def parts(B=2, T=5, d=6, V=11):
    """Hidden states, an output layer, labels."""
    g, how = rng(1), {"dtype": torch.float64, "requires_grad": True}
    hidden = torch.randn(B, T, d, generator=g, **how)
    weight = torch.randn(V, d, generator=g, **how)
    labels = torch.randint(0, V, (B, T), generator=g)
    labels.view(-1)[2::4] = IGNORED
    return hidden, weight, labels


@pytest.mark.parametrize("T", [1, 4, 5, 9])
def test_projected_is_the_loss_of_the_logits(projected, T):
    hidden, weight, labels = parts(T=T)
    mine = projected_cross_entropy(hidden, weight, labels)
    logits = F.linear(hidden, weight)
    plain = cross_entropy(logits, labels)
    theirs = F.linear_cross_entropy(hidden.flatten(0, 1), weight, labels.flatten())
    assert "Projected" in mine.total.grad_fn.name()
    assert "Projected" not in plain.total.grad_fn.name()
    assert int(mine.count) == int(plain.count)
    for other in (plain.mean, theirs):
        close(mine.mean, other)
        found, expected = (
            torch.autograd.grad(x * 0.3, (hidden, weight), retain_graph=True)
            for x in (mine.mean, other)
        )
        for one, another in zip(found, expected, strict=True):
            close(one, another)


def test_projected_can_be_differentiated_twice_and_by_one_side(projected):
    hidden, weight, labels = parts()

    def total(x, w):
        return projected_cross_entropy(x, w, labels).total

    assert torch.autograd.gradgradcheck(total, (hidden, weight))
    frozen = weight.detach()
    assert torch.autograd.gradcheck(lambda x: total(x, frozen), hidden)
    assert torch.autograd.gradgradcheck(lambda x: total(x, frozen), hidden)
    with torch.no_grad():
        close(total(hidden, weight), total(hidden, weight).detach())
        assert not total(hidden, weight).requires_grad


def test_projected_refuses_before_any_work(projected):
    hidden, weight, labels = parts()
    for wrong, said in ((labels + 5, "0 … 10, got"), (labels[:1], r"\(2, 5\)")):
        with pytest.raises(ValueError, match=said):
            projected_cross_entropy(hidden, weight, wrong)


@pytest.mark.parametrize("autocast", [False, True])
def test_projected_in_low_precision_takes_the_plain_way(projected, autocast):
    hidden, weight, labels = parts()
    dtype = torch.float32 if autocast else torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = projected_cross_entropy(hidden.to(dtype), weight.to(dtype), labels)
    assert "Projected" not in loss.total.grad_fn.name()
    assert abs(loss.mean - cross_entropy(hidden @ weight.T, labels).mean) < 0.1


def test_nothing_of_the_logits_size_is_kept():
    hidden, weight, labels = parts(B=4, T=512, d=8, V=1024)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, id):
        loss = projected_cross_entropy(hidden, weight, labels)
    assert "Projected" in loss.total.grad_fn.name()
    assert max(x.numel() for x in kept) <= max(hidden.numel(), weight.numel())
    few = projected_cross_entropy(hidden[:2], weight, labels[:2])
    assert "Projected" not in few.total.grad_fn.name()


def test_a_gpt_learns_alike_without_logits(projected):
    torch.manual_seed(0)
    model = Gpt(GptConfig(11, d_model=8, n_layers=1, n_heads=2, d_ff=16)).double()
    tokens = torch.randint(11, (3, 7), generator=rng())
    gradients = []
    for loss in (
        causal_lm(model(tokens), tokens),
        projected_cross_entropy(
            model.hidden(tokens), model.output.weight, next_tokens(tokens)
        ),
    ):
        gradients.append(torch.autograd.grad(loss.mean, [*model.parameters()]))
    for one, another in zip(*gradients, strict=True):
        close(one, another)


# ── Label smoothing: case B08 ────────────────────────────────────────────────────────


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("pad", [0, 3, IGNORED])
def test_label_smoothing_is_torchs_and_the_formulas(eps, pad):
    logits, targets = some(4, 6)
    targets[0, :3] = pad
    loss = label_smoothed(logits, targets, pad, eps)
    theirs = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=pad, label_smoothing=eps
    )
    close(loss.mean, theirs)
    real = targets != pad
    full = F.one_hot(targets.clamp(min=0), 11).double() * (1 - eps) + eps / 11
    close(loss.total, -(full * logits.log_softmax(-1)).sum(-1)[real].sum())
    assert int(loss.count) == int(real.sum())


def test_case_b08():
    logits = torch.zeros(3, 5, requires_grad=True)
    loss = label_smoothed(logits, torch.tensor([2, 1, 0]), pad=0, eps=0.4)
    loss.mean.backward()
    assert abs(loss.mean.item() - math.log(5)) < 1e-6  # over 2 real rows, not 3
    assert abs(loss.total.item() - 3.218876) < 1e-6
    assert (logits.grad[2] == 0).all() and (logits.grad[:2] != 0).any()
    hard = torch.zeros(3, 5)
    hard[:, 3] = -1e4
    for targets in ([2, 1, 0], [2, 1, 4]):
        loss = label_smoothed(hard, torch.tensor(targets), pad=0, eps=0.4)
        assert loss.mean.isfinite()


def test_the_other_form_differs_as_the_docstring_says():
    """KL to 1 − ε, ε/(V − 2) and 0 on the padding symbol: case B08's first number."""
    eps, V = 0.4, 5
    logits, targets = torch.zeros(2, V, requires_grad=True), torch.tensor([2, 1])

    def kl(logits):
        target = torch.full((2, V), eps / (V - 2))
        target[:, 0] = 0
        target[[0, 1], targets] = 1 - eps
        return F.kl_div(logits.log_softmax(-1), target, reduction="sum")

    assert abs(kl(logits).item() - 0.993963) < 1e-6
    e = eps / (V - 2)
    best = torch.tensor([[0, e, 1 - eps, e, e], [0, 1 - eps, e, e, e]]).log()
    assert abs(kl(best.clamp(min=-1e4)).item()) < 1e-6  # here a perfect model has 0 …
    close_to = label_smoothed(best.clamp(min=-30), targets, pad=0, eps=eps)
    assert close_to.mean > 1  # … and there it has not
    for seed in range(5):
        logits, _ = some(2, V=V, seed=seed, dtype=torch.float32)
        ours = label_smoothed(logits, targets, pad=0, eps=eps).total
        a, b = (torch.autograd.grad(x, logits)[0] for x in (ours, kl(logits)))
        assert (a - b).abs().max() <= eps / V + 1e-6


# ── Causal ───────────────────────────────────────────────────────────────────────────


def test_causal_loss_shifts_once():
    logits, tokens = some(3, 6)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    close(causal_lm(logits, tokens).mean, expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side):
    logits, tokens = some(1, 6)
    alone = causal_lm(logits, tokens)
    more = (3, 0) if side == "left" else (0, 3)
    keep = F.pad(torch.ones(1, 6).bool(), more)
    padded = causal_lm(F.pad(logits, (0, 0, *more), value=7), F.pad(tokens, more), keep)
    close(padded.total, alone.total)
    assert int(padded.count) == int(alone.count) == 5


def test_perplexity_and_bits():
    even = cross_entropy(torch.zeros(4, 8), torch.tensor([0, 1, 2, 3]))
    assert abs(perplexity(even) - 8) < 1e-5
    assert abs(bits_per_byte(even, n_bytes=6) - 4 * 3 / 6) < 1e-6
    assert perplexity(Loss(torch.tensor(1e9), 1)) == math.inf
    assert math.isnan(perplexity(Loss(torch.tensor(math.nan), 1)))


def test_prefix_lm_asks_for_what_is_after_the_prefix():
    tokens = torch.arange(20).view(2, 10)
    seen = set()
    for seed in range(200):
        prefix, labels = prefix_lm_batch(tokens, generator=rng(seed))
        seen.add(prefix)
        asked = [tokens[0, prefix:].tolist(), tokens[1, prefix:].tolist()]
        assert [row[row != IGNORED].tolist() for row in labels] == asked
        assert (labels[:, prefix - 1] == tokens[:, prefix]).all()
    assert seen == set(range(1, 10))


def test_seq2seq_shift():
    labels = torch.tensor([[5, 6, 1], [7, 1, IGNORED]])
    expected = torch.tensor([[0, 5, 6], [0, 7, 1]])
    assert torch.equal(seq2seq_shift(labels, start=0), expected)
    longer = F.pad(labels, (0, 1), value=IGNORED)
    expected = torch.tensor([[9, 5, 6, 1], [9, 7, 1, 2]])
    assert torch.equal(seq2seq_shift(longer, start=9, pad=2), expected)
    with pytest.raises(ValueError, match="1 labels are -100"):
        seq2seq_shift(longer, start=9)


# ── BERT's cloze test: case B11 ──────────────────────────────────────────────────────


def test_case_b11():
    ids = torch.randint(5, 1000, (400, 500), generator=rng(1))
    ids[:, 0], ids[:, -2], ids[:, -1] = 1, 2, 0
    x, y = masked_lm_batch(ids, 1000, 4, [0, 1, 2, 3], rng(2))
    s = y != IGNORED
    n = s.sum().item()
    assert not s[:, 0].any() and not s[:, -2:].any()
    assert (y[s] == ids[s]).all() and (x[~s] == ids[~s]).all()
    masked = ((x == 4) & s).sum().item() / n
    other = ((x != 4) & (x != ids) & s).sum().item() / n
    assert abs(n / ids[:, 1:-2].numel() - 0.15) < 0.005
    assert abs(masked - 0.8) < 0.012 and abs(other - 0.1) < 0.012


def test_a_random_word_is_never_special_and_may_be_any_other():
    special = [0, 1, 2, 7]
    ids = torch.full((50, 200), 5)
    x, y = masked_lm_batch(ids, 10, 3, special, rng(), rate=1.0)
    drawn = set(x[(x != 3)].tolist())
    assert drawn == {4, 5, 6, 8, 9} and (y == 5).all()


def test_masking_repeats_with_its_generator_and_keeps_the_input():
    ids = torch.randint(5, 50, (4, 30), generator=rng(1))
    before = ids.clone()
    first, second = (masked_lm_batch(ids, 50, 4, [0, 1], rng(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(ids, before)


# ── T5's cloze test ──────────────────────────────────────────────────────────────────

SENTINELS = list(range(1999, 1899, -1))


@given(
    L=st.integers(2, 120),
    rate=st.floats(0.01, 0.99),
    mean_span=st.floats(1.0, 8.0),
    seed=st.integers(0, 1000),
)
@settings(max_examples=300, deadline=None)
def test_spans_put_back_give_the_text(L, rate, mean_span, seed):
    ids = torch.randint(0, 1500, (L,), generator=rng(seed))
    inputs, targets = span_corruption(ids, SENTINELS, rng(seed), rate, mean_span)
    assert torch.equal(fill_spans(inputs, targets, SENTINELS), ids)
    marks = [id for id in inputs.tolist() if id in SENTINELS]
    spans = len(marks)
    assert marks == SENTINELS[:spans] and targets[-1] == SENTINELS[spans]
    dropped = min(max(round(L * rate), 1), L - 1)
    assert len(targets) == dropped + spans + 1
    assert len(inputs) == L - dropped + spans
    text = inputs.tolist()  # two sentinels side by side would be one span
    assert not any(a in marks and b in marks for a, b in pairwise(text))
    reply = targets.tolist()  # no span is empty
    assert not any(a in SENTINELS and b in SENTINELS for a, b in pairwise(reply))


def test_share_and_mean_span_are_as_asked():
    inputs, targets = span_corruption(torch.arange(500), SENTINELS, rng())
    spans = sum(id in SENTINELS for id in inputs.tolist())
    assert len(targets) - spans - 1 == 75  # 15 % of 500
    assert spans == 25  # 75 / 3


def test_every_cut_is_equally_likely():
    """4 words, 2 dropped, in 2 spans not adjacent: _a_b, a__b, a_b_ (_ = kept)."""
    counts = {}
    for seed in range(1500):
        cut = span_corruption(torch.arange(4), SENTINELS, rng(seed), 0.5, 1.0)[0]
        counts[tuple(cut.tolist())] = counts.get(tuple(cut.tolist()), 0) + 1
    assert len(counts) == 3  # first and last words may be dropped, or kept
    assert all(abs(n - 500) < 75 for n in counts.values())  # 4 standard deviations


def test_eos_ends_both():
    inputs, targets = span_corruption(torch.arange(10, 30), SENTINELS, rng(), eos=1)
    assert inputs[-1] == 1 and targets[-1] == 1
    restored = fill_spans(inputs[:-1], targets[:-1], SENTINELS)
    assert torch.equal(restored, torch.arange(10, 30))


# ── Refusals ─────────────────────────────────────────────────────────────────────────

LOGITS, IDS = torch.zeros(2, 3, 5), torch.zeros(2, 3).long()
TEXT = torch.arange(40)

REFUSED = {
    "logits a list": (cross_entropy, ([1.0], IDS), TypeError, "list"),
    "logits integers": (cross_entropy, (IDS, IDS), TypeError, "int64"),
    "labels floats": (cross_entropy, (LOGITS, IDS.float()), TypeError, "float32"),
    "shapes": (cross_entropy, (LOGITS, IDS[:1]), ValueError, "(1, 3)"),
    "no V": (cross_entropy, (torch.zeros(2, 3, 0), IDS), ValueError, "(2, 3, 0)"),
    "label 5 of 5": (masked_lm, (LOGITS, IDS + 5), ValueError, "0 … 4, got 5 … 5"),
    "label −1": (masked_lm, (LOGITS, IDS - 1), ValueError, "got -1"),
    "eps 1": (label_smoothed, (LOGITS, IDS, 0, 1.0), ValueError, "1.0"),
    "eps −1": (label_smoothed, (LOGITS, IDS, 0, -1.0), ValueError, "-1.0"),
    "targets a list": (label_smoothed, (LOGITS, [0], 0, 0.1), TypeError, "list"),
    "keep floats": (causal_lm, (LOGITS, IDS, IDS.float()), TypeError, "float32"),
    "keep shape": (causal_lm, (LOGITS, IDS, IDS[:1].bool()), ValueError, "(1, 3)"),
    "tokens 1-D": (next_tokens, (IDS[0],), ValueError, "(3,)"),
    "tokens floats": (next_tokens, (IDS.float(),), TypeError, "float32"),
    "no token": (perplexity, (Loss(torch.tensor(0.0), 0),), ValueError, "counts 0"),
    "a mean": (perplexity, (torch.tensor(1.0),), TypeError, "Tensor"),
    "0 bytes": (bits_per_byte, (Loss(torch.tensor(1.0), 1), 0), ValueError, "got 0"),
    "prefix of 1": (prefix_lm_batch, (IDS[:, :1],), ValueError, "T = 1"),
    "id 9 of 5": (masked_lm_batch, (IDS + 9, 5, 1, [0]), ValueError, "got 9 … 9"),
    "rate 2": (masked_lm_batch, (IDS, 5, 1, [0], None, 2), ValueError, "got 2"),
    "special 7": (masked_lm_batch, (IDS, 5, 1, [7]), ValueError, "[1, 7]"),
    "all special": (masked_lm_batch, (IDS, 2, 1, [0]), ValueError, "all 2 ids"),
    "1 word": (span_corruption, (TEXT[:1], SENTINELS), ValueError, "L = 1"),
    "a batch": (span_corruption, (IDS, SENTINELS), ValueError, "(2, 3)"),
    "few sentinels": (span_corruption, (TEXT, [99, 98]), ValueError, "3 sentinels"),
    "same sentinel": (span_corruption, (TEXT, [99, 99, 98]), ValueError, "differ"),
    "in the text": (span_corruption, (TEXT, [5, 6, 7]), ValueError, "[5, 6, 7]"),
    "rate 0": (span_corruption, (TEXT, SENTINELS, None, 0.0), ValueError, "0.0"),
    "span 0": (span_corruption, (TEXT, SENTINELS, None, 0.1, 0.5), ValueError, "0.5"),
    "no answer": (fill_spans, (TEXT, TEXT[:3], [9]), ValueError, "[9]"),
    "twice": (fill_spans, (TEXT, torch.tensor([9, 9]), [9]), ValueError, "twice"),
    "not a text": (fill_spans, (IDS, TEXT, [9]), ValueError, "(2, 3)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_number(name):
    function, arguments, error, number = REFUSED[name]
    with pytest.raises(error) as caught:
        function(*arguments)
    assert number in str(caught.value)
