"""Turns the pytest plugin on."""

pytest_plugins = ["harness.pytest_plugin"]
