# SPDX-License-Identifier: MIT
"""The checks of chapter 1, the recurrent bottleneck."""
