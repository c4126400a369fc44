# SPDX-License-Identifier: MIT
"""Which cells does an edition of the book show?

One set of notebooks serves two editions. The public one leaves out the cells tagged
`instructor`: from the pages, from the search data and from the notebooks that readers
download, together with the widget state that only those cells use.
"""

from __future__ import annotations

import json
import re
from typing import Any

EDITIONS = {"public": frozenset({"instructor"}), "instructor": frozenset()}
STATE_KEY = "application/vnd.jupyter.widget-state+json"
VIEW_KEY = "application/vnd.jupyter.widget-view+json"
_MODEL = re.compile(r"IPY_MODEL_([0-9a-f]{32})")


def hidden_tags(edition: str) -> frozenset[str]:
    """Return the tags that `edition` leaves out.

    Raises:
        ValueError: if there is no such edition.
    """
    if edition not in EDITIONS:
        known = ", ".join(sorted(EDITIONS))
        raise ValueError(f"deepdive_edition is {edition!r}, expected one of: {known}")
    return EDITIONS[edition]


def filter_notebook(text: str, edition: str) -> str:
    """Return the notebook without the cells that `edition` leaves out.

    A notebook from which nothing is left out comes back unchanged, byte for byte.
    """
    drop = hidden_tags(edition)
    notebook = json.loads(text)
    kept = [cell for cell in notebook["cells"] if not drop & _tags(cell)]
    if len(kept) == len(notebook["cells"]):
        return text
    notebook["cells"] = kept
    _drop_unused_state(notebook)
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _tags(cell: dict[str, Any]) -> set[str]:
    return set(cell.get("metadata", {}).get("tags", []))


def _drop_unused_state(notebook: dict[str, Any]) -> None:
    """Remove the state of widgets that no remaining cell shows."""
    widgets = notebook.get("metadata", {}).get("widgets", {}).get(STATE_KEY)
    if not widgets:
        return
    models = widgets["state"]
    wanted = [
        output["data"][VIEW_KEY]["model_id"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if VIEW_KEY in output.get("data", {})
    ]
    used: set[str] = set()
    while wanted:
        model = wanted.pop()
        if model in models and model not in used:
            used.add(model)
            wanted += _MODEL.findall(json.dumps(models[model]["state"]))
    widgets["state"] = {key: models[key] for key in models if key in used}
