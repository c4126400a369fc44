# SPDX-License-Identifier: MIT
"""The command line: `python -m deepdive` trains, writes, measures and fetches weights.

Each command is a file of `deepdive.commands`. torch is imported by those that need it,
when they run, so that help comes at once.
"""

import sys

from deepdive.commands import main

if __name__ == "__main__":
    sys.exit(main())
