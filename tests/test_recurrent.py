# SPDX-License-Identifier: MIT
"""The recurrent cells equal torch's; reading and writing obey their laws."""

import copy

import pytest
import torch
from compare import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deepdive.recurrent import (
    BahdanauAttention,
    Carry,
    Decoder,
    ElmanCell,
    Encoded,
    Encoder,
    GruCell,
    LstmCell,
    Seq2Seq,
    TiedHead,
    record_alignment,
    unroll,
)

KINDS = {
    "elman": (ElmanCell, nn.RNNCell, nn.RNN),
    "gru": (GruCell, nn.GRUCell, nn.GRU),
    "lstm": (LstmCell, nn.LSTMCell, nn.LSTM),
}
SOURCE, TARGET = 11, 13  # words


@pytest.fixture(autouse=True)
def double():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def theirs_of(cell, theirs, suffix=""):
    """Copy a cell's weights into torch's class."""
    with torch.no_grad():
        for ours, name in (("x_proj", "ih"), ("h_proj", "hh")):
            for kind in ("weight", "bias"):
                place = getattr(theirs, f"{kind}_{name}{suffix}")
                place.copy_(getattr(getattr(cell, ours), kind))
    return theirs


def split(cell, state):
    """Our one tensor as torch's state of one or two."""
    return tuple(state.chunk(2, -1)) if isinstance(cell, LstmCell) else state


def joined(cell, state):
    return torch.cat(state, -1) if isinstance(cell, LstmCell) else state


def lengths_to_keep(lengths, S):
    return torch.arange(S) < torch.tensor(lengths)[:, None]


# ── Cells ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_cell_equals_torchs(kind, seed):
    torch.manual_seed(seed)
    ours, theirs, _ = KINDS[kind]
    cell = ours(5, 7)
    reference = theirs_of(cell, theirs(5, 7))
    x, state = torch.randn(4, 5), torch.randn(4, cell.d_state)
    close(cell(x, state), joined(cell, reference(x, split(cell, state))), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backwards", [False, True])
def test_a_whole_sequence_and_its_gradients_equal_torchs(kind, backwards):
    ours, _, theirs = KINDS[kind]
    cell = ours(5, 7)
    reference = theirs_of(cell, theirs(5, 7, batch_first=True), "_l0")
    a = torch.randn(3, 6, 5, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    state = torch.randn(3, cell.d_state)
    states = unroll(cell, a, state, backwards=backwards)
    first = split(cell, state[None])
    out, last = reference(b.flip(1) if backwards else b, first)
    close(cell.read(states), out.flip(1) if backwards else out, 1e-12)
    close(states[:, 0 if backwards else -1], joined(cell, last)[0], 1e-12)
    cell.read(states).pow(2).sum().backward()
    out.pow(2).sum().backward()
    close(a.grad, b.grad, 1e-12, "gradient of the input")
    for name, place in (("x_proj", "ih"), ("h_proj", "hh")):
        close(
            getattr(cell, name).weight.grad,
            getattr(reference, f"weight_{place}_l0").grad,
        )
        close(
            getattr(cell, name).bias.grad, getattr(reference, f"bias_{place}_l0").grad
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_batch_equals_torchs_packed_one_in_both_directions(kind):
    ours, _, theirs = KINDS[kind]
    there, back = ours(5, 7), ours(5, 7)
    reference = theirs(5, 7, batch_first=True, bidirectional=True)
    theirs_of(there, reference, "_l0")
    theirs_of(back, reference, "_l0_reverse")
    lengths = [6, 1, 4]
    x, keep = torch.randn(3, 6, 5), lengths_to_keep(lengths, 6)
    packed = nn.utils.rnn.pack_padded_sequence(
        x, torch.tensor(lengths), batch_first=True, enforce_sorted=False
    )
    out, last = reference(packed)
    out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    a, b = unroll(there, x, keep=keep), unroll(back, x, keep=keep, backwards=True)
    got = torch.cat((there.read(a), back.read(b)), -1)
    close(got * keep[..., None], out, 1e-12)
    close(torch.stack((a[:, -1], b[:, 0])), joined(there, last), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backwards", [False, True])
def test_padding_anywhere_is_as_if_it_were_not_there(kind, backwards):
    cell = KINDS[kind][0](5, 7)
    x, start = torch.randn(1, 6, 5), torch.randn(1, cell.d_state)
    keep = torch.tensor([[False, True, True, False, True, False]])
    with_gaps = unroll(cell, x, start, keep, backwards)
    without = unroll(cell, x[:, keep[0]], start, backwards=backwards)
    close(with_gaps[:, keep[0]], without)
    end = 0 if backwards else -1
    assert torch.equal(with_gaps[:, end], with_gaps[:, 1 if backwards else 4])


def test_a_row_of_padding_alone_leaves_the_state_as_it_was():
    for cell in (ElmanCell(5, 7), GruCell(5, 7), LstmCell(5, 7)):
        x = torch.randn(2, 4, 5, requires_grad=True)
        states = unroll(cell, x, keep=lengths_to_keep([0, 4], 4))
        assert not states[0].any()
        states.sum().backward()
        assert not x.grad[0].any() and x.grad.isfinite().all()


# ── Attention ────────────────────────────────────────────────────────────────────────


def by_hand(attention, query, annotations, keep):
    """The paper's formula with loops over numbers; returns weights and contexts."""
    W, b = attention.query_proj.weight, attention.query_proj.bias
    U, v = attention.memory_proj.weight, attention.score.weight[0]
    weights = torch.zeros(annotations.shape[:2])
    for row in range(len(query)):
        e = {
            j: (v @ torch.tanh(W @ query[row] + b + U @ annotations[row, j])).item()
            for j in range(annotations.shape[1])
            if keep[row, j]
        }
        total = sum(torch.tensor(x).exp().item() for x in e.values())
        for j, x in e.items():
            weights[row, j] = torch.tensor(x).exp() / total
    return weights, (weights[..., None] * annotations).sum(1)


@torch.no_grad()
def test_the_attention_is_the_papers_formula():
    attention = BahdanauAttention(4, 6, 5)
    query, annotations = torch.randn(3, 4), torch.randn(3, 7, 6)
    keep = lengths_to_keep([7, 2, 0], 7)
    with record_alignment(attention) as seen:
        got = attention(query, annotations, keep)
    weights, context = by_hand(attention, query, annotations, keep)
    close(seen[0], weights)
    close(got, context)
    assert not got[2].any()  # nothing kept: zeros
    close(attention(query, annotations, keep, attention.keys(annotations)), got, 0)


def test_equal_scores_give_the_mean_and_order_does_not_matter():
    attention = BahdanauAttention(4, 6, 5)
    query, annotations = torch.randn(2, 4), torch.randn(2, 7, 6)
    order = torch.randperm(7)
    close(attention(query, annotations[:, order]), attention(query, annotations))
    nn.init.zeros_(attention.score.weight)
    close(attention(query, annotations), annotations.mean(1))


def test_a_source_of_padding_alone_has_finite_gradients():
    attention = BahdanauAttention(4, 6, 5)
    query = torch.randn(2, 4, requires_grad=True)
    annotations = torch.randn(2, 3, 6, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):  # no NaN on the way either
        attention(query, annotations, lengths_to_keep([0, 2], 3)).sum().backward()
    for grad in (query.grad, annotations.grad, attention.score.weight.grad):
        assert grad.isfinite().all()
    assert not annotations.grad[0].any() and not annotations.grad[1, 2].any()


# ── Encoder, decoder and both ────────────────────────────────────────────────────────


def plain(cell=GruCell):
    """No attention: the last state is all that is handed over."""
    encoder = Encoder(nn.Embedding(SOURCE, 5), cell(5, 7))
    decoder = Decoder(nn.Embedding(TARGET, 6), cell(6, 7), nn.Linear(7, TARGET))
    return Seq2Seq(encoder, decoder)


def search(
    cell=GruCell, d=5, each=4, d_attention=6, d_decoder=7, sizes=(SOURCE, TARGET)
):
    """Bahdanau's: both directions, attention, tanh bridge, tied table."""
    encoder = Encoder(nn.Embedding(sizes[0], d), cell(d, each), cell(d, each))
    embedding = nn.Embedding(sizes[1], d)
    decoder = Decoder(
        embedding,
        cell(d + 2 * each, d_decoder),
        TiedHead(embedding, d_decoder + 2 * each),
        BahdanauAttention(d_decoder, 2 * each, d_attention),
    )
    states = encoder.d_state, decoder.cell.d_state
    return Seq2Seq(encoder, decoder, nn.Sequential(nn.Linear(*states), nn.Tanh()))


MODELS = {
    "elman": lambda: plain(ElmanCell),
    "gru": plain,
    "lstm": lambda: plain(LstmCell),
    "gru with attention": search,
    "lstm with attention": lambda: search(LstmCell),
}
every_model = pytest.mark.parametrize("name", MODELS)


def batch(B=3, S=6, T=5, lengths=(6, 1, 4)):
    src, tgt = torch.randint(SOURCE, (B, S)), torch.randint(TARGET, (B, T))
    return src, tgt, lengths_to_keep(list(lengths), S)


def test_a_model_without_attention_equals_torchs_layers():
    model = plain(LstmCell)
    src, tgt, _ = batch()
    reader = theirs_of(model.encoder.cell, nn.LSTM(5, 7, batch_first=True), "_l0")
    writer = theirs_of(model.decoder.cell, nn.LSTM(6, 7, batch_first=True), "_l0")
    _, last = reader(model.encoder.embedding(src))
    out, _ = writer(model.decoder.embedding(tgt), last)
    close(model(src, tgt), model.decoder.head(out), 1e-12)


def test_a_model_with_attention_equals_one_made_of_torchs_parts():
    model = search()
    src, tgt, keep = batch()
    reader = nn.GRU(5, 4, batch_first=True, bidirectional=True)
    theirs_of(model.encoder.cell, reader, "_l0")
    theirs_of(model.encoder.backward_cell, reader, "_l0_reverse")
    writer = theirs_of(model.decoder.cell, nn.GRUCell(5 + 8, 7))
    packed = nn.utils.rnn.pack_padded_sequence(
        model.encoder.embedding(src),
        keep.sum(1),
        batch_first=True,
        enforce_sorted=False,
    )
    out, last = reader(packed)
    annotations, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    state = torch.tanh(model.bridge[0](last[1]))
    head, table = model.decoder.head, model.decoder.embedding.weight
    logits, alignment = [], []
    for t in range(tgt.shape[1]):
        look = by_hand(model.decoder.attention, state, annotations, keep)
        weights, context = (x.detach() for x in look)
        state = writer(torch.cat((table[tgt[:, t]], context), -1), state)
        deep = torch.tanh(head.down(torch.cat((state, context), -1)))
        logits.append(torch.einsum("bd,vd->bv", deep, table) + head.bias)
        alignment.append(weights)
    with record_alignment(model) as seen:
        got = model(src, tgt, keep)
    close(got, torch.stack(logits, 1), 1e-12)
    close(torch.stack(seen, 1), torch.stack(alignment, 1), 1e-12)


@every_model
def test_neither_padding_nor_neighbours_change_a_row(name):
    model = MODELS[name]()
    src, tgt, keep = batch()
    together = model(src, tgt, keep)
    garbage = torch.where(keep, src, torch.randint(SOURCE, src.shape))
    assert torch.equal(model(garbage, tgt, keep), together)
    for i, n in enumerate(keep.sum(1).tolist()):
        close(together[i : i + 1], model(src[i : i + 1, :n], tgt[i : i + 1]))
    left = torch.stack(
        [row.roll(6 - int(k.sum())) for row, k in zip(src, keep, strict=True)]
    )
    close(model(left, tgt, keep.flip(1)), together)


@every_model
@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_step_by_step_equals_all_at_once(name, chunk):
    model = MODELS[name]()
    src, tgt, keep = batch()
    step = model.start(src, keep)
    parts = [step(part) for part in tgt.split(chunk, dim=1)]
    close(torch.cat(parts, 1), model(src, tgt, keep))
    assert step.carry.seen == tgt.shape[1]


@every_model
def test_what_is_carried_does_not_grow(name):
    model = MODELS[name]()
    src, tgt, keep = batch()
    step = model.start(src, keep)
    step(tgt[:, :1])
    before = step.carry.nbytes
    step(tgt)
    assert step.carry.nbytes == before > 0 == Carry().nbytes


@every_model
def test_rows_can_be_reordered_repeated_and_left_out(name):
    model = MODELS[name]()
    src, tgt, keep = batch()
    rows = torch.tensor([2, 0, 2, 2])
    step = model.start(src, keep)
    step(tgt[:, :2])
    step.reorder(rows)
    close(step(tgt[rows, 2:]), model(src, tgt, keep)[rows, 2:])
    early = model.start(src, keep)
    early.reorder(rows)  # before the first step
    close(early(tgt[rows]), model(src, tgt, keep)[rows])


@every_model
def test_no_output_depends_on_a_later_word(name):
    model = MODELS[name]()
    src, tgt, keep = batch()
    other = tgt.clone()
    other[:, 3:] = (other[:, 3:] + 1) % TARGET
    a, b = model(src, tgt, keep), model(src, other, keep)
    assert torch.equal(a[:, :3], b[:, :3])
    assert not torch.isclose(a[:, 3:], b[:, 3:]).all(-1).any()


@every_model
def test_padding_in_the_target_is_as_if_it_were_not_there(name):
    model = MODELS[name]()
    src, tgt, keep = batch()
    tgt_keep = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 1], [1, 1, 1, 0, 0]]).bool()
    got = model(src, tgt, keep, tgt_keep)
    for i in range(3):
        alone = model(src[i : i + 1], tgt[i : i + 1, tgt_keep[i]], keep[i : i + 1])
        close(got[i : i + 1, tgt_keep[i]], alone)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 4))
def test_any_lengths_in_a_batch(lengths, T):
    torch.manual_seed(sum(lengths))
    model = search()
    src, tgt, keep = batch(len(lengths), 5, T, lengths)
    with record_alignment(model) as seen:
        logits = model(src, tgt, keep)
    assert logits.isfinite().all()
    alignment = torch.stack(seen, 1)
    assert alignment.shape == (len(lengths), T, 5)
    close(alignment.sum(-1), (keep.any(1)[:, None]).expand(-1, T).to(alignment.dtype))
    assert not alignment.masked_select(~keep[:, None]).any()


def test_without_attention_the_state_is_all_that_crosses():
    model = plain()
    src, tgt, keep = batch()
    memory = model.encode(src, keep)
    other = Encoded(torch.randn_like(memory.annotations), memory.state)
    assert torch.equal(model.decode(tgt, other, keep), model.decode(tgt, memory, keep))


def test_the_encoders_annotations_know_both_sides_and_forward_ones_only_the_past():
    src, _, _ = batch()
    other = src.clone()
    other[:, -1] = (other[:, -1] + 1) % SOURCE
    for model, whole in ((plain(), False), (search(), True)):
        a, b = (model.encode(ids).annotations[:, 0] for ids in (src, other))
        assert torch.equal(a, b) is not whole


def test_an_activation_acts_on_the_embeddings_of_its_own_side():
    model, src, tgt = plain(), *batch()[:2]
    relu = Seq2Seq(
        model.encoder,
        Decoder(
            model.decoder.embedding,
            model.decoder.cell,
            model.decoder.head,
            activation=nn.ReLU(),
        ),
    )
    got = relu(src, tgt)
    assert not torch.allclose(got, model(src, tgt))
    with torch.no_grad():
        model.decoder.embedding.weight.relu_()
    assert torch.equal(model(src, tgt), got)


def test_the_attention_model_of_the_spelling_experiment_has_1_424_274_parameters():
    model = search(d=128, each=176, d_attention=128, d_decoder=344, sizes=(30, 42))
    assert sum(p.numel() for p in model.parameters()) == 1_424_274
    assert model.decoder.head.embedding is model.decoder.embedding


def test_every_parameter_learns():
    for make in MODELS.values():
        model = make()
        src, tgt, keep = batch()
        model(src, tgt, keep).logsumexp(-1).sum().backward()
        for name, p in model.named_parameters():
            assert p.grad is not None and p.grad.isfinite().all() and p.grad.any(), name


def test_a_copy_and_a_saved_state_give_the_same():
    model, (src, tgt, keep) = search(), batch()
    other = search()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(other(src, tgt, keep), model(src, tgt, keep))
    assert torch.equal(copy.deepcopy(model)(src, tgt, keep), model(src, tgt, keep))


def test_recording_changes_nothing_nests_and_ends():
    model, (src, tgt, keep) = search(), batch()
    plainly = model(src, tgt, keep)
    with record_alignment(model) as outer:
        with record_alignment(model) as inner:
            assert torch.equal(model(src, tgt, keep), plainly)
        model(src, tgt, keep)
    assert (len(inner), len(outer)) == (5, 10)
    assert not any(weights.requires_grad for weights in outer)
    with pytest.raises(RuntimeError), record_alignment(model):
        raise RuntimeError
    model(src, tgt, keep)
    assert not model.decoder.attention.softmax._forward_hooks and len(outer) == 10


@every_model
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(torch.float32, 1e4), (torch.bfloat16, 1e4), (torch.float16, 100)],
)
def test_large_finite_input_never_gives_nan(name, dtype, size):
    model = MODELS[name]().to(dtype)
    src, tgt, keep = batch()
    with torch.no_grad():
        for table in (model.encoder.embedding, model.decoder.embedding):
            table.weight.uniform_(-size, size)
        logits = model(src, tgt, keep)
    assert logits.dtype == dtype and not logits.isnan().any()


def test_ids_may_be_int32_and_shapes_follow_on_the_meta_device():
    model, (src, tgt, keep) = search(), batch()
    assert torch.equal(model(src.int(), tgt.int(), keep), model(src, tgt, keep))
    shape = model.to("meta")(src.to("meta"), tgt.to("meta"), keep.to("meta")).shape
    assert shape == (3, 5, TARGET)


# ── Wrong input ──────────────────────────────────────────────────────────────────────


def _x(*shape):
    return torch.zeros(shape)


def _ids(*shape):
    return torch.zeros(shape).long()


def _keep(*shape):
    return torch.ones(shape).bool()


def _call(x=None, state=None):
    return GruCell(3, 4)(
        _x(2, 3) if x is None else x, _x(2, 4) if state is None else state
    )


def _look(**changes):
    given = {"query": _x(2, 4), "annotations": _x(2, 3, 6)} | changes
    return BahdanauAttention(4, 6, 5)(**given)


def _table(d=5):
    return nn.Embedding(SOURCE, d)


ERRORS = {
    "d_in": (lambda: GruCell(0, 4), ValueError, "got 0, 4"),
    "d_hidden": (lambda: ElmanCell(3, -1), ValueError, "got 3, -1"),
    "x width": (
        lambda: _call(_x(2, 5)),
        ValueError,
        r"x must be \(B, 3\), got \(2, 5\)",
    ),
    "x axes": (lambda: _call(_x(2, 1, 3)), ValueError, r"\(2, 1, 3\)"),
    "x list": (lambda: _call([1.0]), TypeError, "list"),
    "x dtype": (lambda: _call(_x(2, 3).float()), TypeError, "float32"),
    "state": (lambda: _call(state=_x(2, 8)), ValueError, r"state must be \(B, 4\)"),
    "rows": (lambda: _call(state=_x(3, 4)), ValueError, "2 inputs do not fit 3 states"),
    "unroll x": (lambda: unroll(GruCell(3, 4), _x(2, 3)), ValueError, r"\(2, 3\)"),
    "unroll T": (
        lambda: unroll(GruCell(3, 4), _x(2, 0, 3)),
        ValueError,
        r"\(2, 0, 3\)",
    ),
    "unroll keep": (
        lambda: unroll(GruCell(3, 4), _x(2, 5, 3), keep=_keep(2, 4)),
        ValueError,
        r"keep must be \(2, 5\), got \(2, 4\)",
    ),
    "keep of floats": (
        lambda: unroll(GruCell(3, 4), _x(2, 5, 3), keep=_x(2, 5)),
        TypeError,
        "keep must be a bool tensor.*float64",
    ),
    "unroll state": (
        lambda: unroll(GruCell(3, 4), _x(2, 5, 3), _x(1, 4)),
        ValueError,
        "1 states do not fit 2 rows",
    ),
    "attention size": (lambda: BahdanauAttention(4, 0, 5), ValueError, "got 4, 0, 5"),
    "query": (lambda: _look(query=_x(2, 5)), ValueError, r"query must be \(B, 4\)"),
    "queries": (lambda: _look(query=_x(3, 4)), ValueError, "3 queries do not fit 2"),
    "annotations": (lambda: _look(annotations=_x(2, 3, 5)), ValueError, r"\(2, 3, 5\)"),
    "annotations list": (lambda: _look(annotations=[]), TypeError, "list"),
    "attention keep": (lambda: _look(keep=_keep(2, 4)), ValueError, r"\(2, 4\)"),
    "encoder cell": (
        lambda: Encoder(_table(), GruCell(6, 7)),
        ValueError,
        "cell reads vectors of width 6, the embedding gives 5",
    ),
    "backward cell": (
        lambda: Encoder(_table(), GruCell(5, 7), GruCell(6, 7)),
        ValueError,
        "backward_cell reads vectors of width 6",
    ),
    "decoder cell": (
        lambda: Decoder(_table(), GruCell(6, 7), nn.Linear(7, 3)),
        ValueError,
        r"width 6, embedding and attention give 5 \+ 0",
    ),
    "decoder attention": (
        lambda: Decoder(
            _table(), GruCell(8, 7), nn.Linear(7, 3), BahdanauAttention(6, 3, 2)
        ),
        ValueError,
        "vectors of width 6, the cell gives 7",
    ),
    "annotation width": (
        lambda: Seq2Seq(
            Encoder(_table(), GruCell(5, 7)), search().decoder, nn.Linear(7, 7)
        ),
        ValueError,
        "annotations of width 8, the encoder gives 7",
    ),
    "no bridge": (
        lambda: Seq2Seq(Encoder(_table(), LstmCell(5, 7)), plain().decoder),
        ValueError,
        "width 14, the decoder's 7; give a bridge",
    ),
    "head": (lambda: TiedHead(_table(), 0), ValueError, "got 0"),
    "src id": (
        lambda: plain()(_ids(2, 3) + SOURCE, _ids(2, 3)),
        ValueError,
        "src ids must lie in 0 … 10, got 11 … 11",
    ),
    "tgt id": (
        lambda: plain()(_ids(2, 3), _ids(2, 3) - 1),
        ValueError,
        "tgt ids must lie in 0 … 12, got -1 … -1",
    ),
    "floats": (lambda: plain()(_x(2, 3), _ids(2, 3)), TypeError, "src.*float64"),
    "one axis": (lambda: plain()(_ids(3), _ids(2, 3)), ValueError, r"\(3,\)"),
    "no word": (lambda: plain()(_ids(2, 0), _ids(2, 3)), ValueError, r"\(2, 0\)"),
    "no target": (lambda: plain()(_ids(2, 3), _ids(2, 0)), ValueError, r"\(2, 0\)"),
    "batches": (
        lambda: plain()(_ids(2, 3), _ids(3, 3)),
        ValueError,
        "3 targets, 2 sources and 2 states",
    ),
    "src_keep": (
        lambda: plain()(_ids(2, 3), _ids(2, 3), _keep(2, 4)),
        ValueError,
        r"keep must be \(2, 3\)",
    ),
    "src_keep ints": (
        lambda: plain()(_ids(2, 3), _ids(2, 3), _ids(2, 3)),
        TypeError,
        "int64",
    ),
    "tgt_keep": (
        lambda: plain()(_ids(2, 3), _ids(2, 3), tgt_keep=_keep(2, 4)),
        ValueError,
        r"tgt_keep must be \(2, 3\)",
    ),
    "memory": (
        lambda: plain().decode(_ids(2, 3), _x(2, 3, 7)),
        TypeError,
        "memory must be what encode gave",
    ),
    "memory_keep": (
        lambda: search().decode(_ids(2, 3), search().encode(_ids(2, 3)), _keep(2, 9)),
        ValueError,
        r"memory_keep must be \(2, 3\), got \(2, 9\)",
    ),
    "nothing to record": (
        lambda: record_alignment(plain()).__enter__(),
        ValueError,
        "Seq2Seq must have one BahdanauAttention to record, it has 0",
    ),
    "no module": (lambda: record_alignment(3).__enter__(), TypeError, "int"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_wrong_input_is_refused_with_its_numbers(name):
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_refused_call_leaves_what_is_carried_as_it_was():
    model, (src, tgt, keep) = search(), batch()
    step = model.start(src, keep)
    step(tgt[:, :2])
    state = step.carry.state
    with pytest.raises(ValueError):
        step(tgt[:, 2:] + TARGET)
    assert step.carry.state is state and step.carry.seen == 2
