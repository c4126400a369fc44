# SPDX-License-Identifier: MIT
"""The trainings of test_distributed.py, for one process and for many.

    python -m torch.distributed.run --nproc-per-node 2 -m tests.together FOLDER NAME …

A name is a training of `TRAININGS` and a way, such as `gpt-copies` or `gpt-sharded`.
The first process writes what came of each into FOLDER/NAME.pt.
"""

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adafactor

from deepdive.blocks import post_norm
from deepdive.configs import GptConfig, TransformerConfig
from deepdive.data import PairBatches
from deepdive.models.gpt import Gpt
from deepdive.models.transformer2017 import Transformer
from deepdive.objectives import Loss, causal_lm, label_smoothed
from deepdive.recipes import RECIPES, run_recipe
from deepdive.training import EMA, adamw, cosine, fit, join, leave, sharded, whole
from deepdive.training.sharding import full

V = 19
SMALL = GptConfig(V, d_model=16, n_layers=2, n_heads=2, d_ff=32, max_seq_len=12)
PAIRS = TransformerConfig(V, V, d_model=16, n_layers=2, n_heads=2, d_ff=24, dropout=0.0)


class Texts(NamedTuple):
    """Rows with very different numbers of real tokens."""

    tokens: Tensor
    keep: Tensor


def texts(i: int, rows: int = 5) -> Texts:
    """Micro-batch i; of some, whole rows ask for nothing, and number 2 has one row."""
    g = torch.Generator().manual_seed(i)
    rows = 1 if i == 2 else rows
    tokens = torch.randint(0, V, (rows, 12), generator=g)
    lengths = torch.randint(1, 13, (rows, 1), generator=g)
    return Texts(tokens, torch.arange(12) < lengths)


def text_loss(model: nn.Module, batch: Texts) -> Loss:
    return causal_lm(model(batch.tokens), batch.tokens, batch.keep)


def parts_loss(model: nn.Module, batch: dict) -> Loss:
    """A loss that never calls the model itself, but two of its methods."""
    logits = model.logits(model.hidden(batch["tokens"]))
    return causal_lm(logits, batch["tokens"], batch["keep"])


def pair_loss(model: nn.Module, batch: Any) -> Loss:
    logits = model(batch.src, batch.tgt[:, :-1], batch.src_keep, batch.tgt_keep[:, :-1])
    return label_smoothed(logits, batch.tgt[:, 1:], 0, 0.1)


def pairs() -> PairBatches:
    draw = random.Random(0)
    ids = [
        [draw.randint(1, V - 1) for _ in range(draw.randint(2, 9))] for _ in range(46)
    ]
    return PairBatches([(row, row[::-1]) for row in ids], batch=9)


class Stream:
    """Data that only goes forward, whichever number is asked for."""

    def __init__(self):
        self.next = 0

    def __call__(self, i: int) -> Texts:
        self.next += 1
        return texts(self.next)

    def state_dict(self) -> dict:
        return {"next": self.next}

    def load_state_dict(self, state: dict) -> None:
        self.next = state["next"]


def gpt(dropout: float = 0.0) -> Gpt:
    torch.manual_seed(0)
    return Gpt(GptConfig(**{**vars(SMALL), "dropout": dropout}))


def transformer() -> Transformer:
    torch.manual_seed(0)
    return Transformer(PAIRS, post_norm)


def idle() -> Gpt:
    """A model with a layer that no loss reaches; decay would move it."""
    model = gpt()
    model.idle = nn.Linear(3, 3)
    return model


def other_start() -> Gpt:
    """Each process has other weights; the first's are to count."""
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    return Gpt(SMALL)


@dataclass
class Training:
    """What `fit` is given."""

    model: Callable[[], nn.Module] = gpt
    batches: Callable[[], Callable[[int], Any]] = lambda: texts
    loss: Callable[..., Loss] = text_loss
    steps: int = 5
    optimiser: Callable = lambda model: adamw(model, 0.01, weight_decay=0.5)
    how: dict = field(default_factory=dict)


def as_dict(i: int) -> dict:
    return {**texts(i)._asdict(), "note": None}


def words(i: int) -> tuple:
    return (*texts(i), ["a list of words"])


def word_loss(model: nn.Module, batch: tuple) -> Loss:
    return causal_lm(model(batch[0]), *batch[:2])


def spoilt(model: nn.Module, batch: Texts, what: str) -> Loss:
    """A loss that goes wrong at one row, which the second of two processes has."""
    total, count = text_loss(model, batch)
    if (batch.tokens == texts(3).tokens[3]).all(1).any():
        zero = model.token.weight.sum() * 0
        total = total * float("nan") if what == "loss" else total + zero.sqrt()
    return Loss(total, count)


def seeds_of_their_own(i: int) -> Texts:
    return texts(i + 1000 * int(os.environ.get("RANK", 0)))


TRAININGS = {
    "gpt": Training(how={"clip": 0.5}),
    "gpt 3": Training(how={"accumulate": 3, "clip": None}),  # divided by rows
    "gpt 4": Training(how={"accumulate": 4}),  # two whole micro-batches each
    "parts": Training(batches=lambda: as_dict, loss=parts_loss),
    "transformer": Training(transformer, pairs, pair_loss, 7),
    "transformer 2": Training(transformer, pairs, pair_loss, 4, how={"accumulate": 2}),
    "stream": Training(batches=Stream, how={"accumulate": 2}),
    "idle": Training(idle),
    "other start": Training(other_start),
    "bfloat16": Training(how={"precision": torch.bfloat16}),
    "float16": Training(how={"precision": torch.float16}),
    # as many rows in each process, so that both draw equally many numbers
    "dropout": Training(partial(gpt, 0.4), lambda: partial(texts, rows=4), steps=6),
    "words": Training(batches=lambda: words, loss=word_loss),
    "words 2": Training(batches=lambda: words, loss=word_loss, how={"accumulate": 2}),
    "nan loss": Training(loss=partial(spoilt, what="loss")),
    "nan gradient": Training(loss=partial(spoilt, what="gradient")),
    "adafactor": Training(optimiser=lambda model: Adafactor(model.parameters())),
    "other data": Training(batches=lambda: seeds_of_their_own),
}


def train(name: str, way: str = "copies", steps: int | None = None, **how) -> dict:
    """One training; what came of it, and in which words it failed."""
    training = TRAININGS[name]
    torch.manual_seed(0)
    model = training.model()
    model = sharded(model) if way == "sharded" else model
    average = EMA(model, 0.9)
    optimiser = training.optimiser(model)
    callbacks = [average, *how.pop("callbacks", ())]
    records, failed = [], None
    try:
        records = fit(
            model, training.batches(), training.loss, optimiser,
            steps=steps or training.steps, schedule=cosine(2, 20), progress=False,
            callbacks=callbacks, **training.how | how,
        )  # fmt: skip
    except (ValueError, TypeError, OSError, ArithmeticError) as error:
        failed = f"{type(error).__name__}: {error}"
    world = join()
    result = {
        "records": records,
        "failed": world.gathered(failed),
        "all records": world.gathered([r["loss"] for r in records]),
        "noise": world.gathered(torch.rand(3)),
        "weights": full(model.state_dict()),
        "average": full(average.state_dict()["weights"]),
    }
    probe = texts(100).tokens
    if hasattr(model, "hidden"):
        with average.applied(), whole(model), torch.no_grad():
            model.eval()
            # in one process only: the others make no call that it would wait for
            result["probe"] = model(probe) if world.first else None
    return result


def run(way: str, folder: Path) -> dict:
    """A recipe of the book, into a folder; what it came to, or why not."""
    result, failed = None, None
    spread = {"spread": sharded} if way == "sharded" else {}
    try:
        result = run_recipe(RECIPES["grammar"], folder, 6, progress=False, **spread)
    except (ValueError, OSError) as error:
        failed = f"{type(error).__name__}: {error}"
    return {"result": join().gathered(result), "failed": join().gathered(failed)}


def killed(at: int) -> Callable[[dict], None]:
    """A callback by which the last process dies behind update number `at`."""

    def callback(record: dict) -> None:
        world = join()
        if record["step"] == at and world.rank == world.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return callback


def files(folder: Path) -> dict:
    return {"checkpoint": folder / "c.pt", "log": folder / "log.jsonl", "every": 2}


def main(folder: str, *names: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    for name in names:
        training, way, *rest = name.split("-")
        if training == "recipe":
            result = run(way, Path(folder, rest[0]))
            write(result, folder, name)
            continue
        how: dict[str, Any] = {}
        for word in rest:
            what, _, value = word.partition("=")
            if what == "files":
                how |= files(Path(folder, value))
            elif what == "killed":
                how["callbacks"] = [killed(int(value))]
            elif what == "steps":
                how["steps"] = int(value)
        write(train(training, way, **how), folder, name)
    leave()


def write(result: dict, folder: str, name: str) -> None:
    if join().first:
        torch.save(result, Path(folder, f"{name}.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:])
