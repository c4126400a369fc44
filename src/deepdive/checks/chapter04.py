# SPDX-License-Identifier: MIT
"""The checks of chapter 4, positions."""
