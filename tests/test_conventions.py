# SPDX-License-Identifier: MIT
"""The house rules that a machine can see, read from the source of every file.

Widgets have rules and tests of their own. Each rule is a function of a file's source,
and is shown to see a breach.
"""

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "deepdive"
FILES = sorted(
    path.relative_to(SRC).as_posix()
    for path in SRC.rglob("*.py")
    if "widgets" not in path.relative_to(SRC).parts
)
MODELS = [
    file for file in FILES if file.startswith("models/") and "__init__" not in file
]
CHAPTERS = """
01_recurrence 02_attention 03_multi_head 04_positions 05_block 06_transformer_2017
07_bert 08_gpt 09_t5 10_kv_cache 11_rope 12_grouped_query_attention
13_flash_attention 14_mixture_of_experts 15_deepseek 16_what_stayed
"""
# What chapters teach: mechanisms, practice, and what looks at both. The rest serves.
TAUGHT = """
configs tokenizers masks norms feedforward cache kernels positions moe recurrent
objectives attention latent_attention blocks halves decoding training models ablation
accounting anatomy heads ngrams roofline trace
"""
# Papers' mechanisms: the file says where they come from, somewhere.
SOURCED = """
norms feedforward kernels/equation kernels/tiled positions moe/balance moe/capacity
moe/choice moe/experts moe/layer moe/noisy moe/sigmoid moe/softmax
recurrent/alignment recurrent/cells recurrent/seq2seq objectives/cloze
objectives/losses attention latent_attention blocks decoding/beam decoding/sampling
decoding/speculative models/bert models/deepseek models/gpt models/llama
models/mixtral models/t5 models/transformer2017 ngrams
"""
CHAPTERS, TAUGHT, SOURCED = CHAPTERS.split(), TAUGHT.split(), SOURCED.split()

# Steps inside a mechanism that its chapter shows with the whole: no line of their own.
PARTS = ("check_", "build_", "start")
# Longer than 40 lines, each for a reason that splitting would not serve.
LONG: dict[str, str] = {}
# Where a word on the screen is the purpose.
MAY_PRINT = ("__main__.py", "training/log.py", "training/progress.py")

LINES = 40
MODEL_LINES = 100


@cache
def tree(file):
    return ast.parse((SRC / file).read_text(encoding="utf-8"))


def public(module):
    """Functions and classes of a module whose name has no underscore in front."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef
    return [
        node
        for node in module.body
        if isinstance(node, kinds) and not node.name.startswith("_")
    ]


def offered(file, module):
    """Of a package's public names those that it hands out in its `__init__`."""
    init = (SRC / file).parent / "__init__.py"
    if "/" not in file or file.startswith("models/"):
        return {node.name for node in public(module)}
    words = ast.walk(ast.parse(init.read_text(encoding="utf-8")))
    return {getattr(word, "name", getattr(word, "value", None)) for word in words
            if isinstance(word, ast.alias | ast.Constant)}  # fmt: skip


def functions(module):
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(module) if isinstance(node, kinds)]


def doc(node):
    return ast.get_docstring(node) or ""


# ── The rules ────────────────────────────────────────────────────────────────────────


def undocumented(module):
    """A module says which question it answers, a public name what it does."""
    missing = [] if doc(module) else ["1: the module has no docstring"]
    return missing + [
        f"{node.lineno}: {node.name} has no docstring"
        for node in public(module)
        if not doc(node)
    ]


def untaught(module, names=None):
    """A public name says in which chapters it is taught, or its module does for all."""
    return [
        f"{node.lineno}: {node.name} has no “Taught in:”"
        for node in public(module)
        if (names is None or node.name in names)
        and not node.name.startswith(PARTS)
        and not TEACHES.search(doc(node) + doc(module))
    ]


def unknown_chapters(module):
    """Chapters that are named, and are none of the sixteen."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef
    return [
        f"{getattr(node, 'lineno', 1)}: there is no chapter {name}"
        for node in ast.walk(module)
        if isinstance(node, kinds)
        for name in re.findall(r"book/(\w+)\.ipynb", doc(node))
        if name not in CHAPTERS
    ]


TEACHES = re.compile(r"^Taught in: book/\d\d_\w+\.ipynb", re.MULTILINE)


def shapeless(module):
    """Who takes a tensor says of which shape, itself or in a class it derives from."""
    missing = []
    for node in public(module):
        call = forward(node) if isinstance(node, ast.ClassDef) else node
        if call is None or not takes_tensors(call) or node.name.startswith("check_"):
            continue
        words = [doc(each) for each in (call, node, *ancestors(node))]
        if not any(SHAPES.search(each) for each in words):
            missing.append(f"{node.lineno}: {node.name} takes tensors, no “Shapes:”")
    return missing


@cache
def classes():
    found = [node for file in FILES for node in public(tree(file))]
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


def ancestors(node):
    """The classes of this package that a class derives from."""
    names = [ast.unparse(base) for base in getattr(node, "bases", [])]
    found = [classes()[name] for name in names if name in classes()]
    return found + [older for base in found for older in ancestors(base)]


# The heading, or a short line's (B, T) → (B, T).
SHAPES = re.compile(r"^ *Shapes:|\([^()]*[,…][^()]*\).*→", re.MULTILINE)


def forward(node):
    methods = [m for m in node.body if isinstance(m, ast.FunctionDef)]
    return next((m for m in methods if m.name in ("forward", "__call__")), None)


def takes_tensors(node):
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    notes = [ast.unparse(a.annotation) for a in arguments if a.annotation is not None]
    notes = [re.sub(r"(Mapping|dict)\[.*\]", "", note) for note in notes]  # named files
    return any(re.search(r"\bTensor\b", note) for note in notes)


def too_long(module, allowed=()):
    """No body has more than 40 lines beside its docstring."""
    found = []
    for node in functions(module):
        body = node.body[1:] if ast.get_docstring(node) else node.body
        lines = node.end_lineno - body[0].lineno + 1 if body else 0
        if lines > LINES and node.name not in allowed:
            found.append(f"{node.lineno}: {node.name} has {lines} lines")
    return found


def talkative(module):
    """Nothing is printed where nobody asked."""
    return [
        f"{node.lineno}: print("
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "print"
    ]


def asserting(module):
    """Wrong input is a ValueError or TypeError: `python -O` drops an assert."""
    return [
        f"{node.lineno}: assert"
        for node in ast.walk(module)
        if isinstance(node, ast.Assert)
    ]


def careless(module):
    """No TODO left in the words, no bare except, no global."""
    return [
        f"{node.lineno}: {type(node).__name__}"
        for node in ast.walk(module)
        if isinstance(node, ast.Global)
        or (isinstance(node, ast.ExceptHandler) and node.type is None)
    ]


def code_lines(source):
    """Lines with code on them: no docstrings, comments or blank lines."""
    module, lines = ast.parse(source), set()
    docs = set()
    for node in [module, *ast.walk(module)]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and doc(node):
            docs |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    skipped = (
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
        tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING,
    )  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skipped:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docs)


# ── Every file keeps them ────────────────────────────────────────────────────────────

every_file = pytest.mark.parametrize("file", FILES)


def part(file):
    return file.split("/")[0].removesuffix(".py")


def named(file, found):
    return [f"src/deepdive/{file}:{each}" for each in found]


@every_file
def test_public_names_have_docstrings(file):
    found = [] if file == "models/__init__.py" else undocumented(tree(file))
    assert named(file, found) == []


@pytest.mark.parametrize("file", [f for f in FILES if part(f) in TAUGHT])
def test_names_say_where_they_are_taught(file):
    module = tree(file)
    assert named(file, untaught(module, offered(file, module))) == []


@every_file
def test_chapters_that_are_named_exist_or_are_planned(file):
    assert named(file, unknown_chapters(tree(file))) == []


@every_file
def test_callables_that_take_tensors_give_shapes(file):
    assert named(file, shapeless(tree(file))) == []


@pytest.mark.parametrize("stem", SOURCED)
def test_a_papers_mechanism_names_the_paper(stem):
    names = [stem + ".py", stem + "/__init__.py"]
    (file,) = [name for name in names if (SRC / name).exists()]
    source = (SRC / file).read_text(encoding="utf-8")
    assert re.search(r"Source:|et al\. \d{4}|arXiv:\d{4}\.\d{5}", source), file


@every_file
def test_functions_are_short(file):
    assert named(file, too_long(tree(file), LONG)) == []


@every_file
def test_nothing_prints_asserts_or_swallows(file):
    found = asserting(tree(file)) + careless(tree(file))
    if file not in MAY_PRINT:
        found += talkative(tree(file))
    assert named(file, found) == []


@every_file
def test_the_licence_stands_in_the_first_line(file):
    first = (SRC / file).read_text(encoding="utf-8").split("\n", 1)[0]
    assert first == "# SPDX-License-Identifier: MIT"


def test_model_files_are_short_and_hold_no_mechanism():
    """At most 100 lines of code each; the aim is about 60."""
    counts = {f: code_lines((SRC / f).read_text(encoding="utf-8")) for f in MODELS}
    table = "\n".join(f"{n:5}  {file}" for file, n in counts.items())
    mean = sum(counts.values()) / len(counts)
    assert max(counts.values()) <= MODEL_LINES, f"\n{table}\n{mean:5.0f}  on average"


def test_the_lists_here_name_what_there_is():
    present = {part(file) for file in FILES}
    assert set(TAUGHT) <= present and MODELS
    here = {n.name for file in FILES for n in functions(tree(file))}
    assert set(LONG) <= here, "an excuse for a function that is gone"
    book = {path.stem for path in (ROOT / "book").glob("[01]*.ipynb")}
    assert book <= set(CHAPTERS)


# ── Each rule sees a breach ──────────────────────────────────────────────────────────

LONG_BODY = "def f():\n    '''Doc.'''\n" + "    x = 1\n" * (LINES + 1)
BREACHES = [
    (undocumented, "def f(): pass"),
    (undocumented, "'''Why?'''\nclass A:\n    def b(self): pass"),
    (untaught, "def f():\n    '''Does.'''"),
    (untaught, "def f():\n    '''Does.\n\n    Taught in: chapter 3\n    '''"),
    (unknown_chapters, "def f():\n    '''Taught in: book/17_no.ipynb'''"),
    (unknown_chapters, "'''Taught in: book/02_attention.ipynb, book/x.ipynb'''"),
    (shapeless, "def f(x: Tensor):\n    '''Does.'''"),
    (shapeless, "def f(x: torch.Tensor | None):\n    '''Does (B, T).'''"),
    (
        shapeless,
        "class A:\n    '''A.'''\n    def forward(self, x: Tensor): pass",
    ),
    (too_long, LONG_BODY),
    (too_long, "class A:\n    " + LONG_BODY.replace("\n", "\n    ")),
    (talkative, "def f():\n    print(1)"),
    (asserting, "def f(x):\n    assert x > 0"),
    (careless, "try:\n    f()\nexcept:\n    pass"),
]


@pytest.mark.parametrize(("rule", "source"), BREACHES)
def test_a_breach_is_seen(rule, source):
    assert rule(ast.parse(source))


SOUND = '''"""What is f?"""


def f(x: Tensor) -> Tensor:
    """Do it.

    Shapes:
        x (B, T) → (B, T)

    Taught in: book/02_attention.ipynb
    """
    return x


def _hidden(x: Tensor):
    return x
'''


@pytest.mark.parametrize("rule", sorted({rule for rule, _ in BREACHES}, key=str))
def test_what_is_allowed_passes(rule):
    assert rule(ast.parse(SOUND)) == []


def test_lines_of_code_are_counted():
    assert code_lines(SOUND) == 4
    assert code_lines("# no\n\nx = '''a\nb'''  # two\n") == 2


# Tools of the workshop, which no chapter teaches.
TOOLS = {"checks", "commands", "device", "figures", "inputs", "palette", "show"}
TOOLS |= {"kernels/contract"}


def test_everything_else_names_its_chapter_itself_or_by_its_file():
    """A public function or class, or the file that it stands in."""
    missing = []
    for file in FILES:
        module = tree(file)
        if file.removesuffix(".py") in TOOLS or file.split("/")[0] in TOOLS:
            continue
        if TEACHES.search(ast.get_docstring(module) or ""):
            continue
        missing += [
            f"{file}: {node.name}"
            for node in module.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and not node.name.startswith("_")
            and "Taught in: book/" not in (ast.get_docstring(node) or "")
        ]
    assert missing == []
