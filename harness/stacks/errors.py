"""What goes wrong between a pin and a runnable interpreter."""

from __future__ import annotations


class StackError(Exception):
    """An environment could not be built; the message is one or two lines fit for a terminal.

    `exit_code` is the status that a command ends with when nothing handles the error.
    """

    exit_code = 3


class StackUsageError(StackError):
    """The request itself is wrong: an unknown stack, a malformed pin, a circular `extends`."""

    exit_code = 2


class NothingMoved(StackUsageError):
    """No pin moved since a revision: there is nothing to compare, and nothing is wrong."""

    exit_code = 0
