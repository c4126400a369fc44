# SPDX-License-Identifier: MIT
"""The text of far agreement and its judges, against cases made by hand."""

import math

import pytest
import torch
from torch import nn

from deepdive.recipes import grammar as g
from deepdive.recipes import recurrent_grammar as rg
from deepdive.recurrent import ElmanCell, GruCell, LstmCell
from tests.compare import close

CELLS = [ElmanCell, GruCell, LstmCell]
# Written out here: what the recipe calls singular and plural is what is tested.
ONE = ["cat", "dog", "mouse", "bird", "sees", "hears", "chases", "sleeps", "runs"]
SEVERAL = ["cats", "dogs", "mice", "birds", "see", "hear", "chase", "sleep", "run"]
NUMBER = {word: n for n, words in enumerate((ONE, SEVERAL)) for word in words}
IDS, V = g.SYMBOLS.ids, len(g.SYMBOLS)


class Guesser(nn.Module):
    """A model whose logits are a function of the ids."""

    def __init__(self, logits):
        super().__init__()
        self.nothing, self.of = nn.Parameter(torch.zeros(())), logits

    def forward(self, tokens):
        return self.of(tokens)


def one_hot(ids, size=1.0):
    return size * nn.functional.one_hot(ids, V).float()


# The text


def test_each_verb_agrees_with_its_own_noun():
    ids, _ = rg.text(2000, seed=1)
    clauses = set()
    for line in g.SYMBOLS.decode(ids.tolist()).split(" .")[:-1]:
        first, *others = (NUMBER[word] for word in line.split() if word in NUMBER)
        n = line.split().count("that")
        clauses.add(n)
        assert others[0 : 2 * n : 2] == others[1 : 2 * n : 2], line
        assert others[2 * n] == first, line
    assert clauses == set(range(rg.CLAUSES + 1))


def test_the_surprise_of_a_sentence_by_hand():
    """No adjective, one of two numbers, a noun of four, no clause, one verb of two."""
    dice = g.Dice(0)
    while True:
        dice.surprise = 0.0
        if rg.sentence(dice) == ["the", "cat", "runs", "."]:
            break
    chance = 0.7 * 1 / 2 * 1 / 4 * 0.4 * 0.5 * 1 / 2
    assert dice.surprise == pytest.approx(-math.log(chance))


# Far agreement


@pytest.mark.parametrize("clauses", [0, 1, 4, 8, 11])
def test_all_between_a_far_noun_and_its_verb_has_the_other_number(clauses):
    ids, right = rg.far(clauses)
    assert ids.shape == (96, 3 + 4 * clauses) and right.sum() == 48
    for row, number in zip(ids.tolist(), right.tolist(), strict=True):
        words = g.SYMBOLS.decode(row).split()
        assert words[:2] == [".", "the"] and NUMBER[words[2]] == number
        for at in range(3, len(words), 4):
            that, the, noun, verb = words[at : at + 4]
            assert (that, the) == ("that", "the")
            assert noun in ONE[:4] + SEVERAL[:4] and verb in ONE[4:7] + SEVERAL[4:7]
            assert NUMBER[noun] == NUMBER[verb] == 1 - number, words


@pytest.mark.parametrize("clauses", [-1, 12, 1.5])
def test_texts_that_fit_no_window(clauses):
    with pytest.raises(ValueError, match=r"clauses must be 0 … 11"):
        rg.far(clauses)


def by_word(place):
    """A model that gives the verb the number of the word at a place, or else one."""

    def logits(tokens):
        scores = torch.zeros(*tokens.shape, V)
        for row, ids in zip(scores, tokens.tolist(), strict=True):
            word = g.SYMBOLS.decode([ids[place]])
            said = "sleep" if NUMBER.get(word) == 1 else "runs"
            row[:-1, IDS[said]], row[-1, IDS[said]] = -1, 1  # only the last is asked
        return scores

    return Guesser(logits)


@pytest.mark.parametrize("clauses", [1, 4, 8])
def test_agreement_is_that_of_the_first_noun(clauses):
    """1 for one who looks there, 0 for one who looks at the nearest noun."""
    assert rg.agreement(by_word(2), clauses) == 1.0
    assert rg.agreement(by_word(-2), clauses) == 0.0
    assert rg.agreement(by_word(0), clauses) == 0.5  # always for one


def test_agreement_takes_the_two_verbs_together():
    """The likeliest verb has the wrong number; the right two, together, beat it."""

    def logits(tokens):
        scores = torch.full((*tokens.shape, V), -9.0)
        for row, ids in zip(scores, tokens.tolist(), strict=True):
            many = NUMBER[g.SYMBOLS.decode([ids[2]])] == 1
            right, wrong = (SEVERAL, ONE) if many else (ONE, SEVERAL)
            row[:, [IDS[verb] for verb in right[7:]]] = 0.9
            row[:, IDS[wrong[7]]] = 1.0
        return scores

    assert rg.agreement(Guesser(logits), 2) == 1.0


# Nats


@pytest.fixture
def short_text(monkeypatch):
    """A text of 60 sentences for training and for the test; a tenth of a second."""
    words = rg.text(60, seed=1)[0]
    monkeypatch.setattr(rg, "texts", lambda: (words, words, 1.25))
    return words


@pytest.mark.parametrize("size", [0.0, 3.0])
def test_nats_by_hand(short_text, size):
    """A model that is told the next word, and gives it `size` more than the others."""
    model = Guesser(lambda tokens: one_hot(tokens.roll(-1, 1), size))
    found = rg.evaluate(model)
    assert found["nats"] == pytest.approx(math.log(math.exp(size) + V - 1) - size)
    assert found["entropy"] == 1.25
    assert {f"agreement_{n}" for n in (0, 1, 2, 4)} <= found.keys()


def test_nats_are_of_words_after_the_sixteenth_each_once(short_text):
    seen = []

    def logits(tokens):
        said = one_hot(tokens.roll(-1, 1), 60.0)
        if tokens.shape[1] == rg.LENGTH:
            seen.append(tokens)
            said[:, :15] = 0  # guesses of words 1 to 15: not judged
            said[:, -1] = 0  # and of the word behind the window
        return said

    assert rg.evaluate(Guesser(logits))["nats"] == pytest.approx(0, abs=1e-6)
    judged = seen[0][:, 16:].flatten()
    assert torch.equal(judged, short_text[16 : 16 + len(judged)])
    assert len(short_text) - 16 - len(judged) < 32


# The models


@pytest.mark.parametrize("kind", CELLS)
@torch.no_grad()
def test_in_parts_as_whole(kind):
    torch.manual_seed(0)
    model = rg.RecurrentLm(V, d_word=5, d_hidden=6, kind=kind).double()
    tokens, caches = torch.randint(V, (2, 8)), model.new_caches()
    whole = model(tokens)
    parts = [model(part, caches) for part in tokens.split([3, 1, 4], dim=1)]
    close(torch.cat(parts, 1), whole, 1e-14, kind.__name__)
    assert caches.seen == 8
    close(model.logits(model.hidden(tokens)), whole, 0)


@pytest.mark.parametrize("recipe", rg.FADING, ids=lambda recipe: recipe.name)
@torch.no_grad()
def test_a_reader_of_vectors_reads_as_the_model_does(recipe):
    torch.manual_seed(0)
    model = recipe.model().double().eval()
    tokens = rg.far(3, many=1)[0]
    x = rg.vectors(model, tokens)
    close(model.logits(rg.reader(model)(x)), model(tokens), 1e-12, recipe.name)


def test_a_reader_of_neither_kind():
    with pytest.raises(TypeError, match="model must be"):
        rg.reader(nn.Linear(2, 2))


def test_the_four_are_of_one_size():
    sizes = [sum(p.numel() for p in r.model().parameters()) for r in rg.FADING]
    assert sizes[-1] == 60_864
    assert all(abs(size / sizes[-1] - 1) < 0.03 for size in sizes), sizes
