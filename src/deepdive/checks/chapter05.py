# SPDX-License-Identifier: MIT
"""The checks of chapter 5, the block."""
