# SPDX-License-Identifier: MIT
"""What did a network do with the three words before attention? It read them in turn.

Taught in: book/01_recurrence.ipynb
"""

import torch

from deepdive.inputs import check_kind
from deepdive.recurrent import ElmanCell
from deepdive.trace.example import CATS, RECURRENCE, Example, Recurrence


def recurrence(example: Example = CATS, network: Recurrence = RECURRENCE) -> dict:
    """One state after another: hₜ = tanh(xₜ W_x + hₜ₋₁ W_h), h₀ = 0.

    Shapes:
        X (T, d_model), inputs (T, 2) = X W_x, states (T, 2)

    Taught in: book/01_recurrence.ipynb
    """
    check_kind("example", example, Example)
    check_kind("network", network, Recurrence)
    cell = recurrent_cell(network)
    state, states = example.X.new_zeros(1, len(network.W_h)), []
    with torch.no_grad():
        for x in example.X:
            state = cell(x[None], state)
            states.append(state[0])
    return {
        "words": example.words,
        "X": example.X,
        "W_x": network.W_x,
        "W_h": network.W_h,
        "inputs": example.X @ network.W_x,
        "states": torch.stack(states),
    }


def recurrent_cell(network: Recurrence = RECURRENCE) -> ElmanCell:
    """The same numbers as a cell of the package, in float64, its biases 0."""
    check_kind("network", network, Recurrence)
    cell = ElmanCell(*network.W_x.shape).double()
    with torch.no_grad():
        for linear, W in ((cell.x_proj, network.W_x), (cell.h_proj, network.W_h)):
            linear.weight.copy_(W.T)
            linear.bias.zero_()
    return cell
