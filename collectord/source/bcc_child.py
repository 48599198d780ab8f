# SPDX-License-Identifier: Apache-2.0
"""The worker as a child process: started, given one request, read, always reaped.

Its output is bounded in time and in size, and every descriptor that it sends belongs to the
caller's ExitStack before the answer is parsed.
"""

from __future__ import annotations

import array
import os
import selectors
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

WORKER: Final = Path(__file__).resolve().with_name("bcc_worker.py")
# /usr/sbin is left out: with doubtful headers libbcc would call modprobe.
ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C"}
NEVER: Final = -1  # in place of a descriptor that tells of an abort
_ANSWER_BYTES: Final = 16 << 20
_TEXT_BYTES: Final = 64 << 10
_READ_BYTES: Final = 64 << 10
_FDS_PER_MESSAGE: Final = 253  # SCM_MAX_FD
_FD_BYTES: Final = array.array("i").itemsize
_LENGTH_BYTES: Final = 8


@dataclass(slots=True)
class Said:
    """The kept text of a process: its beginning and its end."""

    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)

    def add(self, data: bytes) -> None:
        """Append output."""
        room = _TEXT_BYTES - len(self.head)
        self.head += data[: max(room, 0)]
        self.tail += data
        del self.tail[:-_TEXT_BYTES]

    @property
    def beginning(self) -> str:
        """The first 64 KiB at most."""
        return self.head.decode(errors="backslashreplace")

    @property
    def end(self) -> str:
        """The last 64 KiB at most; a line that is cut is left out."""
        text = self.tail.decode(errors="backslashreplace")
        return text if self.tail == self.head else text.partition("\n")[2]


@dataclass(slots=True)
class Outcome:
    """The result of a worker's run.

    Attributes:
        answer: JSON; None if it is not whole.
        fds: in the order of their arrival.
        fds_lost: the limit of open files did not let all of them in.
        said: its output to stdout and stderr.
        status: exit status as Popen gives it.
        too_late: its time was over, and it was killed.
    """

    answer: bytes | None = None
    fds: list[int] = field(default_factory=list)
    fds_lost: bool = False
    said: Said = field(default_factory=Said)
    status: int = 0
    too_late: bool = False

    @property
    def was_killed(self) -> bool:
        """Whether somebody else has killed it: a user, or the kernel for want of memory."""
        return self.status == -signal.SIGKILL and not self.too_late


def ask(
    python: str,
    request: bytes,
    headers: str,
    *,
    timeout_s: float,
    stack: ExitStack,
    abort: int = NEVER,
) -> Outcome:
    """Run the worker once. It dies with the calling thread.

    Args:
        python: interpreter with bcc.
        request: JSON.
        headers: tree of kernel headers.
        timeout_s: time after which the worker and its children are killed.
        stack: receives every descriptor that arrives, close-on-exec.
        abort: a descriptor that becomes readable when nobody needs the answer any more.

    Raises:
        OSError: the worker cannot be started.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as own:
        ours, theirs = socket.socketpair()
        own.enter_context(ours)
        with theirs:
            process = _start(python, theirs, headers)
        own.enter_context(_text_of(process))
        own.callback(_end, process)
        pidfd = os.pidfd_open(process.pid)
        own.callback(os.close, pidfd)
        selector = own.enter_context(selectors.DefaultSelector())
        talk = _Talk(selector, ours, _text_of(process), pidfd, stack)
        if abort != NEVER:
            selector.register(abort, selectors.EVENT_READ)
        talk.send(len(request).to_bytes(_LENGTH_BYTES, "little") + request)
        talk.outcome.too_late = not talk.listen(deadline)
        _end(process)
        talk.outcome.status = process.returncode
        talk.outcome.answer = _unframed(talk.received)
    return talk.outcome


def _text_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    if process.stdout is None:
        raise RuntimeError("a pipe was asked for")
    return process.stdout


def _start(python: str, theirs: socket.socket, headers: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - an interpreter that the configuration or a probe names
        [python, "-I", "-u", WORKER, str(theirs.fileno()), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,
        cwd="/",
        env={**ENVIRONMENT, "BCC_KERNEL_SOURCE": headers},
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children unless it has ended, and reap it."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unframed(received: bytearray) -> bytes | None:
    size = int.from_bytes(received[:_LENGTH_BYTES], "little")
    body = received[_LENGTH_BYTES : _LENGTH_BYTES + size]
    return bytes(body) if body and len(body) == size else None


class _Talk:
    """The conversation with a worker: socket, text, and the end of the process, in one wait."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        text: IO[bytes],
        pidfd: int,
        stack: ExitStack,
    ) -> None:
        self.outcome = Outcome()
        self.received = bytearray()
        self._selector = selector
        self._sock = sock
        self._text = text
        self._pidfd = pidfd
        self._stack = stack
        self._unsent = memoryview(b"")
        sock.settimeout(0)
        os.set_blocking(text.fileno(), False)
        selector.register(pidfd, selectors.EVENT_READ)
        selector.register(text, selectors.EVENT_READ, self._read_text)
        selector.register(sock, selectors.EVENT_READ, self._receive)

    def send(self, data: bytes) -> None:
        """Queue data to be sent while listening."""
        self._unsent = memoryview(data)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(self._sock, both, self._receive)

    def listen(self, deadline: float) -> bool:
        """Read everything until the process ends; return False if it outlives the deadline."""
        while (remaining := deadline - time.monotonic()) > 0:
            for key, mask in self._selector.select(remaining):
                if key.fileobj == self._pidfd:
                    self._drain()
                    return True
                if key.data is None:  # to be aborted
                    return False
                if mask & selectors.EVENT_READ and not key.data():
                    self._selector.unregister(key.fileobj)
                elif mask & selectors.EVENT_WRITE:
                    self._write()
        return False

    def _drain(self) -> None:
        """Read what the process left in its pipes."""
        for key in list(self._selector.get_map().values()):
            while key.data and key.data():
                pass

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:  # it has stopped reading; its exit says why
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._selector.modify(self._sock, selectors.EVENT_READ, self._receive)

    def _read_text(self) -> bool:
        """Read some text; return False if there is none now."""
        data = self._text.read(_READ_BYTES)
        self.outcome.said.add(data or b"")
        return bool(data)

    def _receive(self) -> bool:
        """Read some of the answer and its descriptors; return False if there is nothing now."""
        room = socket.CMSG_SPACE(_FDS_PER_MESSAGE * _FD_BYTES)
        try:
            data, messages, flags, _ = self._sock.recvmsg(
                _READ_BYTES, room, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return False
        self._own(messages)
        self.outcome.fds_lost |= bool(flags & socket.MSG_CTRUNC)
        self.received += data[: _ANSWER_BYTES - len(self.received)]
        return bool(data)

    def _own(self, messages: Iterable[tuple[int, int, bytes]]) -> None:
        for level, kind, data in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i", data[: len(data) // _FD_BYTES * _FD_BYTES])
                for fd in fds:
                    self._stack.callback(os.close, fd)
                self.outcome.fds += fds
