# SPDX-License-Identifier: MIT
"""What is this model made of? Read off its built modules, and measured, not typed.

A table that somebody typed can be wrong. Here a model is built and asked: which modules
does it hold, what do its layers receive when it runs, does the norm see the sublayer's
input or the sum, how many numbers does its cache keep, and which outputs change when an
input does?
"""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any

import torch
from torch import Tensor, nn

from deepdive.blocks import Block, Stack
from deepdive.feedforward import FeedForward, GatedFeedForward
from deepdive.latent_attention import LatentAttention
from deepdive.masks import Causal, Everyone, Rule
from deepdive.moe import Experts, MixtureOfExperts, TwoLayerExperts
from deepdive.positions import (
    Alibi,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
)

POSITIONS = {
    SinusoidalPositions: "sinusoidal",
    LearnedPositions: "learned",
    Rotary: "rotary",
    RelativeBias: "relative bias",
    Alibi: "ALiBi",
}
GATED = {"ReLU": "ReGLU", "GELU": "GEGLU", "SiLU": "SwiGLU", "Sigmoid": "GLU"}
LENGTH = 8  # words of a test text; longer where a window asks for it
SEEDS = (0, 1)


@dataclass(frozen=True)
class Anatomy:
    """One row of the book's central table.

    Attributes:
        name: the model's.
        halves: encoder, decoder or both; a half decodes if it does not look ahead.
        mask: who sees whom in one layer of each half, found by differentiating.
        attention: multi-head, grouped-query, multi-query or latent.
        positions, enter: what tells the order, and where a run was seen to take it in.
        norm, norm_place: its kind; pre: the sublayer reads what the norm gave, post:
            the norm reads the sum.
        feedforward: its activation; a gated network goes by its own name (SwiGLU).
        experts: routed ones, how many per token, shared ones; None without a mixture.
        biases: all, some or none of the blocks' linear maps have one.
        tied: the output layer is the embedding's matrix; None without output layer.
        layers: blocks of one half, or of each.
        kv_heads: heads with keys and values of their own; the latent counts as one.
        head_dim: width of a head; in latent attention of a key's two parts and a value.
        parameters, used, parts: all, those of one token's pass, and by part.
        kv_numbers: kept per token and layer; None without a cache.

    Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
    """

    name: str
    halves: str
    mask: str
    attention: str
    positions: str
    enter: str
    norm: str
    norm_place: str
    feedforward: str
    experts: tuple[int, int, int] | None
    biases: str
    tied: bool | None
    layers: int
    d_model: int
    heads: int
    kv_heads: int
    head_dim: str
    d_ff: str
    parameters: int
    used: int
    parts: dict[str, int]
    kv_numbers: int | None


def anatomy(
    model: nn.Module | Callable[[Any], nn.Module],
    config: Any = None,
    name: str | None = None,
) -> Anatomy:
    """One model's row.

    A built model is measured itself, its masks and norms on a copy in float64. A class
    with a config is measured twice, so that no published size is too large: how it
    works on a model of the same class with `shrunken` sizes, how large it is on one
    without storage, built on torch's meta device.

    Args:
        model: a built model of blocks; or what builds one from `config`.
        name: the row's; the class's name unless given.

    Raises:
        TypeError: not a model, nor a builder with one of `deepdive.configs`' models.
        ValueError: the model holds no `Stack` of blocks.

    Note:
        What measuring may miss. A weight that is exactly zero hides a path that is
        there: a model whose output matrices start at zero seems to see only itself. The
        choice of an expert is a step, without a gradient; only its gate is seen. And a
        window longer than a test text is taken from the mask that the layers receive,
        after the measured map has been found to agree with that mask.

    >>> from deepdive.configs import MISTRAL_7B
    >>> from deepdive.models.llama import Llama
    >>> row = anatomy(Llama, MISTRAL_7B, "Mistral 7B")
    >>> row.mask, row.attention, row.enter, row.norm_place, row.feedforward
    ('causal, window 4096', 'grouped-query', 'q and k', 'pre', 'SwiGLU')
    >>> f"{row.parameters:,}", row.kv_numbers
    ('7,241,732,096', 2048)

    Taught in: book/08_gpt.ipynb, book/16_what_stayed.ipynb
    """
    name = getattr(model, "__name__", type(model).__name__) if name is None else name
    if isinstance(model, nn.Module):
        if config is not None:
            raise TypeError("a built model has its sizes: config must be None")
        large = small = _copy(model)
    elif callable(model):
        small = shrunken(config)
        with torch.random.fork_rng(devices=[]):  # the caller's numbers stay the same
            torch.manual_seed(SEEDS[0])
            small = _copy(model(small))
            with torch.device("meta"):
                large = model(config)
    else:
        raise TypeError(f"expected a model or its class, got {type(model).__name__}")
    sizes = _sizes(large)
    rules = sizes.pop("rules")
    return Anatomy(name=name, **sizes, **_behaviour(small, rules))


def shrunken(config: Any) -> Any:
    """The same design, small: its structure is kept, its sizes are not.

    Kept: which of H, G and 1 are equal, a window (of 3 tokens), gates, ties, experts
    (4, of which 2 work), groups, shared experts, dense layers, compressed queries.

    Raises:
        TypeError: not one of `deepdive.configs`' models.

    >>> from deepdive.configs import LLAMA_3_8B
    >>> small = shrunken(LLAMA_3_8B)
    >>> small.n_heads, small.n_kv_heads, small.d_model
    (4, 2, 16)

    Taught in: book/16_what_stayed.ipynb
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"expected a model's config, got {config!r}")
    given = {f.name: getattr(config, f.name) for f in fields(config)}
    if not {"n_layers", "n_heads", "d_model"} <= set(given):
        raise TypeError(f"expected a model's config, got {type(config).__name__}")
    small = {
        **dict.fromkeys(("vocab_size", "src_vocab_size", "tgt_vocab_size"), 11),
        **{"d_model": 16, "n_layers": 2, "n_heads": 4, "head_dim": 6, "d_ff": 12},
        **{"max_seq_len": 32, "dropout": 0.0, "window": 3, "d_expert": 6},
        **{"q_lora_rank": 7, "kv_lora_rank": 5, "v_head_dim": 3},
        **{"qk_nope_head_dim": 4, "qk_rope_head_dim": 2},
        **{"n_experts": 4, "top_k": 2, "top_groups": 1},
        "n_groups": min(2, given.get("n_groups", 1)),
        "n_shared_experts": min(1, given.get("n_shared_experts", 0)),
    }
    if "n_kv_heads" in given:
        H, G = given["n_heads"], given["n_kv_heads"]
        small["n_kv_heads"] = 4 if G == H else 1 if G == 1 else 2
    if "n_dense_layers" in given:
        dense = given["n_dense_layers"]
        small["n_dense_layers"] = 2 if dense == given["n_layers"] else min(1, dense)
    changed = {k: v for k, v in small.items() if given.get(k) is not None}
    return dataclasses.replace(config, **changed)


# Tables


def difference(a: Anatomy, b: Anatomy) -> dict[str, tuple[Any, Any]]:
    """What changed from one model to the next: field → (before, after).

    Raises:
        TypeError: not two rows.

    >>> from deepdive.configs import LLAMA_7B, MISTRAL_7B
    >>> from deepdive.models.llama import Llama
    >>> changed = difference(anatomy(Llama, LLAMA_7B), anatomy(Llama, MISTRAL_7B))
    >>> changed["mask"], changed["kv_heads"]
    (('causal', 'causal, window 4096'), (32, 8))
    >>> "norm" in changed
    False

    Taught in: book/08_gpt.ipynb
    """
    _check_rows([a, b])
    pairs = ((f.name, getattr(a, f.name), getattr(b, f.name)) for f in fields(Anatomy))
    return {n: (x, y) for n, x, y in pairs if n != "name" and x != y}


def family_table(
    rows: list[Anatomy], columns: tuple[str, ...] | None = None
) -> list[dict[str, str]]:
    """The rows in words: one dictionary a model, heading → text.

    Args:
        columns: fields of `Anatomy`, in order; all but `parts` unless given.

    Raises:
        TypeError: not rows.  ValueError: no rows, or a field that does not exist.

    Taught in: book/16_what_stayed.ipynb
    """
    _check_rows(rows)
    known = [f.name for f in fields(Anatomy)]
    columns = tuple(n for n in known if n != "parts") if columns is None else columns
    if unknown := [name for name in columns if name not in known]:
        raise ValueError(f"unknown columns {unknown}; known: {', '.join(known)}")
    return [
        {_heading(name): _words(getattr(row, name)) for name in columns} for row in rows
    ]


def markdown(table: list[dict[str, str]]) -> str:
    """A table of `family_table` as Markdown.

    Raises:
        ValueError: no rows.

    >>> print(markdown([{"name": "GPT-2", "mask": "causal"}]))
    | name | mask |
    | --- | --- |
    | GPT-2 | causal |

    Taught in: book/16_what_stayed.ipynb
    """
    lines = [_headings(table), ["---"] * len(_headings(table))]
    lines += [[text.replace("|", "\\|") for text in row.values()] for row in table]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_html(table: list[dict[str, str]], caption: str) -> str:
    """A table of `family_table` as HTML; a screen reader finds each cell's headers.

    Raises:
        ValueError: no rows.

    Taught in: book/16_what_stayed.ipynb
    """
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in _headings(table))
    out = [f'<table class="dd-family"><caption>{escape(caption)}</caption>']
    out.append(f"<thead><tr>{heads}</tr></thead><tbody>")
    for row in table:
        first, *others = map(escape, row.values())
        cells = "".join(f"<td>{text}</td>" for text in others)
        out.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return "".join([*out, "</tbody></table>"])


# Who depends on whom


def dependence(out: Tensor, x: Tensor, seed: int = 0) -> Tensor:
    """Which outputs change with which inputs, by differentiating: (T, S) bool.

        depends[t, s]  =  ∂(out_t · r) / ∂x_s ≠ 0,   r a random direction

    Shapes:
        out (1, T, any), computed from x (1, S, any), which asks for its gradient

    Raises:
        ValueError: another shape, or x asks for no gradient.

    >>> x = torch.ones(1, 3, 1, requires_grad=True)
    >>> dependence(x.cumsum(dim=1), x).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)

    Taught in: book/16_what_stayed.ipynb
    """
    for what, tensor in (("out", out), ("x", x)):
        if tensor.dim() != 3 or tensor.shape[0] != 1:
            raise ValueError(f"{what} must be (1, T, any), got {tuple(tensor.shape)}")
    if not x.requires_grad:
        raise ValueError("x must ask for its gradient (requires_grad)")
    depends = torch.zeros(out.shape[1], x.shape[1], dtype=torch.bool)
    if not out.requires_grad:
        return depends
    # A sum of a normalised vector's numbers is constant: a random mixture is not.
    direction = _random(out.shape[-1:], out, seed)
    for t in range(out.shape[1]):
        (slope,) = torch.autograd.grad(
            out[0, t] @ direction, x, retain_graph=True, allow_unused=True
        )
        if slope is not None:
            depends[t] = (slope[0] != 0).any(dim=-1)
    return depends


def layer_maps(model: nn.Module, length: int = LENGTH) -> dict[str, Tensor]:
    """Who sees whom in one layer of each half, and who in the source ("cross").

    Every block is run alone, on random vectors, with the mask, bias and rotation that
    the model gave it. Blocks of a half that differ are joined by “or”.

    Shapes:
        → {"encoder", "decoder" or "cross": (T, S) bool}, as in `reach`

    Raises:
        TypeError: not a model.  ValueError: no blocks in it, or length below 1.

    Taught in: book/12_grouped_query_attention.ipynb, book/16_what_stayed.ipynb
    """
    _check_length(length)
    run = _run(_copy(model), length)
    cross = {} if run.memory is None else {"cross": _cross_map(run)}
    return {**_maps(run), **cross}


def reach(model: nn.Module, length: int = LENGTH) -> dict[str, Tensor]:
    """Who depends on whom from the words to the output, through all layers.

    In an encoder–decoder "cross" says which source words each target position reads.
    L layers with a window w reach L · (w − 1) words back.

    Shapes:
        → {"encoder", "decoder" or "cross": (T, S) bool}, T = S = length; a target has
        one word less than its source

    Raises:
        TypeError: not a model.  ValueError: no blocks in it, or length below 1.

    Taught in: book/12_grouped_query_attention.ipynb, book/16_what_stayed.ipynb
    """
    _check_length(length)
    model, found = _copy(model), {}
    for seed in SEEDS:
        run = _run(model, length, replace_words=seed)
        if run.memory is None:
            pairs = {next(iter(_maps(run))): (run.out, run.words[0])}
        else:
            source, target = run.words
            pairs = {"encoder": (run.memory, source), "decoder": (run.out, target)}
            pairs["cross"] = (run.out, source)
        for name, (out, x) in pairs.items():
            seen = dependence(out, x, seed)
            found[name] = found[name] | seen if name in found else seen
    return found


def mask_words(seen: Tensor) -> str:
    """The rule that a measured map follows, in words.

    Shapes:
        seen (T, S) bool

    >>> mask_words(Causal(window=2).tensor(4, 4)), mask_words(Everyone().tensor(2, 3))
    ('causal, window 2', 'everyone')

    Raises:
        TypeError: not a bool tensor.  ValueError: not two axes.

    Taught in: book/16_what_stayed.ipynb
    """
    if not isinstance(seen, Tensor) or seen.dtype != torch.bool:
        raise TypeError("a map must be a bool tensor")
    if seen.dim() != 2:
        raise ValueError(f"a map must be (T, S), got {tuple(seen.shape)}")
    T, S = seen.shape
    if seen.all():
        return "everyone"
    for prefix in (0, *range(2, S)):
        for window in (None, *range(1, S)):
            rule = Causal(window, prefix)
            if T <= S and torch.equal(rule.tensor(T, S), seen.cpu()):
                return _rule_words(rule)
    return "other"


# Memory


def measured_activation_bytes(model: nn.Module, run: Callable[[nn.Module], Any]) -> int:
    """Bytes that a forward pass keeps for the backward pass, the parameters left out.

    Each storage counts once and whole, however many views of it are kept. The input
    counts where a layer keeps it.

    Args:
        run: the forward pass, such as `lambda model: model(tokens)`.

    Raises:
        TypeError: not a model, or `run` cannot be called.

    >>> layer = nn.Linear(4, 2)
    >>> x = torch.ones(3, 4)
    >>> measured_activation_bytes(layer, lambda layer: layer(x))   # x: 3 · 4 · 4 bytes
    48

    Taught in: book/13_flash_attention.ipynb
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if not callable(run):
        raise TypeError(f"run must be a function of the model, got {run!r}")
    weights = {id(p.untyped_storage()): p.untyped_storage() for p in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}  # held, so that no id comes back

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if id(storage) not in weights:
            kept[id(storage)] = storage
        return x

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x),
    ):
        run(model)
    return sum(storage.nbytes() for storage in kept.values())


# One run of a model, watched


@dataclass
class _Visit:
    """One block's call: the half it belongs to, what came in, and how it was called."""

    block: Block
    stack: Stack
    x: Tensor
    how: dict[str, Any]

    def again(self, x: Tensor, **changed: Any) -> Tensor:
        """The block alone, on another x; without a cache."""
        return self.block(x, **{**self.how, "cache": None, **changed})

    def random(self, seed: int) -> Tensor:
        return _random(self.x.shape, self.x, seed).requires_grad_()


@dataclass
class _Run:
    """What a model did with a text."""

    embeddings: list[nn.Embedding] = field(default_factory=list)  # of the words
    words: list[Tensor] = field(default_factory=list)  # what they gave
    visits: list[_Visit] = field(default_factory=list)
    linears: list[tuple[nn.Linear, Tensor]] = field(default_factory=list)
    memory: Tensor | None = None
    out: Tensor | None = None

    def halves(self) -> dict[Stack, list[_Visit]]:
        """The visits of each stack."""
        halves: dict[Stack, list[_Visit]] = {}
        for visit in self.visits:
            halves.setdefault(visit.stack, []).append(visit)
        return halves


def _run(
    model: nn.Module, length: int, caches=None, replace_words: int | None = None
) -> _Run:
    """Let a model read `length` times word 0, and watch.

    Args:
        replace_words: a seed; the words' vectors are then random and ask for their
            gradients.
    """
    device = next(model.parameters()).device
    src = torch.zeros(1, length, dtype=torch.int64, device=device)
    tgt = src[:, : max(1, length - 1)].clone()
    run = _Run()
    handles = _watch(model, run, (src, tgt), replace_words)
    try:
        if hasattr(model, "encode") and hasattr(model, "decode"):
            run.memory = model.encode(src)
            run.out = model.decode(tgt, run.memory, caches=caches)
        else:
            run.out = model(src) if caches is None else model(src, caches)
    finally:
        for handle in handles:
            handle.remove()
    return run


def _watch(model: nn.Module, run: _Run, texts: tuple, replace_words: int | None):
    """Hooks that note in `run` what passes by; the embedding is the one that reads."""
    stack_of = {
        block: stack
        for stack in model.modules()
        if isinstance(stack, Stack)
        for block in stack
    }

    def embed(module, args, out):
        if not any(args[0] is text for text in texts):
            return None
        run.embeddings.append(module)
        if replace_words is not None:
            seed = 2 * replace_words + len(run.words)
            out = _random(out.shape, out, seed).requires_grad_()
        run.words.append(out)
        return out

    def enter(module, args, how):
        run.visits.append(_Visit(module, stack_of[module], args[0], dict(how)))

    def multiply(module, args, out):
        run.linears.append((module, out))

    handles = [b.register_forward_pre_hook(enter, with_kwargs=True) for b in stack_of]
    inside = {module for block in stack_of for module in block.modules()}
    for module in set(model.modules()) - inside:
        if isinstance(module, nn.Embedding):
            handles.append(module.register_forward_hook(embed))
        elif isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(multiply))
    return handles


# How it works


def _behaviour(model: nn.Module, rules: list[Rule | None]) -> dict[str, Any]:
    """What is seen of a small model in float64; `rules` are the full-size model's."""
    used = _run(model, 1)
    windows = [w for w in map(_window, used.halves().values()) if w and w <= 64]
    length = max([LENGTH, *(w + 3 for w in windows)])
    longest = getattr(getattr(model, "config", None), "max_seq_len", length)
    length = min(length, longest)
    run = _run(model, length)
    words = {
        name: _half_words(seen, visits, rule)
        for (name, seen), visits, rule in zip(
            _maps(run).items(), run.halves().values(), rules, strict=True
        )
    }
    halves = " and ".join(words)
    if run.memory is not None:
        whole = reach(model, length)["cross"]
        words["cross"] = mask_words(_cross_map(run) if whole.all() else whole)
    one = len(words) == 1
    return {
        "halves": halves,
        "mask": "; ".join(w if one else f"{name}: {w}" for name, w in words.items()),
        "enter": _entrances(run),
        "norm_place": _joined(place for v in run.visits for place in _norm_places(v)),
    }


def _maps(run: _Run) -> dict[str, Tensor]:
    """Each half's layer map, under the half's name, in the order of the run."""
    maps: dict[str, Tensor] = {}
    for visits in run.halves().values():
        seen = [_alone(visit, seed) for visit in visits for seed in SEEDS]
        seen = torch.stack(seen).any(dim=0)  # (T, T)
        if run.memory is None:
            decodes = len(seen) == 1 or not seen[-2, -1]
        else:
            decodes = visits[0].block.cross_attention is not None
        maps["decoder" if decodes else "encoder"] = seen
    return maps


def _cross_map(run: _Run) -> Tensor:
    """Which of the encoder's outputs each target position reads in one layer: (T, S).

    Outputs that the decoder never receives stand first, as read by nobody.
    """
    T, S = run.out.shape[1], run.memory.shape[1]
    reads = torch.zeros(T, S, dtype=torch.bool)
    for visit in run.visits:
        if visit.block.cross_attention is not None:
            given = visit.how["memory"]
            for seed in SEEDS:
                memory = _random(given.shape, given, seed).requires_grad_()
                seen = dependence(visit.again(visit.x, memory=memory), memory, seed)
                reads[:, S - seen.shape[1] :] |= seen
    return reads


def _alone(visit: _Visit, seed: int) -> Tensor:
    """One block's map, (T, T)."""
    x = visit.random(seed)
    return dependence(visit.again(x), x, seed)


def _half_words(seen: Tensor, visits: list[_Visit], rule: Rule | None) -> str:
    """What was measured, in words; the rule's own where it is what was measured."""
    given = visits[0].how.get("mask")
    agrees = isinstance(given, Rule) and torch.equal(given.tensor(*seen.shape), seen)
    return (_rule_words(rule) if agrees else None) or mask_words(seen)


def _rule_words(rule: Rule | None) -> str | None:
    """A rule in words, None for one that is not known here."""
    if type(rule) is Everyone:
        return "everyone"
    if type(rule) is not Causal:
        return None
    window = "" if rule.window is None else f", window {rule.window}"
    return f"causal{window}" + (f", prefix {rule.prefix}" if rule.prefix else "")


def _window(visits: list[_Visit]) -> int | None:
    return getattr(visits[0].how.get("mask"), "window", None)


@torch.no_grad()
def _entrances(run: _Run) -> str:
    """Where the order comes in: found by taking it away, or by equal words."""
    found = []
    firsts = [visits[0] for visits in run.halves().values()]
    if any(not torch.equal(v.x, v.x[:, :1].expand_as(v.x)) for v in firsts):
        found.append("embedding")
    for key, where in (("rotate", "q and k"), ("bias", "scores")):
        for visit in run.visits:
            if visit.how.get(key) is not None:
                x = visit.random(0)
                if not torch.equal(visit.again(x), visit.again(x, **{key: None})):
                    found.append(where)
                    break
    return ", ".join(found) or "nowhere"


@torch.no_grad()
def _norm_places(visit: _Visit) -> list[str]:
    """For each sublayer: does the norm stand before it, or behind the sum?"""
    block, seen = visit.block, {}
    pairs = [
        (block.attention, block.attention_norm),
        (block.cross_attention, block.cross_norm),
        (block.feedforward, block.feedforward_norm),
    ]
    pairs = [pair for pair in pairs if pair[0] is not None]

    def note(module, args, out):
        seen[module] = args[0], out

    handles = [m.register_forward_hook(note) for pair in pairs for m in pair]
    try:
        visit.again(visit.random(0))
    finally:
        for handle in handles:
            handle.remove()
    places = []
    for sublayer, norm in pairs:
        (read, gave), (norm_read, norm_gave) = seen[sublayer], seen[norm]
        if isinstance(norm, nn.Identity):
            places.append("none")
        elif torch.equal(read, norm_gave):
            places.append("pre")
        else:
            places.append("post" if torch.allclose(norm_read, read + gave) else "other")
    return places


# How large it is


def _sizes(model: nn.Module) -> dict[str, Any]:
    """What can be read off the modules at full size, without numbers in them."""
    blocks = [b for b in model.modules() if isinstance(b, Block)]
    parts = _parts(model)
    total = sum(parts.values())
    networks = [_network(block.feedforward) for block in blocks]
    mixtures = [
        b.feedforward for b in blocks if isinstance(b.feedforward, MixtureOfExperts)
    ]
    idle = sum(_idle(mixture) for mixture in mixtures)
    found = {
        "norm": _joined(type(b.attention_norm).__name__ for b in blocks),
        "feedforward": _joined(kind for kind, _ in networks),
        "d_ff": _counted([width for _, width in networks]),
        "experts": _experts(mixtures[0]) if mixtures else None,
        "biases": _biases(blocks),
        "layers": len(next(s for s in model.modules() if isinstance(s, Stack))),
        "positions": _joined(
            word
            for kind, word in POSITIONS.items()
            for module in model.modules()
            if isinstance(module, kind)
        )
        or "none",
        **{"parts": parts, "parameters": total, "used": total - idle},
        **_heads(blocks),
    }
    return {**found, **_ran(model, blocks)}


@torch.no_grad()
def _ran(model: nn.Module, blocks: list[Block]) -> dict[str, Any]:
    """What one token shows: the cache, the tie, the width, and the layers' masks."""
    if next(model.parameters()).is_meta:
        for block in blocks:  # experts choose by numbers, which a meta model has not
            block.feedforward = nn.Identity()
    caches = model.new_caches() if hasattr(model, "new_caches") else None
    run = _run(model, 1, caches)
    heads = [layer for layer, out in run.linears if out is run.out]
    kept = None
    if caches is not None:
        own = [getattr(cache, "own", cache) for cache in caches]
        kept = sum(c.nbytes // c.entries[0].element_size() for c in own if c.held)
        kept //= len(own)
    return {
        "kv_numbers": kept,
        "tied": heads[0].weight is run.embeddings[-1].weight if heads else None,
        "d_model": run.visits[0].x.shape[-1],
        "rules": [v[0].how.get("mask") for v in run.halves().values()],
    }


def _parts(model: nn.Module) -> dict[str, int]:
    """Parameters by part; one that is used twice counts where it looks words up."""
    counted: set[nn.Parameter] = set()

    def count(modules) -> int:
        new = {p for m in modules if m is not None for p in m.parameters()} - counted
        counted.update(new)
        return sum(p.numel() for p in new)

    blocks = [b for b in model.modules() if isinstance(b, Block)]
    lookups = (nn.Embedding, *POSITIONS)
    return {
        "attention": count(x for b in blocks for x in (b.attention, b.cross_attention)),
        "feedforward": count(b.feedforward for b in blocks),
        "embedding": count(m for m in model.modules() if isinstance(m, lookups)),
        "norms": count(m for m in model.modules() if "Norm" in type(m).__name__),
        "output": count([model]),
    }


def _heads(blocks: list[Block]) -> dict[str, Any]:
    """The number of heads, their widths, and what kind of attention that makes."""
    found = {_head(b.attention) for b in blocks}
    found |= {_head(b.cross_attention) for b in blocks if b.cross_attention is not None}
    if len(found) > 1:
        raise ValueError(f"the blocks' attention differs: {sorted(found)}")
    (kind, heads, kv_heads, width) = found.pop()
    return {"attention": kind, "heads": heads, "kv_heads": kv_heads, "head_dim": width}


def _head(attention: nn.Module) -> tuple[str, int, int, str]:
    if isinstance(attention, LatentAttention):
        key = f"{attention.qk_nope_head_dim} + {attention.qk_rope_head_dim}"
        width = f"{key}, value {attention.v_head_dim}"
        return "latent", attention.n_heads, 1, width
    D = attention.head_dim
    H, G = attention.q_proj.out_features // D, attention.k_proj.out_features // D
    kind = "multi-head" if G == H else "multi-query" if G == 1 else "grouped-query"
    return kind, H, G, str(D)


def _network(layer: nn.Module) -> tuple[str, int]:
    """What a feed-forward layer, or one of its experts, is called; its width."""
    core = layer.experts if isinstance(layer, MixtureOfExperts) else layer
    if not isinstance(core, (FeedForward, GatedFeedForward, Experts, TwoLayerExperts)):
        return type(core).__name__, 0
    activation = type(core.activation).__name__
    if isinstance(core, (GatedFeedForward, Experts)):
        activation = GATED.get(activation, f"gated {activation}")
    return activation, core.up.shape[1] if core is not layer else core.up.out_features


def _experts(layer: MixtureOfExperts) -> tuple[int, int, int]:
    """E, K and the shared ones; K by asking the router about one token."""
    weight = layer.experts.up
    chosen = layer.router(weight.detach().new_zeros(1, layer.experts.d_model)).experts
    wide = 0 if layer.shared is None else layer.shared.up.out_features
    return weight.shape[0], chosen.shape[1], wide // layer.experts.d_expert


def _idle(layer: MixtureOfExperts) -> int:
    """Weights of the experts that a token does not visit."""
    E, K, _ = _experts(layer)
    return sum(p.numel() for p in layer.experts.parameters()) // E * (E - K)


def _biases(blocks: list[Block]) -> str:
    linear = [m for b in blocks for m in b.modules() if isinstance(m, nn.Linear)]
    having = sum(layer.bias is not None for layer in linear)
    return "none" if not having else "all" if having == len(linear) else "some"


# Small things


def _copy(model: nn.Module) -> nn.Module:
    """The same in float64, out of training."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"expected a model, got {type(model).__name__}")
    stacks = [stack for stack in model.modules() if isinstance(stack, Stack)]
    if not stacks or not all(len(stack) for stack in stacks):
        raise ValueError(f"{type(model).__name__} holds no stack of blocks")
    if any(p.is_meta for p in model.parameters()):
        raise ValueError("a model on the meta device has no numbers to be measured by")
    return copy.deepcopy(model).double().eval()


def _check_length(length: int) -> None:
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"length must be an integer, got {length!r}")
    if length < 1:
        raise ValueError(f"length must be ≥ 1, got {length}")


def _random(shape, like: Tensor, seed: int) -> Tensor:
    """The same random numbers on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like)


def _joined(words) -> str:
    return " / ".join(dict.fromkeys(words))


def _counted(widths: list[int]) -> str:
    """Different widths with their numbers of layers: 12288 (1), 1536 (59)."""
    kinds = dict.fromkeys(widths)
    if len(kinds) == 1:
        return str(widths[0])
    return ", ".join(f"{width} ({widths.count(width)})" for width in kinds)


def _heading(name: str) -> str:
    special = {"d_model": "d_model", "d_ff": "d_ff", "kv_heads": "KV heads"}
    special |= {"head_dim": "head width", "kv_numbers": "KV numbers"}
    return special.get(name, name.replace("_", " "))


def _words(value: Any) -> str:
    """One cell."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        routed, chosen, shared = value
        return f"{chosen} of {routed}" + (f" + {shared} shared" if shared else "")
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _headings(table: list[dict[str, str]]) -> list[str]:
    if not table:
        raise ValueError("a table needs at least one row")
    return list(table[0])


def _check_rows(rows) -> None:
    if isinstance(rows, Anatomy) or not all(isinstance(row, Anatomy) for row in rows):
        raise TypeError("expected rows that `anatomy` gave")
    if not rows:
        raise ValueError("a table needs at least one row")
