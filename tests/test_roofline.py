# SPDX-License-Identifier: MIT
"""Does the paper roofline give what a calculation by hand gives?"""

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepdive.accounting import decode_bytes, flops, kv_bytes, parameters
from deepdive.configs import (
    BERT_BASE,
    DEEPSEEK_V3,
    LLAMA_3_8B,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    SMOLLM2_135M,
    T5_SMALL,
    AttentionConfig,
    LlamaConfig,
)
from deepdive.roofline import H200, Machine, decode_step, largest_batch

CONTEXT = 2**15
MULTI_HEAD = dataclasses.replace(LLAMA_3_8B, n_kv_heads=32)
LATENT = 32 * (512 + 64)  # numbers of a word, of 32 layers like DeepSeek's


def published(step) -> tuple[float, int, int]:
    """Milliseconds, words per second, and the cache's share in per cent."""
    share = round(100 * step.cache_share)
    return round(1e3 * step.seconds, 1), round(step.tokens_per_second), share


def test_one_gpu_reads_the_weights_for_one_text():
    step = decode_step(LLAMA_3_8B, H200, CONTEXT)
    assert published(step) == (4.5, 223, 22)


def test_a_batch_shares_the_weights_until_the_memory_is_full():
    weights = 2 * parameters(LLAMA_3_8B)["total"]
    assert round(weights / 1e9, 2) == 16.06
    assert round(kv_bytes(LLAMA_3_8B, CONTEXT) / 1e9, 3) == 4.295
    assert largest_batch(LLAMA_3_8B, H200, CONTEXT) == 29
    assert published(decode_step(LLAMA_3_8B, H200, CONTEXT, batch=29)) == (
        32.5,
        893,
        89,
    )


def test_a_head_of_keys_and_values_for_every_head_of_queries():
    most = largest_batch(MULTI_HEAD, H200, CONTEXT)
    step = decode_step(MULTI_HEAD, H200, CONTEXT, most)
    assert (most, round(step.tokens_per_second)) == (7, 220)


def test_a_cache_as_small_as_latent_attentions():
    most = largest_batch(LLAMA_3_8B, H200, CONTEXT, kept=LATENT)
    at = [decode_step(LLAMA_3_8B, H200, CONTEXT, B, kept=LATENT) for B in (64, most)]
    assert most == 103
    assert [round(step.tokens_per_second) for step in at] == [2981, 3177]


@pytest.mark.parametrize("config", [LLAMA_3_8B, MISTRAL_7B, MIXTRAL_8X7B, DEEPSEEK_V3])
@pytest.mark.parametrize(("seen", "batch"), [(0, 1), (5000, 3)])
def test_a_step_is_what_accounting_counts(config, seen, batch):
    step = decode_step(config, H200, seen, batch)
    read = decode_bytes(config, seen, batch)
    assert (step.weights, step.cache) == (read["weights"], read["cache"])
    assert step.flops == flops(config, 1, seen, batch=batch)["total"]
    slower = max(step.flops / 790e12, sum(read.values()) / 4.3e12)
    assert step.seconds == pytest.approx(slower, rel=1e-12)
    assert step.intensity == step.flops / sum(read.values())


def test_as_many_numbers_as_the_configs_own_change_nothing():
    own = 2 * 32 * 8 * 128
    assert decode_step(LLAMA_3_8B, H200, 99, 3, kept=own) == decode_step(
        LLAMA_3_8B, H200, 99, 3
    )
    for machine in (H200, Machine(1.0, 1.0, 17e9)):
        assert largest_batch(LLAMA_3_8B, machine, 99, kept=own) == largest_batch(
            LLAMA_3_8B, machine, 99
        )


def test_an_encoders_text_is_remembered_and_not_read_again():
    one, two = (decode_step(T5_SMALL, H200, 10, source=n) for n in (5, 6))
    assert two.weights == one.weights
    assert two.cache - one.cache == kv_bytes(T5_SMALL, 1)
    assert largest_batch(T5_SMALL, H200, 10, source=10) == pytest.approx(
        largest_batch(T5_SMALL, H200, 20), abs=1
    )


def test_wider_numbers_take_twice_the_time_and_half_the_texts():
    slow, fast = (
        decode_step(SMOLLM2_135M, H200, 99, bytes_per_number=n) for n in (4, 2)
    )
    assert slow.seconds == 2 * fast.seconds
    machine = Machine(1.0, 1.0, memory=2 * parameters(SMOLLM2_135M)["total"])
    assert largest_batch(SMOLLM2_135M, machine, 99) == 0
    assert largest_batch(SMOLLM2_135M, machine, 99, bytes_per_number=4) == 0


@given(st.integers(0, 4000), st.integers(1, 60), st.sampled_from([4e9, 20e9, 141e9]))
def test_the_largest_batch_fits_and_one_more_does_not(seen, extra, memory):
    machine = Machine(1e12, 1e9, memory)
    most = largest_batch(SMOLLM2_135M, machine, seen + 1)
    weights = 2 * parameters(SMOLLM2_135M)["total"]
    sizes = [
        weights + kv_bytes(SMOLLM2_135M, seen + 1, batch=most + n)
        for n in (0, 1, extra)
    ]
    assert sizes[0] <= memory < sizes[1] <= sizes[2]


def test_a_window_bounds_what_a_text_takes():
    at = [largest_batch(MISTRAL_7B, H200, n) for n in (4096, 8192)]
    assert at[0] == at[1] > largest_batch(LLAMA_3_8B, H200, 8192)


def test_both_limits_meet_at_the_ridge():
    machine = Machine(flops_per_second=60.0, bytes_per_second=4.0)
    assert machine.ridge == 15.0
    assert machine.attainable(15.0) == 60.0
    assert [machine.attainable(x) for x in (0.5, 5.0, 30.0, 300.0)] == [2, 20, 60, 60]


def test_operations_are_the_limit_where_bytes_are_cheap():
    machine = Machine(1.0, 1e18)
    step = decode_step(LLAMA_3_8B, machine, 7)
    assert step.seconds == step.flops == flops(LLAMA_3_8B, 1, seen=7)["total"]


SMALL = LlamaConfig(11, 8, 2, 4, 2, 12)
HERE = Machine(1.0, 1.0, 1e6)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: Machine(0, 1), ValueError, "flops_per_second must be > 0 and finite"),
        (lambda: Machine(1, float("inf")), ValueError, "bytes_per_second must be > 0"),
        (lambda: Machine(1, 1, float("nan")), ValueError, "memory must be > 0"),
        (lambda: Machine(1, "2"), TypeError, "bytes_per_second must be a number"),
        (lambda: Machine(True, 2), TypeError, "flops_per_second must be a number"),
        (lambda: HERE.attainable(0), ValueError, "intensity must be > 0, got 0"),
        (lambda: decode_step(SMALL, 3, 5), TypeError, "must be a Machine, got int"),
        (lambda: decode_step(SMALL, HERE, 5, 0), ValueError, "batch must be ≥ 1"),
        (lambda: decode_step(SMALL, HERE, 5, 1.5), TypeError, "batch must be an int"),
        (lambda: decode_step(SMALL, HERE, -5), ValueError, "seen must be ≥ 0"),
        (lambda: decode_step(SMALL, HERE, 5, kept=-1), ValueError, "kept must be ≥ 0"),
        (lambda: decode_step(SMALL, HERE, 5, source=1), ValueError, "no encoder"),
        (lambda: decode_step(BERT_BASE, HERE, 5), TypeError, "decodes nothing"),
        (
            lambda: decode_step(AttentionConfig(), HERE, 5),
            TypeError,
            "a model's config",
        ),
        (lambda: largest_batch(SMALL, None, 5), TypeError, "must be a Machine"),
        (lambda: largest_batch(SMALL, HERE, 0), ValueError, "any number of texts"),
        (lambda: largest_batch(SMALL, HERE, 5, kept=0), ValueError, "any number"),
        (lambda: largest_batch(SMALL, Machine(1, 1), 5), ValueError, "has inf"),
        (lambda: largest_batch(SMALL, HERE, 5, kept=True), TypeError, "kept must be"),
    ],
)
def test_wrong_input(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_no_torch_is_needed():
    program = (
        "import sys, deepdive.roofline as r, deepdive.configs as c; "
        "r.decode_step(c.DEEPSEEK_V3, r.H200, 99); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
