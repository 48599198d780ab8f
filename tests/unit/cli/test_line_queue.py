# SPDX-License-Identifier: Apache-2.0
"""Lines of the log on their way to a file that may not answer: who logs never waits."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import structlog

from collectord.cli import log
from collectord.cli.line_queue import LineQueue

if TYPE_CHECKING:
    from pathlib import Path


PIPE_BYTES = 4096
LIMIT_CHARS = 10_000


def _pipe(stack: ExitStack) -> tuple[int, int]:
    """Return both ends of a small pipe; the test closes the first."""
    theirs, ours = os.pipe()
    stack.callback(os.close, ours)
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return theirs, ours


def _lines(text: bytes) -> list[dict[str, Any]]:
    """Return the complete lines of a log."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    """The caller goes on; each next line with room has the count, and all are in order."""
    with ExitStack() as stack:
        theirs, ours = _pipe(stack)
        stack.callback(os.close, theirs)
        os.set_blocking(theirs, False)
        queue = stack.enter_context(LineQueue(ours, LIMIT_CHARS))
        log.configure(console=False, lines=queue)
        said = 1000  # more than the pipe and the queue have room for
        for number in range(said):
            structlog.get_logger().info("said", number=number)
        text = b""
        while b"lines_dropped" not in text or not text.endswith(b"\n"):
            try:
                text += os.read(theirs, PIPE_BYTES)
            except BlockingIOError:
                structlog.get_logger().info("said", number=said)
                said += 1
    lines = _lines(text)
    dropped = [line.get("lines_dropped", 0) for line in lines]
    assert queue.dropped_total >= sum(dropped) > 0
    numbers = [number + sum(dropped[: number + 1]) for number in range(len(lines))]
    assert [line["number"] for line in lines] == numbers


def test_an_end_without_a_reader() -> None:
    """It does not wait for ever, and what is written to the file afterwards is discarded."""
    with ExitStack() as stack:
        theirs, ours = _pipe(stack)
        stack.callback(os.close, theirs)
        with LineQueue(ours, end_s=0.01) as lines:
            log.configure(console=False, lines=lines)
            structlog.get_logger().info("said", text="x" * 2 * PIPE_BYTES)
        structlog.get_logger().info("said", text="x" * 2 * PIPE_BYTES)
        os.write(ours, bytes(2 * PIPE_BYTES))


def test_nothing_is_lost_at_the_end(tmp_path: Path) -> None:
    """All lines are written, in their order, and those that come after it too."""
    said = 5_000
    with (tmp_path / "log").open("wb") as file:
        with LineQueue(file.fileno()) as lines:
            log.configure(console=False, lines=lines)
            for number in range(said):
                structlog.get_logger().info("said", number=number)
        structlog.get_logger().info("said", number=said)
    text = (tmp_path / "log").read_text()
    numbers = [json.loads(line)["number"] for line in text.splitlines()]
    assert numbers == list(range(said + 1))


def test_a_file_that_does_not_block_gets_all_lines() -> None:
    """Another process may have made it so: a full pipe is waited for, and no line is cut."""
    with ExitStack() as stack:
        theirs, ours = _pipe(stack)
        stack.callback(os.close, theirs)
        os.set_blocking(ours, False)
        lines = stack.enter_context(LineQueue(ours))
        log.configure(console=False, lines=lines)
        said = 200
        for number in range(said):
            structlog.get_logger().info("said", number=number)
        text = b""
        while len(_lines(text)) < said:
            text += os.read(theirs, PIPE_BYTES)
    assert [line["number"] for line in _lines(text)] == list(range(said))
