# SPDX-License-Identifier: MIT
"""Does every chapter keep to its shape and budget?

One rule a function: it takes a chapter and returns what is wrong, in words. Every rule
is also run on a chapter with a fault planted in it, and must see that fault.
"""

import ast
import copy
import re
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = sorted((ROOT / "book").glob("[0-9]*.ipynb"))
PAGES = sorted(set((ROOT / "book").glob("*.ipynb")) - set(CHAPTERS))  # of reference
SRC = ROOT / "src" / "deepdive"

OPENING = ["Predict", "See it", "By hand"]
PIVOT = "In the package"
CLOSING = [
    "Measure the claim",
    "Paper, this code, today",
    "Where it is oversold",
    "Exercises",
    "Check yourself",
    "Key points",
    "Further reading",
]
ON_TOP = {"Exercises", "Check yourself"}  # not counted in the budget
ROOMY = {"06": 1.5, "08": 1.5, "09": 1.5, "15": 1.5}  # chapters with a larger one
TAGS = {
    *("hide-cell", "hide-input", "hide-output", "remove-input", "remove-cell"),
    *("exercise", "solution", "instructor", "quiz", "slide", "live-only"),
    "nbval-ignore-output",
}
FOLDED = {"hide-cell", "hide-input", "remove-input", "remove-cell"}
EXEMPT = re.compile(r"#\s*(NBVAL_|PYTEST_VALIDATE)\w+")
NETWORK = re.compile(
    r"^\s*[!%]|\b(urllib|requests|httpx|socket|urlopen|hf_hub_download|snapshot_download"
    r"|weights\.fetch|wget|curl)\b",
    re.M,
)


class Chapter:
    """A stored chapter, with the views of it that the rules need."""

    def __init__(self, notebook: nbformat.NotebookNode, name: str) -> None:
        self.notebook, self.name = notebook, name
        # The teacher's notes follow the chapter; its rules are for what learners read.
        learners = [c for c in notebook.cells if "instructor" not in tags(c)]
        self.cells = [piece for cell in learners for piece in split(cell)]
        self.factor = ROOMY.get(name[:2], 1.0)

    @classmethod
    def read(cls, path: Path) -> "Chapter":
        return cls(nbformat.read(path, as_version=4), path.stem)

    def copy(self) -> "Chapter":
        return Chapter(copy.deepcopy(self.notebook), self.name)

    @property
    def code(self) -> list:
        return [cell for cell in self.cells if cell.cell_type == "code"]

    @property
    def headings(self) -> list[str]:
        """The titles of the sections, in order."""
        return [title for title, _ in self.sections if title]

    @property
    def sections(self) -> list[tuple[str, list]]:
        """Pairs of title and cells; "" is the title of what stands before the first."""
        found: list[tuple[str, list]] = [("", [])]
        for cell in self.cells:
            title = heading(cell, "##")
            if title:
                found.append((title, []))
            found[-1][1].append(cell)
        return found

    def section(self, title: str) -> list:
        return [c for name, cells in self.sections if name == title for c in cells]

    @property
    def main(self) -> list:
        """The cells that the budget counts."""
        return [
            cell
            for title, cells in self.sections
            if title not in ON_TOP
            for cell in cells
            if not tags(cell) & {"exercise", "solution", "quiz", "instructor"}
        ]

    @property
    def figures(self) -> list[tuple[int, str]]:
        """Cell number and HTML of every figure and widget in the chapter's outputs."""
        return [
            (number, html)
            for number, cell in enumerate(self.cells)
            for html in shown(cell)
            if "quiz" not in tags(cell)
            if re.search(r'<figure[^>]*class="dd-', html)
        ]


def split(cell) -> list:
    """Cut a Markdown cell at its headings: each begins a new piece for the reader."""
    if cell.cell_type != "markdown":
        return [cell]
    parts = re.split(r"(?m)^(?=#{2,4} )", cell.source)
    return [
        nbformat.from_dict({**cell, "source": part}) for part in parts if part.strip()
    ]


def heading(cell, mark: str) -> str:
    found = re.search(rf"^{mark} +(.+?)\s*$", cell.source, re.M)
    return found[1] if cell.cell_type == "markdown" and found else ""


def tags(cell) -> set[str]:
    return set(cell.metadata.get("tags", []))


def shown(cell) -> list[str]:
    """Return the HTML of a cell's outputs."""
    bundles = [out.get("data", {}) for out in cell.get("outputs", [])]
    return [b["text/html"] for b in bundles if "text/html" in b]


def lines(cell) -> list[str]:
    return [line for line in cell.source.splitlines() if line.strip()]


def is_folded(cell) -> bool:
    return bool(tags(cell) & FOLDED)


def prose(source: str) -> str:
    """Return Markdown without code, displayed maths and markup."""
    text = re.sub(r"(?ms)^(`{3,}|~{3,})(?!\{).*?^\1\s*$", "", source)
    text = re.sub(r"(?s)\$\$.*?\$\$|<!--.*?-->", "", text)
    text = re.sub(r"(?m)^(:{3,}|`{3,})(\{.*)?$|^:[\w-]+:.*$", "", text)
    text = re.sub(r"\]\([^)]*\)|\{[\w:]+\}(?=`)", "]", text)
    text = re.sub(r"\$[^$\n]+\$", "x", text)
    return re.sub(r"<[^>]+>", "", text)


def words(text: str) -> int:
    return len(re.findall(r"[^\W_]+(?:[’'\-–.,/][^\W_]+)*", text))


def paragraphs(text: str) -> list[str]:
    """Split prose at blank lines, list items and table rows."""
    return re.split(r"\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.)\s?)", text)


def defined(tree: ast.Module) -> set[str]:
    """Return the functions and classes that the top level of some code defines."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    return {node.name for node in tree.body if isinstance(node, kinds)}


def stored(tree: ast.Module) -> set[str]:
    """Return the variables that some code assigns outside of its functions."""
    tops = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
    names = [n for top in tops for n in ast.walk(top) if isinstance(n, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def imported(tree: ast.Module) -> set[str]:
    """Return the names that some code takes from the package."""
    froms = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    ours = [n for n in froms if (n.module or "").split(".")[0] == "deepdive"]
    return {alias.asname or alias.name for node in ours for alias in node.names}


def exported() -> dict[str, str]:
    """Map each public function and class of the package to the file that has it."""
    return {
        name: path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        for name in defined(ast.parse(path.read_text(encoding="utf-8")))
        if not name.startswith("_")
    }


# --- rules ------------------------------------------------------------------------

RULES: dict[str, Callable[[Chapter], list[str]]] = {}
PLANTS: dict[str, list[Callable[[Chapter], None]]] = {}


def rule(function: Callable) -> Callable:
    RULES[function.__name__] = function
    return function


def plant(name: str) -> Callable:
    """Register a fault that the rule `name` must see."""

    def keep(function: Callable) -> Callable:
        PLANTS.setdefault(name, []).append(function)
        return function

    return keep


def markdown(text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(text)


def code(source: str, *marks: str, outputs: list | None = None, count: int = 1):
    cell = nbformat.v4.new_code_cell(source, outputs=outputs or [])
    cell.execution_count = count
    cell.metadata["tags"] = list(marks)
    return cell


@rule
def valid(chapter: Chapter) -> list[str]:
    """It is a valid notebook for the kernel named python3, with unique cell ids."""
    wrong = []
    # Before validate(), which repairs them.
    ids = [cell.get("id") for cell in chapter.notebook.cells]
    try:
        with warnings.catch_warnings(action="ignore"):
            nbformat.validate(chapter.notebook)
    except nbformat.ValidationError as error:
        wrong.append(str(error).splitlines()[0])
    if chapter.notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        wrong.append("the kernel isn't named python3")
    return wrong + ([] if len(ids) == len(set(ids)) else ["two cells share an id"])


@plant("valid")
def _(chapter: Chapter) -> None:
    chapter.notebook.metadata["kernelspec"]["name"] = "my-env"


@plant("valid")
def _(chapter: Chapter) -> None:
    chapter.notebook.cells[1]["id"] = chapter.notebook.cells[0]["id"]


@rule
def ran(chapter: Chapter) -> list[str]:
    """All cells ran, once and in order, in a fresh kernel; none left an error."""
    counts = [cell.execution_count for cell in chapter.code if cell.source.strip()]
    wrong = []
    if counts != list(range(1, len(counts) + 1)):
        wrong.append(f"execution counts are {counts}: run `make notebooks`")
    for cell in chapter.code:
        for out in cell.outputs:
            if out.output_type == "error":
                wrong.append(f"stored error {out.ename} in: {cell.source[:60]}")
            if out.output_type == "stream" and out.name == "stderr":
                wrong.append(f"stored warning: {out.text[:80]}")
            plain = out.get("text", "") + out.get("data", {}).get("text/plain", "")
            if re.search(r"0x[0-9a-f]{6,}", plain):
                wrong.append(f"an address in memory is shown: {plain[:80]}")
            if out.output_type == "execute_result" and plain.startswith("tensor("):
                wrong.append(f"a tensor that no one asked for: {plain[:60]}")
    return wrong


@plant("ran")
def _(chapter: Chapter) -> None:
    chapter.code[3].execution_count = None


@plant("ran")
def _(chapter: Chapter) -> None:
    bare = nbformat.v4.new_output("execute_result", {"text/plain": "tensor([1.])"})
    chapter.code[3].outputs.append(bare)


@plant("ran")
def _(chapter: Chapter) -> None:
    error = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    chapter.code[3].outputs.append(error)


@plant("ran")
def _(chapter: Chapter) -> None:
    warning = nbformat.v4.new_output("stream", name="stderr", text="UserWarning")
    chapter.code[3].outputs.append(warning)


@rule
def order(chapter: Chapter) -> list[str]:
    """The sections stand in the book's order; the chapter's own in the middle."""
    have = chapter.headings
    wrong = []
    if have[: len(OPENING)] != OPENING:
        wrong.append(f"begins with {have[:3]}, not {OPENING}")
    if have[-len(CLOSING) :] != CLOSING:
        wrong.append(f"ends with {have[-len(CLOSING) :]}, not {CLOSING}")
    if PIVOT not in have[len(OPENING) : -len(CLOSING)]:
        wrong.append(f"“{PIVOT}” is missing between {OPENING[-1]} and {CLOSING[0]}")
    titles = [c for c in chapter.cells if heading(c, "#")]
    if len(titles) != 1 or titles[0] is not chapter.cells[0]:
        wrong.append("needs one # title, in the first cell")
    return wrong


@plant("order")
def _(chapter: Chapter) -> None:
    cell = chapter.section("Key points")[0]
    cell.source = cell.source.replace("## Key points", "## Summary")


@plant("order")
def _(chapter: Chapter) -> None:
    for cell in chapter.section(PIVOT)[:1]:
        cell.source = cell.source.replace(PIVOT, "In code")


@rule
def front(chapter: Chapter) -> list[str]:
    """Before the first section: minutes of three kinds, needs, three to five aims."""
    text = prose("\n\n".join(cell.source for cell in chapter.sections[0][1]))
    wrong = [
        f"no minutes for “{kind}”"
        for kind in ("read", "run", "exercises")
        if not re.search(rf"(?i)\b{kind}\W{{0,8}}\d+", text)
    ]
    if not re.search(r"(?i)\byou need\b", text):
        wrong.append("doesn't say what the reader needs")
    aims = re.search(r"(?is)you (?:can|will be able to)\W*\n(.*)", text)
    count = len(re.findall(r"(?m)^\s*[-*] ", aims[1])) if aims else 0
    return wrong + ([] if 3 <= count <= 5 else [f"{count} aims, not 3 to 5"])


@plant("front")
def _(chapter: Chapter) -> None:
    for cell in chapter.sections[0][1]:
        cell.source = re.sub(r"(?i)\brun\b", "walk", cell.source)


@plant("front")
def _(chapter: Chapter) -> None:
    for cell in chapter.sections[0][1]:
        cell.source = re.sub(r"(?m)^- ", "", cell.source)


@rule
def exercise_minutes(chapter: Chapter) -> list[str]:
    """The card promises the minutes that stand behind the exercises."""
    opening = "\n".join(cell.source for cell in chapter.section(""))
    promised = re.search(r"exercises\s+(\d+)", opening)
    text = "\n".join(cell.source for cell in chapter.section("Exercises"))
    needed = sum(map(int, re.findall(r"(?m)^### .*\((\d+) minutes\)", text)))
    if promised and int(promised[1]) != needed:
        return [f"exercises take {needed} minutes, the card says {promised[1]}"]
    return []


@plant("exercise_minutes")
def _(chapter: Chapter) -> None:
    for cell in chapter.section("Exercises"):
        cell.source = re.sub(
            r"(### E1.*)\((\d+) minutes\)", r"\1(99 minutes)", cell.source
        )


@rule
def description(chapter: Chapter) -> list[str]:
    """The page's description, for search engines, is in the notebook's metadata."""
    meta = chapter.notebook.metadata.get("myst", {}).get("html_meta", {})
    length = len(meta.get("description", ""))
    return [] if 50 <= length <= 220 else [f"description of {length} characters"]


@plant("description")
def _(chapter: Chapter) -> None:
    chapter.notebook.metadata.pop("myst")


@rule
def amount_of_prose(chapter: Chapter) -> list[str]:
    """2,000 to 3,000 words of main text, in paragraphs of at most 90."""
    texts = [cell.source for cell in chapter.main if cell.cell_type == "markdown"]
    count = sum(words(prose(text)) for text in texts)
    low, high = 2000, 3000 * chapter.factor
    wrong = [] if low <= count <= high else [f"{count} words, not {low} to {high:.0f}"]
    for text in texts:
        for paragraph in paragraphs(prose(text)):
            if (size := words(paragraph)) > 90:
                wrong.append(f"a paragraph of {size} words: {paragraph.strip()[:60]}…")
    return wrong


@plant("amount_of_prose")
def _(chapter: Chapter) -> None:
    chapter.cells[0].source += "\n\n" + "One more sentence for all. " * 19


@plant("amount_of_prose")
def _(chapter: Chapter) -> None:
    chapter.cells[0].source += "\n\nWord by word by word by word." * 600


@rule
def amount_of_code(chapter: Chapter) -> list[str]:
    """20 to 30 code cells; a visible one ≤ 20 lines, median ≤ 6; ≤ 88 columns."""
    cells = [cell for cell in chapter.main if cell.cell_type == "code"]
    low, high = 20, 30 * chapter.factor
    wrong = []
    if not low <= len(cells) <= high:
        wrong.append(f"{len(cells)} code cells, not {low} to {high:.0f}")
    visible = [len(lines(cell)) for cell in cells if not is_folded(cell)]
    if visible and (middle := statistics.median(visible)) > 6:
        wrong.append(f"the median code cell has {middle} lines")
    for cell in chapter.code:
        size = len(lines(cell))
        if size > 20 and not is_folded(cell):
            wrong.append(f"a visible cell of {size} lines: {cell.source[:50]}…")
        for line in cell.source.splitlines():
            if len(line) > 88:
                wrong.append(f"{len(line)} columns: {line[:60]}…")
    return wrong


@plant("amount_of_code")
def _(chapter: Chapter) -> None:
    by_hand = chapter.section("By hand")
    [cell for cell in by_hand if cell.cell_type == "code"][-1].source = "pass\n" * 21


@plant("amount_of_code")
def _(chapter: Chapter) -> None:
    chapter.code[2].source = "x = 1  # " + "long " * 20


@plant("amount_of_code")
def _(chapter: Chapter) -> None:
    gone = chapter.code[3:15]
    chapter.cells = [cell for cell in chapter.cells if cell not in gone]


@rule
def rhythm(chapter: Chapter) -> list[str]:
    """Prose and code alternate; only “define, then show” may stand together."""
    wrong = []
    main = chapter.main
    kinds = [cell.cell_type for cell in main]
    for i in range(1, len(main)):
        if kinds[i] == kinds[i - 1] == "code":
            defines = not main[i - 1].outputs and bool(main[i].outputs)
            third = i >= 2 and kinds[i - 2] == "code"
            if not defines or third:
                wrong.append(f"no sentence before: {main[i].source[:60]}")
    ratio = kinds.count("markdown") / max(1, kinds.count("code"))
    if not 1.0 <= ratio <= 1.8:
        wrong.append(f"{ratio:.2f} pieces of prose for each code cell, not 1.0 to 1.8")
    return wrong


@plant("rhythm")
def _(chapter: Chapter) -> None:
    here = chapter.cells.index(chapter.section("By hand")[-1])
    out = nbformat.v4.new_output("stream", text="1")
    chapter.cells[here:here] = [code("1", outputs=[out]), code("2", outputs=[out])]


@plant("rhythm")
def _(chapter: Chapter) -> None:
    chapter.cells[1:1] = [markdown("More words.") for _ in range(60)]


@rule
def pictures(chapter: Chapter) -> list[str]:
    """Four to seven figures (a widget helps towards four), announced and described."""
    wrong = []
    inside = {id(cell) for cell in chapter.main}
    found = [(n, h) for n, h in chapter.figures if id(chapter.cells[n]) in inside]
    still = [html for _, html in found if "data-model" not in html]
    if len(found) < 4 or len(still) > 7 * chapter.factor:
        wrong.append(f"{len(still)} figures and {len(found) - len(still)} widgets")
    for number, _ in found:
        before = chapter.cells[number - 1]
        if before.cell_type == "code" and not before.outputs:
            before = chapter.cells[number - 2]
        if before.cell_type != "markdown" or words(prose(before.source)) < 6:
            wrong.append(f"nothing said before: {chapter.cells[number].source[:60]}")
    return wrong


@plant("pictures")
def _(chapter: Chapter) -> None:
    number = chapter.figures[-1][0]
    chapter.cells[number - 1].source = "Look:"


@plant("pictures")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        cell.outputs = []


@rule
def alternatives(chapter: Chapter) -> list[str]:
    """Every picture has a description of its own, figures a caption too."""
    wrong = []
    for number, html in chapter.figures:
        where = f"cell {number}"
        drawing = re.search(r"(?s)<(?:svg|img)\b[^>]*>", html)
        label = (
            re.search(r'(?:aria-label|alt)="([^"]*)"', drawing[0]) if drawing else None
        )
        if drawing and (label is None or words(label[1]) < 5):
            wrong.append(f"{where}: a drawing without description")
        if not re.search(r"(?s)<figcaption>.*\w.*</figcaption>", html):
            wrong.append(f"{where}: a figure without caption")
    for number, cell in enumerate(chapter.cells):
        picture = any(
            kind.startswith("image/") and "text/html" not in out.data
            for out in cell.get("outputs", [])
            if "data" in out
            for kind in out.data
        )
        alt = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
        if picture and words(alt) < 5:
            wrong.append(f"cell {number}: an image without description")
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]\(", cell.source):
            wrong.append(f"cell {number}: a Markdown image without description")
    return wrong


@plant("alternatives")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        for out in cell.outputs:
            if "text/html" in out.get("data", {}):
                html = out.data["text/html"]
                out.data["text/html"] = re.sub(r'aria-label="[^"]*"', "", html)


@plant("alternatives")
def _(chapter: Chapter) -> None:
    image = nbformat.v4.new_output("display_data", {"image/png": "aGVsbG8="})
    chapter.code[2].outputs.append(image)


@rule
def exemptions(chapter: Chapter) -> list[str]:
    """At most one cell in ten is exempt from nbval, each with its reason."""
    marked = [cell for cell in chapter.code if "nbval-ignore-output" in tags(cell)]
    wrong = []
    if 10 * len(marked) > len(chapter.code):
        wrong.append(f"{len(marked)} of {len(chapter.code)} cells are exempt")
    for cell in marked:
        if len(str(cell.metadata.get("reason", ""))) < 10:
            wrong.append(f"no “reason” in the metadata of: {cell.source[:60]}")
    for cell in chapter.code:
        if found := EXEMPT.search(cell.source):
            wrong.append(f"{found[0]}: use the tag and a reason")
    return wrong


@plant("exemptions")
def _(chapter: Chapter) -> None:
    chapter.code[3].metadata["tags"] = ["nbval-ignore-output"]


@plant("exemptions")
def _(chapter: Chapter) -> None:
    chapter.code[3].source += "\n# NBVAL_IGNORE_OUTPUT"


@plant("exemptions")
def _(chapter: Chapter) -> None:
    for cell in chapter.code[:8]:
        cell.metadata |= {
            "tags": ["nbval-ignore-output"],
            "reason": "times differ here",
        }


@rule
def known_tags(chapter: Chapter) -> list[str]:
    """Only the tags that the build, the slides and the two editions know."""
    return [
        f"unknown tag {name}: {cell.source[:40]}"
        for cell in chapter.cells
        for name in sorted(tags(cell) - TAGS)
    ]


@plant("known_tags")
def _(chapter: Chapter) -> None:
    chapter.code[0].metadata["tags"] = ["hide_cell"]


@rule
def own_names(chapter: Chapter) -> list[str]:
    """A notebook defines nothing of the package's anew, and hides nothing imported."""
    theirs = exported()
    trees = [ast.parse(c.source) for c in chapter.code if not NETWORK.search(c.source)]
    taken = set().union(*map(imported, trees))
    again = {name for tree in trees for name in defined(tree)} & set(theirs)
    hidden = {name for tree in trees for name in stored(tree) | defined(tree)} & taken
    return [f"“{name}” is defined in {theirs[name]} already" for name in again] + [
        f"“{name}” was imported and is overwritten" for name in hidden
    ]


@plant("own_names")
def _(chapter: Chapter) -> None:
    chapter.code[3].source = "def equation(q, k, v):\n    return v"


@plant("own_names")
def _(chapter: Chapter) -> None:
    chapter.code[0].source = "from deepdive import trace"
    chapter.code[3].source = "for trace in range(3):\n    pass"


@rule
def offline(chapter: Chapter) -> list[str]:
    """No shell line, no magic, nothing that asks the network."""
    return [
        f"“{found[0].strip()}” in: {cell.source[:60]}"
        for cell in chapter.code
        if (found := NETWORK.search(cell.source))
    ]


@plant("offline")
def _(chapter: Chapter) -> None:
    chapter.code[3].source = "!pip install something"


@plant("offline")
def _(chapter: Chapter) -> None:
    chapter.code[3].source = "import requests"


@rule
def practice(chapter: Chapter) -> list[str]:
    """Four or five exercises with checks and folded, asserted solutions; a quiz."""
    cells = chapter.section("Exercises")
    titles = [heading(cell, "###") for cell in cells if heading(cell, "###")]
    wrong = [] if 4 <= len(titles) <= 5 else [f"{len(titles)} exercises, not 4 or 5"]
    stubs = [c for c in cells if "exercise" in tags(c) and c.cell_type == "code"]
    if len(stubs) < 3:
        wrong.append(f"{len(stubs)} exercises with a cell to fill in, fewer than 3")
    for cell in stubs:
        if not re.search(r"\bchecks?\b", cell.source):
            wrong.append(f"no check in: {cell.source[:50]}")
    answers = [c for c in cells if "solution" in tags(c)]
    if len(answers) < len(titles):
        wrong.append(f"{len(titles)} exercises but {len(answers)} solutions")
    for cell in answers:
        if not tags(cell) & {"hide-cell", "hide-input"}:
            wrong.append(f"a solution in plain sight: {cell.source[:50]}")
        if cell.cell_type == "code" and not asserts(cell.source):
            wrong.append(f"a solution that asserts nothing: {cell.source[:50]}")
    quiz = [c for c in chapter.section("Check yourself") if "quiz" in tags(c)]
    return wrong + ([] if quiz else ["no quiz under “Check yourself”"])


def asserts(source: str) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.parse(source).body)


@plant("practice")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        if "solution" in tags(cell):
            cell.metadata["tags"] = ["solution"]


@plant("practice")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        if "solution" in tags(cell):
            cell.source = re.sub(r"(?m)^assert ", "_ = ", cell.source)


@plant("practice")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        cell.metadata["tags"] = sorted(tags(cell) - {"quiz"})


@rule
def folded_in_the_lab(chapter: Chapter) -> list[str]:
    """JupyterLab knows nothing of our tags: it folds solutions by their metadata."""
    return [
        f"“jupyter.{key}” isn't true in: {cell.source[:50]}"
        for cell in chapter.code
        if "solution" in tags(cell)
        for key in ("source_hidden", "outputs_hidden")
        if cell.metadata.get("jupyter", {}).get(key) is not True
    ]


@plant("folded_in_the_lab")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        if "solution" in tags(cell):
            cell.metadata.pop("jupyter")


@plant("folded_in_the_lab")
def _(chapter: Chapter) -> None:
    for cell in chapter.code:
        if "solution" in tags(cell):
            cell.metadata["jupyter"]["outputs_hidden"] = False


# What a page of reference keeps to as well: its sections and its budget are its own.
OF_PAGES = (
    *("valid", "ran", "description", "alternatives", "exemptions", "known_tags"),
    *("own_names", "offline"),
)

# --- tests ------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_chapter(path: Path, name: str) -> None:
    wrong = RULES[name](Chapter.read(path))
    assert not wrong, "\n".join([RULES[name].__doc__, *wrong])


@pytest.mark.parametrize("name", OF_PAGES)
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_page(path: Path, name: str) -> None:
    wrong = RULES[name](Chapter.read(path))
    assert not wrong, "\n".join([RULES[name].__doc__, *wrong])


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name, faults in PLANTS.items() for fault in faults],
)
def test_a_planted_fault_is_seen(name: str, fault: Callable) -> None:
    chapter = Chapter.read(CHAPTERS[0])
    before = RULES[name](chapter)
    spoilt = chapter.copy()
    fault(spoilt)
    assert set(RULES[name](spoilt)) - set(before)


def test_every_rule_was_seen_to_fail() -> None:
    assert set(PLANTS) == set(RULES)


def test_there_are_chapters() -> None:
    assert CHAPTERS
