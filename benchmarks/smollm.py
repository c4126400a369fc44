# SPDX-License-Identifier: MIT
"""How fast does a chat model of 135 million weights read and write on a processor?

SmolLM2-135M-Instruct in this book's code, with its cache, in float32. Reading a prompt
goes through the model at once; writing goes piece by piece. Each is measured alone,
with one thread and with two.

    python benchmarks/smollm.py      some minutes; needs the model's weights

Counted are seconds of the processor, all threads together, so that other programs
disturb little. For that, threads that wait must sleep and not turn in a circle: set
OMP_WAIT_POLICY=passive. All is measured anew each time; said are the median of the
rounds, the lowest and the highest.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median

import torch
from record import RESULTS, command, write
from torch import Tensor, nn

from deepdive.decoding import CachedStep, greedy
from deepdive.pretrained import smollm2
from deepdive.timing import machine
from deepdive.tokenizers import chat_prompt

QUESTION = "What is the capital of France?"
LENGTHS = (128, 512)  # pieces of longer prompts
NEW = 64  # pieces that are written
THREADS = (1, 2)
POLICY = "OMP_WAIT_POLICY"


def reading(model: nn.Module, prompt: Tensor) -> Callable[[], None]:
    """A call that reads a prompt into a fresh cache, up to the first new piece."""

    def call() -> None:
        greedy(CachedStep(model, model.new_caches()), prompt, 1)

    return call


def writing(model: nn.Module, prompt: Tensor, new: int) -> Callable[[], None]:
    """A call that writes `new` pieces behind a prompt that was read before it."""
    step = CachedStep(model, model.new_caches())
    first = greedy(step, prompt, 1).ids

    def call() -> None:
        greedy(step, first, new)
        step.truncate(prompt.shape[1])

    return call


def measure(call: Callable[[], None], pieces: int, rounds: int) -> dict[str, float]:
    """Pieces in a second of the processor, after one call to warm up."""
    call()
    rates = []
    for _ in range(rounds):
        start = time.process_time()
        call()
        rates.append(pieces / (time.process_time() - start))
    said = {"median": median(rates), "lowest": min(rates), "highest": max(rates)}
    return {what: float(f"{rate:.4g}") for what, rate in said.items()}


def records(model: nn.Module, prompt: Tensor, rounds: int, new: int = NEW):
    """A record for each work and number of threads."""
    long = prompt.repeat(1, max(LENGTHS) // prompt.shape[1] + 1)
    before = torch.get_num_threads()
    try:
        for threads in THREADS:
            torch.set_num_threads(threads)
            for text in (prompt, *(long[:, :length] for length in LENGTHS)):
                size = text.shape[1]
                found = measure(reading(model, text), size, rounds)
                yield {"work": "read", "threads": threads, "pieces": size, **found}
            found = measure(writing(model, prompt, new), new, rounds)
            yield {"work": "write", "threads": threads, "pieces": new, **found}
    finally:
        torch.set_num_threads(before)


def main() -> None:
    """Measure everything and write the results file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if os.environ.get(POLICY) != "passive":
        sys.exit(f"set {POLICY}=passive first: threads that wait would be counted")
    model, tokenizer = smollm2()
    asked = chat_prompt([{"role": "user", "content": QUESTION}])
    found = []
    for record in records(model, tokenizer.encode(asked).ids, chosen.rounds):
        found.append(record)
        print(record, flush=True)
    line = command("smollm", parser, chosen, "rounds")
    where = {k: x for k, x in machine().items() if k != "threads"}
    content = {
        "question": __doc__.splitlines()[0],
        "command": f"{POLICY}=passive {line.split(' ', 1)[1]}",  # not one thread
        "machine": where,
        "model": "SmolLM2-135M-Instruct, 4-bit weights widened to float32",
        "prompt": QUESTION,
        "rounds": chosen.rounds,
        "unit": "pieces in a second of the processor, all threads together",
        "records": found,
    }
    text = json.dumps(content, indent=1, ensure_ascii=False)
    write(RESULTS / "smollm.json", text + "\n")


if __name__ == "__main__":
    main()
