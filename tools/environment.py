# SPDX-License-Identifier: MIT
"""What every kernel, test and build of this repository runs with.

The same numbers on every machine need the same hash seed, backend and thread count; a
reader's own IPython start-up files or Jupyter settings must not change them. Only the
standard library is used here.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHAPTERS = ROOT / "book"
BUILD = ROOT / "_build"


def chapters() -> list[Path]:
    """Return the chapter notebooks, in order."""
    return sorted(CHAPTERS.glob("*.ipynb"))


def settings(base: dict[str, str] | None = None) -> dict[str, str]:
    """Return a copy of the environment `base` with this repository's settings in it."""
    (BUILD / "var").mkdir(parents=True, exist_ok=True)
    env = dict(os.environ if base is None else base)
    env |= {
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "MPLCONFIGDIR": str(BUILD / "var" / "matplotlib"),
        "IPYTHONDIR": str(BUILD / "var" / "ipython"),
        "JUPYTER_CONFIG_DIR": str(BUILD / "var" / "jupyter"),
        # The debugger's note about frozen modules would be a stored output.
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        # Nothing is looked up at a hub, ever.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    # Small tensors run faster on one thread than on two that wait for each other.
    env.setdefault("OMP_NUM_THREADS", "1")
    return env
