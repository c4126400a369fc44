# SPDX-License-Identifier: MIT
"""Which half of a Transformer needs positions, and how far do they reach?

Five models learn to write words of 3 to 12 letters backwards (`deepdive.recipes`'
reverse): with sinusoids, with learned vectors, without positions in the encoder, in the
decoder, in both. Each is then tested on new words of 3 to 20 letters, and its decoder's
cross-attention is searched for the anti-diagonal.

    python benchmarks/positions.py --fresh          three seeds, 6 minutes
    python benchmarks/positions.py --seeds 3 4      two more, added to them

Without --fresh, runs that the results file holds already are not made again.
"""

import random
import statistics
import time
from collections.abc import Callable

import torch
from record import RESULTS, Record, command, options
from torch import Tensor, nn

from deepdive.attention import record
from deepdive.blocks import pre_norm
from deepdive.data import padded
from deepdive.device import seed_everything
from deepdive.models.transformer2017 import Transformer
from deepdive.positions import LearnedPositions, NoPositions, SinusoidalPositions
from deepdive.recipes import reverse
from deepdive.training import fit

LENGTHS = range(reverse.SHORTEST, 21)
WORDS = 200  # of each length
TABLE = 24  # rows of a learned table: more than the longest test needs

Positions = Callable[[], nn.Module]


def sinusoids() -> nn.Module:
    """The paper's."""
    return SinusoidalPositions(reverse.CONFIG.d_model)


def learned() -> nn.Module:
    """A table; training reaches its first 13 rows only."""
    return LearnedPositions(TABLE, reverse.CONFIG.d_model)


def none() -> nn.Module:
    """Zeros."""
    return NoPositions(reverse.CONFIG.d_model)


# name → positions of the encoder, of the decoder
MODELS: dict[str, tuple[Positions, Positions]] = {
    "sinusoids": (sinusoids, sinusoids),
    "learned": (learned, learned),
    "none in the decoder": (sinusoids, none),
    "none in the encoder": (none, sinusoids),
    "none at all": (none, none),
}
# What all runs share.
SHARED = {
    "about": "words of 3 to 12 letters reversed, with and without positions",
    "trained_on": [reverse.SHORTEST, reverse.LONGEST],
    "lengths": list(LENGTHS),
    "words_of_each_length": WORDS,
    "even_share": 1 / 8,
}
KEYS = ("model", "seed", "steps")


def main() -> None:
    """Train what is missing, and write the results after each run."""
    kept, plan = prepare()
    torch.set_num_threads(1)
    for settings in kept.missing(plan):
        run = run_once(*(settings[key] for key in KEYS))
        kept.add(run)
        print(settings, run["exact"], flush=True)


def prepare(arguments: list[str] | None = None) -> tuple[Record, list[dict]]:
    """The record, and the settings of the runs it is to hold, from a command line."""
    parser = options(__doc__, RESULTS / "positions.json")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=reverse.REVERSE.steps)
    chosen = parser.parse_args(arguments)
    made_by = command("positions", parser, chosen, "seeds", "steps")
    plan = [
        dict(zip(KEYS, (name, seed, chosen.steps), strict=True))
        for seed in chosen.seeds
        for name in MODELS
    ]
    shared = SHARED | {"steps": chosen.steps}  # the same for all runs of a file
    return Record(chosen.out, shared, KEYS, place, made_by, chosen.fresh), plan


def place(run: dict) -> list:
    """Seed by seed, the models in their order here."""
    return [run["seed"], list(MODELS).index(run["model"])]


def run_once(name: str, seed: int, steps: int) -> dict:
    """Train one model from one seed and test it."""
    recipe, start = reverse.REVERSE, time.process_time()
    seed_everything(seed)
    encoder, decoder = MODELS[name]
    model = Transformer(reverse.CONFIG, pre_norm, encoder(), decoder())
    log = fit(
        model,
        recipe.batches(seed),
        recipe.loss,
        recipe.optimiser(model),
        steps=steps,
        schedule=recipe.schedule(steps),
        progress=False,
    )
    seconds = time.process_time() - start
    model.eval()
    exact, letters = zip(*(test(model, words(n)) for n in LENGTHS), strict=True)
    return {
        "model": name,
        "seed": seed,
        "steps": steps,
        "loss": round(statistics.mean(line["loss"] for line in log[-20:]), 4),
        "exact": recipe.evaluate(model)["exact"],
        "cpu_seconds": round(seconds, 1),
        "exact_by_length": exact,
        "letters_by_length": letters,
        "anti_diagonal": anti_diagonal(model, words(8)),
    }


def words(length: int) -> list[str]:
    """New random words of one length, the same in every run."""
    draw, known = random.Random(length), set(reverse.words()[0])
    found: list[str] = []
    while len(found) < WORDS:
        word = "".join(draw.choices(reverse.LETTERS, k=length))
        if word not in known:
            found.append(word)
    return found


@torch.no_grad()
def test(model: nn.Module, tested: list[str]) -> tuple[float, float]:
    """The share of words that are exact, and of letters, each after the right ones.

    A word is exact when each symbol after the right ones is right, the end too: then
    greedy writing gives the same word.
    """
    src, tgt = pairs(tested)
    right = model(src, tgt[:, :-1]).argmax(-1) == tgt[:, 1:]  # (B, n + 1)
    whole, letters = right.all(1), right[:, :-1]
    return tuple(round(x.double().mean().item(), 4) for x in (whole, letters))


@torch.no_grad()
def anti_diagonal(model: nn.Module, tested: list[str]) -> list[list[float]]:
    """Mean weight of the letter that is to be written next: layers × heads.

    Row t of a decoder writes letter t of the reversed word, which stands at n − 1 − t.
    """
    src, tgt = pairs(tested)
    n = src.shape[1]
    with record(model.decoder) as seen:
        model(src, tgt[:, :-1])
    found = []
    for name, weights in seen.items():  # (B, H, n + 1, n)
        if "cross" in name:
            flipped = weights[:, :, :n].flip(-1)
            on = flipped.diagonal(dim1=-2, dim2=-1).mean((0, -1))  # (H,)
            found.append([round(x, 4) for x in on.tolist()])
    return found


def pairs(tested: list[str]) -> tuple[Tensor, Tensor]:
    """Words of one length and the same backwards."""
    rows = [reverse.pair(word) for word in tested]
    src, tgt = (padded(side, reverse.PAD)[0] for side in zip(*rows, strict=True))
    return src, tgt


if __name__ == "__main__":
    main()
