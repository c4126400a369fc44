# SPDX-License-Identifier: MIT
"""How does a recurrent network translate? One cell reads, another one writes.

Without attention all that the writer knows of the source is one vector of fixed size
(Sutskever et al. 2014; Cho et al. 2014); with it, every word stays in reach (Bahdanau
et al. 2015). The two differ in one object passed to the decoder.

Taught in: book/01_recurrence.ipynb
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType

import torch
from torch import Tensor, nn

from deepdive.inputs import (
    check_batch,
    check_ids,
    check_kind,
    check_sizes,
    check_vectors,
)
from deepdive.recurrent.alignment import BahdanauAttention
from deepdive.recurrent.cells import Cell, check_keep, kept, unroll


@dataclass(frozen=True)
class Encoded:
    """What an encoder leaves of a source; `encoded[rows]` selects or repeats rows.

    Attributes:
        annotations: one vector per source word, (B, S, d_annotation).
        state: what the decoder starts from, (B, d_state).

    Taught in: book/01_recurrence.ipynb
    """

    annotations: Tensor
    state: Tensor

    def __getitem__(self, rows: Tensor) -> "Encoded":
        return Encoded(self.annotations[rows], self.state[rows])


@dataclass
class Carry:
    """What a recurrent decoder carries from step to step: no more for a longer text.

    Attributes:
        state: after the last step, (B, d_state); None before the first.
        keys: the attention's part that does not change from step to step, if any.
        seen: tokens read so far.

    Taught in: book/01_recurrence.ipynb
    """

    state: Tensor | None = None
    keys: Tensor | None = None
    seen: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that are held."""
        held = [x for x in (self.state, self.keys) if x is not None]
        return sum(x.numel() * x.element_size() for x in held)

    def reorder(self, rows: Tensor) -> None:
        """Put the batch's rows in another order; one may be repeated or left out."""
        self.state = None if self.state is None else self.state[rows]
        self.keys = None if self.keys is None else self.keys[rows]


def backward_end(forwards: Tensor, backwards: Tensor) -> Tensor:
    """What Bahdanau's reader hands over: the backward cell's state at the first word.

    Shapes:
        forwards (B, S, d), backwards (B, S, d) → (B, d)

    Note:
        The forward cell then speaks through the annotations alone: without attention
        it is never heard, and `both_ends` is what you want.

    Source: Bahdanau et al. 2015, appendix A.2.2.

    Taught in: book/01_recurrence.ipynb
    """
    return backwards[:, 0]


def both_ends(forwards: Tensor, backwards: Tensor) -> Tensor:
    """The states after the whole source, read from either side, next to each other.

    Shapes:
        forwards (B, S, d), backwards (B, S, d) → (B, 2·d)

    Taught in: book/06_transformer_2017.ipynb
    """
    return torch.cat((forwards[:, -1], backwards[:, 0]), dim=-1)


class Encoder(nn.Module):
    """Read the source, forwards or in both directions.

    An annotation is the cell's output at a word, both directions side by side. The
    state that is handed over is the one after the whole source: the forward cell's or,
    in both directions, what `hand_over` makes of the two cells' states.

    Shapes:
        src (B, S) ids, keep (B, S) bool, True = a real word
        → annotations (B, S, d_annotation), state (B, d_state)

    Args:
        activation: applied to the embeddings; nothing unless given.
        hand_over: with a backward cell: `backward_end` or `both_ends`.

    Raises:
        ValueError: the cells do not fit the embedding or each other, or the input is
            wrong.  TypeError: the input has another type.

    Source: Bahdanau et al. 2015, §3.2 and appendix A.2.1.

    Note:
        A row in which nothing is kept gives zeros.

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cell: Cell,
        backward_cell: Cell | None = None,
        activation: nn.Module | None = None,
        hand_over: Callable[[Tensor, Tensor], Tensor] = backward_end,
    ):
        super().__init__()
        check_kind("embedding", embedding, nn.Embedding)
        check_kind("cell", cell, Cell)
        check_kind("backward_cell", backward_cell, Cell, NoneType)
        check_kind("activation", activation, nn.Module, NoneType)
        for name, part in (("cell", cell), ("backward_cell", backward_cell)):
            if part is not None and part.d_in != embedding.embedding_dim:
                raise ValueError(
                    f"{name} reads vectors of width {part.d_in}, the embedding gives "
                    f"{embedding.embedding_dim}"
                )
        self.embedding, self.cell, self.backward_cell = embedding, cell, backward_cell
        self.activation = nn.Identity() if activation is None else activation
        self.hand_over, self.d_state = hand_over, cell.d_state
        if backward_cell is not None:
            sides = (torch.zeros(1, 1, c.d_state) for c in (cell, backward_cell))
            self.d_state = hand_over(*sides).shape[-1]
        both = [part for part in (cell, backward_cell) if part is not None]
        self.d_annotation = sum(part.d_hidden for part in both)

    def forward(self, src: Tensor, keep: Tensor | None = None) -> Encoded:
        check_batch(src, keep=keep)
        check_keep("keep", keep, src.shape)
        check_ids("src", src, self.embedding.num_embeddings)
        x = self.activation(self.embedding(src))  # (B, S, d_in)
        states = unroll(self.cell, x, keep=keep)  # (B, S, d_state)
        annotations = self.cell.read(states)
        if self.backward_cell is None:
            return Encoded(annotations, states[:, -1])
        back = unroll(self.backward_cell, x, keep=keep, backwards=True)
        annotations = torch.cat((annotations, self.backward_cell.read(back)), dim=-1)
        return Encoded(annotations, self.hand_over(states, back))


class Decoder(nn.Module):
    """Write the target: each step reads the word before and, if it can, the source.

        cₜ = attention(sₜ₋₁, annotations)           no cₜ where attention is None
        sₜ = cell([E yₜ₋₁; cₜ], sₜ₋₁),   logitsₜ = head([sₜ; cₜ])

    Shapes:
        tgt (B, T) ids, encoded, encoded_keep (B, S), keep (B, T) → (B, T, V)

    Args:
        head: from [sₜ; cₜ] to logits, such as `nn.Linear` or `TiedHead`.
        attention: None leaves the state as the only path from the source.
        activation: applied to the embeddings; nothing unless given.

    Raises:
        ValueError: a width does not fit, or the input is wrong.
        TypeError: the input has another type.

    Source: Bahdanau et al. 2015, appendix A.2.2, with a plain head for its maxout.

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        cell: Cell,
        head: nn.Module,
        attention: BahdanauAttention | None = None,
        activation: nn.Module | None = None,
    ):
        super().__init__()
        check_kind("embedding", embedding, nn.Embedding)
        check_kind("cell", cell, Cell)
        check_kind("head", head, nn.Module)
        check_kind("attention", attention, BahdanauAttention, NoneType)
        check_kind("activation", activation, nn.Module, NoneType)
        d_context = 0 if attention is None else attention.d_memory
        if cell.d_in != embedding.embedding_dim + d_context:
            raise ValueError(
                f"the cell reads vectors of width {cell.d_in}, embedding and attention "
                f"give {embedding.embedding_dim} + {d_context}"
            )
        if attention is not None and attention.d_query != cell.d_hidden:
            raise ValueError(
                f"the attention asks with vectors of width {attention.d_query}, the "
                f"cell gives {cell.d_hidden}"
            )
        self.embedding, self.cell, self.head = embedding, cell, head
        self.attention = attention
        self.activation = nn.Identity() if activation is None else activation

    def forward(
        self,
        tgt: Tensor,
        encoded: Encoded,
        encoded_keep: Tensor | None = None,
        carry: Carry | None = None,
        keep: Tensor | None = None,
    ) -> Tensor:
        check_batch(tgt, tgt_keep=keep)
        check_keep("tgt_keep", keep, tgt.shape)
        check_ids("tgt", tgt, self.embedding.num_embeddings)
        check_kind("encoded", encoded, Encoded)
        check_kind("carry", carry, Carry, NoneType)
        check_keep("memory_keep", encoded_keep, encoded.annotations.shape[:2])
        carry = Carry() if carry is None else carry
        state = encoded.state if carry.state is None else carry.state
        if len({len(tgt), len(state), len(encoded.annotations)}) > 1:
            raise ValueError(
                f"{len(tgt)} targets, {len(encoded.annotations)} sources and "
                f"{len(state)} states do not fit each other"
            )
        if carry.keys is None and self.attention is not None:
            carry.keys = self.attention.keys(encoded.annotations)
        x = self.activation(self.embedding(tgt))  # (B, T, width)
        outs = []
        for t in range(tgt.shape[1]):
            context = self._look(state, encoded, encoded_keep, carry.keys)
            new = self.cell(torch.cat((x[:, t], *context), dim=-1), state)
            state = kept(keep, t, new, state)
            outs.append(torch.cat((self.cell.read(state), *context), dim=-1))
        carry.state, carry.seen = state, carry.seen + tgt.shape[1]
        return self.head(torch.stack(outs, dim=1))  # (B, T, V)

    def _look(self, state, encoded, encoded_keep, keys) -> list[Tensor]:
        """The context before a step, in a list that is empty without attention."""
        if self.attention is None:
            return []
        query = self.cell.read(state)
        return [self.attention(query, encoded.annotations, encoded_keep, keys)]


class TiedHead(nn.Module):
    """Logits from the target's own embedding table, used a second time.

        logits = E tanh(W x + b) + c

    Shapes:
        x (B, T, d_in) → (B, T, V)

    Source: Press and Wolf 2017 (the tied table); Luong et al. 2015, equation 5 (the
    tanh layer over state and context).

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(self, embedding: nn.Embedding, d_in: int):
        super().__init__()
        check_kind("embedding", embedding, nn.Embedding)
        check_sizes(d_in=d_in)
        self.embedding = embedding
        self.down = nn.Linear(d_in, embedding.embedding_dim)
        self.bias = nn.Parameter(torch.zeros(embedding.num_embeddings))

    def forward(self, x: Tensor) -> Tensor:
        check_vectors("x", x, self.down.weight)
        return torch.tanh(self.down(x)) @ self.embedding.weight.T + self.bias


class Seq2Seq(nn.Module):
    """An encoder, a decoder, and how the state of one becomes the state of the other.

    Shapes:
        src (B, S) ids, tgt (B, T) ids, src_keep (B, S), tgt_keep (B, T) → (B, T, V)

    Args:
        bridge: from the encoder's last state to the decoder's first; nothing unless
            given. Bahdanau et al. 2015: tanh(W_s h).

    Raises:
        ValueError: the widths of encoder and decoder do not fit, or the input is
            wrong.  TypeError: the input has another type.

    Source: Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015.

    >>> from deepdive.recurrent.cells import GruCell
    >>> reader = Encoder(nn.Embedding(10, 8), GruCell(8, 16))
    >>> writer = Decoder(nn.Embedding(12, 8), GruCell(8, 16), nn.Linear(16, 12))
    >>> ids = torch.zeros(2, 5).long()
    >>> Seq2Seq(reader, writer)(ids, ids[:, :3]).shape
    torch.Size([2, 3, 12])

    Taught in: book/01_recurrence.ipynb
    """

    def __init__(
        self, encoder: Encoder, decoder: Decoder, bridge: nn.Module | None = None
    ):
        super().__init__()
        check_kind("encoder", encoder, Encoder)
        check_kind("decoder", decoder, Decoder)
        check_kind("bridge", bridge, nn.Module, NoneType)
        attention, d_annotation = decoder.attention, encoder.d_annotation
        if attention is not None and attention.d_memory != d_annotation:
            raise ValueError(
                f"the attention reads annotations of width {attention.d_memory}, the "
                f"encoder gives {d_annotation}"
            )
        if bridge is None and encoder.d_state != decoder.cell.d_state:
            raise ValueError(
                f"the encoder's state has width {encoder.d_state}, the decoder's "
                f"{decoder.cell.d_state}; give a bridge"
            )
        self.encoder, self.decoder = encoder, decoder
        self.bridge = nn.Identity() if bridge is None else bridge

    def encode(self, src: Tensor, keep: Tensor | None = None) -> Encoded:
        """Read the source: its annotations, and the state that the decoder starts from.

        Shapes:
            src (B, S) ids, keep (B, S) bool
        """
        encoded = self.encoder(src, keep)
        return Encoded(encoded.annotations, self.bridge(encoded.state))

    def decode(
        self,
        tgt: Tensor,
        memory: Encoded,
        memory_keep: Tensor | None = None,
        caches: Carry | None = None,
        tgt_keep: Tensor | None = None,
    ) -> Tensor:
        """Logits for the word after each target word, (B, T) → (B, T, V).

        Args:
            memory_keep: (B, S), the mask that `encode` was given.
            caches: carries the state on; with it, tgt are the new words alone.
        """
        if not isinstance(memory, Encoded):
            raise TypeError(f"memory must be what encode gave, got {type(memory)}")
        check_kind("caches", caches, Carry, NoneType)
        return self.decoder(tgt, memory, memory_keep, caches, tgt_keep)

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
    ) -> Tensor:
        memory = self.encode(src, src_keep)
        return self.decode(tgt, memory, src_keep, tgt_keep=tgt_keep)

    def new_caches(self) -> Carry:
        """What `decode` needs to be called step by step."""
        return Carry()

    def start(self, src: Tensor, keep: Tensor | None = None) -> "Step":
        """Read a source and be ready to write: a `step` for a decoding function."""
        return Step(self, self.encode(src, keep), keep, self.new_caches())


@dataclass
class Step:
    """One step of writing: `step(ids (B, T)) → logits (B, T, V)`, the state carried on.

    >>> from deepdive.recurrent.cells import GruCell
    >>> reader = Encoder(nn.Embedding(10, 8), GruCell(8, 16))
    >>> writer = Decoder(nn.Embedding(12, 8), GruCell(8, 16), nn.Linear(16, 12))
    >>> step = Seq2Seq(reader, writer).start(torch.zeros(2, 5).long())
    >>> step(torch.zeros(2, 1).long()).shape
    torch.Size([2, 1, 12])

    Taught in: book/01_recurrence.ipynb
    """

    model: Seq2Seq
    memory: Encoded
    memory_keep: Tensor | None
    carry: Carry

    def __call__(self, ids: Tensor) -> Tensor:
        return self.model.decode(ids, self.memory, self.memory_keep, self.carry)

    def reorder(self, rows: Tensor) -> None:
        """Go on with these rows of the batch, repeated or left out: for beam search."""
        self.memory = self.memory[rows]
        if self.memory_keep is not None:
            self.memory_keep = self.memory_keep[rows]
        self.carry.reorder(rows)
