# SPDX-License-Identifier: MIT
"""Who may look at whom? A mask is a rule; tensors and tiles are made from it on demand.

True means “may attend”. The last query stands beside the last key (bottom-right
aligned), which is what a decoder with a cache needs: T new queries, S ≥ T keys.

Taught in: book/02_attention.ipynb
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rule(ABC):
    """What all rules share: padding, any tile, the whole. A new rule says `allowed`.

    Args:
        keep: (B, S) bool, False where the key is padding; None when nothing is padded.

    Raises:
        TypeError: keep is not a bool tensor.  ValueError: it has not two axes.
    """

    keep: Tensor | None = None
    # What the first layer asked for, kept for the others of the same pass.
    _made: dict = field(default_factory=dict, init=False, repr=False, kw_only=True)

    def __post_init__(self):
        if self.keep is not None:
            check_keep(self.keep)
            # A copy of its own, so that the tensor made from it once stays true.
            object.__setattr__(self, "keep", self.keep.clone())

    @abstractmethod
    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        """The rule itself, on positions that broadcast against each other."""

    def tile(self, t0: int, t1: int, s0: int, s1: int, device=None) -> Tensor:
        """One tile of the mask, queries t0 … t1 − 1 against keys s0 … s1 − 1.

        Queries are counted on the keys' axis: the last query's position is S − 1, and
        key 0 is the first that is held, which need not be the text's first word.

        Shapes:
            → (t1 − t0, s1 − s0), or (B, 1, t1 − t0, s1 − s0) where there is padding

        Raises:
            ValueError: an end lies before its start, or a key outside `keep`.
            TypeError: an end is no integer.
        """
        _check_whole(t0=t0, t1=t1, s0=s0, s1=s1)
        most = s1 if self.keep is None else self.keep.shape[1]
        if t1 < t0 or not 0 <= s0 <= s1 <= most:
            raise ValueError(
                f"a tile needs t0 ≤ t1 and 0 ≤ s0 ≤ s1 ≤ {most}, got queries {t0} … "
                f"{t1}, keys {s0} … {s1}"
            )
        query = torch.arange(t0, t1, device=device)[:, None]
        key = torch.arange(s0, s1, device=device)[None, :]
        tile = self.allowed(query, key)
        if self.keep is None:
            return tile
        return tile & self.keep[:, None, None, s0:s1].to(tile.device)

    def tensor(self, T: int, S: int, device=None) -> Tensor:
        """The whole mask for T queries and S keys.

        Shapes:
            → (T, S), or (B, 1, T, S) where there is padding

        Raises:
            ValueError: T or S is negative, or `keep` covers another number of keys.
            TypeError: T or S is no integer.
        """
        _check_whole(T=T, S=S)
        if T < 0 or S < 0:
            raise ValueError(f"T and S must be ≥ 0, got T = {T}, S = {S}")
        if self.keep is not None and self.keep.shape[1] != S:
            raise ValueError(f"keep covers {self.keep.shape[1]} keys, expected S = {S}")
        asked = (T, S, str(device))
        if self._made.get("asked") != asked:
            made = self.tile(S - T, S, 0, S, device=device)
            self._made.update(asked=asked, tensor=made)
        return self._made["tensor"]

    def simplest(self, T: int, S: int) -> "Rule | None":
        """A rule that allows the same, for T queries and S keys; None if all may.

        torch's kernel is fastest without a mask, and next with the plain causal one.
        """
        return self


@dataclass(frozen=True, eq=False)
class Everyone(Rule):
    """Every query may attend to every key: the encoder's rule.

    Args:
        keep: (B, S) bool, False where the key is padding; None when nothing is padded.

    >>> Everyone().tensor(2, 3)
    tensor([[True, True, True],
            [True, True, True]])
    """

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query + key, dtype=torch.bool)

    def simplest(self, T: int, S: int) -> Rule | None:
        return None if self.keep is None and type(self) is Everyone else self


@dataclass(frozen=True, eq=False)
class Causal(Rule):
    """No query may look ahead: the decoder's rule.

        allowed(t, s)  =  s ≤ t   and   s > t − window   or   both t, s < prefix

    Args:
        window: how many keys a query may see, itself included; None for all.
        prefix: the first `prefix` positions see each other in both directions. They
            are counted from the first key that is held.

    >>> Causal().tensor(3, 3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    >>> Causal().tensor(1, 3).int()   # one new token, two remembered ones
    tensor([[1, 1, 1]], dtype=torch.int32)
    """

    window: int | None = None
    prefix: int = 0
    keep: Tensor | None = field(default=None, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        for name in ("window", "prefix"):
            value = getattr(self, name)
            if not isinstance(value, int) and not (name == "window" and value is None):
                raise TypeError(f"{name} must be an integer, got {value!r}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be ≥ 1 or None, got {self.window}")
        if self.prefix < 0:
            raise ValueError(f"prefix must be ≥ 0, got {self.prefix}")

    @property
    def plain(self) -> bool:
        """True when the rule is s ≤ t and nothing else."""
        return self.window is None and self.prefix == 0 and self.keep is None

    def simplest(self, T: int, S: int) -> Rule | None:
        if self.keep is not None or type(self) is not Causal:
            return self
        window = None if self.window is None or self.window >= S else self.window
        if T == 1 and window is None:
            return None  # the newest token may look at everything
        if self.plain or window is not None or self.prefix > 1:
            return self
        return self._made.setdefault("plain", Causal())

    def allowed(self, query: Tensor, key: Tensor) -> Tensor:
        allowed = key <= query
        if self.window is not None:
            allowed &= key > query - self.window
        return allowed | ((query < self.prefix) & (key < self.prefix) & (query >= 0))


def _check_whole(**numbers: int) -> None:
    """Integers, which are symbols while a graph is made."""
    for name, n in numbers.items():
        if not isinstance(n, int | torch.SymInt):
            raise TypeError(f"{name} must be an integer, got {n!r}")


def check_keep(keep: Tensor) -> None:
    """keep says for every key of every row whether it is a word: (B, S) booleans.

    Shapes:
        keep (B, S)

    Raises:
        TypeError: not a bool tensor.  ValueError: another number of axes.
    """
    if not isinstance(keep, Tensor):
        raise TypeError(f"keep must be a tensor or None, got {type(keep).__name__}")
    if keep.dtype != torch.bool:
        raise TypeError(f"keep must be bool, True = a word, got {keep.dtype}")
    if keep.dim() != 2:
        raise ValueError(f"keep must be (B, S), got {tuple(keep.shape)}")


def as_tensor(mask: Tensor | Rule | None, T: int, S: int, device) -> Tensor | None:
    """A rule, or a boolean tensor, as a tensor; None where nothing is blocked.

    Shapes:
        → whatever broadcasts to (B, H, T, S)
    """
    if isinstance(mask, Rule):
        mask = mask.simplest(T, S)
    return mask.tensor(T, S, device=device) if isinstance(mask, Rule) else mask
