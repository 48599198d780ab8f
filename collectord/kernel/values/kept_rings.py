# SPDX-License-Identifier: Apache-2.0
"""Rings and BPF programs that the opener holds, and the messages by which a daemon gets them.

A daemon asks for the opener's privileges first, and plans with them. Then it names a session and
sends a digest of its plan. The opener answers with one message, and then with the rings and the
programs, in as many messages as their descriptors take. All are JSON. The description of a
program, which may be long, is in sealed memory, whose descriptor comes first. From then on the
daemon may ask, by the same connection, which BPF programs may hide the session's events, and for
new rings on a CPU that was offline; and it says if the session ends.

Beside the rings goes memory that the opener holds too: a page of text for the daemon that drains
them, then a note of 64 bytes for each ring, see `_core.RingNote`, and one for each program, see
`source.kept_memory`. Where rings have AUX areas, these have a text and notes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from collectord.kernel.values.kept_pressure import AskPressure
from collectord.kernel.values.kept_staging import AskLeft, AskStaging
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE_BYTES: Final = 4096
NOTE_BYTES: Final = 64
# The kernel passes 253 descriptors with a message (SCM_MAX_FD).
EVENTS_MAX: Final = 200
MESSAGE_BYTES: Final = 64 << 10
ASK_BYTES: Final = 1024
# Limits of a program's description.
DESCRIBED_BYTES: Final = 16 << 20


class AskFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="facts"):
    """The request of the opener's privileges and abilities."""


class FactsAnswer(msgspec.Struct, frozen=True):
    """The answer to `AskFacts`.

    Attributes:
        facts: an `OpenerFacts`.
    """

    facts: msgspec.Raw


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rings"):
    """The request of a session's rings. It can name what is planned, and describe nothing."""

    session: str
    digest: str


class AskHiding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="hiding"):
    """The question, by whoever drains a session, for BPF programs that may hide its events.

    Attributes:
        serial: of the question.
    """

    serial: int


class AskCpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="cpu"):
    """The request, by whoever drains a session, of new rings on a CPU that was offline.

    The old ones are closed: nobody drains them any more.

    Attributes:
        cpu: one of the plan's.
    """

    cpu: int


class AskEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="end"):
    """The notice, by whoever drains a session, that it ends, and that nobody is to go on with it.

    It has no answer: the rings are closed at the end of the connection.
    """


class CpuAnswer(msgspec.Struct, frozen=True, tag="cpu"):
    """The answer to `AskCpu`.

    Attributes:
        refused: the reason, "" where the rings follow.
        messages: number of messages with their events.
    """

    refused: str = ""
    messages: int = 0


class HidingAnswer(msgspec.Struct, frozen=True, tag="hiding"):
    """The answer to `AskHiding`.

    Attributes:
        serial: of the question.
        programs: of each tracepoint, by its event's number in the plan, see `Kernel.query_bpf`.
        refused: the reason why it cannot be told, or "".
    """

    serial: int
    programs: dict[int, tuple[int, ...] | None] = {}
    refused: str = ""


_REQUEST: Final[Any] = Ask | AskFacts | AskLeft | AskStaging | AskPressure
_QUESTION: Final[Any] = AskHiding | AskCpu | AskEnd


def request_of(data: bytes) -> Ask | AskFacts | AskLeft | AskStaging | AskPressure:
    """Return the request that a message has. Raises msgspec.MsgspecError."""
    found = decode_json(data, _REQUEST)
    return cast("Ask | AskFacts | AskLeft | AskStaging | AskPressure", found)


def question_of(data: bytes) -> AskHiding | AskCpu | AskEnd:
    """Return the question that a message has. Raises msgspec.MsgspecError."""
    return cast("AskHiding | AskCpu | AskEnd", decode_json(data, _QUESTION))


class Prior(msgspec.Struct, frozen=True):
    """Knowledge of rings that were drained before.

    Attributes:
        state: the text that was written about them last.
        taken: samples that were taken out of the data rings.
        lost: events that did not get into the data rings, as far as kernel and programs tell, by
            the loss's name.
        left: events that were unread as the rings were closed.
        overwritten: events of flight recorders that no snapshot had, as they were counted last.
    """

    state: str = ""
    taken: int = 0
    lost: dict[str, int] = {}
    left: int = 0
    overwritten: int = 0


class Answer(msgspec.Struct, frozen=True):
    """The answer to a request, with the descriptor of the memory unless it is refused.

    Attributes:
        refused: the reason, "" where the rings follow.
        rings: number of them.
        messages: number of messages with their events, and with programs.
        programs: number of them.
        prior: rings of the session that were closed, if nobody has heard of them yet.
        lost: events that did not get into rings in whose places there are new ones, as in `Prior`.
        trace: the same as both for AUX areas, in bytes: of areas that were closed, or that have
            new ones in their places if somebody has heard of those.
    """

    refused: str = ""
    rings: int = 0
    messages: int = 0
    programs: int = 0
    prior: Prior = Prior()
    lost: dict[str, int] = {}
    trace: Prior = Prior()


class KeptEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event that writes into a ring: its number in the plan, ids, and figures of its read(2).

    `kernel_id` is its id in the ring, if files know it by another one; 0: the same.
    """

    index: int
    id: int
    read_format: int
    kernel_id: int = 0


class KeptRing(msgspec.Struct, frozen=True, tag="ring"):
    """A ring, or a part of its events, with a descriptor for each.

    Attributes:
        number: its place among the plan's rings.
        data_bytes, watermark_bytes: effective sizes.
        events: the first one of the ring owns it, unless it has a keeper.
        taken: samples that were taken out of earlier rings in its place, which its note has too.
        overwritten: likewise those that were overwritten in them.
        keeper: an event that is none of these owns it; the first descriptor of all is that one's.
        aux_bytes: effective size of its AUX area, 0 without one.
    """

    number: int
    data_bytes: int
    watermark_bytes: int
    events: tuple[KeptEvent, ...]
    taken: int = 0
    overwritten: int = 0
    keeper: bool = False
    aux_bytes: int = 0


class KeptPart(msgspec.Struct, frozen=True, tag="program"):
    """A part of a program's descriptors; the first of all is that of its description.

    Attributes:
        number: its place among the plan's programs.
    """

    number: int


class GivenRing(NamedTuple):
    """A ring with the descriptors of its events, and of its keeper if it has one."""

    kept: KeptRing
    fds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A program that runs.

    Attributes:
        described: see `source.loaded_program.Loaded`.
        fds: likewise.
    """

    described: bytes
    fds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeptRings:
    """The rings and programs of a session, with descriptors that the caller closes.

    Attributes:
        connection: the rings are the caller's until it is closed.
        memory: a page of text, and a note for each ring.
        prior: see `Answer`.
        rings: each with the descriptors of its events.
        programs: in the plan's order.
        lost, trace: see `Answer`.
    """

    connection: int
    memory: int
    prior: Prior
    rings: tuple[GivenRing, ...]
    programs: tuple[KeptProgram, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    trace: Prior = field(default_factory=Prior)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that the caller closes beside those of the rings, the connection last."""
        programs = (fd for one in self.programs for fd in one.fds)
        return (*programs, self.memory, self.connection)
