# SPDX-License-Identifier: MIT
"""Does post-norm need a warm-up, and from which depth on? Models that sort letters.

An encoder of 2, 6 or 12 blocks reads 12 random letters and learns to write them in the
order of the alphabet. Each depth is trained in both norm orders, at two learning
rates, with and without warm-up, from three seeds; everything else is the same.

    python benchmarks/norm_order.py --fresh             about 8 CPU minutes
    python benchmarks/norm_order.py --depths 18         a deeper one, added to them

Without --fresh, runs that the results file holds already are not made again. Two
processes share the work unless told otherwise, one thread each.
"""

import itertools
import multiprocessing
import statistics
import time

import torch
from record import RESULTS, Record, command, options
from torch import Tensor, nn

from deepdive.attention import MultiHeadAttention
from deepdive.blocks import Block, Residual, Stack, post_norm, pre_norm
from deepdive.device import seed_everything
from deepdive.feedforward import FeedForward
from deepdive.objectives import Loss, cross_entropy
from deepdive.positions import SinusoidalPositions
from deepdive.training import adamw, fit, linear

ORDERS: dict[str, Residual] = {"post": post_norm, "pre": pre_norm}
DEPTHS, RATES, SEEDS = (2, 6, 12), (1e-3, 3e-3), (0, 1, 2)
WARMUPS = (0, 100)  # of 400 updates
STEPS, BATCH, LETTERS, LENGTH, TEST = 400, 32, 20, 12, 1000
SIZES = {"d_model": 32, "n_heads": 4, "d_ff": 128}
# What all runs share.
SHARED = {
    "about": "sorting 12 letters: norm order, depth, learning rate, warm-up",
    "steps": STEPS,
    "batch": BATCH,
    "letters_of_the_alphabet": LETTERS,
    "length": LENGTH,
    "test_words": TEST,
    **SIZES,
    "chance": 1 / LETTERS,
}
KEYS = ("depth", "order", "rate", "warmup", "seed")


class Sorter(nn.Module):
    """Letters → for each place, logits of the letter that belongs there when sorted.

    Shapes:
        tokens (B, T) → (B, T, V)
    """

    def __init__(self, depth: int, residual: Residual):
        super().__init__()
        d_model, d_ff, n_heads = (SIZES[k] for k in ("d_model", "d_ff", "n_heads"))
        self.token = nn.Embedding(LETTERS, d_model)
        self.position = SinusoidalPositions(d_model)
        self.blocks = Stack(
            Block(
                MultiHeadAttention(d_model, n_heads, bias=True),
                FeedForward(d_model, d_ff, nn.ReLU()),
                nn.LayerNorm(d_model),
                nn.LayerNorm(d_model),
                residual,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(d_model) if residual is pre_norm else nn.Identity()
        self.output = nn.Linear(d_model, LETTERS)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.token.weight)  # variance 1, as the sinusoids' is ½

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return self.output(self.norm(self.blocks(x)))


def words(seed: int, number: int, size: int = BATCH) -> Tensor:
    """Random words (B, T), the same for the same two numbers."""
    draw = torch.Generator().manual_seed(10_000 * seed + number)
    return torch.randint(LETTERS, (size, LENGTH), generator=draw)


def loss(model: nn.Module, tokens: Tensor) -> Loss:
    """Each place is to hold the letter that sorting puts there."""
    return cross_entropy(model(tokens), tokens.sort(dim=1).values)


def run_once(setting: dict) -> dict:
    """Train one model and test it on words that no batch holds."""
    torch.set_num_threads(1)
    seed, start = setting["seed"], time.process_time()
    seed_everything(seed)
    model = Sorter(setting["depth"], ORDERS[setting["order"]])
    schedule = linear(setting["warmup"], STEPS)
    optimiser = adamw(model, setting["rate"], weight_decay=0.0)
    batches = lambda number: words(seed, number)  # noqa: E731
    try:
        how = {"steps": STEPS, "schedule": schedule, "progress": False}
        log = fit(model, batches, loss, optimiser, **how)
    except FloatingPointError as error:
        return setting | {"stopped": str(error)}
    tokens = words(2017, 0, TEST)  # 20¹² words: none comes twice
    with torch.no_grad():
        logits, total = model(tokens), loss(model, tokens)
    right = logits.argmax(-1) == tokens.sort(dim=1).values
    curve = [line["loss"] for line in log]
    return setting | {
        "letters": round(right.double().mean().item(), 4),
        "words": round(right.all(1).double().mean().item(), 4),
        "loss": round((total.total / total.count).item(), 4),
        "curve": [
            round(statistics.mean(curve[i : i + 20]), 3) for i in range(0, STEPS, 20)
        ],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Train what is missing, and write the results after each run."""
    kept, plan, processes = prepare()
    with multiprocessing.Pool(processes) as pool:
        for run in pool.imap_unordered(run_once, kept.missing(plan)):
            kept.add(run)
            print({k: v for k, v in run.items() if k != "curve"}, flush=True)


def prepare(arguments: list[str] | None = None) -> tuple[Record, list[dict], int]:
    """The record, the settings of its runs, and how many processes make them."""
    parser = options(__doc__, RESULTS / "norm_order.json")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args(arguments)
    made_by = command("norm_order", parser, chosen, "depths", "seeds")
    grid = itertools.product(chosen.depths, ORDERS, RATES, WARMUPS, chosen.seeds)
    plan = [dict(zip(KEYS, values, strict=True)) for values in grid]
    kept = Record(chosen.out, SHARED, KEYS, place, made_by, chosen.fresh)
    return kept, plan, chosen.processes


def place(run: dict) -> list:
    """Sorted by the settings: depths by their number, 2 before 12."""
    return [run[key] for key in KEYS]


if __name__ == "__main__":
    main()
