# SPDX-License-Identifier: Apache-2.0
"""Keys of a store: what they are made of is found in them again."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectord.fleet.store_keys import (
    CommitKey,
    EventKey,
    IncidentKey,
    LastingKey,
    day_of,
    event_prefix,
    ledger_prefix,
    parse_commit_key,
    parse_event_key,
    parse_incident_key,
    parse_lasting_key,
    partition,
    quoted,
    raw_key,
    source_of,
)

SOURCE = "ab" * 32
DAY = "2026-11-27"
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def test_keys_are_partitions() -> None:
    """Engines prune by event, day and host, which the keys have in this order."""
    key = EventKey("sched_switch", DAY, "db-1", SOURCE).key
    assert key == f"events/event=sched_switch/date={DAY}/host=db-1/{SOURCE}-0.parquet"
    assert CommitKey(DAY, "db-1", SOURCE).key == f"ledger/date={DAY}/host=db-1/{SOURCE}.json"
    raw = raw_key("db-1", "exec", SOURCE, "a.perf.data")
    assert raw == f"raw/host=db-1/session=exec/{SOURCE}/a.perf.data"
    assert raw_key("db-1", "exec", SOURCE, "a.perf.data", packed=True) != raw
    incident = IncidentKey("db-1", "20261127T000000Z-oom", "answers/why-mem.txt").key
    assert incident == "incidents/host=db-1/20261127T000000Z-oom/answers/why-mem.txt"


@given(event=NAMES, host=NAMES, number=st.integers(0, 999_999_999))
def test_any_name_is_one_part_of_a_key(event: str, host: str, number: int) -> None:
    """A name with slashes, dots or bytes of any kind cannot leave its part, and is found again."""
    made = EventKey(event, DAY, host, SOURCE, number)
    assert parse_event_key(made.key) == made
    assert made.key.count("/") == 4
    commit = CommitKey(DAY, host, SOURCE)
    assert parse_commit_key(commit.key) == commit
    lasting = LastingKey("2026-12-31", DAY, commit)
    assert parse_lasting_key(lasting.key) == lasting
    incident = IncidentKey(host, "20261127T000000Z-oom", "incident.json")
    assert parse_incident_key(incident.key) == incident
    assert partition(f"events/event={quoted(event)}/") == ("event", event)


@pytest.mark.parametrize(
    "key",
    [
        "",
        f"events/event=x/date=2026-13-01/host=h/{SOURCE}-0.parquet",
        f"events/event=x/date={DAY}/host=h/{SOURCE}.parquet",
        f"events/event=x/date={DAY}/host=h/../{SOURCE}-0.parquet",
        f"ledger/date={DAY}/host=h/{SOURCE}.json.tmp",
        f"lasting/until=2026-13-01/since={DAY}/date={DAY}/host=h/{SOURCE}",
    ],
)
def test_other_objects_have_no_parts(key: str) -> None:
    """Objects that somebody else put into the store are none of ours."""
    assert parse_event_key(key) is None
    assert parse_commit_key(key) is None
    assert parse_lasting_key(key) is None


def test_prefixes_end_with_whole_parts() -> None:
    """They are of a day, of a host of that day, or of all."""
    assert event_prefix("x") == "events/event=x"
    assert event_prefix("x", DAY, "h") == f"events/event=x/date={DAY}/host=h"
    assert ledger_prefix(DAY) == f"ledger/date={DAY}"
    assert ledger_prefix() == "ledger"


def test_long_names_stay_apart() -> None:
    """Two names that begin alike have keys of their own, within what stores take."""
    one, other = quoted("é" * 300), quoted("é" * 299)
    assert one != other
    assert max(len(one), len(other)) <= 220


def test_a_day_is_that_of_utc() -> None:
    """The last nanosecond of a day is in it."""
    assert day_of(1_795_737_600_000_000_000 - 1) == "2026-11-26"
    assert day_of(1_795_737_600_000_000_000) == DAY


def test_the_source_of_a_set_is_of_all_its_manifests() -> None:
    """One file is named by its own manifest, a set by those of all."""
    assert source_of([SOURCE]) == SOURCE
    both = hashlib.sha256(f"{SOURCE}\n{SOURCE}".encode()).hexdigest()
    assert source_of([SOURCE, SOURCE]) == both
