# SPDX-License-Identifier: Apache-2.0
"""`collectord events` for relay segments: records of blktrace, and bytes of unknown channels."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from collectord.cli.event_choice import Choosable
from collectord.cli.event_view import Found
from collectord.cli.output import complain, print_line, say
from collectord.codec.blktrace import event_names, note_names
from collectord.codec.record_filter import number_test, text_test
from collectord.errors import UsageError
from collectord.reader.relay_events import Damage
from collectord.text.foreign import visible
from collectord.text.units import NS_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from collectord.cli.event_choice import Choice
    from collectord.cli.event_count import EventCount
    from collectord.codec.blktrace import BlkRecord
    from collectord.codec.record_filter import Term
    from collectord.reader.relay_events import Piece, RelaySegment

_NUMBERS: Final = ("cpu", "pid", "sector", "sectors", "bytes", "error", "sequence", "device")
_TEXTS: Final = ("rwbs", "comm", "text")
_BYTES: Final = "bytes"
_MINOR_BITS: Final = 20


def choosables(segment: RelaySegment) -> list[Choosable]:
    """Return the events of a request; for a channel of unknown format, a single event."""
    if not segment.is_blktrace:
        return [Choosable("", (_BYTES,), frozenset(), _refuse)]
    fields = frozenset((*_NUMBERS, *_TEXTS))
    named = {**event_names(), **dict.fromkeys(note_names(), "m")}
    return [
        Choosable(name, (f"blktrace:{name}", name, letter), fields, _bind)
        for name, letter in named.items()
    ]


def print_relay(segment: RelaySegment, choice: Choice, form: str, left: int | None) -> Found:
    """Print the chosen records of a segment, and return what there was to say."""
    if form == "csv":
        raise UsageError(f"{segment.path} has no CSV", hint="-o json is for programs")
    view = RelayView(segment, choice)
    printed = 0
    if form == "json":
        for found in islice(view.objects(), left):
            print_line(found)
            printed += 1
    else:
        for line in islice(view.texts(), left):
            say(line)
            printed += 1
    return Found(printed, view.damaged)


def _refuse(terms: Sequence[Term]) -> Callable[[Any], bool]:
    if terms:
        raise UsageError("the bytes of a relay channel have no fields")
    return lambda _: True


def _bind(terms: Sequence[Term]) -> Callable[[dict[str, Any]], bool]:
    tests = [(term.field, _test(term)) for term in terms]
    return lambda data: all(test(data[field]) for field, test in tests)


def _test(term: Term) -> Callable[[Any], bool]:
    return text_test(term) if term.field in _TEXTS else number_test(term)


class RelayView:
    """The chosen records of a segment.

    Attributes:
        damaged: something could not be read, and was reported.
    """

    def __init__(self, segment: RelaySegment, choice: Choice) -> None:
        self._segment = segment
        self._everything = choice.everything
        self._predicates = choice.predicates(choosables(segment))
        self.damaged = False

    def texts(self) -> Iterator[str]:
        """Return a line for each record in the order of time, or for 16 bytes."""
        if self._segment.is_blktrace:
            return map(_text, self._chosen())
        return map(_dump, self._segment.pieces())

    def objects(self) -> Iterator[dict[str, Any]]:
        """Return the records, or the bytes, as plain data."""
        if self._segment.is_blktrace:
            return self._chosen()
        return (
            {"file": piece.number, "offset": piece.offset, "data": piece.data.hex()}
            for piece in self._segment.pieces()
        )

    def count(self, into: EventCount) -> None:
        """Add up the records, or the bytes."""
        if not self._segment.is_blktrace:
            for number, size in self._segment.sizes.items():
                into.add(_BYTES, number, size)
            return
        for data in self._chosen():
            into.add(data["event"], data["cpu"])

    def _chosen(self) -> Iterator[dict[str, Any]]:
        """Yield records as plain data, with the names of tasks that notes have reported so far."""
        comms: dict[int, str] = {}
        for found in self._segment.by_time():
            if isinstance(found, Damage):
                self.damaged = True
                complain(f"{found.path}: {found.error}; the rest of the file is skipped")
                continue
            if found.is_note and found.name == "process":
                comms[found.pid] = found.text
            data = _data(found, comms.get(found.pid, ""))
            predicate = self._predicates.get(found.name)
            if predicate(data) if predicate is not None else self._everything:
                yield data


def _data(record: BlkRecord, comm: str) -> dict[str, Any]:
    return {
        "time_ns": record.time_ns,
        "cpu": record.cpu,
        "pid": record.pid,
        "comm": comm,
        "event": record.name,
        "action": record.letter,
        "rwbs": "" if record.is_note else record.rwbs,
        "device": f"{record.device >> _MINOR_BITS},{record.device & ((1 << _MINOR_BITS) - 1)}",
        "sector": record.sector,
        "sectors": record.sectors,
        "bytes": record.size_bytes,
        "error": record.error,
        "sequence": None if record.is_note else record.sequence,
        "text": record.text if record.is_note and record.name != "timestamp" else "",
    }


def _text(data: dict[str, Any]) -> str:
    task = visible(f"{data['comm'] or '<...>'}-{data['pid']}")
    head = f"{_time_text(data['time_ns'])} [{data['cpu']:03}] {task:<22} {data['device']:>7} "
    if data["sequence"] is None:
        return f"{head}{data['action']:>2} {data['event']} {visible(data['text'])}".rstrip()
    where = f"{data['sector']} + {data['sectors']}" if data["bytes"] else str(data["sector"])
    error = f" error {data['error']}" if data["error"] else ""
    return f"{head}{data['action']:>2} {data['rwbs']:<4} {where}{error}"


def _dump(piece: Piece) -> str:
    shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece.data)  # noqa: PLR2004
    return f"[{piece.number:03}] {piece.offset:08x}  {piece.data.hex(' '):<47}  {shown}"


def _time_text(time_ns: int) -> str:
    """Return a time in seconds."""
    seconds, rest_ns = divmod(time_ns, NS_PER_SECOND)
    return f"{seconds}.{rest_ns:09}"
