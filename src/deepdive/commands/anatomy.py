# SPDX-License-Identifier: MIT
"""Show what models are made of: read off built models and measured, not typed.

Without a name: one line for each family, or a few lines each on a terminal that is too
narrow for the table. With names: all that is known of these models, and what they cost.
No weights are needed.
"""

import argparse
import dataclasses
import json
import shutil
import sys

from deepdive import configs
from deepdive.commands.words import Usage, columns, say

NAME, HELP = "anatomy", "show what models are made of, and what they cost"
FAMILY = [
    "transformer-base", "bert-base", "gpt2-small", "t5-small", "t5-1-1-small",
    "llama-7b", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "deepseek-v2",
    "deepseek-v3",
]  # fmt: skip
COLUMNS = (
    "name", "halves", "mask", "attention", "positions", "norm", "norm_place",
    "feedforward", "experts", "parameters", "kv_numbers",
)  # fmt: skip


def published() -> dict[str, object]:
    """The published sizes of `deepdive.configs`, by their names in small letters."""
    sizes = {name: c for name, c in vars(configs).items() if name.isupper()}
    return {
        name.lower().replace("_", "-"): config
        for name, config in sizes.items()
        if dataclasses.is_dataclass(config)
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `anatomy`."""
    known = ", ".join(published())
    parser.add_argument("names", nargs="*", metavar="NAME", help=known)
    parser.add_argument(
        "--json", action="store_true", help="print JSON instead of a table"
    )


def run(chosen: argparse.Namespace) -> int:
    """Print the family's table, or everything about some models."""
    known = published()
    if unknown := [name for name in chosen.names if name not in known]:
        raise Usage(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    names = list(dict.fromkeys(chosen.names)) or FAMILY
    rows = [row(name, known[name]) for name in names]
    if chosen.json:
        found = [
            {**dataclasses.asdict(r), "cost": costs(known[n])}
            for n, r in zip(names, rows, strict=True)
        ]
        say(json.dumps(found, indent=2))  # in ASCII: no console can spoil it
    elif chosen.names:
        say("\n\n".join(_page(r, costs(known[r.name])) for r in rows))
    else:
        from deepdive.anatomy import family_table

        say(_fitting(family_table(rows, COLUMNS)))
    return 0


def row(name: str, config):
    """One model's `Anatomy`, from its class and its published sizes."""
    from deepdive.anatomy import anatomy
    from deepdive.models.bert import Bert
    from deepdive.models.deepseek import DeepSeek
    from deepdive.models.gpt import Gpt
    from deepdive.models.llama import Llama
    from deepdive.models.mixtral import Mixtral
    from deepdive.models.t5 import T5
    from deepdive.models.transformer2017 import Transformer

    builders = {
        configs.TransformerConfig: Transformer,
        configs.BertConfig: Bert,
        configs.GptConfig: Gpt,
        configs.T5Config: T5,
        configs.LlamaConfig: Llama,
        configs.MixtralConfig: Mixtral,
        configs.DeepSeekV2Config: DeepSeek,
        configs.DeepSeekV3Config: DeepSeek,
    }
    return anatomy(builders[type(config)], config, name)


def costs(config) -> dict[str, int]:
    """Parameters by part, and what one more token costs behind 1,000 others."""
    from deepdive.accounting import flops, kv_bytes, parameters, plan_of

    found = {f"parameters: {name}": n for name, n in parameters(config).items()}
    plan = plan_of(config)
    if not plan.causal:  # an encoder alone reads everything at once
        return found | {"FLOPs of 1,000 tokens": flops(config, 1000)["total"]}
    source = {"memory": 1000} if plan.encoder else {}
    return found | {
        "FLOPs of one more token": flops(config, 1, seen=999, **source)["total"],
        "KV bytes a token, 16-bit": kv_bytes(config, 1),
    }


def _fitting(table: list[dict[str, str]]) -> str:
    """A table in columns, or in blocks where it would break on the terminal."""
    wide = columns([list(table[0]), *(list(line.values()) for line in table)])
    room = shutil.get_terminal_size().columns
    if not sys.stdout.isatty() or max(map(len, wide.splitlines())) <= room:
        return wide
    blocks = ("\n".join(f"{h}: {cell}" for h, cell in row.items()) for row in table)
    return "\n\n".join(blocks)


def _page(row, cost: dict[str, int]) -> str:
    """Everything about one model, a line each."""
    from deepdive.anatomy import family_table

    (words,) = family_table([row])
    lines = [*words.items(), *((name, f"{n:,}") for name, n in cost.items())]
    return columns(lines)
