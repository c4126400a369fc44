# SPDX-License-Identifier: MIT
"""How does a folder in Hugging Face's layout become one of this book's models?

Such a folder holds `config.json` with the sizes and one or more `.safetensors` files
with named tensors. Loading is renaming, plus the checks that make a wrong file fail at
once instead of computing nonsense. All of that is here; a family adds a table of names:

    NAMES = {
        "wte": "token",                                       # a module: weight, bias
        "h.{}.ln_1": "blocks.{}.attention_norm",              # one in each layer
        "h.{}.attn.bias": None,                               # a buffer, no weight
        "h.{}.attn.c_attn": [                                 # one of theirs, 3 of ours
            (f"blocks.{{}}.attention.{part}_proj", piece(i, 3, after=transposed))
            for i, part in enumerate("qkv")
        ],
        "h.{}.mlp.{}.up.weight": "blocks.{}.experts.up[{}]",  # stacked along a new axis
    }

    def load_gpt2(folder, dtype=torch.float32):
        settings = read_config(folder)
        check_supported(folder, settings, SUPPORTED, needed=SIZES)
        model = unfilled(lambda: Gpt2(config(settings)))
        given = renamed(read_tensors(folder), NAMES, prefix="transformer.")
        return load_into(model, given, folder, dtype)

Taught in: book/08_gpt.ipynb
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from deepdive.configs import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling

Change = Callable[[Tensor], Tensor]
Rule = str | None | Iterable[tuple[str, Change]]
Model = TypeVar("Model", bound=nn.Module)

_SLOT = re.compile(r"\[(\d+)\]$")  # `gate[3]`: part 3 of a stack

# Refused for every family: these files hold scaled integers, not weights.
_NEVER = {"quantization_config": (None,)}


def read_config(folder: str | Path) -> dict[str, Any]:
    """All of `config.json`.

    Raises:
        FileNotFoundError: there is none.  ValueError: it is no JSON object.
    """
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"no config.json in {folder}")
    return _json_object(path)


def check_supported(
    folder: str | Path,
    config: Mapping[str, Any],
    supported: Mapping[str, tuple],
    needed: Iterable[str] = (),
) -> None:
    """Refuse a config that asks for another function than our model computes.

    Args:
        supported: for each setting the values that our model computes. A setting that
            the config leaves out passes: give it in `needed` if its default does not.

    Raises:
        ValueError: names every refused value and every missing setting.

    >>> check_supported("bert", {"act": "relu"}, {"act": ("gelu",)}, needed=["width"])
    Traceback (most recent call last):
    ValueError: bert/config.json: act = 'relu' (supported: 'gelu'); width is missing
    """
    refused = [
        f"{key} = {config[key]!r} (supported: {', '.join(map(repr, allowed))})"
        for key, allowed in {**_NEVER, **supported}.items()
        if key in config and config[key] not in allowed
    ]
    refused += [f"{key} is missing" for key in needed if key not in config]
    if refused:
        raise ValueError(f"{folder}/config.json: " + "; ".join(refused))


def _same_names(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_LENGTH = {"original_max_position_embeddings": "original_max_seq_len"}
_YARN = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")
_SCALINGS = {  # rope_type: how it is built, their names and ours
    "default": (lambda: None, {}),
    "linear": (LinearScaling, _same_names("factor")),
    "yarn": (YarnScaling, _same_names(*_YARN) | _LENGTH),
    "llama3": (Llama3Scaling, _same_names(*_LLAMA3) | _LENGTH),
}
_NEUTRAL = {"partial_rotary_factor": 1.0, "truncate": True}  # what is computed anyway


def rope(
    folder: str | Path, config: Mapping[str, Any], base: float = 10_000.0
) -> tuple[float, RopeScaling | None]:
    """Base and scaling of the rotary positions, from old and new configs alike.

    New ones say `rope_parameters`; older ones `rope_theta` and `rope_scaling`.

    Args:
        base: the family's own, where the config gives none.

    Raises:
        ValueError: a kind of scaling, or a setting of it, that is not computed here.

    >>> rope("x", {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}})
    (500000.0, LinearScaling(factor=2))
    """
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = float(given.pop("rope_theta", None) or config.get("rope_theta") or base)
    older = given.pop("type", None)
    kind = given.pop("rope_type", None) or older or "default"
    where = f"{folder}/config.json: rotary scaling {kind!r}"
    if kind not in _SCALINGS:
        raise ValueError(
            f"{where} is not computed here (known: {', '.join(_SCALINGS)})"
        )
    build, names = _SCALINGS[kind]
    given = {
        key: value
        for key, value in given.items()
        if value is not None and _NEUTRAL.get(key) != value
    }
    if odd := sorted(given.keys() - names.keys()):
        told = ", ".join(f"{key} = {given[key]!r}" for key in odd)
        raise ValueError(f"{where} with {told} is not computed here")
    try:
        return base, build(**{names[key]: value for key, value in given.items()})
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from None


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """All tensors of `model.safetensors`, or of the shards that its index names.

    They are views of the files, not copies: a page is read when it is used, and
    whoever keeps a tensor beyond the life of its file copies it (`load_into` does).

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or two shards hold the same name.
    """
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    shards = ["model.safetensors"]
    if index.is_file():
        places = _json_object(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ValueError(f"{index} has no weight_map")
        shards = sorted({str(place) for place in places.values()})
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        path = folder / shard
        if Path(shard).name != shard or not path.is_file():
            raise FileNotFoundError(f"no weight file {shard!r} in {folder}")
        try:
            part = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if twice := sorted(tensors.keys() & part.keys()):
            raise ValueError(f"{folder} holds twice: {', '.join(twice)}")
        tensors |= part
    return tensors


class Renamed(NamedTuple):
    """Tensors under this book's names, and what could not be given one."""

    tensors: dict[str, Tensor]
    origin: dict[str, str]  # for each of ours a name in the file
    unknown: list[str]  # names in the file
    faults: list[str]  # what went wrong with a known one, in words


def renamed(
    tensors: Mapping[str, Tensor],
    rules: Mapping[str, Rule],
    prefix: str = "",
    ignoring: tuple[str, ...] = (),
) -> Renamed:
    """Hugging Face's names → this book's, by a family's table.

    Args:
        rules: from their name to ours. `{}` stands for a number; a rule that names a
            module serves its `weight` and `bias`. Ours may be a name, a name that ends
            in `[{}]` (stacked in the order of these numbers), a list of
            (name, function) or None (no weight: left out). The first rule that matches
            decides.
        prefix: dropped from their names where it stands.
        ignoring: names that begin so are left out, because the caller says so.

    >>> given = {"h.0.fc.weight": torch.ones(2, 3), "ln.bias": torch.ones(3)}
    >>> got = renamed(given, {"h.{}.fc": [("blocks.{}.up", transposed)]})
    >>> {name: tuple(tensor.shape) for name, tensor in got.tensors.items()}
    {'blocks.0.up.weight': (3, 2)}
    >>> got.unknown
    ['ln.bias']
    """
    table = [(_pattern(theirs), rule) for theirs, rule in rules.items()]
    given: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    unknown, faults = [], []
    for name, tensor in tensors.items():
        if name.startswith(ignoring):
            continue
        parts = _translate(name.removeprefix(prefix), table)
        if parts is None:
            unknown.append(name)
            continue
        for ours, change in parts:
            try:
                part = change(tensor)
            except (ValueError, RuntimeError, IndexError) as error:
                faults.append(f"{name} is {tuple(tensor.shape)}: {error}")
                continue
            first = origin.setdefault(ours, name)
            origin.setdefault(_SLOT.sub("", ours), name)
            if not _equal(given.setdefault(ours, part), part):  # equal: tied weights
                faults.append(f"{first} and {name} differ, but both are {ours}")
    return Renamed(_stacked(given, faults), origin, sorted(unknown), faults)


def transposed(tensor: Tensor) -> Tensor:
    """(in, out) → (out, in): GPT-2 stores its matrices the other way round."""
    if tensor.dim() > 2:
        raise ValueError("expected a matrix or a vector")
    return tensor.t()  # a vector, such as a bias, stays as it is


def piece(i: int, of: int, after: Change | None = None) -> Change:
    """Part i of `of` equal parts along the first axis, after another change if given.

    >>> piece(1, 3)(torch.arange(6)).tolist()
    [2, 3]
    """

    def cut(tensor: Tensor) -> Tensor:
        tensor = tensor if after is None else after(tensor)
        if tensor.dim() == 0 or tensor.shape[0] % of:
            raise ValueError(f"cannot be cut into {of} equal parts")
        return tensor.chunk(of)[i]

    return cut


def unfilled(build: Callable[[], Model]) -> Model:
    """Build a model without memory for its weights: `load_into` gives it theirs.

    So a loaded model needs its size once, not twice, and no random numbers are drawn
    only to be replaced. A table that a constructor computes and the file does not hold
    would stay empty; `load_into` refuses such a model.
    """
    with torch.device("meta"):
        return build()


def load_into(
    model: Model,
    given: Renamed,
    source: str | Path,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """Give a model its weights, all of them or none, and set it to eval mode.

    Floating-point tensors are copied into `dtype`, one at a time; tied weights stay
    tied, whether the file holds one of them or both. `given.tensors` is emptied.

    Raises:
        ValueError: one message that lists every unknown, missing and wrongly shaped
            tensor; the model is left as it was.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type, got {dtype}")
    homes = _homes(model)
    wanted = model.state_dict()
    faults = _merge_tied(given, homes) + given.faults + _empty_tables(model, wanted)
    faults += _misfits(given, {n: t for n, t in wanted.items() if n in homes.values()})
    if faults:
        name = type(model).__name__
        raise ValueError(f"{source} does not fit {name}:\n  " + "\n  ".join(faults))
    made: dict[str, Tensor] = {}
    for name, old in wanted.items():
        home = homes[name]
        if home not in made:
            new = _owned(given.tensors.pop(home), old, dtype)
            tied = sum(home == h for h in homes.values()) > 1
            made[home] = nn.Parameter(new) if tied else new
        made[name] = made[home]  # one Parameter under all its names: still tied
    model.load_state_dict(made, assign=True)
    return model.to(dtype).eval()


def _homes(model: nn.Module) -> dict[str, str]:
    """For every name in the state dict the first name of the same tensor."""
    first: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True).items()
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors}


def _empty_tables(model: nn.Module, wanted: dict[str, Tensor]) -> list[str]:
    """Buffers that no file holds and that `unfilled` left without numbers."""
    return [
        f"{name} is computed, not loaded: build this model without `unfilled`"
        for name, table in model.named_buffers()
        if table.is_meta and name not in wanted
    ]


def _merge_tied(given: Renamed, homes: dict[str, str]) -> list[str]:
    """Move tied tensors to their first name; complain if they are not equal."""
    faults = []
    for name, home in homes.items():
        if name == home or name not in given.tensors:
            continue
        second = given.tensors.pop(name)
        if not _equal(given.tensors.setdefault(home, second), second):
            faults.append(f"{name} and {home} differ, but are one tensor in this model")
        given.origin.setdefault(home, given.origin[name])
    return faults


def _misfits(given: Renamed, wanted: dict[str, Tensor]) -> list[str]:
    """What is unknown, missing or of another kind than the model's own, in words."""
    tensors = given.tensors
    strange = [given.origin[name] for name in tensors if name not in wanted]
    both = {name: tensors[name] for name in wanted if name in tensors}
    lists = {
        "unknown": sorted([*given.unknown, *strange]),
        "missing": sorted(wanted.keys() - tensors.keys()),
        "wrong shape": [
            f"{name} is {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}"
            for name, tensor in both.items()
            if tensor.shape != wanted[name].shape
        ],
        "wrong type": [
            f"{name} is {tensor.dtype}, expected {wanted[name].dtype}"
            for name, tensor in both.items()
            if tensor.is_floating_point() != wanted[name].is_floating_point()
        ],
    }
    return [f"{k} ({len(v)}): {', '.join(v)}" for k, v in lists.items() if v]


def _owned(tensor: Tensor, old: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy that no file can change any more, laid out row by row."""
    kind = dtype if tensor.is_floating_point() else old.dtype
    device = tensor.device if old.is_meta else old.device
    rows = torch.contiguous_format
    return tensor.to(device, kind, copy=True, memory_format=rows)


def _pattern(theirs: str) -> re.Pattern:
    """`h.{}.fc` as an expression with its numbers and, for a module, the leaf."""
    numbers = re.escape(theirs).replace(re.escape("{}"), r"(\d+)")
    return re.compile(numbers + r"(?P<leaf>\.(?:weight|bias))?")


def _translate(
    name: str, table: list[tuple[re.Pattern, Rule]]
) -> list[tuple[str, Change]] | None:
    """What one of their tensors becomes; None if no rule matches."""
    for pattern, rule in table:
        if match := pattern.fullmatch(name):
            *numbers, leaf = match.groups()
            parts = [(rule, _same)] if isinstance(rule, str) else rule or []
            return [(ours.format(*numbers) + (leaf or ""), f) for ours, f in parts]
    return None


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and torch.equal(a, b))


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _stacked(given: dict[str, Tensor], faults: list[str]) -> dict[str, Tensor]:
    """`gate[0]`, `gate[1]`, … → one tensor `gate` with a new first axis."""
    whole: dict[str, Tensor] = {}
    stacks: dict[str, dict[int, Tensor]] = {}
    for name, tensor in given.items():
        if match := _SLOT.search(name):
            stacks.setdefault(name[: match.start()], {})[int(match[1])] = tensor
        else:
            whole[name] = tensor
    for name, slots in stacks.items():
        shapes = sorted({tuple(tensor.shape) for tensor in slots.values()})
        if len(slots) != max(slots) + 1:
            held = ", ".join(map(str, sorted(slots)))
            faults.append(f"{name} lacks parts; it has only {held}")
        elif len(shapes) > 1:
            faults.append(f"the parts of {name} have shapes {shapes}")
        else:
            whole[name] = torch.stack([slots[i] for i in range(len(slots))])
    return whole


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold an object, got {type(content).__name__}")
    return content
