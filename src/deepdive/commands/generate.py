# SPDX-License-Identifier: MIT
"""Let a model go on from a text, word by word as it writes.

MODEL is one of

    smollm2       SmolLM2-135M-Instruct, which answers questions (--chat)
    glassllm      a very small one that read Lewis Carroll; glassllm-pt: Machado
    FOLDER        what `python -m deepdive train` left
    FOLDER        config.json, tokenizer.json and safetensors, as Hugging Face has them:
                  gpt2, llama, mistral, mixtral, deepseek_v2, deepseek_v3

Without --temperature, --top-k or --top-p the most probable word is written each time.
The text goes to stdout, how fast it came to stderr.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from deepdive.commands.words import (
    Usage,
    add_device,
    complain,
    device,
    number,
    say,
    whole,
)

NAME, HELP = "generate", "let a model go on from a text"
START = "Once upon a time"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `generate`."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name or a folder, see above")
    add("--prompt", metavar="TEXT", help="what to go on from")
    add("--chat", action="store_true", help="TEXT is a question to a chat model")
    add("--max-new", type=whole(1), default=64, metavar="N", help="tokens (64)")
    add(
        "--temperature",
        type=number(0, 100),
        metavar="T",
        help="draw words; below 1 the likely ones gain, above 1 they lose",
    )
    add("--top-k", type=whole(1), metavar="K", help="draw from the K likeliest words")
    add(
        "--top-p",
        type=number(0, 1, above=True),
        metavar="P",
        help="draw from the likeliest words that make up probability P",
    )
    add(
        "--seed",
        type=whole(0, 2**32 - 1),
        default=0,
        metavar="S",
        help="the same seed gives the same text (0)",
    )
    add_device(parser)


def run(chosen: argparse.Namespace) -> int:
    """Stream a text."""
    import torch

    from deepdive.decoding import stream

    place = device(chosen.device)
    with torch.no_grad():
        writing = _writing(chosen, place)
        draw = torch.Generator(writing.prompt.device).manual_seed(chosen.seed)
        most = getattr(writing.step, "max_seq_len", None)
        new = chosen.max_new
        if most is not None:  # a prompt that is too long is refused by `stream`
            new = max(1, min(new, most - writing.prompt.shape[1]))
        tokens = stream(
            writing.step,
            writing.prompt,
            new,
            _choices(chosen),
            stop=writing.stop,
            generator=draw,
        )
        watch = Watch(tokens)
        for part in spoken(watch, writing.decode):
            say(part, end="")
    say()
    complain(watch.report(writing.prompt.shape[1]))
    return 0


class Watch:
    """Hands tokens on, and notes when the first and the last came."""

    def __init__(self, tokens: Iterable):
        self.tokens, self.times = tokens, [time.perf_counter()]

    def __iter__(self) -> Iterator[int]:
        for token in self.tokens:
            self.times.append(time.perf_counter())
            yield int(token)

    def report(self, prompt: int) -> str:
        """How long the prompt took, and how fast the rest came."""
        start, first, *rest = self.times
        text = f"{prompt} tokens read in {first - start:.2f} s"
        text += f", {1 + len(rest)} written"
        if rest:
            text += f", {len(rest) / (rest[-1] - first):.1f} tokens/s after the first"
        return text


def spoken(tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """The text as it grows; a character comes when all of its bytes have."""
    ids: list[int] = []
    said = ""
    for token in tokens:
        ids.append(token)
        text = decode(ids)
        if not text.endswith("\ufffd"):
            yield text[len(said) :]
            said = text
    yield decode(ids)[len(said) :]


def _choices(chosen: argparse.Namespace):
    """What `decoding.stream` takes: None where no drawing was asked for."""
    from deepdive.decoding import temperature, top_k, top_p

    makers = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    given = {name: getattr(chosen, name) for name in makers}
    choices = [make(given[n]) for n, make in makers.items() if given[n] is not None]
    return choices or None


def _writing(chosen: argparse.Namespace, place):
    """The model, its prompt, and how its ids become text."""
    named = {
        "smollm2": ("smollm2", ()),
        "glassllm": ("glassllm", ("en",)),
        "glassllm-pt": ("glassllm", ("pt",)),
    }
    folder = Path(chosen.model)
    if chosen.model in named:
        from deepdive import pretrained

        loader, arguments = named[chosen.model]
        model, tokenizer = getattr(pretrained, loader)(*arguments)
    elif not folder.is_dir():
        known = ", ".join(named)
        raise Usage(f"{chosen.model!r} is no folder, and none of {known}")
    elif (folder / "recipe.json").is_file():
        return _from_recipe(chosen, folder, place)
    else:
        from deepdive.pretrained import load
        from deepdive.tokenizers import load_tokenizer

        model, tokenizer = load(folder), load_tokenizer(folder)
    return _from_tokenizer(chosen, model.to(place), tokenizer)


def _from_recipe(chosen: argparse.Namespace, folder: Path, place):
    from deepdive.recipes import RECIPES, load_run

    if chosen.chat:
        raise Usage("--chat is for chat models; this is a run of a recipe")
    recipe, model = load_run(folder, RECIPES)
    if chosen.prompt is None:
        complain("no --prompt: the recipe's own example")
    return recipe.write(model.to(place), chosen.prompt or "")


def _from_tokenizer(chosen: argparse.Namespace, model, tokenizer):
    from deepdive.decoding import CachedStep
    from deepdive.recipes import Writing
    from deepdive.tokenizers import chat_prompt

    text = START if chosen.prompt is None else chosen.prompt
    if not text:
        raise Usage("--prompt is empty: there is nothing to go on from")
    if chosen.prompt is None and not chosen.chat:
        complain(f"no --prompt: going on from {text!r}")
    if chosen.chat:
        if tokenizer.raw.token_to_id("<|im_start|>") is None:
            raise Usage(f"--chat: {chosen.model} was not trained on conversations")
        if chosen.prompt is None:
            raise Usage("--chat needs a question: --prompt TEXT")
        text = chat_prompt([{"role": "user", "content": text}])
    ids = tokenizer.encode(text).ids.to(next(model.parameters()).device)
    step = CachedStep(model, model.new_caches())
    return Writing(step, ids, tokenizer.end_ids, tokenizer.decode)
