"""Turns the pytest plugin on."""

import os

# Before numpy is imported: test processes share the processors, and threads of one's BLAS spin at the others' expense.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["harness.pytest_plugin"]
