# SPDX-License-Identifier: MIT
"""Re-execute the chapters and store their outputs, the same bytes for the same results.

    python tools/notebooks.py                  all chapters
    python tools/notebooks.py 02_attention     one of them
    python tools/notebooks.py --check          change nothing, say which would change

Each chapter runs in a fresh kernel from its own folder. Widget state is stored with it,
so that the site can show live widgets without a kernel.
"""

import argparse
import copy
import hashlib
import json
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.environment import chapters, settings  # noqa: E402

STATE = "application/vnd.jupyter.widget-state+json"
VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT = 300  # seconds; a whole chapter has sixty
KERNEL = {
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "name": "python3",
}
# Left by editors and runners; they differ from run to run.
TRANSIENT = {
    "execution",
    "ExecuteTime",
    "collapsed",
    "scrolled",
    "trusted",
    "papermill",
}


@dataclass(frozen=True)
class Run:
    """A chapter after execution, with what the execution cost."""

    notebook: nbformat.NotebookNode
    seconds: float  # by the clock
    cpu_seconds: float  # by the processors; the same on a busy machine
    peak_mb: float


def execute(path: Path) -> Run:
    """Run a chapter in a fresh kernel and return it normalised; the file is only read.

    Raises:
        CellExecutionError: a cell failed; the message holds its source and traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name=KERNEL["name"],
        record_timing=False,
        extra_arguments=["--IPKernelApp.log_level=40"],  # no note on local ports
        resources={"metadata": {"path": str(path.parent)}},
    )
    start = time.monotonic()
    with Cost() as cost:
        client.execute(env=settings())
    seconds = time.monotonic() - start
    stored = normalise(notebook, path.stem)
    return Run(stored, seconds, sum(cost.cpu.values()), cost.megabytes)


class Cost:
    """Watch the memory and processor time of this process's kernels in a block."""

    def __enter__(self) -> "Cost":
        self.megabytes = 0.0
        self.cpu: dict[int, float] = {}  # by process id
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self.over.wait(0.25):
            total = 0
            for child in me.children(recursive=True):
                try:
                    total += child.memory_info().rss
                    times = child.cpu_times()
                    self.cpu[child.pid] = times.user + times.system
                except psutil.Error:  # it ended between the two calls
                    continue
            self.megabytes = max(self.megabytes, total / 1e6)


def normalise(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Return a copy without what changes from run to run though the results don't."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata["kernelspec"] = dict(KERNEL)
    language = notebook.metadata.get("language_info", {})
    language.pop("version", None)
    for cell in notebook.cells:
        for key in TRANSIENT & set(cell.metadata):
            del cell.metadata[key]
        if cell.cell_type == "code":
            cell.outputs = merge_streams(cell.outputs)
    return rename_models(notebook, name)


def merge_streams(outputs: list) -> list:
    """Join neighbouring pieces of one stream: where they break is chance."""
    merged: list = []
    for output in outputs:
        last = merged[-1] if merged else None
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            merged.append(output)
    return merged


def rename_models(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """Give widget models ids that depend on the chapter and their order alone.

    ipywidgets draws them at random. Models that no output leads to are dropped: nothing
    on a page could show them.
    """
    widgets = notebook.metadata.pop("widgets", {}).get(STATE)
    if not widgets or not widgets["state"]:
        return notebook
    state = dict(widgets["state"])
    order = reachable(notebook, state)
    new = {old: model_id(name, number) for number, old in enumerate(order)}
    widgets["state"] = {old: state[old] for old in order}
    notebook.metadata["widgets"] = {STATE: widgets}
    return nbformat.from_dict(renamed(notebook, new))


def renamed(value: object, new: dict[str, str]) -> object:
    """Return a JSON value with every known model id in keys and strings replaced."""
    if isinstance(value, str):
        return re.sub(r"[0-9a-f]{32}", lambda m: new.get(m[0], m[0]), value)
    if isinstance(value, list):
        return [renamed(item, new) for item in value]
    if isinstance(value, dict):
        return {renamed(k, new): renamed(v, new) for k, v in value.items()}
    return value


def model_id(name: str, number: int) -> str:
    """Return the id of the chapter's model with this number, in ipywidgets' format."""
    return hashlib.sha256(f"{name}:{number}".encode()).hexdigest()[:32]


def reachable(notebook: nbformat.NotebookNode, state: dict) -> list[str]:
    """List the models that outputs lead to, in order; links between them included."""
    order: dict[str, None] = {}

    def visit(text: str) -> None:
        for found in re.findall(r"[0-9a-f]{32}", text):
            if found in state and found not in order:
                order[found] = None
                visit(json.dumps(state[found], sort_keys=True))

    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            visit(json.dumps(output, sort_keys=True))
    for key, model in state.items():  # a link is named by no widget, but ties two
        if model.get("model_name", "").endswith("LinkModel"):
            visit(key)
    return list(order)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="chapters, such as 02_attention")
    parser.add_argument("--check", action="store_true", help="change no file")
    chosen = parser.parse_args(argv)
    paths = [p for p in chapters() if not chosen.names or p.stem in chosen.names]
    if missing := set(chosen.names) - {p.stem for p in paths}:
        print(f"no such chapter: {', '.join(sorted(missing))}")
        return 2
    status = 0
    for path in paths:
        print(f"{path.name}: running", flush=True)
        try:
            run = execute(path)
        except CellExecutionError as error:
            print(f"{path.name}: FAILED\n{error}")
            return 1
        text = nbformat.writes(run.notebook) + "\n"
        changed = text != path.read_text(encoding="utf-8")
        if chosen.check:
            status |= changed
            verdict = "would change" if changed else "stays the same"
        else:
            verdict = "stored" if changed else "unchanged"
            if changed:
                path.write_text(text, encoding="utf-8", newline="\n")
        cost = f"{run.seconds:.0f} s ({run.cpu_seconds:.0f} s of processor time)"
        print(f"{path.name}: {verdict}, {cost}, {run.peak_mb:.0f} MB")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
