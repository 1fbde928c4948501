"""What upstream says while it runs: printed lines, log records, warnings."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator


class Said:
    """Text of everything that was said within a `listening` context."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def lines(self, word: str) -> list[str]:
        """The lines that hold a word, upper or lower case."""
        return [line.strip() for line in self.stream.getvalue().splitlines() if word.lower() in line.lower()]


@contextlib.contextmanager
def listening() -> Iterator[Said]:
    """Take down what is printed, logged (from INFO up) and warned of, and let it be said nevertheless."""
    said = Said()
    handler = logging.StreamHandler(said.stream)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with (
            warnings.catch_warnings(record=True) as warned,
            contextlib.redirect_stdout(said.stream),
            contextlib.redirect_stderr(said.stream),
        ):
            warnings.simplefilter("always")
            yield said
            said.stream.writelines(f"{warning.message}\n" for warning in warned)
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        print(said.stream.getvalue(), end="")  # noqa: T201 - it belongs to the rank's output
