# SPDX-License-Identifier: MIT
"""Fixtures that several test files share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Train in one thread, so that losses are the same to the last bit."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
