# SPDX-License-Identifier: MIT
"""How are measurements kept so that they can be made again? As a JSON file of runs.

What holds for every run stands once in the file, with the machine. A run adds its own
settings, what was found, the command that made it, and the time at its end. A run is
known by all of its settings: one that the file holds is not made again, unless
`--fresh` starts from an empty file. Runs of other shared settings or of another machine
are never mixed into one file.
"""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path

from deepdive.timing import machine

RESULTS = Path(__file__).parent / "results"


class Record:
    """The runs of one benchmark, in a file that is written anew after each.

    Args:
        path: the JSON file; it need not exist yet.
        shared: settings and facts that hold for every run.
        keys: names of the settings that tell one run from another.
        place: a run's place in the file, as something that can be sorted.
        command: what makes the runs that will be added.
        fresh: start from an empty record; the file stays as it is until a run is added.

    Raises:
        ValueError: the file holds runs of other shared settings, or without settings,
            command or time.
    """

    def __init__(
        self,
        path: Path,
        shared: dict,
        keys: tuple[str, ...],
        place: Callable[[dict], list],
        command: str,
        fresh: bool = False,
    ):
        self.path, self.keys, self.place = path, keys, place
        self.shared = json.loads(json.dumps(shared))  # tuples are lists in a file
        self.command, self.fresh = command, fresh
        self.runs: list[dict] = []
        self.where = machine()
        if path.is_file() and not fresh:
            self._read()

    def _read(self) -> None:
        """Take over what the file holds."""
        stored = json.loads(self.path.read_text(encoding="utf-8"))
        other = [key for key, x in self.shared.items() if stored.get(key) != x]
        if other:
            self._refuse(f"was made with other values of {', '.join(other)}")
        needed = {*self.keys, "command", "time"}
        for run in stored["runs"]:
            if not needed <= run.keys():
                lacks = ", ".join(sorted(needed - run.keys()))
                self._refuse(f"holds a run that does not say its {lacks}")
        self.runs, self.where = stored["runs"], stored["machine"]

    def _refuse(self, why: str) -> None:
        raise ValueError(f"{self.path} {why}: choose --fresh, or another --out")

    def missing(self, plan: list[dict]) -> list[dict]:
        """Those settings of a plan that have no run yet; says how many have one.

        Raises:
            ValueError: some are missing, and those there are from another machine.
        """
        have = {self._key(run) for run in self.runs}
        found = [settings for settings in plan if self._key(settings) not in have]
        if len(found) < len(plan):
            print(
                f"{len(plan) - len(found)} of {len(plan)} runs are in {self.path.name} "
                f"already and are not made again; --fresh makes all",
                flush=True,
            )
        if found and self.runs and _lasting(self.where) != _lasting(machine()):
            self._refuse("was made on another machine or with other versions")
        return found

    def add(self, run: dict) -> None:
        """Keep a run, in the file too."""
        self.where = machine()
        made = {"command": self.command, "time": self.where["time"]}
        self.runs.append({**run, **made})
        self.runs.sort(key=self.place)
        lines = ",\n  ".join(json.dumps(r, ensure_ascii=False) for r in self.runs)
        head = json.dumps({**self._head(), "runs": []}, indent=1, ensure_ascii=False)
        start, end = head.rsplit('"runs": []', 1)
        write(self.path, f'{start}"runs": [\n  {lines}\n ]{end}\n')

    def _head(self) -> dict:
        first, *others = dict.fromkeys(run["command"] for run in self.runs)
        seconds = sum(run.get("cpu_seconds", 0) for run in self.runs)
        return {
            **self.shared,
            "command": "; ".join([f"{first} --fresh", *others]),
            "machine": self.where,
            "cpu_minutes": round(seconds / 60, 1),
        }

    def _key(self, run: dict) -> tuple:
        return tuple(run[key] for key in self.keys)


def _lasting(where: dict) -> dict:
    return {key: x for key, x in where.items() if key != "time"}


def write(path: Path, text: str) -> None:
    """Put a text into a file all at once: whoever reads sees the old one or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def options(about: str, path: Path) -> argparse.ArgumentParser:
    """A parser that knows where the record lies and whether it starts empty."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--out", type=Path, default=path, help="file of the record")
    parser.add_argument(
        "--fresh", action="store_true", help="make every run, from an empty record"
    )
    return parser


def command(
    script: str, parser: argparse.ArgumentParser, chosen: argparse.Namespace, *names
) -> str:
    """The command line that makes the same runs, naming what is not the default.

    Args:
        names: the options that decide which runs are made, and how.
    """
    words = ["OMP_NUM_THREADS=1 python", f"benchmarks/{script}.py"]
    for name in names:
        now, usual = getattr(chosen, name), parser.get_default(name)
        now, usual = (
            [*x] if isinstance(x, list | tuple) else [x] for x in (now, usual)
        )
        if now != usual:
            words += [f"--{name}", *map(str, now)]
    return " ".join(words)
