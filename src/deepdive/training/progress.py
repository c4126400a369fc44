# SPDX-License-Identifier: MIT
"""How far is it? One line that renews itself on a terminal, a few lines elsewhere.

A terminal that is narrow, calls itself dumb or can't show the bar gets the few lines.

Taught in: book/06_transformer_2017.ipynb
"""

import os
import shutil
import sys
import time

FEW = 5  # lines, where no line can renew itself
WIDE = 60  # columns that the line with its bar needs


class Progress:
    """Written to stderr, so that what a run prints stays clean.

    Args:
        steps: updates of the whole run.
        show: False for silence.
    """

    def __init__(self, steps: int, show: bool):
        self.steps, self.show = steps, show
        self.terminal = _draws()
        self.next = 0.0
        self.started = time.perf_counter()

    def __call__(self, step: int, loss: float | None) -> None:
        """Show update number `step`, if it is time to."""
        last = step == self.steps
        if not self.show or not (last or self._due(step)):
            return
        share = step / self.steps
        text = f"{step:>{len(str(self.steps))}}/{self.steps}"
        text += "  no token" if loss is None else f"  loss {loss:.4f}"
        text += f"  {time.perf_counter() - self.started:.0f} s"
        if self.terminal:
            bar = "█" * round(20 * share) + "░" * (20 - round(20 * share))
            text = f"\r{bar} {text}\x1b[K" + "\n" * last
        else:
            text += "\n"
        sys.stderr.write(text)
        sys.stderr.flush()

    def _due(self, step: int) -> bool:
        """Ten times a second on a terminal; else where a fifth of the way is passed."""
        if not self.terminal:
            return step * FEW // self.steps != (step - 1) * FEW // self.steps
        now = time.perf_counter()
        due = now >= self.next
        self.next = now + 0.1 if due else self.next
        return due


def _draws() -> bool:
    """Can stderr show a bar on one line, and write over it?"""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return False
    wide = shutil.get_terminal_size().columns >= WIDE
    return wide and "utf" in (sys.stderr.encoding or "").lower()
