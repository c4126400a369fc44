# SPDX-License-Identifier: MIT
"""Are two tensors as close as they should be? If not: where, and by how much."""

import torch


def close(got, expected, tolerance=1e-12, what="the tensors"):
    """Same shape, same dtype, and no number further apart than `tolerance`.

    Args:
        expected: a tensor, or nested lists, read in the dtype of `got`.
        what: named in the message, such as "weights of head 2".
    """
    if not isinstance(expected, torch.Tensor):
        expected = torch.tensor(expected, dtype=got.dtype)
    torch.testing.assert_close(
        got, expected, rtol=0, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )
