# SPDX-License-Identifier: MIT
"""How did models read before attention? One word at a time, into a state of fixed size.

`cells` are the three kinds of step, `seq2seq` reads with one and writes with another,
and `alignment` is the first attention, which lets the writer look back.
"""

from deepdive.recurrent.alignment import BahdanauAttention, record_alignment
from deepdive.recurrent.cells import Cell, ElmanCell, GruCell, LstmCell, unroll
from deepdive.recurrent.seq2seq import (
    Carry,
    Decoder,
    Encoded,
    Encoder,
    Seq2Seq,
    Step,
    TiedHead,
    backward_end,
    both_ends,
)

__all__ = [
    "BahdanauAttention",
    "Carry",
    "Cell",
    "Decoder",
    "ElmanCell",
    "Encoded",
    "Encoder",
    "GruCell",
    "LstmCell",
    "Seq2Seq",
    "Step",
    "TiedHead",
    "backward_end",
    "both_ends",
    "record_alignment",
    "unroll",
]
