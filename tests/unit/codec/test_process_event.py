# SPDX-License-Identifier: Apache-2.0
"""Messages of the process connector become events of processes; those of threads are left out."""

from __future__ import annotations

import struct

import pytest

from collectord.codec.process_event import Exited, Forked, Renamed, decode, listen_message

FORK, EXEC, COMM, EXIT, UID = 0x1, 0x2, 0x200, 0x80000000, 0x4


def message(what: int, *words: int, idx: int = 1) -> bytes:
    """Return a datagram with an event, as the kernel pads it."""
    body = struct.pack("=IIQ6I", what, 0, 12345, *words, *([0] * (6 - len(words))))
    head = struct.pack("=IHHIIIIIIHH", 36 + len(body), 3, 0, 0, 0, idx, 1, 0, 0, len(body), 0)
    return head + body


@pytest.mark.parametrize(
    ("datagram", "event"),
    [
        (message(FORK, 9, 8, 20, 20), Forked(pid=20, parent=8, time_ns=12345)),
        (message(FORK, 9, 8, 21, 20), None),
        (message(EXEC, 20, 20), Renamed(20)),
        (message(COMM, 20, 20), Renamed(20)),
        (message(COMM, 21, 20), None),
        (message(EXIT, 20, 20), Exited(20)),
        (message(EXIT, 21, 20), None),
        (message(UID, 20, 20), None),
        (message(EXEC, 20, 20, idx=2), None),
        (message(EXEC, 20, 20)[:60], None),
        (b"", None),
    ],
)
def test_a_datagram_is_decoded(datagram: bytes, event: object) -> None:
    """Only the first thread stands for its process; what is cut or foreign is nothing."""
    assert decode(datagram) == event


def test_the_subscription_is_whole() -> None:
    """Its length is what it says, or the kernel drops it."""
    asked = listen_message()
    assert struct.unpack_from("=I", asked)[0] == len(asked)
