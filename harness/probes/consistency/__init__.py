"""Checks of one stack: each returns what it expects and what is there, and needs no second stack.

One file per kind. A check drives the same upstream code as the other probes do, and looks for two places that must
agree: a config and the process groups, a caller and a signature, what was saved and what was loaded.
"""
