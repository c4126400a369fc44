# SPDX-License-Identifier: MIT
"""What the tests do to every page before they look at it."""

from __future__ import annotations


def open_folds(page: object) -> None:
    """Open every folded cell, solution and box."""
    page.evaluate(
        "document.querySelectorAll('details').forEach(d => { d.open = true })"
    )
    page.wait_for_timeout(150)  # boxes that now scroll become reachable


def wake_widgets(page: object) -> None:
    """Bring every figure into view once, and wait until its widget has come to life.

    A widget replaces the frame that Python drew. One that stays still fails the test
    of the console, where the host says why.
    """
    page.evaluate(
        """async () => {
          const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
          for (const figure of document.querySelectorAll("figure[data-model]")) {
            figure.scrollIntoView();
            for (let i = 0; i < 60 && figure.querySelector(".dd-frame"); i += 1) {
              await pause(50);
            }
          }
          window.scrollTo(0, document.body.scrollHeight);
          await pause(100);
          window.scrollTo(0, 0);
          await pause(100);
          for (let i = 0; i < 100; i += 1) {
            if (document.documentElement.classList.contains("dd-ready")) break;
            await pause(50);
          }
        }"""
    )
