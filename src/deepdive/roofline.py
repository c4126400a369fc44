# SPDX-License-Identifier: MIT
"""How fast could a machine write at best? Its two limits, held against a model's sizes.

A step takes at least as long as its operations take, and at least as long as its bytes
take to be read. All numbers here are computed from sizes, none is measured: they are
what a measurement can be held to.

Source: Williams, Waterman & Patterson 2009.

Taught in: book/10_kv_cache.ipynb, book/12_grouped_query_attention.ipynb
"""

from dataclasses import dataclass, fields
from math import inf, isnan
from typing import NamedTuple

from deepdive.accounting import decode_bytes, flops, kv_bytes, parameters, roofline


@dataclass(frozen=True)
class Machine:
    """A processor and its memory, as far as they limit a step.

    Args:
        flops_per_second: a multiplication and an addition are two.
        bytes_per_second: read from memory.
        memory: bytes that it has room for.

    Raises:
        TypeError: not numbers.  ValueError: one is not above 0, or a speed not finite.

    >>> Machine(100e9, 10e9).ridge
    10.0

    Taught in: book/10_kv_cache.ipynb
    """

    flops_per_second: float
    bytes_per_second: float
    memory: float = inf

    def __post_init__(self):
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise TypeError(f"{name} must be a number, got {value!r}")
            if not value > 0 or isnan(value) or (name != "memory" and value == inf):
                raise ValueError(f"{name} must be > 0 and finite, got {value}")

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which both limits are reached at once."""
        return self.flops_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """FLOP/s at most, for work of so many FLOPs per byte: the roofline.

            min(FLOP/s, intensity · byte/s)

        Raises:
            ValueError: an intensity that is not above 0.
        """
        if not intensity > 0:
            raise ValueError(f"intensity must be > 0, got {intensity}")
        return min(self.flops_per_second, intensity * self.bytes_per_second)


# Speeds assumed to be kept up in 16-bit work, below the 989 TFLOP/s and 4.8 TB/s that
# the data sheet gives; 141 GB is the data sheet's. Not measured here.
H200 = Machine(flops_per_second=790e12, bytes_per_second=4.3e12, memory=141e9)


class Step(NamedTuple):
    """One decoding step of a batch at the machine's limits: one more word for each.

    Attributes:
        weights, cache: bytes that are read.

    Taught in: book/10_kv_cache.ipynb
    """

    batch: int
    seconds: float
    flops: int
    weights: int
    cache: int

    @property
    def tokens_per_second(self) -> float:
        """Words of the whole batch."""
        return self.batch / self.seconds

    @property
    def cache_share(self) -> float:
        """Of the bytes that are read, how many are the cache's?"""
        return self.cache / (self.weights + self.cache)

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / (self.weights + self.cache)


def decode_step(
    config,
    machine: Machine,
    seen: int,
    batch: int = 1,
    source: int = 0,
    kept: int | None = None,
    bytes_per_number: int = 2,
) -> Step:
    """The least time for one more word of each text of a batch.

        max(FLOPs / (FLOP/s), (weights + cache) / (byte/s))

    Args:
        config: of `deepdive.configs`, a decoder's.
        seen: words of each text that are in the cache.
        source: words of the encoder's text, where there is an encoder.
        kept: numbers kept of each word, all layers together, were it not the config's
            own number; the operations stay the config's.

    Note:
        Room in memory is not looked at; `largest_batch` says what fits.

    Raises:
        TypeError: not a decoder's config, or not a `Machine`, or not integers.
        ValueError: a negative number, or a batch of none.

    >>> from deepdive.configs import LLAMA_3_8B
    >>> step = decode_step(LLAMA_3_8B, H200, seen=2**15)
    >>> round(1e3 * step.seconds, 1), round(step.tokens_per_second)
    (4.5, 223)

    Taught in: book/10_kv_cache.ipynb, book/12_grouped_query_attention.ipynb
    """
    _check(machine, batch, kept)
    size = {"weight_bytes": bytes_per_number, "cache_bytes": bytes_per_number}
    read = decode_bytes(config, seen, batch, source, **size)
    if kept is not None:
        read["cache"] = kept * seen * batch * bytes_per_number
    count = flops(config, 1, seen=seen, memory=source, batch=batch)["total"]
    speeds = machine.flops_per_second, machine.bytes_per_second
    seconds = roofline(count, read["weights"] + read["cache"], *speeds)
    return Step(batch, seconds, count, read["weights"], read["cache"])


def largest_batch(
    config,
    machine: Machine,
    seen: int,
    source: int = 0,
    kept: int | None = None,
    bytes_per_number: int = 2,
) -> int:
    """How many texts fit into memory beside the weights, before anything else does?

        ⌊(memory − weights) / cache of one text⌋

    Args:
        as in `decode_step`

    Raises:
        TypeError: not a decoder's config, or not a `Machine`, or not integers.
        ValueError: a negative number, or texts that take no room.

    >>> from deepdive.configs import LLAMA_3_8B
    >>> largest_batch(LLAMA_3_8B, H200, seen=2**15)
    29

    Taught in: book/12_grouped_query_attention.ipynb
    """
    _check(machine, 1, kept)
    one = kv_bytes(config, seen, source=source, bytes_per_number=bytes_per_number)
    if kept is not None:
        one = kept * seen * bytes_per_number
    if one == 0 or machine.memory == inf:
        raise ValueError(
            f"any number of texts fits: each takes {one} bytes, and the memory has "
            f"{machine.memory}"
        )
    room = machine.memory - parameters(config)["total"] * bytes_per_number
    return max(0, int(room // one))


def _check(machine: Machine, batch: int, kept: int | None) -> None:
    if not isinstance(machine, Machine):
        raise TypeError(f"machine must be a Machine, got {type(machine).__name__}")
    for name, value, least in (("batch", batch, 1), ("kept", kept, 0)):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if value < least:
            raise ValueError(f"{name} must be ≥ {least}, got {value}")
