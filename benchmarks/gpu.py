# SPDX-License-Identifier: MIT
"""How near does the package come to what a GPU can do?

    python benchmarks/gpu.py      on a GPU, under five minutes; writes results/gpu.json
    python benchmarks/gpu.py --device cpu --quick     does it run? tiny, on the screen

Measured first is what this machine can do at most: bytes copied in a second, and
operations of a large matrix product. What follows is said as a share of that: attention
with torch's kernels, tiles and Triton, each first held to the formula; one more token
of a Llama; training steps of a GPT. Times lie between two events of the GPU, after a
warm-up: the median of the rounds, the lowest and the highest.

Each part has its share of the time. What does not fit in, or not in memory, is listed
as skipped, and an error ends only the measurement that met it. The peer in decoding is
`transformers`, with the same weights, where it is installed.
"""

import argparse
import gc
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import torch
from record import RESULTS, write
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from deepdive.accounting import causal_pairs, decode_bytes, flops, kv_bytes
from deepdive.configs import LLAMA_3_8B, SMOLLM2_135M, GptConfig, LlamaConfig
from deepdive.inference import for_inference
from deepdive.kernels import equation, fused, tiled
from deepdive.kernels.triton import triton_attention
from deepdive.masks import Causal
from deepdive.models.gpt import Gpt
from deepdive.models.llama import Llama
from deepdive.objectives import causal_lm
from deepdive.timing import installed, machine
from deepdive.training import adamw

ROUNDS = 7
LEAST = 0.02  # seconds of one measurement; short work is repeated until it takes that
LONGEST = 200  # repeats
# How far numbers may lie from the formula's in float64, as a share of the largest.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
LOGITS = 5e-2  # two ways through all layers in bfloat16
SMALL_GPT = GptConfig(8192, 384, 6, 6, 1536, max_seq_len=256)
TINY_LLAMA = LlamaConfig(97, 32, 2, 4, 2, 48, max_seq_len=64)
TINY_GPT = GptConfig(97, 32, 2, 2, 64, max_seq_len=32)


@dataclass(frozen=True)
class Sizes:
    """How large everything is, and how many seconds each part may take."""

    copied: int = 2**30  # bytes
    square: int = 8192
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192, 16_384)
    tokens: int = 16_384  # of all texts in a batch, as long as one fits
    heads: int = 16
    width: int = 128
    checked: int = 512
    llamas: tuple[tuple[str, LlamaConfig], ...] = (
        ("SmolLM2-135M", SMOLLM2_135M),
        ("Llama-3-8B", LLAMA_3_8B),
    )
    batches: tuple[int, ...] = (1, 8)
    context: int = 2048
    gpt: GptConfig = SMALL_GPT
    texts: int = 64
    seconds: tuple[int, ...] = (20, 110, 100, 30)  # machine, attention, decoding, …


QUICK = Sizes(
    copied=2**16,
    square=64,
    lengths=(16, 32),
    tokens=64,
    heads=2,
    width=16,
    checked=24,
    llamas=(("tiny Llama", TINY_LLAMA),),
    batches=(1, 2),
    context=24,
    gpt=TINY_GPT,
    texts=2,
    seconds=(10, 10, 10, 10),
)


class NoRoomError(Exception):
    """Something is not measured: too little time is left, or memory."""


@dataclass
class Part:
    """One part of the file: rows, each with what was found, or why nothing was."""

    name: str
    seconds: float
    device: torch.device
    rows: list[dict] = field(default_factory=list)

    def __post_init__(self):
        self.start = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds that the part may still take."""
        return self.seconds - (time.monotonic() - self.start)

    def row(self, find: Callable[[], dict], **settings) -> dict:
        """Keep the settings with what `find` gives; an error ends nothing else."""
        try:
            if self.left <= 0:
                raise NoRoomError(f"the part's {self.seconds:g} s were spent")
            found = find()
        except NoRoomError as why:
            found = {"skipped": str(why)}
        except Exception as error:  # whatever it is: the rows before must not be lost
            found = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        self.rows.append({**settings, **found})
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
        return found

    def timed(self, call: Callable[[], object]) -> dict[str, float]:
        """Seconds of one call: median, lowest and highest of the rounds.

        Raises:
            NoRoomError: the rounds would take longer than the part may.
        """
        call()  # compiles, and fills caches
        once = self._seconds(call, 1)
        if once * ROUNDS > self.left:
            raise NoRoomError(
                f"one call takes {once:.2g} s, and {self.left:.2g} s are left"
            )
        repeats = min(LONGEST, max(1, round(LEAST / max(once, 1e-6))))
        times = [self._seconds(call, repeats) for _ in range(ROUNDS)]
        return {"median": median(times), "lowest": min(times), "highest": max(times)}

    def _seconds(self, call: Callable[[], object], repeats: int) -> float:
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            return (time.perf_counter() - start) / repeats
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(repeats):
            call()
        last.record()
        torch.cuda.synchronize(self.device)
        return first.elapsed_time(last) / 1e3 / repeats  # from milliseconds


def said(times: dict[str, float], **more) -> dict:
    """Milliseconds, and what else there is, to four digits."""
    spread = {"lowest_ms": times["lowest"] * 1e3, "highest_ms": times["highest"] * 1e3}
    numbers = {"ms": times["median"] * 1e3, **spread, **more}
    return {
        name: float(f"{x:.4g}") if isinstance(x, float) else x
        for name, x in numbers.items()
    }


def share(amount: float, most: float | None) -> float | None:
    """A part of what the machine does at most; None where that is not known."""
    return amount / most if most else None


# What the machine can do


def facts(device: torch.device) -> dict:
    """Where it is measured, and with what."""
    found = {name: x for name, x in machine().items() if name != "threads"}
    if device.type != "cuda":
        return found
    about = torch.cuda.get_device_properties(device)
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=20)
        driver = next(iter(answer.stdout.split()), "unknown")
    except (OSError, subprocess.SubprocessError):
        driver = "unknown"
    return found | {
        "gpu": about.name,
        "gpu_memory": about.total_memory,
        "multiprocessors": about.multi_processor_count,
        "capability": f"{about.major}.{about.minor}",
        "cuda": torch.version.cuda,
        "driver": driver,
    }


def limits(part: Part, sizes: Sizes) -> dict[str, float]:
    """Bytes that are copied in a second, and operations of a product, by dtype."""
    most: dict[str, float] = {}

    def copying() -> dict:
        here = torch.ones(sizes.copied // 4, device=part.device)
        there = torch.empty_like(here)
        times = part.timed(lambda: there.copy_(here))
        most["bytes"] = 2 * here.nbytes / times["median"]  # read, and written
        return said(times, bytes_per_second=most["bytes"])

    def multiplying(dtype: torch.dtype) -> dict:
        n = sizes.square
        a, b = torch.randn(2, n, n, device=part.device).to(dtype)
        out = torch.empty_like(a)
        times = part.timed(lambda: torch.mm(a, b, out=out))
        most[str(dtype)] = 2 * n**3 / times["median"]
        return said(times, flops_per_second=most[str(dtype)])

    part.row(copying, what="copy", bytes=sizes.copied)
    for dtype in TOLERANCE:
        what = {"what": "product", "dtype": str(dtype), "square": sizes.square}
        part.row(partial(multiplying, dtype), **what)
    return most


# Attention


def by_torch(backend: SDPBackend) -> Callable[..., Tensor]:
    """Causal attention with one of torch's kernels, or an error where it can't."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with warnings.catch_warnings(), sdpa_kernel(backend):
            warnings.simplefilter("ignore")  # they say why a kernel can't; so do we
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return call


# The slowest last, so that it takes the time that the others leave.
KERNELS: dict[str, Callable[..., Tensor]] = {
    "torch, flash": by_torch(SDPBackend.FLASH_ATTENTION),
    "torch, cuDNN": by_torch(SDPBackend.CUDNN_ATTENTION),
    "torch, memory-efficient": by_torch(SDPBackend.EFFICIENT_ATTENTION),
    "fused": partial(fused, mask=Causal()),
    "triton": partial(triton_attention, mask=Causal()),
    "tiled": partial(tiled, mask=Causal()),
}


def gradients(kernel: Callable[..., Tensor], inputs: list[Tensor], d_out: Tensor):
    """A call that gives the gradients of q, k and v, and the output it starts from."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = kernel(*leaves)
    again = partial(torch.autograd.grad, out, leaves, d_out, retain_graph=True)
    return again, out.detach()


def difference(kernel: Callable[..., Tensor], sizes: Sizes, dtype, device) -> dict:
    """How far output and gradients lie from the formula's in float64."""
    torch.manual_seed(0)
    shape = 4, 2, 2, sizes.checked, sizes.width
    *inputs, d_out = torch.randn(shape, device=device).to(dtype)
    grads, out = gradients(kernel, inputs, d_out)
    formula = partial(equation, mask=Causal())
    wide = [x.double() for x in inputs]
    exact_grads, exact = gradients(formula, wide, d_out.double())
    pairs = zip((out, *grads()), (exact, *exact_grads()), strict=True)
    errors = [float((x - y).abs().max() / y.abs().max()) for x, y in pairs]
    # Written so that NaN is refused too.
    equal = all(error < TOLERANCE[dtype] for error in errors)
    short = [float(f"{error:.2g}") for error in errors]
    return {"output": short[0], "gradients": max(short[1:]), "equal": equal}


def attention(part: Part, sizes: Sizes, most: dict[str, float]) -> None:
    """Forward and backward, causal, in bfloat16; equality first, in float32 too."""
    for name, kernel in KERNELS.items():
        same = False
        for dtype in TOLERANCE:
            find = partial(difference, kernel, sizes, dtype, part.device)
            found = part.row(find, kernel=name, what="equality", dtype=str(dtype))
            same = found.get("equal", False)  # the last is what is timed below
        for T in sizes.lengths if same else ():
            B = max(1, sizes.tokens // T)
            # Forward two products of the scores' size, backward five.
            for way, products in (("forward", 2), ("backward", 5)):
                work = products * 2 * B * sizes.heads * sizes.width * causal_pairs(T)
                find = partial(one_length, part, sizes, kernel, (B, T), way, work, most)
                part.row(find, kernel=name, what=way, T=T, batch=B)


def one_length(part, sizes, kernel, batch_and_length, way, work, most) -> dict:
    """One kernel's time forward or backward, and its operations in a second."""
    B, T = batch_and_length
    shape = 4, B, sizes.heads, T, sizes.width
    *inputs, d_out = torch.randn(shape, device=part.device, dtype=torch.bfloat16)
    if way == "forward":
        with torch.no_grad():
            times = part.timed(partial(kernel, *inputs))
    else:
        times = part.timed(gradients(kernel, inputs, d_out)[0])
    rate = work / times["median"]
    of_most = share(rate, most.get(str(torch.bfloat16)))
    return said(times, flops_per_second=rate, share_of_product=of_most)


# Decoding


@contextmanager
def made_in(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Inside, new weights have this dtype and lie on this device."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def peer(model: Llama) -> nn.Module:
    """`transformers`' Llama with the very same weights, not copied."""
    from transformers import LlamaConfig as Config
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    c = model.config
    config = Config(
        vocab_size=c.vocab_size, hidden_size=c.d_model, intermediate_size=c.d_ff,
        num_hidden_layers=c.n_layers, num_attention_heads=c.n_heads,
        num_key_value_heads=c.n_kv_heads, max_position_embeddings=c.max_seq_len,
        rms_norm_eps=c.norm_eps, tie_word_embeddings=c.tied,
        rope_parameters={"rope_theta": c.rope_base, "rope_type": "default"},
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    names = {
        "token": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
        "blocks": "model.layers", "attention": "self_attn", "feedforward": "mlp",
        "attention_norm": "input_layernorm", "gate": "gate_proj", "up": "up_proj",
        "feedforward_norm": "post_attention_layernorm", "down": "down_proj",
    }  # fmt: skip
    state = {
        ".".join(names.get(word, word) for word in name.split(".")): x.detach()
        for name, x in model.state_dict().items()
    }
    with torch.device("meta"):
        theirs = LlamaForCausalLM(config).eval()
    theirs.load_state_dict(state, assign=True)
    theirs.tie_weights()
    theirs.model.rotary_emb = LlamaRotaryEmbedding(config).to(model.token.weight.device)
    return theirs


def ours_step(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    """A call that computes the last token's logits behind those before it."""
    seen = tokens.shape[1] - 1
    caches = model.new_caches(seen + 1)
    model.hidden(tokens[:, :-1], caches)

    def step() -> Tensor:
        out = model.logits(model.hidden(tokens[:, -1:], caches))
        caches.truncate(seen)
        return out

    return step


def peer_step(model: nn.Module, tokens: Tensor) -> Callable[[], Tensor]:
    """The same, of `transformers`, with its static cache."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=tokens.shape[1])
    model.model(tokens[:, :-1], cache=cache, use_cache=True)

    def step() -> Tensor:
        out = model(tokens[:, -1:], cache=cache, use_cache=True).logits
        cache.crop(-1)
        return out

    return step


def decoding(part: Part, sizes: Sizes, most: dict[str, float]) -> None:
    """Tokens a second behind a text, and the share of what reading alone allows."""
    for shape, config in sizes.llamas:
        built: dict[str, Callable[[Tensor], Callable[[], Tensor]]] = {}

        def build(config=config, built=built) -> dict:
            _need_room(config, sizes, part.device)
            torch.manual_seed(0)
            with made_in(torch.bfloat16, part.device):
                model = Llama(config).eval()
            built["as built"] = partial(ours_step, model)
            built["prepared"] = partial(ours_step, for_inference(model))
            if installed("transformers"):
                built["transformers"] = partial(peer_step, peer(model))
            return {"ways": list(built)}

        part.row(build, shape=shape, what="build")
        for batch in sizes.batches:
            expected: list[Tensor] = []
            for way, ready in built.items():
                find = partial(one_token, part, config, sizes, batch, ready, expected)
                part.row(partial(find, most), shape=shape, batch=batch, way=way)
        built.clear()


@torch.no_grad()
def one_token(part, config, sizes, batch, ready, expected, most) -> dict:
    """One more token for each text of a batch; its logits held to the first way's."""
    generator = torch.Generator().manual_seed(batch)
    shape = batch, sizes.context + 1
    tokens = torch.randint(config.vocab_size, shape, generator=generator)
    step = ready(tokens.to(part.device))
    logits = step().float()
    expected.append(logits)
    error = (logits - expected[0]).abs().max() / expected[0].abs().max()
    if not error < LOGITS:
        raise ArithmeticError(f"the logits differ by {float(error):.1e}")
    times = part.timed(step)
    nbytes = sum(decode_bytes(config, sizes.context, batch).values())
    return said(
        times,
        context=sizes.context,
        tokens_per_second=batch / times["median"],
        bytes_read=nbytes,
        share_of_copying=share(nbytes / times["median"], most.get("bytes")),
        difference=float(error),
    )


def _need_room(config: LlamaConfig, sizes: Sizes, device: torch.device) -> None:
    """Is there memory for the weights, what is joined of them, and two caches?"""
    if device.type != "cuda":
        return
    weights = decode_bytes(config, 0)["weights"]
    caches = kv_bytes(config, sizes.context + 1, max(sizes.batches))
    needed = 2.2 * weights + 2 * caches
    free, _ = torch.cuda.mem_get_info(device)
    if needed > 0.9 * free:
        raise NoRoomError(
            f"needs {needed / 2**30:.1f} GiB, {free / 2**30:.1f} GiB are free"
        )


# Training


def training(part: Part, sizes: Sizes, most: dict[str, float]) -> None:
    """Steps of a GPT with AdamW: tokens in a second."""
    config, texts = sizes.gpt, sizes.texts
    T = config.max_seq_len
    work = 3 * flops(config, T, batch=texts)["total"]  # backward is twice forward

    def find(half: bool) -> dict:
        torch.manual_seed(0)
        with torch.device(part.device):
            model = Gpt(config).train()
            tokens = torch.randint(config.vocab_size, (texts, T))
        optimiser, losses = adamw(model, lr=1e-3), []

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            with torch.autocast(part.device.type, torch.bfloat16, enabled=half):
                loss = causal_lm(model(tokens), tokens).mean
            loss.backward()
            optimiser.step()
            losses.append(loss.detach())

        times = part.timed(step)
        first, last = float(losses[0]), float(losses[-1])
        if not last < first:
            raise ArithmeticError(f"the loss went from {first:.3f} to {last:.3f}")
        dtype = torch.bfloat16 if half else torch.float32
        rate = work / times["median"]
        return said(
            times,
            tokens_per_second=texts * T / times["median"],
            flops_per_second=rate,
            share_of_product=share(rate, most.get(str(dtype))),
        )

    for half in (True, False):
        how = "bfloat16 autocast" if half else "float32"
        part.row(partial(find, half), precision=how, batch=texts, T=T)


# All together


def measure(device: torch.device, sizes: Sizes, keep: Callable[[dict], None]) -> dict:
    """All parts, one after another; `keep` is given the whole after each of them."""
    torch.set_float32_matmul_precision("highest")  # float32 is not shortened to tf32
    most: dict[str, float] = {}
    content = {"machine": facts(device), "parts": {}}
    parts = {
        "machine": lambda part: most.update(limits(part, sizes)),
        "attention": lambda part: attention(part, sizes, most),
        "decoding": lambda part: decoding(part, sizes, most),
        "training": lambda part: training(part, sizes, most),
    }
    for (name, run), seconds in zip(parts.items(), sizes.seconds, strict=True):
        part, entry = Part(name, seconds, device), {}
        try:
            run(part)
        except Exception as error:  # rows before it, and the other parts, are kept
            entry["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        entry |= {"seconds": round(time.monotonic() - part.start, 1), "rows": part.rows}
        content["parts"][name] = entry
        keep(content)
    return content


def main(words: list[str] | None = None) -> None:
    """Measure everything, and keep it in a file after each part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="default: cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    parser.add_argument("--out", type=Path, help="default: results/gpu.json on a GPU")
    chosen = parser.parse_args(words)
    device = torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("no GPU is at hand: --device cpu --quick tries the script")
    out = chosen.out
    if out is None and device.type == "cuda" and not chosen.quick:
        out = RESULTS / "gpu.json"
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where the events are recorded
    usual = {"device": "cuda", "quick": False}
    given = {name: getattr(chosen, name) for name in usual}
    head = {
        "question": __doc__.splitlines()[0],
        "command": " ".join(["python benchmarks/gpu.py", *_words(given, usual)]),
        "rounds": ROUNDS,
    }

    def keep(content: dict) -> None:
        name, part = list(content["parts"].items())[-1]
        print(f"{name}: {part['seconds']} s", *part["rows"], sep="\n  ", flush=True)
        if out is not None:
            write(out, as_text(head | content))

    measure(device, QUICK if chosen.quick else Sizes(), keep)


def as_text(content: dict) -> str:
    """JSON with a line for each row."""
    rows: list[dict] = []

    def number(row: dict) -> str:
        rows.append(row)
        return f"@row {len(rows) - 1}"

    parts = {
        name: part | {"rows": [number(row) for row in part["rows"]]}
        for name, part in content["parts"].items()
    }
    text = json.dumps(content | {"parts": parts}, indent=1, ensure_ascii=False) + "\n"
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    return re.sub(r'"@row (\d+)"', lambda found: lines[int(found[1])], text)


def _words(given: dict, usual: dict) -> list[str]:
    """Options that are not the usual ones, as they are typed."""
    words = {name: x for name, x in given.items() if x != usual[name]}
    return [
        f"--{name}" if x is True else f"--{name} {x}"
        for name, x in sorted(words.items())
    ]


if __name__ == "__main__":
    main()
