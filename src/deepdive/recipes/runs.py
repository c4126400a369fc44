# SPDX-License-Identifier: MIT
"""What does a run leave behind? A folder that says what it is, and can be gone on with.

`recipe.json` says which recipe, seed, steps and precision, and is written first;
`checkpoint.pt` holds all that the next update depends on, `log.jsonl` a line for each
update, with metrics in some, `result.json` the metrics at the end, and
`model.safetensors` the weights at the end: the average's, if the recipe keeps one.

Taught in: book/06_transformer_2017.ipynb, book/08_gpt.ipynb
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from deepdive.device import seed_everything
from deepdive.pretrained.huggingface import Renamed, load_into
from deepdive.recipes.recipe import Recipe
from deepdive.training import EMA, fit, join, read_log, whole
from deepdive.training.checkpoints import write_atomically
from deepdive.training.sharding import full

FORMAT = "deepdive run 1"


def run_recipe(
    recipe: Recipe,
    folder: str | os.PathLike,
    steps: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: torch.dtype | None = None,
    progress: bool = True,
    spread: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> dict[str, float]:
    """Run a recipe to its end, from where a run in the same folder stopped.

    Under `torchrun` the processes share the work, as `training.fit` says; the first
    judges and writes.

    Args:
        folder: new or empty, or this very run's.
        steps: other than the recipe's own; the schedule is drawn out to it.
        precision: as `training.fit` takes it.
        spread: what is done to the model before its optimiser is made:
            `training.sharded` divides it among the processes.

    Returns:
        The metrics of the recipe's `evaluate` at the end.

    Raises:
        FileExistsError: the folder holds something else; nothing in it is touched.
        TypeError, ValueError, FloatingPointError: as `training.fit`.
    """
    folder, world = Path(folder), join()
    steps = recipe.steps if steps is None else steps
    what = {
        "format": FORMAT,
        "recipe": recipe.name,
        "seed": seed,
        "steps": steps,
        "precision": None if precision is None else str(precision),
    }
    schedule = recipe.schedule(steps)  # a wrong number is refused before any file
    world.by_first(lambda: claim(folder, what))
    seed_everything(seed)
    model = spread(recipe.model().to(device))
    judge = Judge(recipe, model, steps)
    fit(
        model,
        Moved(recipe.batches(seed), device),
        recipe.loss,
        recipe.optimiser(model),
        steps=steps,
        schedule=schedule,
        accumulate=recipe.accumulate,
        precision=precision,
        checkpoint=folder / "checkpoint.pt",
        every=recipe.every,
        log=folder / "log.jsonl",
        progress=progress,
        callbacks=judge.callbacks,
    )
    result = judge.metrics()
    with judge.applied():
        weights = full(_untied(model), keep=world.first)
        world.by_first(lambda: _write_result(folder, weights, result))
    return result


def load_run(
    folder: str | os.PathLike, recipes: Mapping[str, Recipe]
) -> tuple[Recipe, nn.Module]:
    """The recipe and the trained model, in eval mode, of a folder of `run_recipe`.

    Raises:
        FileNotFoundError: no finished run.
        ValueError: another recipe than those given, or files that do not fit.
    """
    folder = Path(folder)
    what = read_claim(folder)
    if what is None:
        raise FileNotFoundError(f"{folder} holds no run of a recipe: no recipe.json")
    if what.get("recipe") not in recipes:
        raise ValueError(f"{folder} is a run of {what.get('recipe')!r}, unknown here")
    recipe, path = recipes[what["recipe"]], folder / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(
            f"the run in {folder} has not finished: repeat its command"
        )
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    given = Renamed(tensors, {name: name for name in tensors}, [], [])
    return recipe, load_into(recipe.model(), given, folder)


def publish(
    folder: str | os.PathLike, shelf: str | os.PathLike, every: int = 50
) -> Path:
    """Copy what a finished run leaves to readers into `shelf`, and no checkpoint.

    The log keeps each `every`-th update, those with metrics, the first and the last.

    Returns:
        The new folder, named after the recipe; `load_run` reads it.

    Raises:
        FileNotFoundError: the run has not finished.
        FileExistsError: the new folder holds something else than this run.
        ValueError: every < 1, or the folder is no run.
    """
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be an integer ≥ 1, got {every!r}")
    folder = Path(folder)
    what = read_claim(folder)
    if what is None or not (folder / "result.json").is_file():
        raise FileNotFoundError(f"{folder} holds no finished run of a recipe")
    place = Path(shelf) / what["recipe"]
    log = read_log(folder / "log.jsonl")
    usual = set(log[0])
    kept = [r for r in log if r["step"] % every == 0 or set(r) - usual]
    kept = [log[0], *(r for r in kept if r["step"] > 1)]
    lines = "".join(json.dumps(record) + "\n" for record in kept)
    claim(place, what)
    for name in ("result.json", "model.safetensors"):
        content = (folder / name).read_bytes()
        write_atomically(
            place / name, lambda file, content=content: file.write(content)
        )
    write_atomically(place / "log.jsonl", lambda file: file.write(lines.encode()))
    return place


def claim(folder: Path, what: Mapping[str, Any]) -> None:
    """Make a folder this run's, if it is new, empty, or so already.

    Raises:
        FileExistsError: it holds something else.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file, not a folder for a run")
    found = read_claim(folder)
    if found is None and folder.is_dir() and any(_names(folder)):
        raise FileExistsError(
            f"{folder} holds something else ({', '.join(_names(folder)[:3])}); "
            f"nothing was touched: choose another folder"
        )
    if found is not None and found != what:
        differ = [
            f"{key} {found.get(key)} there, {what.get(key)} asked for"
            for key in {**found, **what}
            if found.get(key) != what.get(key)
        ]
        raise FileExistsError(
            f"{folder} holds another run ({'; '.join(differ)}); nothing was touched: "
            f"choose another folder"
        )
    if found is None:
        _write_json(folder / "recipe.json", what)


def read_claim(folder: Path) -> dict[str, Any] | None:
    """What a folder's `recipe.json` says; None if it has none of ours."""
    try:
        found = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(found, dict) and found.get("format") == FORMAT
    return found if ours else None


class Moved:
    """Batches, moved to a device."""

    def __init__(self, batches: Callable[[int], Any], device: torch.device | str):
        self.batches, self.device = batches, device

    def __call__(self, number: int) -> Any:
        return _moved(self.batches(number), self.device)


class Judge:
    """Adds the recipe's metrics to the log, now and then, of the weights that count."""

    def __init__(self, recipe: Recipe, model: nn.Module, steps: int):
        self.recipe, self.model, self.steps = recipe, model, steps
        self.world = join()
        decay = recipe.average
        self.average = None if decay is None else EMA(model, decay)
        self.callbacks = [self] if decay is None else [self.average, self]

    def __call__(self, record: dict) -> dict | None:
        """The metrics, if it is time for them."""
        step = record["step"]
        due = step % self.recipe.evaluate_every == 0 or step == self.steps
        return self.metrics() if due else None

    def metrics(self) -> dict[str, float]:
        """Judge the weights that count; the model's mode stays what it was."""
        training = self.model.training
        self.model.eval()
        try:
            with self.applied(), whole(self.model):
                judge = self.recipe.evaluate
                return self.world.by_first(lambda: judge(self.model))
        finally:
            self.model.train(training)

    def applied(self):
        """Inside the `with` block the model has the weights that count."""
        return nullcontext() if self.average is None else self.average.applied()


def _names(folder: Path) -> list[str]:
    """What lies there, beside what a kill may have left of our first file."""
    return sorted(p.name for p in folder.iterdir() if p.name != ".recipe.json.partial")


def _moved(batch: Any, device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, tuple):
        parts = [_moved(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    return batch


def _untied(model: nn.Module) -> dict[str, Tensor]:
    """The state, each tensor once, under its first name: tied again on loading."""
    first: dict[int, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        first.setdefault(id(tensor), name)
    state = model.state_dict()
    return {name: state[name].cpu().contiguous() for name in first.values()}


def _write_result(folder: Path, weights: dict[str, Tensor], result: dict) -> None:
    path = folder / "model.safetensors"
    write_atomically(path, lambda file: file.write(save(weights)))
    _write_json(folder / "result.json", result)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
