# SPDX-License-Identifier: MIT
"""Three tasks from one dictionary: read, written and judged as they should be."""

import pytest
import torch

from deepdive.recipes import RECIPES
from deepdive.recipes import three_tasks as t
from deepdive.recipes.spelling import split

pytestmark = pytest.mark.usefixtures("one_thread")


def test_examples_by_hand():
    assert t.examples("pronounce", "cats") == [("pronounce: c a t s", "K AE T S")]
    assert t.examples("spell", "cats") == [("spell: K AE T S", "c a t s")]
    assert t.examples("stress", "cats") == [("stress: c a t s", "1")]
    said = "AH T EH N SH AH N"
    assert ("pronounce: a t t e n t i o n", said) in t.examples(
        "pronounce", "attention"
    )


@pytest.mark.parametrize("task", t.TASKS)
def test_every_symbol_is_known(task):
    for part in split():
        for word in part[:300]:
            for read, write in t.examples(task, word):
                assert t.SYMBOLS.decode(t.SYMBOLS.encode(read)) == read
                assert t.SYMBOLS.decode(t.SYMBOLS.encode(write)) == write


def test_words_that_sound_alike_are_all_right():
    answers = t.right_answers("spell", "spell: M EY L")
    assert {"m a i l", "m a l e"} <= answers
    several = t.right_answers("pronounce", "pronounce: t o m a t o")
    assert len(several) == 2
    with pytest.raises(ValueError, match="'K K K'"):
        t.right_answers("spell", "spell: K K K")


@pytest.mark.parametrize(("task", "word"), [("rhyme", "cats"), ("spell", "qqqq")])
def test_unknown_tasks_and_words_are_refused(task, word):
    with pytest.raises(ValueError, match=task if task == "rhyme" else word):
        t.examples(task, word)


def test_the_three_small_ones_weigh_as_much_as_the_one():
    together, *alone = (
        sum(p.numel() for p in RECIPES[r.name].model().parameters())
        for r in t.THREE_TASKS
    )
    assert abs(sum(alone) / together - 1) < 0.005


def test_no_word_that_judges_is_read():
    held_out = {word for part in split()[1:] for word in part}
    draw = t.batches(0, ("spell",))
    written = {t.SYMBOLS.decode(pair[1][1:-1]).replace(" ", "") for pair in draw.pairs}
    assert not written & held_out
    names = {RECIPES[r.name].batches(0).n_batches for r in t.ALONE}
    assert sum(names) <= RECIPES["three-tasks"].batches(0).n_batches * 1.5
    firsts = {pair[0][0] for pair in RECIPES["three-tasks-stress"].batches(0).pairs}
    assert firsts == set(t.SYMBOLS.encode("stress:"))


def test_no_sound_that_judges_spelling_was_heard():
    read = {t.SYMBOLS.decode(src) for src, _ in t.batches(0, ("spell",)).pairs}
    words = split().test[:500]
    kept = t.unheard(words)
    fresh = [t.examples("spell", word)[0][0] not in read for word in words]
    assert kept == [word for word, new in zip(words, fresh, strict=True) if new]
    assert 300 < len(kept) < 450  # about a quarter sounds like a training word


def test_the_answer_is_not_read_before_it_is_asked():
    """A model that copies its input pays; one that knows what follows does not."""
    batch = t.batches(0, ("stress",))(0)
    symbols = len(t.SYMBOLS)

    def saying(tokens):
        return lambda *_: torch.nn.functional.one_hot(tokens, symbols).float() * 50

    knows = t.loss(saying(batch.tgt[:, 1:]), batch).mean
    copies = t.loss(saying(batch.tgt[:, :-1]), batch).mean
    assert knows < 0.7 * copies


def test_a_training_is_watched_by_the_words_set_aside(monkeypatch):
    asked = []
    monkeypatch.setattr(t, "answer", lambda _, texts: asked.extend(texts) or texts)
    t.evaluate(None, ("stress",))
    words = {text.removeprefix("stress: ").replace(" ", "") for text in asked}
    assert len(words) == t.WATCHED and words <= set(split().dev)


def test_exact_counts_faultless_answers(monkeypatch):
    words = split().dev[:40]
    texts = [t.examples("stress", word)[0][0] for word in words]
    known = {read: sorted(t.right_answers("stress", read))[0] for read in texts}

    def say(model, asked):
        return [known[read] if i % 4 else "2 2 2 2" for i, read in enumerate(asked)]

    monkeypatch.setattr(t, "answer", say)
    assert t.exact(None, "stress", words) == 0.75


def test_an_answer_is_the_same_in_any_company():
    torch.manual_seed(0)
    model = RECIPES["three-tasks"].model().eval()
    texts = ["stress: c a t s", "spell: K AE T S", "pronounce: a t t e n t i o n"]
    together = t.answer(model, texts)
    assert together == [t.answer(model, [text])[0] for text in texts]


@pytest.mark.parametrize(
    ("text", "match"),
    [("rhyme: cats", "must begin with"), ("spell: a", "1 letters"), ("cats", "begin")],
)
def test_write_refuses_what_it_cannot_read(text, match):
    model = RECIPES["three-tasks"].model().eval()
    with pytest.raises(ValueError, match=match):
        t.write(model, text)
