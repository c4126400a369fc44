# SPDX-License-Identifier: MIT
"""What the reader does with each widget, by keyboard, and what Python says then.

A scenario is run on a static page (http and file), in JupyterLab, and its factory is
used for the accessibility, print and reload checks. To add one, append a `Scenario`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Locator, Page

Tables = dict[str, list[list[float]]]


@dataclass(frozen=True)
class Scenario:
    """One reader's path through one widget.

    Attributes:
        name: the widget's slug; also its section of the scratch notebook.
        source: Python that makes the widget, one expression after imports; it runs
            here and in a notebook cell alike. Example:
            "from deepdive.widgets import MaskGrid\\nMaskGrid()".
        act: drives the widget by keyboard alone: act(page, root), root being its
            `.dd-widget`. It must not use the mouse.
        expect: the numbers Python computes for the state reached, by table name
            (`data-table`): rows of numbers; blocked or wordy cells are left out.
        state: keys of the widget's state after `act`.
        exact: tolerance of the comparison.
    """

    name: str
    source: str
    act: Callable[[Page, Locator], None]
    expect: Callable[[], Tables]
    state: dict = field(default_factory=dict)
    exact: float = 1e-6

    def make(self) -> object:
        """Run the source here and return the widget."""
        *before, last = self.source.strip().splitlines()
        names: dict = {}
        exec("\n".join(before), names)
        return eval(last, names)


def focus(root: Locator, role: str, name: str, exact: bool = True) -> Locator:
    """Put the keyboard on a control, found as a screen reader names it."""
    control = root.get_by_role(role, name=name, exact=exact).first
    control.focus()
    return control


def press(page: Page, *keys: str) -> None:
    """Press keys one after the other."""
    for key in keys:
        page.keyboard.press(key)


def type_number(page: Page, root: Locator, label: str, value: str) -> None:
    """Type into the number box of a slider and leave it with Enter."""
    focus(root, "spinbutton", f"{label}, number")
    press(page, "ControlOrMeta+a")
    page.keyboard.type(value)
    press(page, "Enter")


def open_more(page: Page, root: Locator) -> None:
    """Open the "More" section if there is one and it is shut."""
    summary = root.locator("details.dd-more > summary")
    if summary.count() and not root.locator("details.dd-more[open]").count():
        summary.focus()
        press(page, "Enter")


def show_table(page: Page, root: Locator) -> None:
    """Open the table view."""
    button = root.get_by_role("button", name="Show as table")
    if button.count() and button.get_attribute("aria-expanded") == "false":
        button.focus()
        press(page, "Enter")


def read_tables(root: Locator) -> Tables:
    """Numbers of every open table, full precision, by name."""
    return root.evaluate(
        """(el) => Object.fromEntries([...el.querySelectorAll("[data-table]")].map((t) =>
            [t.dataset.table, [...t.querySelectorAll("tbody tr")].map((r) =>
                [...r.querySelectorAll("[data-value]")].map((c) => Number(c.dataset.value)))]))"""
    )


SCENARIOS: list[Scenario] = []
