"""Stacks: from the pins of `[tool.parity]` to an interpreter that can run them."""

from harness.stacks.build import BuiltStack, build
from harness.stacks.builder import Builder
from harness.stacks.changed import Move, changed_stack, changed_stacks, nothing_moved
from harness.stacks.errors import StackError, StackUsageError
from harness.stacks.pins import BuiltPin, GitPin, PathPin, Pin, ReleasePin, parse_override
from harness.stacks.settings import Settings, Stack, load_settings, parse_clone

__all__ = [
    "Builder",
    "BuiltPin",
    "BuiltStack",
    "GitPin",
    "Move",
    "PathPin",
    "Pin",
    "ReleasePin",
    "Settings",
    "Stack",
    "StackError",
    "StackUsageError",
    "build",
    "changed_stack",
    "changed_stacks",
    "load_settings",
    "nothing_moved",
    "parse_clone",
    "parse_override",
]
