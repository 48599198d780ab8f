# SPDX-License-Identifier: Apache-2.0
"""The keys of objects in a store; pure.

events/event=E/date=D/host=H/SOURCE-N.parquet    the rows of one table of one segment
ledger/date=D/host=H/SOURCE.json                 the commit of a segment, which is put last
lasting/until=U/since=S/date=D/host=H/SOURCE     says that a segment is of the days S to U
raw/host=H/session=S/SOURCE/NAME                 the segment as it is on the host
incidents/host=H/ID/NAME                         an incident; incident.json is put last
iceberg/event=E/metadata/NAME                    the Iceberg table of an event's files

SOURCE is the SHA-256 of the segment's manifest as it was sealed: the same segment has the same
keys, whoever puts it, how often and with which version. D is the day, in UTC, of its first record.
Names have the bytes that are no letters, digits and `_.-~` as %XX, as the partitions of Hive have.
"""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, date, datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from collectord.text.units import NS_PER_SECOND

EVENTS: Final = "events"
LEDGER: Final = "ledger"
LASTING: Final = "lasting"
RAW: Final = "raw"
INCIDENTS: Final = "incidents"
ICEBERG: Final = "iceberg"
# Engines take what it stands for as a value of its column.
_NAME_MAX_BYTES: Final = 200
_SOURCE: Final = r"[0-9a-f]{64}"
_DATE: Final = r"\d{4}-\d{2}-\d{2}"
_EVENT_KEY: Final = re.compile(
    rf"events/event=([^/]+)/date=({_DATE})/host=([^/]+)/({_SOURCE})-(\d{{1,9}})\.parquet"
)
_COMMIT_KEY: Final = re.compile(rf"ledger/date=({_DATE})/host=([^/]+)/({_SOURCE})\.json")
_LASTING_KEY: Final = re.compile(
    rf"lasting/until=({_DATE})/since=({_DATE})/date=({_DATE})/host=([^/]+)/({_SOURCE})"
)
_INCIDENT_KEY: Final = re.compile(r"incidents/host=([^/]+)/([^/]+)/(.+)")


class EventKey(NamedTuple):
    """The parts of the key of a file of rows; `number` counts those of one table and segment."""

    event: str
    date: str
    host: str
    source: str
    number: int = 0

    @property
    def key(self) -> str:
        """The key."""
        place = f"{EVENTS}/event={quoted(self.event)}/date={self.date}/host={quoted(self.host)}"
        return f"{place}/{self.source}-{self.number}.parquet"


class CommitKey(NamedTuple):
    """The parts of the key of a commit."""

    date: str
    host: str
    source: str

    @property
    def key(self) -> str:
        """The key."""
        return f"{LEDGER}/date={self.date}/host={quoted(self.host)}/{self.source}.json"


class LastingKey(NamedTuple):
    """The parts of the key of a note that a segment is of other days than its keys tell.

    Attributes:
        until, since: the last and the first day of its time.
        commit: of the segment.
    """

    until: str
    since: str
    commit: CommitKey

    @property
    def key(self) -> str:
        """The key."""
        one = self.commit
        place = f"{LASTING}/until={self.until}/since={self.since}/date={one.date}"
        return f"{place}/host={quoted(one.host)}/{one.source}"


class IncidentKey(NamedTuple):
    """The parts of the key of a file of an incident; `name` may have slashes."""

    host: str
    id: str
    name: str

    @property
    def key(self) -> str:
        """The key."""
        name = "/".join(map(quoted, self.name.split("/")))
        return f"{INCIDENTS}/host={quoted(self.host)}/{quoted(self.id)}/{name}"


def raw_key(host: str, session: str, source: str, name: str, *, packed: bool = False) -> str:
    """Return the key of a file of a segment.

    Args:
        host: its name.
        session: whose segment it is.
        source: of the segment.
        name: of the file.
        packed: it is compressed: these bytes have a key of their own, as they are others.
    """
    place = f"{RAW}/host={quoted(host)}/session={quoted(session)}/{source}"
    return f"{place}/packed/{quoted(name)}" if packed else f"{place}/{quoted(name)}"


def event_prefix(event: str, day: str = "", host: str = "") -> str:
    """Return what the keys of a table's files begin with: all, of one day, of one host of it."""
    return "/".join([f"{EVENTS}/event={quoted(event)}", *_parts(day, host)])


def ledger_prefix(day: str = "", host: str = "") -> str:
    """Return what the keys of commits begin with, of one day, of one host of it, or all."""
    return "/".join([LEDGER, *_parts(day, host)])


def incidents_prefix(host: str = "") -> str:
    """Return what the keys of incidents begin with, of one host or of all."""
    return f"{INCIDENTS}/host={quoted(host)}" if host else INCIDENTS


def _parts(day: str, host: str) -> list[str]:
    return [*([f"date={day}"] if day else []), *([f"host={quoted(host)}"] if day and host else [])]


def parse_event_key(key: str) -> EventKey | None:
    """Return the parts of a key; None for any other object."""
    match = _EVENT_KEY.fullmatch(key)
    if match is None or not _is_day(match[2]):
        return None
    event, day, host, source, number = match.groups()
    return EventKey(unquote(event), day, unquote(host), source, int(number))


def parse_commit_key(key: str) -> CommitKey | None:
    """Return the parts of a key; None for any other object."""
    match = _COMMIT_KEY.fullmatch(key)
    if match is None or not _is_day(match[1]):
        return None
    return CommitKey(match[1], unquote(match[2]), match[3])


def parse_lasting_key(key: str) -> LastingKey | None:
    """Return the parts of a key; None for any other object."""
    match = _LASTING_KEY.fullmatch(key)
    if match is None or not all(map(_is_day, match.groups()[:3])):
        return None
    until, since, day, host, source = match.groups()
    return LastingKey(until, since, CommitKey(day, unquote(host), source))


def parse_incident_key(key: str) -> IncidentKey | None:
    """Return the parts of a key; None for any other object."""
    match = _INCIDENT_KEY.fullmatch(key)
    if match is None:
        return None
    host, incident, name = match.groups()
    return IncidentKey(unquote(host), unquote(incident), unquote(name))


def partition(folder: str) -> tuple[str, str] | None:
    """Return {name, value} of the last part of a folder such as `events/event=x`; None if none."""
    name, equals, value = folder.rstrip("/").rpartition("/")[2].partition("=")
    return (name, unquote(value)) if equals else None


def day_of(utc_ns: int) -> str:
    """Return the day of a time, in UTC, as partitions have it."""
    return f"{datetime.fromtimestamp(utc_ns // NS_PER_SECOND, tz=UTC):%Y-%m-%d}"


def source_of(sealed: list[str]) -> str:
    """Return the source of a segment by the hashes of its manifests, one for each file."""
    if len(sealed) == 1:
        return sealed[0]
    return hashlib.sha256("\n".join(sealed).encode()).hexdigest()


def quoted(name: str) -> str:
    """Return a name as a part of a key; one that is too long ends with a sum of all of it."""
    text = quote(name, safe="")
    if len(text) <= _NAME_MAX_BYTES:
        return text
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
    return f"{re.sub(r'%[0-9A-F]?$', '', text[:_NAME_MAX_BYTES])}~{digest}"


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
