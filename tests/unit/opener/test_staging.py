# SPDX-License-Identifier: Apache-2.0
"""The opener's socket hands staging memory out, one after the other, to one daemon at a time."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord._native import _core
from collectord.daemon.staging_memory import StagingMemory
from collectord.errors import KernelError
from collectord.kernel.local.opener_client import kept_staging, left_staging
from collectord.kernel.values.kept_staging import CHUNK_MAX_BYTES, staging_bytes
from collectord.opener.opener_server import Opener, Planned
from collectord.text.units import Bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHUNKS: Final = 4
CHUNK_BYTES: Final = Bytes(128 << 10)  # as planned
NOBODY: Final[Any] = None


def served(place: Path, work: Callable[[str], None], *, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Do this in a thread, beside an opener that plans so many bytes."""
    planned: Any = SimpleNamespace(
        core=SimpleNamespace(chunks=CHUNKS, chunk_bytes=chunk_bytes), sessions=()
    )

    async def serve() -> None:
        stop = asyncio.Event()
        with (
            Opener(
                NOBODY,
                plan=lambda: Planned(planned, b"{}"),
                is_changed=lambda: False,
                left_cpus=tuple,
                users={os.geteuid()},
            ) as opener,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        ):
            listening.bind(str(place))
            listening.listen()
            serving = asyncio.ensure_future(opener.serve(listening, stop))
            try:
                await asyncio.to_thread(work, str(place))
            finally:
                stop.set()
                await serving

    asyncio.run(serve())


@contextmanager
def kept(place: str, chunks: int = CHUNKS, chunk_bytes: int = CHUNK_BYTES) -> Iterator[int]:
    """Use memory as a daemon does, which ends with the block."""
    given = kept_staging(place, chunks, chunk_bytes)
    try:
        yield given.memory
    finally:
        os.close(given.memory)
        os.close(given.connection)


def test_a_successor_gets_what_was_left_and_then_its_own(tmp_path: Path) -> None:
    """The memory lasts until then, and nobody else gets it while it is used."""

    def work(place: str) -> None:
        assert left_staging(place) is None
        with kept(place) as memory:
            assert os.fstat(memory).st_size == staging_bytes(CHUNKS, CHUNK_BYTES)
            with pytest.raises(PermissionError):
                os.ftruncate(memory, 0)
            os.pwrite(memory, b"taken", 0)
            with pytest.raises(KernelError, match="another process uses"):
                left_staging(place)
            with pytest.raises(KernelError, match="another process uses"):
                kept_staging(place, CHUNKS, CHUNK_BYTES)
        for _ in range(2):  # it may be killed before it has its own
            left = left_staging(place)
            assert left is not None
            assert (left.chunks, left.chunk_bytes, left.notes) == (CHUNKS, CHUNK_BYTES, ())
            assert os.pread(left.memory, 5, 0) == b"taken"
            for fd in left.descriptors:
                os.close(fd)
        with kept(place) as memory:
            assert os.pread(memory, 5, 0) == bytes(5)

    served(tmp_path / "opener", work)


def test_a_clean_end_gives_the_pages_back(tmp_path: Path) -> None:
    """The opener holds no memory of a daemon that has written all."""
    sizes = []

    def work(place: str) -> None:
        kernel: Any = SimpleNamespace(
            kept_staging=kept_staging, left_staging=left_staging, close=os.close
        )
        plan: Any = SimpleNamespace(chunks=CHUNKS, chunk_bytes=CHUNK_BYTES)

        async def use() -> None:
            async with AsyncExitStack() as stack:
                staging = StagingMemory(kernel, place, plan)
                core = _core.Core(chunks=CHUNKS, chunk_bytes=CHUNK_BYTES)
                drain: Any = SimpleNamespace(core=core)
                staging.use(drain, stack)
                with staging.left() as nothing:  # it is in use
                    assert nothing is None
                core.start()
                stack.callback(core.stop)
                stream = core.add_stream(sideband_bytes=1 << 20)
                stream.prepare(1, stack.enter_context(memory()), 0, 1 << 20)

        asyncio.run(use())
        left = left_staging(place)
        assert left is not None
        sizes.append(os.fstat(left.memory).st_blocks)
        for fd in left.descriptors:
            os.close(fd)

    served(tmp_path / "opener", work)
    assert sizes == [0]


@contextmanager
def memory() -> Iterator[int]:
    """Provide a file in memory."""
    fd = os.memfd_create("segment")
    try:
        yield fd
    finally:
        os.close(fd)


def test_the_size_is_the_configured_one(tmp_path: Path) -> None:
    """A daemon cannot have the opener hold as much as it likes."""

    def work(place: str) -> None:
        with kept(place):
            pass
        for chunks, chunk_bytes in ((CHUNKS + 1, CHUNK_BYTES), (CHUNKS, 1), (-1, -1)):
            with pytest.raises(KernelError, match="not planned so"):
                kept_staging(place, chunks, chunk_bytes)
        assert left_staging(place) is None  # whoever asks has written it

    served(tmp_path / "opener", work)


def test_longer_chunks_than_notes_can_tell_of_are_refused(tmp_path: Path) -> None:
    """The daemon then stages in memory of its own."""
    longer = 2 * CHUNK_MAX_BYTES

    def work(place: str) -> None:
        with pytest.raises(KernelError, match="not planned so"):
            kept_staging(place, CHUNKS, longer)

    served(tmp_path / "opener", work, chunk_bytes=longer)
