# SPDX-License-Identifier: MIT
"""BERT and MiniLM equal Hugging Face's `transformers` on the same files; files that do
not fit are refused; pickles run nothing; a removed head is gone and comes back.
"""

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from deepdive.ablation import ablate
from deepdive.attention import record
from deepdive.pretrained import (
    WeightsMissing,
    load_bert,
    load_masked_lm,
    load_pickle,
    load_tensors,
    sentence_embedding,
    similarity,
)
from deepdive.pretrained.bert import _HEAD, _with_old_names
from deepdive.pretrained.files import find
from deepdive.pretrained.huggingface import renamed

TEXTS = [
    "cats chase mice",
    "she sat by the river bank",
    "unaffable tokenization of an über-long señor’s sentence, with 3.14 and emoji 🙂!",
    "a",
]


def hugging_face(folder, dtype=torch.float32):
    """`transformers`' own model of a folder, with weights it lets us see."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    model = transformers.BertModel.from_pretrained(
        folder, attn_implementation="eager", dtype=dtype
    )
    return model.eval()


@torch.no_grad()
def everything(model, ids, segments, keep):
    """Hidden states after the embeddings and each block, weights, pooled output."""
    hidden, hooks = [], []
    for part in (model.embeddings, *model.blocks):
        hooks.append(part.register_forward_hook(lambda m, a, out: hidden.append(out)))
    with record(model) as seen:
        model(ids, segments, keep)
    for hook in hooks:
        hook.remove()
    weights = [seen[f"blocks.{i}.attention"] for i in range(len(model.blocks))]
    return hidden, weights, model.pooled(hidden[-1])


@torch.no_grad()
def compare(model, theirs, ids, segments, keep) -> dict[str, float]:
    """The largest difference of each kind, at the kept positions."""
    hidden, weights, pooled = everything(model, ids, segments, keep)
    out = theirs(
        ids, attention_mask=keep.long(), token_type_ids=segments,
        output_hidden_states=True, output_attentions=True,
    )  # fmt: skip
    assert len(hidden) == len(out.hidden_states)
    assert len(weights) == len(out.attentions)
    rows = keep[:, None, :, None]
    return {
        "hidden": max(
            float((a - b)[keep].abs().max())
            for a, b in zip(hidden, out.hidden_states, strict=True)
        ),
        "weights": max(
            float(((a - b) * rows).abs().max())
            for a, b in zip(weights, out.attentions, strict=True)
        ),
        "pooled": float((pooled - out.pooler_output).abs().max()),
    }


# ------------------------------------------------------------ MiniLM, the real weights


@pytest.fixture(scope="module")
def minilm():
    """The real model; without its files these tests skip, but in CI they fail."""
    from deepdive import pretrained

    try:
        return pretrained.minilm()
    except WeightsMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_minilm_equals_transformers(minilm):
    model, tokenizer = minilm
    batch = tokenizer.encode(TEXTS)
    assert not batch.keep.all() and len(set(batch.keep.sum(1).tolist())) == len(TEXTS)
    far = compare(model, hugging_face(find("minilm")), *batch)
    assert max(far.values()) <= 1e-5, far


def test_minilm_cuts_words_as_its_authors_tokenizer_does(minilm):
    transformers = pytest.importorskip("transformers")
    _, tokenizer = minilm
    theirs = transformers.AutoTokenizer.from_pretrained(find("minilm"))
    for text in TEXTS:
        assert tokenizer.encode(text).ids[0].tolist() == theirs(text)["input_ids"]
    pair = ("cats chase mice", "mice flee")
    ids, segments, _ = tokenizer.encode(pair)
    assert ids[0].tolist() == theirs(*pair)["input_ids"]
    assert segments[0].tolist() == theirs(*pair)["token_type_ids"]
    assert tokenizer.tokens("unaffable tokenization")[1:-1] == [
        "una", "##ffa", "##ble", "token", "##ization",
    ]  # fmt: skip


def test_minilm_knows_what_belongs_together(minilm):
    food, bread, baby = (
        "A man is eating food.",
        "A man is eating a piece of bread.",
        "The girl is carrying a baby.",
    )
    cosines = similarity(sentence_embedding(*minilm, [food, bread, baby]))
    assert cosines[0, 1] == pytest.approx(0.7553, abs=5e-5)
    assert cosines[0, 2] == pytest.approx(-0.1050, abs=5e-5)
    assert cosines.diagonal() == pytest.approx(torch.ones(3), abs=1e-6)


def test_an_embedding_does_not_depend_on_its_neighbours_padding(minilm):
    together = sentence_embedding(*minilm, TEXTS)
    for i, text in enumerate(TEXTS):
        alone = sentence_embedding(*minilm, text)
        assert (together[i] - alone[0]).abs().max() < 1e-6
    assert together.norm(dim=1) == pytest.approx(torch.ones(len(TEXTS)), abs=1e-6)


def test_a_text_beyond_the_position_table_is_refused(minilm):
    with pytest.raises(ValueError, match=r"text 0 has 602 pieces.*limit is 512"):
        sentence_embedding(*minilm, "cats " * 600)


# ------------------------------------------------------- random models, any HF folder


def random_folder(folder, seed, **changes):
    """A small random BERT as `transformers` saves it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = dict(
        vocab_size=50 + seed, hidden_size=24, num_hidden_layers=3,
        num_attention_heads=4, intermediate_size=40, max_position_embeddings=16,
        layer_norm_eps=1e-7, initializer_range=0.5,
    )  # fmt: skip
    config = transformers.BertConfig(**sizes)
    model = transformers.BertModel(config).double()
    for (
        tensor
    ) in model.parameters():  # biases and norms too: zeros and ones hide faults
        torch.nn.init.normal_(tensor, std=0.5)
    model.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize("seed", range(3))
def test_a_random_bert_equals_transformers_in_float64(tmp_path, seed):
    folder = random_folder(tmp_path, seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(50, (3, 9), generator=generator)
    segments = torch.randint(2, (3, 9), generator=generator)
    keep = torch.arange(9) < torch.tensor([[9], [4], [1]])
    theirs = hugging_face(folder, torch.float64)
    far = compare(load_bert(folder, torch.float64), theirs, ids, segments, keep)
    assert max(far.values()) <= 1e-9, far


def test_shards_prefixes_old_names_and_buffers_are_understood(tmp_path):
    folder = random_folder(tmp_path, 0)
    whole = load_bert(folder, torch.float64).state_dict()
    tensors = load_file(folder / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {"bert.embeddings.position_ids": torch.arange(16)}
    for name, tensor in tensors.items():
        for new, before in old.items():
            name = name.replace(new, before)
        renamed[f"bert.{name}"] = tensor
    (folder / "model.safetensors").unlink()
    places = {n: f"part-{i % 2}.safetensors" for i, n in enumerate(sorted(renamed))}
    for shard in set(places.values()):
        part = {n: t for n, t in renamed.items() if places[n] == shard}
        save_file(part, folder / shard)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    again = load_bert(folder, torch.float64).state_dict()
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[n], again[n]) for n in whole)
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"part-1\.safetensors"):
        load_bert(folder)
    index.write_text(json.dumps({"weight_map": {"a": "../part-0.safetensors"}}))
    with pytest.raises(FileNotFoundError, match=r"\.\./part-0"):
        load_bert(folder)


def random_masked_lm(folder, seed, kind="BertForMaskedLM"):
    """A small random BERT with its head, as `transformers` saves it, and itself."""
    transformers = pytest.importorskip("transformers")
    random_folder(folder, seed)
    config = transformers.BertConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).double().eval()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.5)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
@pytest.mark.parametrize("seed", range(3))
def test_a_masked_lm_equals_transformers_in_float64(tmp_path, seed):
    theirs = random_masked_lm(tmp_path, seed)
    ours = load_masked_lm(tmp_path, torch.float64)
    ids = torch.randint(50, (3, 9), generator=torch.Generator().manual_seed(seed))
    keep = torch.arange(9) < torch.tensor([[9], [4], [1]])
    logits = theirs(ids, attention_mask=keep.long()).logits
    assert (ours(ids, keep=keep) - logits)[keep].abs().max() <= 1e-9
    assert ours.output.weight is ours.bert.embeddings.token.weight
    with pytest.raises(AttributeError, match="pooler"):  # the file has none
        ours.bert.pooled(ours.bert(ids))


@torch.no_grad()
def test_a_pretraining_file_gives_head_or_encoder_when_told_what_to_ignore(tmp_path):
    theirs = random_masked_lm(tmp_path, 0, "BertForPreTraining")
    with pytest.raises(ValueError, match=r"unknown \(2\): cls\.seq_relationship\.bias"):
        load_masked_lm(tmp_path)
    with pytest.raises(ValueError, match=r"unknown \(7\): cls\.predictions\.bias"):
        load_bert(tmp_path)
    next_sentence = ("cls.seq_relationship.",)
    ours = load_masked_lm(tmp_path, torch.float64, ignoring=next_sentence)
    encoder = load_bert(tmp_path, torch.float64, ignoring=("cls.",))
    ids = torch.arange(8)[None]
    hidden = theirs.bert(ids)
    for bert in (ours.bert, encoder):
        x = bert(ids)
        assert (x - hidden.last_hidden_state).abs().max() <= 1e-9
        assert (bert.pooled(x) - hidden.pooler_output).abs().max() <= 1e-9
    tensors = load_file(tmp_path / "model.safetensors")
    matrix = tensors["bert.embeddings.word_embeddings.weight"]
    for copy, fits in ((matrix.clone(), True), (matrix + 1, False)):
        tensors["cls.predictions.decoder.weight"] = copy
        save_file(tensors, tmp_path / "model.safetensors")
        if fits:
            assert load_masked_lm(tmp_path, ignoring=next_sentence)
            continue
        with pytest.raises(ValueError, match="differ"):
            load_masked_lm(tmp_path, ignoring=next_sentence)


def test_one_error_lists_every_tensor_that_does_not_fit(tmp_path):
    folder = random_folder(tmp_path, 0)
    tensors = load_file(folder / "model.safetensors")
    tensors["encoder.layer.7.output.dense.bias"] = torch.zeros(24)
    tensors["cls.predictions.bias"] = torch.zeros(50)
    del tensors["pooler.dense.bias"], tensors["encoder.layer.1.output.dense.weight"]
    tensors["embeddings.LayerNorm.weight"] = torch.zeros(25)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError) as error:
        load_bert(folder)
    message = str(error.value)
    for part in (
        "unknown (2): cls.predictions.bias, encoder.layer.7.output.dense.bias",
        "missing (2): blocks.1.feedforward.down.weight, pooler.bias",
        "wrong shape (1): embeddings.norm.weight is (25,), expected (24,)",
    ):
        assert part in message


def test_one_name_given_twice_is_not_chosen_between(tmp_path):
    folder = random_folder(tmp_path, 0)
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"] = torch.zeros(24)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"pooler\.dense\.bias .*differ.* pooler\.bias"
    ):
        load_bert(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_act": "gelu_new"}, "hidden_act = 'gelu_new'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"model_type": "roberta"}, "model_type = 'roberta'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"num_attention_heads": 5}, "d_model 24 is not a multiple of n_heads 5"),
    ],
)
def test_a_config_that_bert_does_not_compute_is_refused_by_name(
    tmp_path, change, named
):
    folder = random_folder(tmp_path, 0, **change)
    with pytest.raises(ValueError) as error:
        load_bert(folder)
    assert named in str(error.value)


def test_a_config_without_a_size_and_damaged_or_absent_files(tmp_path):
    folder = random_folder(tmp_path, 0)
    config = json.loads((folder / "config.json").read_text())
    del config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="hidden_size is missing"):
        load_bert(folder)
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 24}))
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-9])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        load_bert(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors"):
        load_bert(folder)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load_bert(folder / "nowhere")


def test_similarity_is_the_cosine():
    a = torch.tensor([[3.0, 4.0], [1.0, 0.0]])
    assert similarity(a).tolist() == pytest.approx(
        [pytest.approx([1.0, 0.6]), pytest.approx([0.6, 1.0])]
    )
    assert similarity(a, 2 * a[:1]).shape == (2, 1)
    with pytest.raises(ValueError, match=r"\(2, 2\) and \(2, 3\)"):
        similarity(a, torch.ones(2, 3))


# ------------------------------------------------------------------- removing a head


def test_a_removed_head_contributes_nothing_and_comes_back(tmp_path):
    model = load_bert(random_folder(tmp_path, 0), torch.float64)
    ids = torch.arange(6)[None]
    whole = model(ids)
    with ablate(model, 1, 2):
        without = model(ids)
    assert torch.equal(model(ids), whole)
    assert not torch.allclose(without, whole)
    columns = slice(2 * 6, 3 * 6)  # head 2 of width 6, as W_O sees it
    model.blocks[1].attention.o_proj.weight.data[:, columns] = 0
    assert torch.equal(model(ids), without)


def test_removals_nest_and_end_on_errors(tmp_path):
    model = load_bert(random_folder(tmp_path, 0), torch.float64)
    ids = torch.arange(6)[None]
    whole = model(ids)
    with ablate(model, 0, 0), ablate(model, 0, 1), ablate(model, 0, 2):
        with ablate(model, 0, 3):
            none = model(ids)
        three = model(ids)
    assert not torch.allclose(none, three)
    with pytest.raises(RuntimeError), ablate(model, 0, 0):
        raise RuntimeError
    assert torch.equal(model(ids), whole)


@pytest.mark.parametrize("place", [(3, 0), (0, 4), (-1, 0), (0, True), (0, 1.0)])
def test_a_head_that_does_not_exist_is_named(tmp_path, place):
    model = load_bert(random_folder(tmp_path, 0))
    with pytest.raises(ValueError, match="must be one of 0 …"), ablate(model, *place):
        pass


# --------------------------------------------------------------------------- pickles


class Evil:
    """Runs a command when it is read by an ordinary unpickler."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"echo run > {self.trace}",)


class Vocabulary:
    """What the pickle below holds; its reader gets `Stub` instead."""


class Stub:
    """An empty class of the reader's own."""


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_malicious_pickle_is_refused_unrun(tmp_path, protocol):
    trace = tmp_path / "trace"
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"words": [Evil(trace)]}, protocol))
    with pytest.raises(pickle.UnpicklingError, match=r"(posix|nt)\.system"):
        load_pickle(path, {"tests.Vocabulary": Stub})
    assert not trace.exists()
    pickle.loads(path.read_bytes())
    assert trace.exists()  # the pickle does run when nobody looks


# Older protocols write bytes and objects through helper functions: refused, too.
@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_named_stubs_and_plain_containers_are_read(tmp_path, protocol):
    from collections import OrderedDict

    words = Vocabulary()
    words.index = {"cats": 1, "mice": (2, 3.5, None, b"x", {4}, frozenset({5}))}
    words.order = OrderedDict(a=1 + 2j)
    path = tmp_path / "words.pkl"
    path.write_bytes(pickle.dumps(words, protocol))
    got = load_pickle(path, {f"{__name__}.Vocabulary": Stub})
    assert type(got) is Stub and got.__dict__ == words.__dict__
    with pytest.raises(pickle.UnpicklingError, match="Vocabulary"):
        load_pickle(path)


def test_a_name_is_compared_whole(tmp_path):
    path = tmp_path / "dotted.pkl"
    path.write_bytes(b"\x80\x04\x8c\x08builtins\x8c\x0cset.__init__\x93.")
    with pytest.raises(pickle.UnpicklingError, match=r"set\.__init__"):
        load_pickle(path)
    with pytest.raises(TypeError, match="must be a class"):
        load_pickle(path, {"a.B": print})
    path.write_bytes(b"\x80\x04")
    with pytest.raises(pickle.UnpicklingError):
        load_pickle(path)


def test_torch_files_give_tensors_only(tmp_path):
    good, bad, trace = (tmp_path / n for n in ("good.pt", "bad.pt", "trace"))
    torch.save({"w": torch.ones(2), "names": ["a"]}, good)
    assert load_tensors(good)["w"].tolist() == [1, 1]
    torch.save({"w": Evil(trace)}, bad)
    with pytest.raises(pickle.UnpicklingError) as error:
        load_tensors(bad)
    assert "system" in str(error.value)
    assert "weights_only=False" not in str(error.value)
    assert not trace.exists()


def test_a_file_of_something_else_is_named(tmp_path):
    path = tmp_path / "my.txt"
    path.write_text("no tensors", encoding="utf-8")
    with pytest.raises(pickle.UnpicklingError, match=r"my\.txt"):
        load_tensors(path)


def test_a_masked_lm_s_gradients_equal_transformers(tmp_path):
    theirs = random_masked_lm(tmp_path, 0)
    ours = load_masked_lm(tmp_path, torch.float64)
    # From 1 on: their table of words has no gradient in row 0, the padding.
    ids, keep = torch.arange(1, 9)[None], torch.arange(8)[None] < 6
    labels = torch.randint(50, (6,), generator=torch.Generator().manual_seed(1))
    loss = torch.nn.functional.cross_entropy
    loss(theirs(ids, attention_mask=keep.long()).logits[keep], labels).backward()
    loss(ours(ids, keep=keep)[keep], labels).backward()
    grads = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    wanted = renamed(grads, _with_old_names(_HEAD), "bert.").tensors
    mine = dict(ours.named_parameters())
    assert len(wanted) >= len(mine) - 1
    for name, parameter in mine.items():
        expected = wanted[name] if name in wanted else wanted["output.weight"]
        assert (parameter.grad - expected).abs().max() <= 1e-9, name
