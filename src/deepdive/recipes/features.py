# SPDX-License-Identifier: MIT
"""What does a model know of a text that it was not asked for? Which novel is this?

The model is frozen. Of a window's 128 pieces the vectors of the last layer are
averaged, and a linear classifier learns the novel from them; beside it the same
classifier learns from how often each piece stands in the window.

Taught in: book/07_bert.ipynb, book/09_t5.ipynb
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepdive.models.gpt import Gpt
from deepdive.models.t5 import T5
from deepdive.recipes.austen import LENGTH, BothWays
from deepdive.recipes.novels import NOVELS, VOCABULARY, Chapter, split, tokenizer

EACH, TUNED = 200, 60  # windows of a novel to learn from, and to choose the penalty by
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ROWS = 64


class Examples(NamedTuple):
    """Windows (W, T), and the number of each one's novel in `NOVELS`, (W,)."""

    ids: Tensor
    novels: Tensor


class Probe(NamedTuple):
    """Share of right novels, the mean of the novels' own shares, and the penalty."""

    accuracy: float
    balanced: float
    penalty: float


def chapter_windows(chapters: Iterable[Chapter], each: int | None = None) -> Examples:
    """Cut each chapter into windows; `each` of them from each novel, spread, or all.

    Raises:
        ValueError: a novel has fewer.
    """
    found: dict[str, list[Tensor]] = {novel: [] for novel in NOVELS}
    for chapter in chapters:
        ids = tokenizer().encode(chapter.text).ids[0]
        found[chapter.novel] += ids[: len(ids) // LENGTH * LENGTH].split(LENGTH)
    if each is not None:
        for novel, rows in found.items():
            if len(rows) < each:
                raise ValueError(f"{novel} has {len(rows)} windows, not {each}")
            chosen = torch.linspace(0, len(rows) - 1, each).long().tolist()
            found[novel] = [rows[i] for i in chosen]
    rows = [row for some in found.values() for row in some]
    labels = [i for i, some in enumerate(found.values()) for _ in some]
    return Examples(torch.stack(rows), torch.tensor(labels))


def examples() -> tuple[Examples, Examples, Examples]:
    """To learn from, to choose the penalty by, and to judge.

    The first two are chapters of the models' training; the last are the chapters that
    watched and those of the test: the test's own hold four novels of the six.
    """
    train, dev, test = split()
    learn = [chapter for i, chapter in enumerate(train) if i % 4]
    return (
        chapter_windows(learn, EACH),
        chapter_windows(train[::4], TUNED),
        chapter_windows([*dev, *test]),
    )


@torch.no_grad()
def mean_hidden(model: nn.Module, ids: Tensor) -> Tensor:
    """The mean of the last layer's vectors over a window; T5's encoder's.

    Shapes:
        ids (W, T) → (W, d_model)

    Raises:
        TypeError: a model of another kind.
    """
    if isinstance(model, BothWays | Gpt):
        read = model.hidden
    elif isinstance(model, T5):
        read = model.encode
    else:
        name = type(model).__name__
        raise TypeError(f"model must be a BothWays, Gpt or T5, got {name}")
    return torch.cat([read(part).mean(1) for part in ids.split(ROWS)])


def bag_of_pieces(ids: Tensor) -> Tensor:
    """How often each piece stands in a window, as log(1 + count).

    Shapes:
        ids (W, T) → (W, V)
    """
    counts = torch.zeros(len(ids), VOCABULARY)
    return counts.scatter_add_(1, ids, torch.ones(ids.shape)).log1p()


def fit_linear(x: Tensor, labels: Tensor, classes: int, penalty: float) -> nn.Linear:
    """Logistic regression: the weights with the least penalised loss, found from 0.

        mean −log p(label) + penalty · ‖W‖² / 2

    Shapes:
        x (N, d), labels (N,)
    """
    layer = nn.Linear(x.shape[1], classes)
    for weights in layer.parameters():
        nn.init.zeros_(weights)
    search = torch.optim.LBFGS(
        layer.parameters(), max_iter=200, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        total = F.cross_entropy(layer(x), labels)
        total = total + penalty / 2 * layer.weight.square().sum()
        total.backward()
        return total

    search.step(loss)
    return layer


@torch.no_grad()
def judge_linear(layer: nn.Linear, x: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of right classes; the mean of that over the classes that occur.

    Shapes:
        x (N, d), labels (N,)
    """
    right = (layer(x).argmax(-1) == labels).double()
    own = [right[labels == label].mean() for label in labels.unique()]
    return right.mean().item(), torch.stack(own).mean().item()


def probe(learn: Tensor, tune: Tensor, test: Tensor, labels: list[Tensor]) -> Probe:
    """Learn novels from some features; the penalty is the one that tunes best.

    Shapes:
        learn, tune, test (·, d); labels (·,) of each
    """
    mean, spread = learn.mean(0), learn.std(0).clamp(min=1e-6)
    learn, tune, test = ((x - mean) / spread for x in (learn, tune, test))
    found = []
    for penalty in PENALTIES:
        layer = fit_linear(learn, labels[0], len(NOVELS), penalty)
        found.append((judge_linear(layer, tune, labels[1])[0], penalty, layer))
    _, penalty, layer = max(found, key=lambda each: each[:2])
    return Probe(*judge_linear(layer, test, labels[2]), penalty)
