# SPDX-License-Identifier: MIT
"""Measure, on this machine, what each way of computing the same thing costs.

The rows stand in the book's folder benchmarks/speed, one script a topic; each runs in a
process of its own. Inside a row all ways run by turns, on one thread of the CPU, and
the processor's time is counted, after a check that they give the same numbers. Ways of
other libraries are run where these are installed. Said are each way's time, how many
times as fast as the first way it was (the median over the rounds, the lowest and the
highest), and whether the row's goals were reached.

Exit status 1 when a goal was missed by more than the spread: no round reached it. With
--quick the work is too small for goals. Only the ratios carry over to another machine
of the same kind.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from deepdive import shelf
from deepdive.commands.words import Usage, complain, say, whole
from deepdive.timing import ROUNDS, Result, machine, table

NAME, HELP = "bench", "measure what each way of computing the same costs here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may stand behind `bench`."""
    parser.add_argument(
        "topics", nargs="*", metavar="TOPIC", help="scripts of benchmarks/speed; all"
    )
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and no goals: minutes less"
    )
    parser.add_argument(
        "--rounds",
        type=whole(5),
        default=ROUNDS,
        metavar="N",
        help=f"turns of each way (default: {ROUNDS})",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the numbers to a new file too; -: to stdout, the rest to stderr",
    )


def run(chosen: argparse.Namespace) -> int:
    """Measure topic by topic, print each row as it is there, then the goals."""
    out = chosen.json
    only_json = out is not None and str(out) == "-"
    if out is not None and not only_json and out.exists():
        raise FileExistsError(f"{out} exists: choose another name")
    scripts = find(chosen.topics)
    where = machine()
    tell = Teller(complain if only_json else say, carry_on=out is not None)
    tell(f"{where['processor']}, torch {where['torch']}, one thread, processor time\n")
    found: list[Result] = []
    broken: list[str] = []
    for script in scripts:
        try:
            for result in measured(script, chosen.quick, chosen.rounds):
                tell(table(result) + "\n")
                found.append(result)
        except ChildProcessError as error:  # the other topics still count
            broken.append(str(error))
            complain(broken[-1])
    tell(summary(found))
    content = {"machine": where, "rounds": chosen.rounds, "quick": chosen.quick}
    content["rows"] = [result.as_dict() for result in found]
    if only_json:
        say(json.dumps(content, indent=2))  # in ASCII: no console can spoil it
    elif out is not None:
        with out.open("x", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if tell.failure is not None:
        raise tell.failure
    missed = any(goal.verdict == "missed" for row in found for goal in row.judged)
    return 1 if broken or missed else 0


def find(topics: list[str]) -> list[Path]:
    """The scripts of these topics, of all when none is named.

    Raises:
        FileNotFoundError: the book's folder is not there.  Usage: a topic is not.
    """
    folder = shelf.benchmarks("speed")
    scripts = {path.stem: path for path in sorted(folder.glob("*.py"))}
    unknown = [topic for topic in topics if topic not in scripts]
    if unknown:
        raise Usage(f"no topic {unknown[0]!r}; there are {', '.join(scripts)}")
    return [path for topic, path in scripts.items() if not topics or topic in topics]


def measured(script: Path, quick: bool, rounds: int) -> Iterator[Result]:
    """The rows of one script, each as soon as it is there.

    Raises:
        ChildProcessError: the script failed; what it said is on stderr.
    """
    words = [sys.executable, str(script), "--lines", "--rounds", str(rounds)]
    process = subprocess.Popen(
        words + ["--quick"] * quick,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        for line in process.stdout:
            yield Result.from_dict(json.loads(line))
    finally:
        process.stdout.close()
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.terminate()
        status = process.wait()
    if status:
        raise ChildProcessError(f"{script.stem} stopped with exit status {status}")


def summary(found: list[Result]) -> str:
    """How many goals were reached, and which were not."""
    goals = [(row, goal) for row in found for goal in row.judged]
    if not goals:
        return f"{len(found)} rows; all ways of each gave the same numbers."
    kinds = [goal.verdict for _, goal in goals]
    lines = [
        f"{len(goals)} goals: {kinds.count('reached')} reached, "
        f"{kinds.count('within the spread')} within the spread, "
        f"{kinds.count('missed')} missed"
    ]
    for row, goal in goals:
        if goal.verdict != "reached":
            lines.append(
                f"  {goal.verdict}: {row.row}, {row.sizes}: {goal.way} "
                f"{goal.ratio:.3g} × {goal.against}, wanted {goal.at_least:.3g}"
            )
    return "\n".join(lines)


class Teller:
    """Says things; once that fails, is silent, so that the numbers can still be kept.

    Args:
        how: what says them.
        carry_on: False to fail at once: nobody would have the numbers.
    """

    def __init__(self, how: Callable[[str], None], carry_on: bool):
        self.how, self.carry_on = how, carry_on
        self.failure: OSError | ValueError | None = None

    def __call__(self, text: str) -> None:
        """Say it, or remember why it could not be said."""
        if self.failure is not None:
            return
        try:
            self.how(text)
        except (OSError, ValueError) as error:  # a closed pipe, a letter it lacks
            if not self.carry_on:
                raise
            self.failure = error
