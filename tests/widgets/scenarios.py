# SPDX-License-Identifier: MIT
"""What the reader does with each widget, by keyboard, and what Python says then.

A scenario is run on a static page (http and file), in JupyterLab, and its factory is
used for the accessibility, print and reload checks. To add one, append a `Scenario`.
"""

from __future__ import annotations

import functools
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
        """(el) => {
            const all = (node, what) => [...node.querySelectorAll(what)];
            return Object.fromEntries(all(el, "[data-table]").map((t) => [
                t.dataset.table, all(t, "tbody tr").map((r) =>
                    all(r, "[data-value]").map((c) => Number(c.dataset.value)))]));
        }"""
    )


SCENARIOS: list[Scenario] = []


# ------------------------------------------------------------------- W3 · SoftmaxScale
def _softmax_scale_act(page: Page, root: Locator) -> None:
    focus(root, "slider", "Width d_k")
    press(page, "End", "ArrowLeft")  # 1024, then 512
    focus(root, "checkbox", "Divide by √d_k")
    press(page, "Space")
    open_more(page, root)
    type_number(page, root, "Temperature T", "0.5")
    focus(root, "button", "Another draw")
    press(page, "Enter")


def _softmax_scale_expect() -> Tables:
    from deepdive.widgets import SoftmaxScale

    widget = SoftmaxScale()
    draw = (widget.state["draw"] + 1) % 8
    widget.state = {"d": 512, "scaled": True, "t": 0.5, "draw": draw}
    return widget.numbers()


# ------------------------------------------------------------------------ W7 · MaskGrid
def _mask_grid_act(page: Page, root: Locator) -> None:
    focus(root, "button", "Append a word")
    press(
        page, "Enter", "Space", "Enter"
    )  # eight words; further presses change nothing
    focus(root, "radio", "causal")
    press(page, "ArrowDown", "ArrowDown")  # bidirectional, prefix
    focus(root, "slider", "Prefix length")
    press(page, "ArrowRight")  # 4
    open_more(page, root)
    type_number(page, root, "Window (causal and prefix)", "3")
    focus(root, "checkbox", "Ring each row's target: the next word")
    press(page, "Space")


def _mask_grid_expect() -> Tables:
    from deepdive.masks import Causal

    mask = Causal(window=3, prefix=4).tensor(8, 8)
    # By hand: rows see 4, 4, 4, 4, then 3 each; rows 0–2 see their next word.
    return {"mask": mask.int().tolist(), "counts": [[28], [64], [7], [0], [3]]}


SCENARIOS += [
    Scenario(
        name="softmax-scale",
        source="from deepdive.widgets import SoftmaxScale\nSoftmaxScale()",
        act=_softmax_scale_act,
        expect=_softmax_scale_expect,
        state={"d": 512, "scaled": True, "t": 0.5},
    ),
    Scenario(
        name="mask-grid",
        source="from deepdive.widgets import MaskGrid\nMaskGrid()",
        act=_mask_grid_act,
        expect=_mask_grid_expect,
        state={"rule": "prefix", "n": 8, "prefix": 4, "window": 3, "targets": True},
    ),
]


# --------------------------------------------------------------------------------- Quiz
def _quiz_act(page: Page, root: Locator) -> None:
    fields = root.locator("fieldset")
    fields.nth(0).get_by_role("radio").first.focus()
    press(page, "Space", "ArrowDown")  # the second option
    focus(fields.nth(0), "button", "Check")
    press(page, "Enter")
    fields.nth(1).get_by_role("textbox").focus()
    page.keyboard.type("0,25")
    press(page, "Enter")


_QUIZ = """
from deepdive.widgets import Quiz
yes = {"text": "`a`", "correct": True, "why": "so"}
no = {"text": "b", "correct": False, "why": "no"}
pick = {"id": "c", "kind": "choice", "prompt": "d_k?", "options": [yes, no]}
pick["shuffle"] = False
number = {"id": "n", "kind": "number", "prompt": "p(1 − p)?", "answer": 0.25}
number["why"] = "½ · ½"
Quiz([pick, number], name="quiz-test")
"""

SCENARIOS += [
    Scenario(
        name="quiz-test",
        source=_QUIZ,
        act=_quiz_act,
        expect=dict,
        state={"answers": {"c": 1, "n": "0,25"}, "checked": {"c": True, "n": True}},
    ),
]


# ---------------------------------------------------------------------- AttentionTrace
def _attention_trace_act(page: Page, root: Locator) -> None:
    focus(root, "radio", "one")
    press(page, "ArrowRight")  # two heads
    focus(root, "button", "Next")
    press(page, *["Enter"] * 7)  # step 7, the weights
    root.locator("summary", has_text="Edit the numbers").focus()
    press(page, "Enter")
    _edit(page, root, "X, chase, column 3", "-0.7")
    focus(root, "combobox", "Matrix")
    press(page, "ArrowDown")  # W_Q
    _edit(page, root, "W_Q, row 1, column 1", "2")
    open_more(page, root)
    root.get_by_role("checkbox").first.focus()
    press(page, "Space")  # the causal mask
    root.locator('button[data-key="weights.1.0.0"]').focus()
    press(page, "ArrowDown", "ArrowDown", "ArrowRight")


def _edit(page: Page, root: Locator, where: str, number: str) -> None:
    focus(root, "spinbutton", where)
    press(page, "ControlOrMeta+a")
    page.keyboard.type(number)
    press(page, "Enter")


def _attention_trace_expect() -> Tables:
    from dataclasses import replace

    from deepdive import trace
    from deepdive.masks import Causal

    X, W_Q = trace.CATS.X.clone(), trace.CATS.W_Q.clone()
    X[1, 2], W_Q[0, 0] = -0.7, 2
    example = replace(trace.CATS, X=X, W_Q=W_Q)
    result = trace.to_json(trace.attention(example, n_heads=2, mask=Causal()))
    whole = ("X", "W_Q", "W_K", "W_V", "W_O", "Q", "K", "V", "concat", "output")
    tables = {name: result[name] for name in whole}
    for name in ("raw_scores", "scaled_scores", "weights", "head_outputs"):
        tables |= {f"{name}.{h}": result[name][h] for h in range(2)}
    return tables


# --------------------------------------------------------------------------- HeadSplit
def _head_split_act(page: Page, root: Locator) -> None:
    focus(root, "button", "Next")
    press(page, "Enter", "Enter")  # T5-11B, Gemma-7B
    focus(root, "slider", "Heads h")
    press(page, "ArrowRight", "ArrowRight")  # 24, 32 heads
    open_more(page, root)
    focus(root, "checkbox", "Count W", exact=False)
    press(page, "Space")
    type_number(page, root, "Words N", "2048")


def _head_split_expect() -> Tables:
    from deepdive.accounting import head_cost

    cost = head_cost(3072, 32, 256, seq_len=2048, count_o=False)
    keys = "d_model n_heads head_dim width seq_len q k v o parameters score_entries"
    column = [[] if key == "o" else [cost[key]] for key in keys.split()]
    other = []
    for h in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        cut = head_cost(3072, h, None, 2048, False)
        fixed = head_cost(3072, h, 256, 2048, False)
        other.append([cut["parameters"], fixed["parameters"], fixed["score_entries"]])
    return {"cost": column, "heads": other}


SCENARIOS += [
    Scenario(
        name="attention-trace",
        source="from deepdive.widgets import AttentionTrace\nAttentionTrace()",
        act=_attention_trace_act,
        expect=_attention_trace_expect,
        state={
            "step": 7,
            "heads": 2,
            "pick": "weights.1.2.1",
            "edits": {"X.1.2": -0.7, "W_Q.0.0": 2},
            "causal": True,
        },
    ),
    Scenario(
        name="head-split",
        source="from deepdive.widgets import HeadSplit\nHeadSplit()",
        act=_head_split_act,
        expect=_head_split_expect,
        state={
            "preset": 3,
            "n_heads": 32,
            "head_dim": 256,
            "rule": "fixed",
            "count_o": False,
            "seq_len": 2048,
        },
    ),
]


# -------------------------------------------------------------------- W1 · FadingMemory
def _fading_memory_act(page: Page, root: Locator) -> None:
    open_more(page, root)
    focus(root, "combobox", "Sentence")
    press(page, "ArrowDown")  # the dogs that the small cat hears
    focus(root, "slider", "Word T")
    press(page, "Home", "ArrowRight", "ArrowRight", "ArrowRight")  # 4
    focus(root, "checkbox", "Axis in powers of ten")
    press(page, "Space")
    focus(root, "radio", "three readers")
    press(page, "ArrowRight")  # one factor
    type_number(page, root, "Factor ρ", "1.05")
    focus(root, "slider", "Distance n")
    press(page, "ArrowRight", "ArrowRight")  # 22


def _fading_memory_expect() -> Tables:
    from deepdive.widgets import FadingMemory

    widget = FadingMemory()
    widget.state = {"sentence": 1, "t": 4, "view": "gain", "rho": 1.05, "n": 22}
    return widget.numbers()


SCENARIOS += [
    Scenario(
        name="fading-memory",
        source="from deepdive.widgets import FadingMemory\nFadingMemory()",
        act=_fading_memory_act,
        expect=_fading_memory_expect,
        state={
            "sentence": 1,
            "t": 4,
            "view": "gain",
            "rho": 1.05,
            "n": 22,
            "log": True,
        },
        exact=1e-9,
    ),
]


# ------------------------------------------------------------------------ HeadExplorer
def _head_explorer_act(page: Page, root: Locator) -> None:
    focus(root, "button", "Layer 1, head 3")
    press(page, "ArrowDown", "End", "ArrowLeft", "ArrowLeft", "ArrowLeft")  # L2·H9
    focus(root, "combobox", "Sentence")
    press(page, "ArrowDown", "ArrowDown")  # cats do not chase mice
    focus(root, "radio", "heat map")
    press(page, "Space")
    focus(root, "button", "Remove this head")
    press(page, "Enter")


@functools.cache
def real() -> tuple:
    """MiniLM and its tokenizer, loaded once."""
    from deepdive.pretrained import minilm

    return minilm()


@functools.cache
def head_numbers() -> object:
    """All numbers of W14, computed once: it takes seconds."""
    from deepdive.heads import head_maps

    return head_maps(*real())


def _head_explorer_expect() -> Tables:
    import torch

    maps = head_numbers()
    i, j = torch.triu_indices(6, 6, 1)
    before, after = maps.cosines[i, j], maps.without[1, 8][i, j]
    columns = [
        maps.effect,
        maps.peak,
        maps.peak_on_words,
        *maps.patterns.values(),
        *maps.value_lengths.unbind(-1),
    ]
    heads = torch.stack([x.flatten() for x in columns], 1)
    return {
        "weights": maps.weights[2][1, 8].tolist(),
        "cosines": torch.stack([before, after, after - before], 1).tolist(),
        "heads": heads[heads[:, 0].argsort(descending=True)].tolist(),
    }


SCENARIOS += [
    Scenario(
        name="head-explorer",
        source="from deepdive.widgets import HeadExplorer\nHeadExplorer()",
        act=_head_explorer_act,
        expect=_head_explorer_expect,
        state={"layer": 1, "head": 8, "sentence": 2, "view": "map", "removed": True},
    ),
]


# ------------------------------------------------------------------------- CausalHeads
def _causal_heads_act(page: Page, root: Locator) -> None:
    focus(root, "button", "Layer 4, head 2")  # the one whose removal costs most
    press(page, "ArrowUp", "Home")  # L3·H1
    focus(root, "combobox", "Text")
    press(page, "End")  # random pieces, twice
    focus(root, "radio", "heat map")
    press(page, "Space")
    focus(root, "button", "Remove this head")
    press(page, "Enter")


@functools.cache
def causal_numbers() -> object:
    """All numbers of W14 for a small packaged language model, computed once."""
    from deepdive.induction import causal_maps
    from deepdive.pretrained import glassllm

    return causal_maps(*glassllm("en"), begin="<bos>")


def _causal_heads_expect() -> Tables:
    import torch

    maps = causal_numbers()
    before, after = maps.losses, [x[2, 0] for x in maps.without]
    pair = torch.stack([before[9], after[9]], 1)
    means = torch.stack([torch.stack([x.mean() for x in c]) for c in (before, after)])
    columns = [
        maps.effect,
        maps.peak,
        maps.peak_beyond_first,
        *maps.patterns.values(),
        *(found["induction"] for found in maps.repeats.values()),
    ]
    heads = torch.stack([x.flatten() for x in columns], 1)
    return {
        "weights": [
            row[: i + 1] for i, row in enumerate(maps.weights[9][2, 0].tolist())
        ],
        "texts": torch.cat([means, means.diff(dim=0)]).T.tolist(),
        "losses": torch.cat([pair, pair.diff()], 1).tolist(),
        "heads": heads[heads[:, 0].argsort(descending=True)].tolist(),
    }


SCENARIOS += [
    Scenario(
        name="causal-heads",
        source="from deepdive.induction import causal_maps\n"
        "from deepdive.pretrained import glassllm\n"
        "from deepdive.widgets import CausalHeads\n"
        "CausalHeads(causal_maps(*glassllm('en'), begin='<bos>'))",
        act=_causal_heads_act,
        expect=_causal_heads_expect,
        state={"layer": 2, "head": 0, "sentence": 9, "view": "map", "removed": True},
        exact=2e-6,  # what a piece costs has six decimals
    ),
]


# --------------------------------------------------------------------------- Sinusoids
def _sinusoids_act(page: Page, root: Locator) -> None:
    focus(root, "slider", "Position p")
    press(page, "End", "ArrowLeft", "ArrowLeft")  # 31, then 29
    type_number(page, root, "Steps k", "19")


def _sinusoids_expect() -> Tables:
    import torch

    from deepdive.positions import SinusoidalPositions
    from deepdive.positions.angles import frequencies

    table = SinusoidalPositions(16)(torch.arange(64)).double()
    thetas = frequencies(16, 10_000.0, "cpu").double()
    steps = torch.arange(33)[:, None] * thetas
    dots = table[29 : 29 + 33] @ table[29]
    return {
        "code": table[[29, 48]].T.tolist(),
        "products": torch.stack([dots, steps.cos().sum(-1)], 1).tolist(),
        "hands": torch.stack(
            [thetas, 2 * torch.pi / thetas, (19 * thetas).rad2deg()], 1
        ).tolist(),
    }


def _shuffled_words_act(page: Page, root: Locator) -> None:
    open_more(page, root)
    focus(root, "radio", "the code of a position")
    press(page, "ArrowDown")  # no positions: three words, shuffled
    focus(root, "button", "Shuffle the words")
    press(page, "Enter", "Space", "Enter")  # chase mice cats
    focus(root, "checkbox", "Add the positions")
    press(page, "Space")


def _shuffled_words_expect() -> Tables:
    from deepdive import trace

    pair = [trace.positions(trace.CATS.reorder(o)) for o in ([0, 1, 2], [1, 2, 0])]
    return {
        f"{name}.{i}": one[key].tolist()
        for i, one in enumerate(pair)
        for name, key in (("output", "output"), ("input", "X"))
    }


SCENARIOS += [
    Scenario(
        name="sinusoids",
        source="from deepdive.widgets import Sinusoids\nSinusoids()",
        act=_sinusoids_act,
        expect=_sinusoids_expect,
        state={"view": "code", "p": 29, "k": 19},
    ),
    Scenario(
        name="sinusoids-words",
        source="from deepdive.widgets import Sinusoids\n"
        'Sinusoids(name="sinusoids-words")',
        act=_shuffled_words_act,
        expect=_shuffled_words_expect,
        state={"view": "words", "order": 4, "placed": True},
    ),
]


# ---------------------------------------------------------------- W16 · LiveTransformer
def _live_transformer_act(page: Page, root: Locator) -> None:
    focus(root, "combobox", "Text")
    press(page, "ArrowDown")  # the second text, its whole opening read
    focus(root, "slider", "Pieces read")
    press(page, "ArrowRight", "ArrowRight")
    root.locator("[role=grid] button[tabindex='0']").focus()
    press(page, "Home", *["ArrowUp"] * 3, "ArrowDown", "ArrowRight", "ArrowRight")
    open_more(page, root)
    focus(root, "slider", "Temperature")
    press(page, "ArrowLeft")  # 0.9
    type_number(page, root, "Top-k", "37")  # the nearest is 40
    focus(root, "slider", "Top-p")
    press(page, "ArrowLeft")  # 0.95
    focus(root, "button", "Draw a piece")
    press(page, "Enter", "Space")


_LIVE = """
import torch
from deepdive.models.gpt import Gpt
from deepdive.recipes.austen import GPT
from deepdive.recipes.novels import tokenizer
from deepdive.widgets import LiveTransformer
_ = torch.manual_seed(0)
LiveTransformer(Gpt(GPT), tokenizer(), name="live-transformer")
"""
_LIVE_STATE = {
    "text": 1, "n": 10, "layer": 1, "head": 2, "removed": False, "temperature": 0.9,
    "k": 40, "p": 0.95, "draws": 2,
}  # fmt: skip


def _live_transformer_expect() -> Tables:
    widget = next(s for s in SCENARIOS if s.name == "live-transformer").make()
    widget.state = _LIVE_STATE
    return widget.numbers()


SCENARIOS += [
    Scenario(
        name="live-transformer",
        source=_LIVE,
        act=_live_transformer_act,
        expect=functools.cache(_live_transformer_expect),
        state=_LIVE_STATE,
        exact=1e-5,  # maps are kept in steps of 1/65535
    ),
]
