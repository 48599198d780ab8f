# SPDX-License-Identifier: Apache-2.0
"""Answers of an opener, and of what is none: each error says what to do."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from collectord.errors import KernelError
from collectord.kernel.local import opener_client
from collectord.kernel.local.opener_client import hiding_programs, kept_rings, opener_facts
from collectord.text.foreign import encode_json
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ENDS: Final = "does not answer this user, or has ended"
OTHER: Final = "is of another version"


@contextmanager
def answering(place: Path, *answers: bytes, fds: Sequence[int] = ()) -> Iterator[list[bytes]]:
    """Answer one client with these messages, the first with descriptors; yields what it asked."""
    asked: list[bytes] = []
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        ThreadPoolExecutor(1) as pool,
    ):
        listening.bind(str(place))
        listening.listen()

        def serve() -> None:
            with listening.accept()[0] as one:
                asked.append(one.recv(4096))
                for answer in answers:
                    socket.send_fds(one, [answer], fds if answer is answers[0] else ())

        served = pool.submit(serve)
        yield asked
        served.result(timeout=60)


def test_the_facts_of_an_opener(tmp_path: Path) -> None:
    """They come as it has sent them."""
    facts = host().as_opener()
    answer = encode_json({"facts": facts})
    with answering(tmp_path / "opener", answer) as asked:
        assert opener_facts(str(tmp_path / "opener")) == facts
    assert json.loads(asked[0]) == {"type": "facts"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", ENDS),
        (b"no JSON", OTHER),
        (b'{"refused":"bad request"}', OTHER),
        (b'{"facts":{"capabilities":7}}', OTHER),
        (b" " * 70_000, OTHER),
    ],
    ids=["end", "no JSON", "older", "others", "long"],
)
def test_what_is_no_answer(tmp_path: Path, answer: bytes, says: str) -> None:
    """Its error says whether to ask as somebody else, or to start the opener again."""
    answers = (answer,) if answer else ()
    with (
        answering(tmp_path / "opener", *answers),
        pytest.raises(KernelError, match=says),
    ):
        opener_facts(str(tmp_path / "opener"))


def test_nobody_answers(tmp_path: Path) -> None:
    """The error names the place and the call."""
    with pytest.raises(KernelError, match=r"no opener answers at .*/opener") as caught:
        opener_facts(str(tmp_path / "opener"))
    assert caught.value.syscall == "connect"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ((b'{"refused":"another process drains them"}',), "refuses the rings of session calls"),
        ((b'{"rings":1,"messages":1}',), ENDS),
        ((b'{"rings":1,"messages":1}', b'{"number":"first"}'), OTHER),
    ],
    ids=["refused", "cut off", "others"],
)
def test_rings_that_do_not_come(tmp_path: Path, answers: tuple[bytes, ...], says: str) -> None:
    """Descriptors that came before the error are closed: otherwise they would be a leak."""
    with ExitStack() as stack:
        memory = os.memfd_create("notes")
        stack.callback(os.close, memory)
        asked = stack.enter_context(answering(tmp_path / "opener", *answers, fds=[memory]))
        with pytest.raises(KernelError, match=says):
            kept_rings(str(tmp_path / "opener"), "calls", "0" * 64, wait_s=60)
    assert json.loads(asked[0]) == {"type": "rings", "session": "calls", "digest": "0" * 64}


@contextmanager
def asked_by() -> Iterator[tuple[int, socket.socket]]:
    """Provide both ends of a connection by which a session was handed out."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours.fileno(), theirs


def test_an_answer_that_comes_too_late_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon does not wait long, and takes nothing for the answer to another question."""
    monkeypatch.setattr(opener_client, "_TELL_S", 0.01)
    with asked_by() as (connection, opener):
        with pytest.raises(KernelError, match="cannot ask the opener"):
            hiding_programs(connection)
        serial = json.loads(opener.recv(4096))["serial"]
        opener.send(encode_json({"serial": serial, "programs": {"1": [7]}}))
        opener.send(encode_json({"serial": serial + 1, "programs": {"1": None}}))
        assert hiding_programs(connection) == {1: None}
        assert json.loads(opener.recv(4096)) == {"type": "hiding", "serial": serial + 1}
        opener.send(encode_json({"serial": serial + 2, "refused": "no privilege"}))
        with pytest.raises(KernelError, match="no privilege"):
            hiding_programs(connection)


@pytest.mark.parametrize("said", [b"", b"no JSON", b"{}"], ids=["end", "no JSON", "others"])
def test_an_opener_that_ends_or_is_another(said: bytes) -> None:
    """Then nobody knows of programs that hide events."""
    with asked_by() as (connection, opener):
        if said:
            opener.send(said)
        else:
            opener.shutdown(socket.SHUT_WR)
        with pytest.raises(KernelError, match="cannot ask the opener"):
            hiding_programs(connection)
