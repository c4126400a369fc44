# SPDX-License-Identifier: MIT
"""What is a run between two updates? What its checkpoint holds, and where it stands.

Taught in: book/06_transformer_2017.ipynb
"""

import os
import time
from pathlib import Path

from deepdive.device import seed_everything
from deepdive.training.checkpoints import (
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)
from deepdive.training.distributed import own_seed
from deepdive.training.log import Log
from deepdive.training.recipe import describe, differences
from deepdive.training.sharding import full, is_sharded, placed, placed_moments


class Run:
    """The state of one call of `fit`, and the files that keep it.

    Of several processes the first has the files; what it finds there, all are told.

    Args:
        update: the one step, with model, optimiser and scaler in it.
        checkpoint, log: paths, or None.
    """

    def __init__(self, update, schedule, callbacks, checkpoint, log):
        self.update, self.schedule, self.callbacks = update, schedule, callbacks
        self.world = update.world
        self.recipe: dict = {}
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.log_path = None if log is None else Path(log)
        self.log = Log(None, done=None)
        self.step = self.saved = 0
        self.groups = update.optimiser.param_groups
        self.rates = [group["lr"] for group in self.groups]
        self.clock = Clock()

    def begin(self, steps: int) -> None:
        """From the checkpoint where there is one; else write the first, of update 0."""
        state = self.world.by_first(lambda: self._open(steps))
        if self.world.size > 1:
            self._check_alike(steps)
        if state is not None:
            self._restore(state)
        elif self.world.size > 1:
            self._draw_from(self.world.told(random_state()), [])
        if state is None and self.checkpoint is not None:
            self._save_first(steps)

    def advance(self, step: int) -> dict:
        """One update and its record."""
        factor = 1.0 if self.schedule is None else float(self.schedule(step))
        for group, rate in zip(self.groups, self.rates, strict=True):
            group["lr"] = rate * factor
        lr = float(self.groups[0]["lr"])
        try:
            record = {"step": step, **self.update(step), "lr": lr}
        except FloatingPointError as error:
            if self.checkpoint is None:
                raise
            kept = f"{self.checkpoint} holds update {self.saved}"
            raise FloatingPointError(f"{error}; {kept}") from error
        for callback in self.callbacks:
            record |= callback(dict(record)) or {}
        record |= self.clock.read()
        self.log.write(record)
        self.step = step
        return record

    def save(self) -> None:
        """Write the checkpoint, after the lines that lead up to it."""
        if self.checkpoint is None:
            return
        update = self.update
        state = {
            "step": self.step,
            "recipe": self.recipe,
            "log": self._log_name(),
            "clock": self.clock.read(),
            "model": update.model.state_dict(),
            "optimiser": update.optimiser.state_dict(),
            "scaler": update.scaler.state_dict(),
            "others": [other.state_dict() for other in self._others()],
        }
        if is_sharded(update.model):
            state = full(state, keep=self.world.first)
        state["random"], *others = self.world.gathered(random_state())
        if others:
            state["random of the other processes"] = others
        self.world.by_first(lambda: self._write(state))
        self.saved = self.step

    def end(self) -> None:
        """Close the log; the optimiser gets back the rates it came with."""
        self.log.close()
        for group, rate in zip(self.groups, self.rates, strict=True):
            group["lr"] = rate

    def _open(self, steps: int) -> dict | None:
        """The checkpoint, if there is one and it is of this run; and open the log."""
        if self.checkpoint is None or not self.checkpoint.exists():
            self.log = Log(self.log_path, done=None)
            return None
        state = load_checkpoint(self.checkpoint)
        self.recipe = self._describe(steps)
        self._check_same(state, steps)
        ours = state["log"] == self._log_name()
        self.log = Log(self.log_path, done=state["step"] if ours else None)
        return state

    def _check_alike(self, steps: int) -> None:
        """Processes with different recipes, such as other seeds, train nothing."""
        mine = self._describe(steps)
        found = differences(self.world.told(mine), mine)
        for rank, its in enumerate(self.world.gathered(found[:1])):
            if its:
                what = its[0].replace(" then, ", " in process 0, ")
                raise ValueError(
                    f"process {rank} has another recipe than process 0: "
                    f"{what.removesuffix(' now')} there; give all the same seeds"
                )

    def _save_first(self, steps: int) -> None:
        """Learn now, not after hours, whether a checkpoint can be written and read."""
        self.recipe = self._describe(steps)
        self.save()
        self.world.by_first(self._read_back)

    def _read_back(self) -> None:
        try:
            load_checkpoint(self.checkpoint)
        except ValueError:  # a callback's state may hold what cannot be read back
            self.checkpoint.unlink()
            raise

    def _write(self, state: dict) -> None:
        """The checkpoint, after the lines that lead up to it."""
        self.log.sync()
        save_checkpoint(self.checkpoint, state)

    def _describe(self, steps: int) -> dict:
        """The recipe; looking at the data moves no generator."""
        before = random_state()
        recipe = describe(self.update, self.schedule, self.callbacks, steps)
        set_random_state(before)
        return recipe

    def _restore(self, state: dict) -> None:
        """Be where the checkpoint was."""
        update, state = self.update, self._placed(state)
        update.model.load_state_dict(state["model"])
        update.optimiser.load_state_dict(state["optimiser"])
        self.groups = update.optimiser.param_groups  # new objects
        update.scaler.load_state_dict(state["scaler"])
        for other, its in zip(self._others(), state["others"], strict=True):
            other.load_state_dict(its)
        self.step = self.saved = state["step"]
        self.clock = Clock(state["clock"])
        others = state.get("random of the other processes", [])
        self._draw_from(state["random"], others)

    def _placed(self, state: dict) -> dict:
        """A checkpoint's state, divided among the processes where the model is."""
        update = self.update
        if not is_sharded(update.model):
            return state
        others = zip(state["others"], self._others(), strict=True)
        return {
            **state,
            "model": placed(state["model"], update.model.state_dict()),
            "optimiser": placed_moments(state["optimiser"], update.optimiser),
            "others": [placed(its, other.state_dict()) for its, other in others],
        }

    def _draw_from(self, first: dict, others: list[dict]) -> None:
        """Draw on from where each process was, or from a seed of its own."""
        rank = self.world.rank
        if rank == 0:
            set_random_state(first)
        elif len(others) == self.world.size - 1:
            set_random_state(others[rank - 1])
        else:
            seed_everything(own_seed(first["torch"], rank))

    def _check_same(self, state: dict, steps: int) -> None:
        """Nothing is loaded before this has passed."""
        found = differences(state["recipe"], self.recipe)
        if found:
            more = f" and {len(found) - 5} more" if len(found) > 5 else ""
            raise ValueError(
                f"{self.checkpoint} is of another recipe: {'; '.join(found[:5])}{more}"
            )
        if state["step"] > steps:
            raise ValueError(
                f"{self.checkpoint} is at update {state['step']}, beyond steps {steps}"
            )

    def _others(self) -> list:
        """What else has a state: callbacks, and the data where it is not a function."""
        everyone = [*self.callbacks, self.update.batches]
        return [one for one in everyone if hasattr(one, "state_dict")]

    def _log_name(self) -> str:
        """Where the log lies, seen from the checkpoint, so that both can be moved."""
        if self.log_path is None:
            return ""
        return os.path.relpath(self.log_path, self.checkpoint.parent)


class Clock:
    """Seconds of processor and of wall, added to those before a kill."""

    def __init__(self, before: dict | None = None):
        before = before or {"cpu_seconds": 0.0, "wall_seconds": 0.0}
        self.cpu = before["cpu_seconds"] - time.process_time()
        self.wall = before["wall_seconds"] - time.perf_counter()

    def read(self) -> dict:
        cpu, wall = self.cpu + time.process_time(), self.wall + time.perf_counter()
        return {"cpu_seconds": round(cpu, 3), "wall_seconds": round(wall, 3)}
