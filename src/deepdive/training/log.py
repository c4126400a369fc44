# SPDX-License-Identifier: MIT
"""What happened, update by update? One line of JSON each, in a file that only grows.

Taught in: book/06_transformer_2017.ipynb
"""

import json
import os
from pathlib import Path

from deepdive.training.checkpoints import write_atomically


def read_log(path: str | os.PathLike) -> list[dict]:
    """The records of a run, oldest first; a last line cut short by a kill is left out.

    Raises:
        ValueError: another line is no JSON record with a step, which is named.

    Taught in: book/06_transformer_2017.ipynb
    """
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    records = []
    for number, line in enumerate(lines[:-1], start=1):  # the last ends with no "\n"
        try:
            record = json.loads(line)
            record["step"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"line {number} of {path} is no record of a run: {line[:60]!r}"
            ) from None
        records.append(record)
    return records


class Log:
    """Append records to a file; a resumed run first cuts what is after its checkpoint.

    Args:
        path: None writes nothing.
        done: the updates that a checkpoint has; None for a new run.

    Raises:
        FileExistsError: a new run would write into a file that is not empty.
    """

    def __init__(self, path: Path | None, done: int | None):
        self.file = None
        if path is None:
            return
        if path.exists() and path.stat().st_size:
            if done is None:
                raise FileExistsError(
                    f"{path} exists and no checkpoint of this run says that it is its "
                    f"log; it is left as it is: choose another name, or move it away"
                )
            kept = [record for record in read_log(path) if record["step"] <= done]
            write_atomically(path, lambda file: file.write(_lines(kept)))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("ab")

    def write(self, record: dict) -> None:
        """One line, handed to the system at once: a killed process loses none."""
        if self.file is not None:
            self.file.write(_lines([record]))
            self.file.flush()

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def _lines(records: list[dict]) -> bytes:
    """Strict JSON: no NaN, no Infinity."""
    return "".join(json.dumps(r, allow_nan=False) + "\n" for r in records).encode()
