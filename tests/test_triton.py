# SPDX-License-Identifier: MIT
"""The kernel of a GPU, without one: run by Triton's interpreter, and compiled.

Triton decides when it is imported whether it interprets, and other tests may have
imported it before, so each group of cases runs in a process of its own.
"""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from deepdive.kernels import triton as module
from deepdive.kernels.triton import triton_attention
from deepdive.masks import Causal, Everyone

pytestmark = pytest.mark.slow  # each group imports torch and Triton once more
HERE = Path(__file__).resolve().parent
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None and not sys.platform.startswith("linux"),
    reason="Triton exists for Linux only",
)

START = """
import torch
from compare import close
from deepdive.kernels import equation, tiled
from deepdive.kernels.triton import _forward, triton_attention
from deepdive.masks import Causal, Everyone

def draw(seed, *shapes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]

def qkv(T, S, D, H=2, G=1, B=1, dtype=torch.float32):
    return draw(T + S + D, (B, H, T, D), (B, G, S, D), (B, G, S, D), dtype=dtype)
"""


def run(code, tmp_path, interpret="1"):
    """Run code after START in a new process; its own assertions decide."""
    env = os.environ | {
        "TRITON_INTERPRET": interpret,
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(code)],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# ── Run by the interpreter ───────────────────────────────────────────────────────────


@needs_triton
def test_float32_is_the_equation(tmp_path):
    """Causal or not, ragged, T ≠ S, windows, and every width's padding."""
    out = run(
        """
        count = 0
        for D in (5, 32, 40, 64, 80, 128):
            for T, S in ((1, 1), (1, 70), (70, 1), (65, 130), (130, 65), (64, 64)):
                if D not in (32, 80) and (T, S) not in ((65, 130), (1, 70)):
                    continue
                q, k, v = qkv(T, S, D)
                for mask in (None, Causal(), Causal(window=3), Causal(window=66)):
                    right = equation(q, k, v, mask)
                    close(triton_attention(q, k, v, mask), right, 1e-5)
                    count += 1
        print(count)
        """,
        tmp_path,
    )
    assert int(out) == 80


@needs_triton
def test_heads_batches_scales_and_layouts(tmp_path):
    run(
        """
        for G in (6, 3, 2, 1):
            q, k, v = qkv(9, 12, 32, H=6, G=G, B=2)
            for scale in (None, 1.0):
                ours = triton_attention(q, k, v, Everyone(), scale=scale)
                close(ours, equation(q, k, v, scale=scale), 1e-5)
        # as a model has them: heads cut out of (B, T, H · D)
        q, k, v = (x.transpose(1, 2) for x in draw(1, *[(2, 9, 4, 32)] * 3))
        close(triton_attention(q, k, v, Causal()), equation(q, k, v, Causal()), 1e-5)
        for T, S in ((0, 3), (3, 0), (0, 0)):
            out = triton_attention(*qkv(T, S, 32), Causal())
            assert out.shape == (1, 2, T, 32) and (out == 0).all()
        """,
        tmp_path,
    )


@needs_triton
def test_rows_without_a_key_and_lengths_that_fill_no_tile(tmp_path):
    """B24 and B26, and large numbers without NaN."""
    run(
        """
        zero, v = torch.zeros(1, 1, 5, 32), torch.arange(1.0, 6).view(1, 1, 5, 1)
        v = v.expand(1, 1, 5, 32)
        close(triton_attention(zero, zero, v), torch.full_like(v, 3.0), 1e-6)
        v = torch.tensor([10.0, 20]).view(1, 1, 2, 1).expand(1, 1, 2, 32)
        out = triton_attention(zero, zero[:, :, :2], v, Causal())
        assert out[0, 0, :, 0].tolist() == [0, 0, 0, 10, 15]
        for dtype, size in ((torch.float32, 1e4), (torch.float16, 100)):
            same = torch.full((1, 1, 70, 128), size, dtype=dtype)
            assert (triton_attention(same, same, same, Causal()) == size).all()
        """,
        tmp_path,
    )


@needs_triton
def test_half_precision_is_no_worse_than_twice_plain_torch(tmp_path):
    run(
        """
        def plain(q, k, v, mask):
            scores = q @ k.mT / q.shape[-1] ** 0.5
            return scores.masked_fill(~mask.tensor(*scores.shape[-2:]), -torch.inf
                ).softmax(-1) @ v

        for dtype in (torch.bfloat16, torch.float16):
            for seed in range(3):
                inputs = draw(seed, *[(1, 2, 70, 64)] * 3, dtype=dtype)
                right = plain(*(x.double() for x in inputs), Causal())
                out = triton_attention(*inputs, Causal())
                ours = (out.double() - right).abs().max()
                theirs = (plain(*inputs, Causal()).double() - right).abs().max()
                assert out.dtype == dtype and ours <= 2 * theirs, (ours, theirs)
        """,
        tmp_path,
    )


@needs_triton
def test_the_reason_for_the_cast_still_stands(tmp_path):
    """Once the interpreter multiplies bfloat16 rightly, the switch can go."""
    out = run(
        """
        q, k, v = draw(2, *[(1, 1, 64, 64)] * 3, dtype=torch.bfloat16)
        for cast in (True, False):
            out = torch.empty(1, 1, 64, 64, dtype=torch.float32 if cast else q.dtype)
            sums = torch.empty(1, 1, 64, 1)
            sizes = 1, 1, 64, 64, 0.125, 128
            _forward[1, 1](q, k, v, out, sums, *sizes, 64, 64, 64, 64, False, cast)
            print(float((out.float() - equation(q, k, v).float()).abs().max()))
        """,
        tmp_path,
    )
    with_cast, without = map(float, out.split())
    assert with_cast < 1e-2 < 1 < without


@needs_triton
def test_gradients_are_those_of_the_equation(tmp_path):
    run(
        """
        for mask in (None, Causal(), Causal(window=4)):
            grads = []
            for kernel in (triton_attention, equation):
                inputs = [x.requires_grad_() for x in qkv(20, 70, 40, H=4, G=2)]
                kernel(*inputs, mask).square().sum().backward()
                grads.append([x.grad for x in inputs])
            for ours, theirs in zip(*grads, strict=True):
                close(ours, theirs, 2e-5)
        """,
        tmp_path,
    )


# ── Compiled for a GPU, which needs none ─────────────────────────────────────────────


@needs_triton
@pytest.mark.parametrize(
    "dtype, width, causal",
    [
        ("bf16", 64, True),
        ("fp16", 128, False),
        ("fp32", 64, True),
        ("fp32", 128, True),
    ],
)
def test_it_compiles_for_a_gpu(dtype, width, causal, tmp_path):
    """For compute capability 8.0, whose programs may hold 163 kB of fast memory."""
    out = run(
        f"""
        import triton
        from triton.backends.compiler import GPUTarget
        from deepdive.kernels.triton import BLOCK, keys_of_a_tile

        types = dict.fromkeys(("q", "k", "v", "out"), "*{dtype}") | {{"lse": "*fp32"}}
        types |= dict.fromkeys(("H", "G", "T", "S", "window"), "i32")
        fixed = dict(D={width}, BLOCK_D={width}, BLOCK_T=BLOCK, CAUSAL={causal})
        fixed |= dict(BLOCK_S=keys_of_a_tile({width}), CAST=False)
        types |= {{"scale": "fp32"}} | dict.fromkeys(fixed, "constexpr")
        source = triton.compiler.ASTSource(_forward, types, fixed)
        made = triton.compile(source, target=GPUTarget("cuda", 80, 32))
        assert "cubin" in made.asm and made.metadata.shared <= 163 * 1024
        print("mma" in made.asm["ptx"])
        """,
        tmp_path,
        interpret="0",
    )
    assert out.split() == [str(dtype != "fp32")]  # tensor cores, but no tf32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("interpret", ["0"])
def test_on_a_gpu(interpret, tmp_path):
    run(
        """
        for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
            for D, mask in ((40, None), (64, Causal()), (128, Causal(window=70))):
                inputs = [x.cuda() for x in qkv(200, 300, D, H=4, G=2, dtype=dtype)]
                right = equation(*(x.double() for x in inputs), mask)
                close(triton_attention(*inputs, mask).double(), right, most)
        """,
        tmp_path,
        interpret,
    )


# ── Refused, with or without Triton ──────────────────────────────────────────────────

WIDE = torch.zeros(1, 1, 3, 4)
KEEP = torch.ones(1, 3).bool()


class Mine(Causal):
    """Somebody's own rule."""


REFUSED = {
    "bias": ({"bias": torch.zeros(3, 3)}, ValueError, "no bias"),
    "tensor": ({"mask": torch.ones(3, 3).bool()}, ValueError, "got Tensor"),
    "own rule": ({"mask": Mine()}, ValueError, "got Mine"),
    "padding": ({"mask": Everyone(KEEP)}, ValueError, "keep"),
    "causal padding": ({"mask": Causal(keep=KEEP)}, ValueError, "keep"),
    "prefix": ({"mask": Causal(prefix=2)}, ValueError, "prefix = 2"),
    "values": ({"v": torch.zeros(1, 1, 3, 5)}, ValueError, "q 4 and v 5"),
    "heads": ({"q": torch.zeros(1, 1, 2, 3)}, ValueError, r"\(1, 1, 2, 3\)"),
    "width": (dict.fromkeys("qkv", torch.zeros(1, 1, 1, 129)), ValueError, "129"),
    "float64": (dict.fromkeys("qkv", WIDE.double()), TypeError, "float64"),
    "list": ({"q": [[1.0]]}, TypeError, "list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_do_is_refused(case):
    changes, error, part = REFUSED[case]
    with pytest.raises(error, match=part):
        triton_attention(**({"q": WIDE, "k": WIDE, "v": WIDE} | changes))


def test_where_there_is_no_triton(monkeypatch):
    monkeypatch.setattr(module, "triton", None)
    with pytest.raises(ImportError, match=r"Linux only.*deepdive\[triton\]"):
        triton_attention(WIDE, WIDE, WIDE)


@needs_triton
def test_where_there_is_no_gpu(tmp_path):
    run(
        """
        try:
            triton_attention(*qkv(2, 2, 32))
        except ValueError as refusal:
            assert "cpu" in str(refusal) and "TRITON_INTERPRET=1" in str(refusal)
        else:
            raise AssertionError("it ran on the CPU")
        """,
        tmp_path,
        interpret="0",
    )


def test_importing_the_kernels_imports_no_triton():
    code = "import sys, deepdive.kernels; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
