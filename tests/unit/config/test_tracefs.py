# SPDX-License-Identifier: Apache-2.0
"""Keys of tracefs sources in configuration files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from collectord.config.load import load
from collectord.config.schema_session import PerfSourceConfig, SessionConfig, TracefsSourceConfig
from collectord.config.trace_probe import Probe, ProbeKind
from collectord.errors import ConfigError
from collectord.text.units import Least, RingSize, Share
from tests.support.configs import trace_event, tracefs_source

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
[[session.source]]
kind = "tracefs"
events = ["sched:sched_switch"]
"""
STREAM = f'[[session]]\nname = "a"\n{SOURCE}'
RECORDER = f'[[session]]\nname = "a"\nmode = "flight-recorder"\n{SOURCE}'
FREEZE = 'freeze_on = "oom:mark_victim"\n'
PERF = '[[session.source]]\nkind = "perf"\nevents = ["cs"]\n'
KEY = "session[0].source[0]"


def loaded(folder: Path, text: str) -> SessionConfig:
    """Return the only session of a file."""
    path = folder / "c.toml"
    path.write_text(text)
    (session,) = load([path]).session
    return session


def source(folder: Path, text: str) -> TracefsSourceConfig:
    """Return its only source."""
    (found,) = loaded(folder, text).source
    assert isinstance(found, TracefsSourceConfig)
    return found


def test_defaults(tmp_path: Path) -> None:
    """Kind and events are enough."""
    expected = tracefs_source("sched:sched_switch")
    assert source(tmp_path, STREAM) == expected
    assert (expected.transport, expected.overwrite, expected.when) == ("auto", True, "always")


def test_every_key_is_typed(tmp_path: Path) -> None:
    """Sizes, durations, events and probes arrive as values."""
    found = source(
        tmp_path,
        RECORDER.replace(
            '["sched:sched_switch"]',
            '["block:*", { event = "oom:mark_victim", filter = "pid > 1", when = "present" }]',
        )
        + """
        probes = [
            { kind = "kprobe", name = "opened", place = "do_filp_open", arguments = "flags=%dx" },
            { kind = "eprobe", name = "woken", place = "sched.sched_wakeup", filter = "pid > 1" },
        ]
        filter = "common_pid > 1"
        transport = "splice"
        ring = "8MiB"
        subbuf = "16KiB"
        watermark = "50%"
        keep = "1m"
        max = "1GiB"
        include_self = true
        when = "present"
        """,
    )
    victims = trace_event("oom:mark_victim", filter="pid > 1", when="present")
    assert found.events == (trace_event("block:*"), victims)
    assert found.probes == (
        Probe(kind=ProbeKind.KPROBE, name="opened", place="do_filp_open", arguments="flags=%dx"),
        Probe(kind=ProbeKind.EPROBE, name="woken", place="sched.sched_wakeup", filter="pid > 1"),
    )
    assert (found.transport, found.ring, found.subbuf) == ("splice", RingSize(8 << 20), 16 << 10)
    assert (found.watermark, found.keep, found.max) == (
        Share(percent=50.0),
        60 * 10**9,
        Least(1 << 30),
    )
    assert (found.filter, found.include_self, found.when) == ("common_pid > 1", True, "present")


def test_probes_alone_are_enough(tmp_path: Path) -> None:
    """A session may record nothing but what it makes itself."""
    probe = '{ kind = "kprobe", name = "a", place = "b" }'
    text = STREAM.replace('events = ["sched:sched_switch"]', f"probes = [{probe}]")
    assert source(tmp_path, text).events == ()


def test_sources_of_both_kinds(tmp_path: Path) -> None:
    """A session has them side by side, and each has its own keys."""
    perf, traced = loaded(tmp_path, f'[[session]]\nname = "a"\n{PERF}period = 1\n{SOURCE}').source
    assert isinstance(perf, PerfSourceConfig)
    assert isinstance(traced, TracefsSourceConfig)
    assert (perf.kind, traced.kind) == ("perf", "tracefs")


def probes(*entries: str) -> str:
    """Return a file with these probes."""
    return STREAM + f"probes = [{', '.join(entries)}]"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (STREAM + 'transprot = "read"', f"{KEY}.transprot", 'did you mean "transport"'),
        (STREAM + "frequency = 1", f"{KEY}.frequency", "unknown key 'frequency'"),
        (STREAM + 'sideband_ring = "1MiB"', f"{KEY}.sideband_ring", "allowed: events, probes"),
        (
            STREAM.replace('"tracefs"', '"trcefs"'),
            f"{KEY}.kind",
            "'trcefs' is unknown; did you mean \"tracefs\"? allowed: perf, tracefs",
        ),
        (STREAM.replace('kind = "tracefs"', ""), KEY, "missing required field kind"),
        (STREAM.replace('"tracefs"', "1"), f"{KEY}.kind", "expected a string"),
        (STREAM + 'transport = "raed"', f"{KEY}.transport", 'did you mean "read"'),
        (STREAM + 'transport = "raed"', f"{KEY}.transport", "auto, mmap, read, splice"),
        (STREAM + 'subbuf = "16"', f"{KEY}.subbuf", "has no unit"),
        (STREAM + 'ring = "0"', f"{KEY}.ring", "not a ring size"),
        (STREAM + 'overwrite = "no"', f"{KEY}.overwrite", "expected true or false"),
        (STREAM + 'when = "alwais"', f"{KEY}.when", 'did you mean "always"'),
        (STREAM.replace('["sched:sched_switch"]', "[]"), f"{KEY}.events", "an event or a probe"),
        (
            STREAM.replace('"sched:sched_switch"', '"cycles"'),
            f"{KEY}.events[0]",
            "'cycles' is not a tracepoint",
        ),
        (
            STREAM.replace('"sched:sched_switch"', '"a:b", { event = "a:b:u" }'),
            f"{KEY}.events[1].event",
            "takes no modifiers",
        ),
        (
            STREAM.replace('"sched:sched_switch"', '{ event = "a:b", period = 1 }'),
            f"{KEY}.events[0].period",
            "allowed: event, filter, when",
        ),
        (
            STREAM.replace('"sched:sched_switch"', '{ event = "a:b", when = "presnt" }'),
            f"{KEY}.events[0].when",
            'did you mean "present"',
        ),
        (
            probes('{ kind = "krpobe", name = "a", place = "b" }'),
            f"{KEY}.probes[0].kind",
            'did you mean "kprobe"',
        ),
        (probes('{ kind = "kprobe", name = "a" }'), f"{KEY}.probes[0]", "required field place"),
        (
            probes('{ kind = "kprobe", name = "a", place = "b", args = "" }'),
            f"{KEY}.probes[0].args",
            "unknown key 'args'",
        ),
        (
            probes('{ kind = "kprobe", name = "a-b", place = "c" }'),
            f"{KEY}.probes[0]",
            "kprobe a-b: 'a-b' is not a name",
        ),
        (
            probes('{ kind = "uprobe", name = "a", place = "main" }'),
            f"{KEY}.probes[0]",
            "write /PATH:0xOFFSET",
        ),
        (
            probes('{ kind = "eprobe", name = "a", place = "sched_switch" }'),
            f"{KEY}.probes[0]",
            "write SYSTEM.EVENT",
        ),
        (
            probes(*['{ kind = "kprobe", name = "a", place = "b" }'] * 2),
            f"{KEY}.probes[1].name",
            "a second probe 'a'",
        ),
        (STREAM + 'keep = "30s"', f"{KEY}.keep", 'mode = "flight-recorder"'),
        (STREAM + 'max = "1MiB"', f"{KEY}.max", "only a flight recorder has this key"),
        (RECORDER + 'keep = "0"', f"{KEY}.keep", "must not be 0"),
        (RECORDER + "overwrite = false", f"{KEY}.overwrite", "overwrites its oldest"),
        (
            RECORDER.replace("flight-recorder", "flight-recoder"),
            "session[0].mode",
            'did you mean "flight-recorder"',
        ),
        (
            STREAM.replace(SOURCE, FREEZE + SOURCE),
            "session[0].freeze_on",
            "only a flight recorder",
        ),
        (
            RECORDER.replace(SOURCE, 'freeze_filter = "a"\n' + SOURCE),
            "session[0].freeze_filter",
            "freeze_on, which is missing",
        ),
        (
            RECORDER.replace(SOURCE, 'freeze_on = "cycles"\n' + SOURCE),
            "session[0].freeze_on",
            "frozen by a tracepoint only",
        ),
        (
            RECORDER.replace(SOURCE, 'freeze_on = "{a,b}"\n' + PERF),
            "session[0].freeze_on",
            "is not one event",
        ),
        (
            RECORDER.replace(SOURCE, f'{FREEZE}target.scope = "user"\ntarget.user = 1\n{PERF}'),
            "session[0].freeze_on",
            "an event of one task cannot stop a ring",
        ),
        (STREAM + SOURCE, "session[0].source[1].kind", "there is a second tracefs source"),
    ],
)
def test_what_is_wrong(tmp_path: Path, text: str, key: str, words: str) -> None:
    """An error is one line with the file, the key and valid values."""
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load([path])
    assert caught.value.path == str(path)
    assert "\n" not in str(caught.value)
    assert caught.value.key == key
    assert words in str(caught.value)
