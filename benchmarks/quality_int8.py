# SPDX-License-Identifier: MIT
"""How much worse does a chat model become when its weights are kept in 8 bits?

SmolLM2-135M-Instruct in float32 and in 8 bits: perplexity on texts of over 1,000
pieces, and how long its answers stay the same, piece by piece. Beside the 8 bits of
this book stand the forms that were tried before them, and 7 bits, which processors
without 8-bit instructions use.

    python benchmarks/quality_int8.py      some minutes; needs the model's weights
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from record import RESULTS, command, write
from torch import Tensor, nn

from deepdive.decoding import CachedStep, greedy
from deepdive.inference import Int8Linear, for_inference
from deepdive.inference.products import SAFE, PackedProduct, largest_top, row_scales
from deepdive.pretrained import smollm2
from deepdive.timing import machine
from deepdive.tokenizers import Tokenizer, chat_prompt

ROOT = Path(__file__).resolve().parent.parent
LONG = 8_000  # characters; then cut to PIECES
PIECES = 1_200
TEXTS = {
    "LICENSE-TEXT": 0,
    "README.md": 0,
    "data/austen/pride_and_prejudice.txt": 20_000,  # from which character
    "data/austen/emma.txt": 100_000,
}
QUESTIONS = (
    "What is the capital of France?",
    "Who wrote Pride and Prejudice?",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "How do I boil an egg?",
)
NEW = 48


class Straight(nn.Module):
    """8 bits without turning; with factors on columns, or a second rounding, or not."""

    def __init__(self, linear: nn.Linear, factors: bool, twice: bool):
        super().__init__()
        w = linear.weight.detach()
        self.twice = twice
        self.columns = (
            w.abs().amax(0).clamp(min=1e-30).sqrt() if factors else w.new_ones(1)
        )
        self.register_buffer("weight", w[:0].clone())
        self.in_features = linear.in_features
        scales = row_scales(w / self.columns, 127)
        self.rounded = (w / self.columns / scales).round() * scales

    def forward(self, x: Tensor) -> Tensor:
        rows = x * self.columns
        t = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        whole = (rows / t).round()
        if self.twice:
            whole += ((rows / t - whole) * 254).round() / 254
        return F.linear(whole * t, self.rounded)


LAYOUTS: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "8 bits": Int8Linear,
    "7 bits of inputs": partial(Int8Linear, product=partial(PackedProduct, top=SAFE)),
    "not turned": partial(Straight, factors=False, twice=False),
    "not turned, factors on columns": partial(Straight, factors=True, twice=False),
    "not turned, factors, rounded twice": partial(Straight, factors=True, twice=True),
}


def texts(tokenizer: Tokenizer) -> dict[str, Tensor]:
    """The texts as ids (1, T)."""
    found = {}
    for name, start in TEXTS.items():
        text = (ROOT / name).read_text("utf-8")[start : start + LONG]
        found[name] = tokenizer.encode(text).ids[:, :PIECES]
    return found


def nats(model: nn.Module, ids: Tensor) -> float:
    """The mean loss of every piece but the first."""
    logits = model(ids)[0, :-1]
    return F.cross_entropy(logits, ids[0, 1:]).item()


def answers(model: nn.Module, tokenizer: Tokenizer, new: int) -> list[list[int]]:
    """What it writes, the likeliest piece each time."""
    found = []
    for question in QUESTIONS:
        asked = chat_prompt([{"role": "user", "content": question}])
        step = CachedStep(model, model.new_caches())
        ids = tokenizer.encode(asked).ids
        found += greedy(step, ids, new, stop=tokenizer.end_ids).rows()
    return [list(map(int, row)) for row in found]


def agreeing(a: list[int], b: list[int]) -> int:
    """Pieces up to the first that differs."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return same


def records(model: nn.Module, tokenizer: Tokenizer, new: int = NEW) -> Iterator[dict]:
    """float32, then each layout: perplexities, and answers held to float32's."""
    read = texts(tokenizer)
    exact = for_inference(model)
    losses = {name: nats(exact, ids) for name, ids in read.items()}
    wrote = answers(exact, tokenizer, new)
    yield {
        "weights": "float32",
        "perplexity": {name: short(math.exp(x)) for name, x in losses.items()},
        "pieces": {name: ids.shape[1] for name, ids in read.items()},
        "answers": [tokenizer.decode(row) for row in wrote],
    }
    for layout, make in LAYOUTS.items():
        fast = for_inference(model, make)
        moved = {n: math.exp(nats(fast, i) - losses[n]) - 1 for n, i in read.items()}
        found = {
            "weights": layout,
            "perplexity moved by": {n: short(x) for n, x in moved.items()},
        }
        if make is Int8Linear:
            its = answers(fast, tokenizer, new)
            found["answers"] = [tokenizer.decode(row) for row in its]
            found["pieces alike"] = [
                f"{agreeing(a, b)} of {len(a)}" for a, b in zip(wrote, its, strict=True)
            ]
        yield found


def short(number: float) -> float:
    """Four digits."""
    return float(f"{number:.4g}")


def main() -> None:
    """Measure everything and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--new", type=int, default=NEW, help="pieces of an answer")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = smollm2()
    found = []
    with torch.no_grad():
        for record in records(model, tokenizer, chosen.new):
            found.append(record)
            print(record, flush=True)
    content = {
        "question": __doc__.splitlines()[0],
        "command": command("quality_int8", parser, chosen, "new"),
        "machine": machine(),
        "model": "SmolLM2-135M-Instruct, 4-bit weights widened to float32",
        "largest whole number of an input": largest_top(),
        "questions": QUESTIONS,
        "records": found,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(RESULTS / "int8_quality.json", text + "\n")


if __name__ == "__main__":
    main()
