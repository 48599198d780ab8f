# SPDX-License-Identifier: Apache-2.0
"""Staging memory that the opener keeps for a daemon, and the messages by which a daemon gets it.

The memory has the chunks, a note of 64 bytes for each, and a note of 32 bytes for each stream; see
chunk.h of the core. A daemon asks first for what was left by the one before it, with the notes of
all rings. Once that is written it asks for memory of its own, and the opener gives up the old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from collectord.model import STREAMS_MAX

CHUNK_NOTE_BYTES: Final = 64
STREAM_NOTE_BYTES: Final = 32
# A ring's note can tell places in chunks up to this size; see PLACE_BITS of the core.
CHUNK_MAX_BYTES: Final = 32 << 20


def staging_bytes(chunks: int, chunk_bytes: int) -> int:
    """Return the size of the memory for so many chunks."""
    return chunks * (chunk_bytes + CHUNK_NOTE_BYTES) + STREAMS_MAX * STREAM_NOTE_BYTES


class AskLeft(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="left"):
    """The request of the staging memory of the daemon before."""


class AskStaging(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="staging"):
    """The request of new staging memory, of the size that is configured."""

    chunks: int
    chunk_bytes: int


class StagingAnswer(msgspec.Struct, frozen=True):
    """The answer to `AskLeft` and `AskStaging`, with the memory's descriptor.

    As many messages as `notes` says follow, with the descriptors of notes.

    Attributes:
        refused: the reason, "" where the memory follows.
        chunks, chunk_bytes: of the memory; 0: there is none.
        notes: number of sessions whose rings' notes follow.
    """

    refused: str = ""
    chunks: int = 0
    chunk_bytes: int = 0
    notes: int = 0


@dataclass(frozen=True, slots=True)
class LeftStaging:
    """The memory of a daemon that has ended, with descriptors that the caller closes.

    Attributes:
        memory: the chunks and their notes.
        notes: of the rings, for each session.
    """

    memory: int
    chunks: int
    chunk_bytes: int
    notes: tuple[int, ...]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that the caller closes."""
        return (*self.notes, self.memory)


@dataclass(frozen=True, slots=True)
class KeptStaging:
    """A daemon's own memory; it closes the descriptors, the connection when it has ended."""

    memory: int
    connection: int
