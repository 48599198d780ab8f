# SPDX-License-Identifier: Apache-2.0
"""Sessions of requests: their tables, their limits, and what a client encodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from collectord.cli import sessions
from collectord.cli.record_config import timed_session
from collectord.config.decode import decode
from collectord.config.encode import encode
from collectord.config.schema import Config, ControlConfig
from collectord.config.schema_session import TimedSessionConfig
from collectord.config.timed_session import parse
from collectord.errors import ConfigError
from collectord.text.units import Bytes, Nanoseconds

PERF: dict[str, Any] = {"kind": "perf", "events": ["cpu-clock"]}
PROBE = {"kind": "kprobe", "name": "x", "place": "do_exit"}
LIMITS = ControlConfig(max_sessions=1, max_duration=Nanoseconds(60_000_000_000))


@pytest.mark.parametrize(
    "words",
    [
        "-e sched:sched_switch --filter prev_pid==1 -C 0-1,3 -m 64",
        "-e {cycles,page-faults}:u|cpu-clock -F 99 --call-graph dwarf,4096 --all-cgroups -p 1,2",
        "-e sched:* -e irq:* --via ftrace --transport read -m 2M",
        "-e mem:0x1000/8:w -c 7 -u 0 --per-thread -i",
        "-G system.slice",
    ],
)
def test_the_options_of_record_arrive_as_they_were(words: str) -> None:
    """The client encodes them as JSON that is decoded to the same values."""
    args = sessions.parser().parse_intermixed_args(["start", "--duration", "5s", *words.split()])
    document = json.loads(json.dumps(timed_session(args, "x")))
    session = parse(document, LIMITS, "other")
    assert (session.name, session.duration, session.loss_class) == ("x", 5_000_000_000, "spare")
    assert encode(session) == document
    assert decode(encode(session), TimedSessionConfig, "") == session


def test_shares_and_sizes_are_encoded() -> None:
    """A whole configuration is too, without its defaults."""
    document: dict[str, Any] = {
        "daemon": {"budget": "2%", "staging": "1048576B"},
        "retention": {"free": "5%"},
    }
    config = decode(document, Config, "")
    assert config.daemon.staging == Bytes(1 << 20)
    assert encode(config) == document


@pytest.mark.parametrize(
    ("changed", "key", "message"),
    [
        ({"duration": None}, "duration", "expected"),
        ({"duration": "0"}, "duration", "0ns is not allowed; above 0, up to 1m"),
        ({"duration": "61s"}, "duration", "61s is not allowed"),
        ({"directory": "/etc"}, "directory", "unknown key 'directory'"),
        ({"class": "must-not-lose"}, "class", "unknown key 'class'"),
        ({"mode": "flight-recorder"}, "mode", "unknown key 'mode'"),
        ({"single_file": "/etc/x"}, "single_file", "unknown key"),
        ({"ends_ns": 1}, "ends_ns", "unknown key"),
        ({"name": "../x"}, "name", "not a valid session name"),
        ({"name": "a\0b"}, "name", "NUL"),
        ({"target": {"scope": "command"}}, "target.scope", "only `collectord record`"),
        ({"source": [PERF | {"events": ["cpu-clok:"]}]}, "source[0].events[0]", "modifier"),
        ({"source": [PERF | {"aux": "1MiB"}]}, "source[0].aux", "cannot be started"),
        (
            {"source": [{"kind": "bpf", "program": "x"}]},
            "source[0].kind",
            "allowed: perf, tracefs",
        ),
        (
            {"source": [{"kind": "tracefs", "probes": [PROBE]}]},
            "source[0].probes",
            "cannot be started",
        ),
    ],
)
def test_what_is_beyond_the_limits_is_refused(
    changed: dict[str, Any], key: str, message: str
) -> None:
    """The error names the key, as one of a file does."""
    table = {"source": [PERF], "duration": "1m"} | changed
    with pytest.raises(ConfigError, match=message) as refused:
        parse(table, LIMITS, "timed-1")
    assert refused.value.key.startswith(key)


def test_a_session_without_name_gets_one() -> None:
    """It needs an end, and its sources are of kinds that are allowed."""
    table = {"source": [PERF], "duration": "1m"}
    assert parse(table, LIMITS, "timed-1").name == "timed-1"
    with pytest.raises(ConfigError, match="missing required field duration"):
        parse({"source": [PERF]}, LIMITS, "timed-1")
    with pytest.raises(ConfigError, match="allowed: none"):
        parse(table, ControlConfig(session_kinds=()), "timed-1")
