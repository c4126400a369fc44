# SPDX-License-Identifier: MIT
"""The checks of chapter 6, the 2017 Transformer."""
