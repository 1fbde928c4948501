"""Probes: one module per upstream code path.

A probe module imports nothing from upstream (nor torch) at its top, so that the controller can read its
signature and docstring; everything heavy is imported inside the functions, or by `PRELOAD`.
"""

from harness.probes.registry import (
    Evidence,
    Probe,
    ProbeError,
    consistency_probe,
    find_probe,
    probe,
    registered_probes,
)

__all__ = ["Evidence", "Probe", "ProbeError", "consistency_probe", "find_probe", "probe", "registered_probes"]
