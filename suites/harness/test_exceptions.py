"""What of an exception's message is the same in every run."""

from pathlib import Path

import pytest

from harness.observe.exceptions import portable

_PAIR = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("cannot read /run/7/model of <X object at 0x7f00aa>", "cannot read <scratch>/model of <X object at 0x…>"),
        (f"{_PAIR}:547] Connection closed by peer [127.0.0.1]:12345", "Connection closed by peer"),
        (f"{_PAIR}:538] Read error [127.0.0.1]:54321: Connection reset by peer", "Connection closed by peer"),
        ("Connect timeout [127.0.0.1]:8080", "Connect timeout [127.0.0.1]:…"),
    ],
)
def test_messages_do_not_depend_on_the_run(text: str, same: str) -> None:
    assert portable(text, {Path("/run/7"): "<scratch>"}) == same
