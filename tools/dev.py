# SPDX-License-Identifier: MIT
"""Every task of this repository, on Linux, macOS and Windows: python tools/dev.py TASK

This file only checks the Python that runs it, so it is written to be read by old ones
too; the tasks themselves are in stages.py. `make TASK` calls it.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - old ones do come here
    sys.exit(
        "This book needs Python 3.11 or newer, and this is Python %d.%d (%s). "  # noqa: UP031
        "Install one from https://www.python.org/downloads/ and run the command "
        "again with it." % (sys.version_info[0], sys.version_info[1], sys.executable)
    )

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tools.stages import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
