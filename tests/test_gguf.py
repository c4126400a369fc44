# SPDX-License-Identifier: MIT
"""GGUF files give the numbers that the package `gguf` gives, or one plain error.

`golden/gguf.gguf` was written, and `golden/gguf.json` read back from it, by the package
gguf 0.19.0.
"""

import json
import os
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepdive.pretrained.files import WeightsMissing, find
from deepdive.pretrained.gguf import Packed, read_gguf, tokenizer_from_gguf
from deepdive.tokenizers import chat_prompt

FILE = Path(__file__).parent / "golden/gguf.gguf"
GOLDEN = json.loads(FILE.with_suffix(".json").read_text(encoding="utf-8"))


def test_the_settings_are_those_that_were_written():
    metadata, _ = read_gguf(FILE)
    assert metadata == GOLDEN["metadata"]
    assert [type(v) for v in metadata.values()] == [
        type(v) for v in GOLDEN["metadata"].values()
    ]


@pytest.mark.parametrize("name", GOLDEN["tensors"])
def test_a_tensor_is_the_reference_packages_to_the_bit(name):
    _, tensors = read_gguf(FILE)
    expected = GOLDEN["tensors"][name]
    assert tensors.packed[name].kind.name == expected["kind"]
    assert torch.equal(tensors[name], torch.tensor(expected["values"]))
    assert tensors[name].dtype == torch.float32


def test_tensors_are_a_mapping_and_belong_to_their_reader():
    _, tensors = read_gguf(FILE)
    assert list(tensors) == list(GOLDEN["tensors"]) and len(tensors) == 6
    with pytest.raises(KeyError):
        tensors["nowhere"]
    tensors["plain"].zero_()  # its own copy, writable
    assert tensors["plain"].any()


# ---------------------------------------------------------- the three ways to quantise

half = st.floats(-60000, 60000, width=16)


def written(path, kind: int, blocks: bytes, weights: int) -> Path:
    """A GGUF file with one tensor and no settings."""
    name = b"w"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0)
    head += struct.pack("<Q1sIQIQ", len(name), name, 1, weights, kind, 0)
    path.write_bytes(head + bytes(-len(head) % 32) + blocks)
    return path


def nibbles(q):
    return bytes(a | b << 4 for a, b in zip(q[:16], q[16:], strict=True))


@settings(deadline=None, max_examples=40)
@given(half, half, st.lists(st.integers(0, 15), min_size=32, max_size=32))
def test_four_bits_by_the_formula(tmp_path_factory, d, m, q):
    path = tmp_path_factory.getbasetemp() / "four.gguf"
    block = struct.pack("<e", d) + nibbles(q)
    w = read_gguf(written(path, 2, block * 2, 64)).tensors["w"]
    assert w.tolist() == [np.float32(d) * (n - 8) for n in q] * 2
    block = struct.pack("<ee", d, m) + nibbles(q)
    w = read_gguf(written(path, 3, block * 2, 64)).tensors["w"]
    assert w.tolist() == [np.float32(d) * np.float32(n) + np.float32(m) for n in q] * 2


@settings(deadline=None, max_examples=40)
@given(half, st.lists(st.integers(-128, 127), min_size=32, max_size=32))
def test_eight_bits_by_the_formula(tmp_path_factory, d, q):
    path = tmp_path_factory.getbasetemp() / "eight.gguf"
    block = struct.pack("<e32b", d, *q)
    w = read_gguf(written(path, 8, block, 32)).tensors["w"]
    assert w.tolist() == [np.float32(d) * np.float32(n) for n in q]


# ------------------------------------------------------------------- files that do not


def test_a_file_cut_anywhere_is_refused(tmp_path):
    whole = FILE.read_bytes()
    path = tmp_path / "cut.gguf"
    last = max(p.start + p.nbytes for p in read_gguf(FILE).tensors.packed.values())
    for n in [*range(0, len(whole) - 40, 7), last - 1]:
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match=r"ends at byte|not a GGUF"):
            read_gguf(path)


def test_damaged_bytes_give_an_error_or_other_numbers_never_a_crash(tmp_path):
    whole, path = FILE.read_bytes(), tmp_path / "damaged.gguf"
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(250):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            data[random.integers(len(data))] = random.integers(256)
        path.write_bytes(data)
        try:
            _, tensors = read_gguf(path)
            assert all(tensors[name].dtype == torch.float32 for name in tensors)
        except ValueError:
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"", "ends at byte 0"),
        (b"PK\3\4" + bytes(20), "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1; versions 2 and 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "version 50331648"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 9, 1), "of arrays"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"a", 77), "unknown type 77"),
        (struct.pack("<4sIQQQ2sI", b"GGUF", 3, 0, 1, 2, b"\xff\xff", 7), "utf-8"),
    ],
)
def test_what_is_no_gguf_is_named(tmp_path, data, named):
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(ValueError) as error:
        read_gguf(path)
    assert named in str(error.value) and "odd.gguf" in str(error.value)


def test_a_way_to_store_that_is_not_read_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"w is stored as Q4_K \(12\), .* F32, F16, Q4_0"
    ):
        read_gguf(written(tmp_path / "k.gguf", 12, bytes(200), 256))
    with pytest.raises(ValueError, match=r"stored as type \(99\)"):
        read_gguf(written(tmp_path / "k.gguf", 99, bytes(200), 256))
    with pytest.raises(ValueError, match=r"shape \(33,\) as Q8_0"):
        read_gguf(written(tmp_path / "k.gguf", 8, bytes(200), 33))
    with pytest.raises(ValueError, match=r"ends at byte 97, inside tensor w"):
        read_gguf(written(tmp_path / "k.gguf", 8, bytes(33), 32))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_gguf(tmp_path / "nowhere")


# --------------------------------------------------------------------- its tokenizer


def settings_of(pieces, merges, special, pre="smollm", **more):
    name = "tokenizer.ggml."
    given_ = {
        "model": "gpt2", "pre": pre, "tokens": pieces, "merges": merges,
        "token_type": [3 if p in special else 1 for p in pieces],
    }  # fmt: skip
    return {name + key: value for key, value in (given_ | more).items()}


PIECES = ["<end>", "1", "2", "3", "Ġ", "a", "b", "ab", "12", "Ġab"]
MERGES = ["a b", "1 2", "Ġ ab"]


def test_a_tokenizer_is_read_from_the_settings():
    metadata = settings_of(
        PIECES, MERGES, ["<end>"], eos_token_id=0, eot_token_id=0, padding_token_id=7
    )
    tokenizer = tokenizer_from_gguf(metadata)
    assert tokenizer.tokens("ab ab 123<end>") == [
        "ab", "Ġab", "Ġ", "1", "2", "3", "<end>",
    ]  # fmt: skip
    assert (tokenizer.end_ids, tokenizer.pad_id, tokenizer.vocab_size) == ((0,), 7, 10)
    assert tokenizer.decode(tokenizer.encode("ab 12<end>").ids[0]) == "ab 12"
    words = tokenizer_from_gguf(settings_of(PIECES, MERGES, ["<end>"], "gpt-2"))
    assert words.tokens("ab 123") == ["ab", "Ġ", "12", "3"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "llama"}, "'llama'"),
        ({"pre": "qwen2"}, "'qwen2'"),
        ({"add_bos_token": True}, "add_bos_token"),
    ],
)
def test_another_tokenizer_is_refused_by_name(change, named):
    with pytest.raises(ValueError, match=named):
        tokenizer_from_gguf(settings_of(PIECES, MERGES, []) | {
            f"tokenizer.ggml.{key}": value for key, value in change.items()
        })  # fmt: skip
    with pytest.raises(ValueError, match=r"lack|no tokenizer\.ggml\.model"):
        tokenizer_from_gguf({})


# ------------------------------------------------------------------ the packaged file


@pytest.fixture(scope="module")
def smollm2():
    """The real file; without it these tests skip, but in CI they fail."""
    try:
        folder = find("smollm2")
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return read_gguf(next(Path(folder).glob("*.gguf")))


@pytest.mark.weights
def test_the_packaged_file_is_read_whole(smollm2):
    metadata, tensors = smollm2
    kinds = Counter(packed.kind.name for packed in tensors.packed.values())
    assert kinds == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    sizes = [np.prod(packed.shape) for packed in tensors.packed.values()]
    assert sum(sizes) == 134_515_008
    assert isinstance(tensors.packed["token_embd.weight"], Packed)
    assert tensors.packed["token_embd.weight"].shape == (49_152, 576)
    assert metadata["llama.rope.freq_base"] == 100_000
    for name in ("token_embd.weight", "blk.17.attn_q.weight", "output_norm.weight"):
        assert tensors[name].isfinite().all() and 0 < tensors[name].std() < 10


@pytest.mark.weights
def test_the_packaged_tokenizer_and_its_chat_template(smollm2):
    jinja2 = pytest.importorskip("jinja2")
    metadata, _ = smollm2
    tokenizer = tokenizer_from_gguf(metadata)
    assert (tokenizer.vocab_size, tokenizer.end_ids) == (49_152, (2,))
    text = "Attention in 2017: naïve 🙂\n\tcats chase 12345 mice  "
    assert tokenizer.decode(tokenizer.encode(text).ids[0]) == text
    assert tokenizer.tokens("in 2017") == ["in", "Ġ", "2", "0", "1", "7"]
    template = jinja2.Template(metadata["tokenizer.chat_template"])
    user = {"role": "user", "content": "Hi"}
    talk = [user, {"role": "assistant", "content": " Yes?\n"}, user]
    for messages in ([user], talk, [{"role": "system", "content": "Sing."}, *talk]):
        for answer in (True, False):
            expected = template.render(messages=messages, add_generation_prompt=answer)
            assert chat_prompt(messages, answer) == expected
    ids = tokenizer.encode(chat_prompt([user])).ids[0].tolist()
    assert ids[:2] == [1, 9690] and ids.count(2) == 2  # start, system; two ends
