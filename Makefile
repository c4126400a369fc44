# SPDX-License-Identifier: MIT
# A thin layer over tools/dev.py, which does the same on Windows:
#     py tools\dev.py book
#
# CPU=1 installs torch without CUDA (Linux). PYTHON=… chooses the Python for .venv.

TASKS := book site lab test check lint notebooks weights audit clean setup

# The first Python on the path that is new enough; else python3, which says what's wrong.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$p && exit; done; echo python3)

export CPU

.PHONY: help $(TASKS)

help:
	@$(PYTHON) tools/dev.py --help

$(TASKS):
	@$(PYTHON) tools/dev.py $@
