# SPDX-License-Identifier: Apache-2.0
"""Rules for combinations of a configuration's values, beyond their types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from collectord.codec.tracepoint import Tracepoint
from collectord.config import relay_rules
from collectord.config.event_spec import Modifiers
from collectord.config.problems import NAME, NAME_WORDS, PID_MAX, Problem, under
from collectord.config.scheduling import SHARDS_MAX
from collectord.config.schema_session import (
    BpfSourceConfig,
    PerfSourceConfig,
    RelaySourceConfig,
    TracefsSourceConfig,
)
from collectord.config.ship_rules import check_ship
from collectord.config.trigger_rules import check_triggers
from collectord.model import (
    FLIGHT_RECORDER,
    FOLLOWING,
    INCIDENTS,
    TASK_SCOPES,
    ScopeKind,
)
from collectord.text.units import Least

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import BpfConfig, Config, ControlConfig, DaemonConfig
    from collectord.config.schema_session import (
        EventConfig,
        SessionConfig,
        SourceConfig,
        TargetConfig,
    )

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
_MAX_STACK: Final = 65535  # sample_max_stack has 16 bits
_AUX_FLUSH_MIN_NS: Final = 1_000_000
_CHUNK_ALIGN_BYTES: Final = 4096
# The longest record has 64 KiB less 8: a chunk must hold one and its padding.
_CHUNK_MIN_BYTES: Final = 128 << 10
_CHUNK_MAX_BYTES: Final = 1 << 30
CHUNKS_MIN: Final = 4
_STARTED_MAX: Final = 16
_KEY_OF_SCOPE: Final = {
    ScopeKind.CPUS: "cpus",
    ScopeKind.PROCESS: "pids",
    ScopeKind.THREAD: "pids",
    ScopeKind.USER: "user",
    ScopeKind.CGROUP: "cgroup",
    ScopeKind.COMM: "comm",
    ScopeKind.EXECUTABLE: "executable",
    ScopeKind.UNIT: "unit",
}
_COMM_MAX: Final = 15  # TASK_COMM_LEN less its zero
# Events in these scopes belong to a CPU: IOC_REFRESH is refused for what children inherit.
FREEZABLE: Final = (ScopeKind.SYSTEM, ScopeKind.CPUS, ScopeKind.CGROUP)


def check_config(config: Config) -> Iterator[Problem]:
    """Yield problems of a whole configuration, each session's included."""
    yield from under("daemon", _daemon(config.daemon))
    yield from under("control", _control(config.control))
    yield from under("bpf", _bpf(config.bpf))
    yield from check_ship(config)
    yield from check_triggers(config)
    names: set[str] = set()
    for index, session in enumerate(config.session):
        key = f"session[{index}]"
        yield from under(key, check_session(session))
        if session.name in names:
            yield Problem(
                f"{key}.name", f"there is a second session {session.name!r}", "names are unique"
            )
        names.add(session.name)


def check_session(session: SessionConfig) -> Iterator[Problem]:
    """Yield problems of one session."""
    if _NAME.fullmatch(session.name) is None:
        yield Problem(
            "name",
            f"{session.name!r} is not a valid session name",
            "up to 64 letters, digits, _ . and -, beginning with a letter or digit",
        )
    if session.name == INCIDENTS:
        yield Problem("name", f"{INCIDENTS!r} is the folder of incidents", "choose another name")
    if not session.source:
        yield Problem("source", "a session needs a source", "add a [[session.source]]")
    yield from under("target", _target(session.target))
    for index, source in enumerate(session.source):
        yield from under(f"source[{index}]", _source(source))
    yield from _mode(session)


def _source(source: SourceConfig) -> Iterator[Problem]:
    match source:
        case PerfSourceConfig():
            yield from _perf(source)
        case TracefsSourceConfig():
            yield from _tracefs(source)
        case BpfSourceConfig():
            if NAME.fullmatch(source.program) is None:
                text = f"{source.program!r} is not a valid program name"
                yield Problem("program", text, NAME_WORDS)
        case RelaySourceConfig():
            yield from relay_rules.check(source)


def _mode(session: SessionConfig) -> Iterator[Problem]:
    """Yield problems of a mode's sources and their keys."""
    if any(isinstance(source, RelaySourceConfig) for source in session.source):
        yield from relay_rules.check_session(session)
    recorder = session.mode == FLIGHT_RECORDER
    yield from _freeze(session)
    if session.target.scope in FOLLOWING and recorder:
        yield Problem(
            "mode",
            f"a flight recorder cannot be combined with scope '{session.target.scope}'",
            'mode = "stream"; or scope = "cgroup"',
        )
    seen = False
    programs: set[str] = set()
    for index, source in enumerate(session.source):
        key = f"source[{index}]"
        if isinstance(source, PerfSourceConfig):
            continue
        if isinstance(source, BpfSourceConfig):
            yield from under(key, _program(session, source, programs))
            yield from under(key, _window("keep", source.keep, recorder=recorder))
            continue
        if not isinstance(source, TracefsSourceConfig):
            continue
        if seen:
            yield Problem(
                f"{key}.kind",
                "there is a second tracefs source",
                "one instance has all events of a session: put its events into the first source",
            )
        seen = True
        if source.when == "otherwise" and len(session.source) == 1:
            hint = 'when = "present"'
            yield Problem(f"{key}.when", "there is no other source that it stands in for", hint)
        yield from under(key, _window("keep", source.keep, recorder=recorder))
        yield from under(key, _window("max", source.max, recorder=recorder))
        if recorder and not source.overwrite:
            yield Problem(f"{key}.overwrite", "a flight recorder overwrites its oldest events")


def _window(name: str, value: int | Least | None, *, recorder: bool) -> Iterator[Problem]:
    """Yield problems of a key that only a flight recorder has."""
    if value is not None and not recorder:
        yield Problem(name, "only a flight recorder has this key", f'mode = "{FLIGHT_RECORDER}"')
    elif value in (0, Least()):
        yield Problem(name, "must not be 0")


def _freeze(session: SessionConfig) -> Iterator[Problem]:
    """Yield problems of what stops a flight recorder by itself."""
    if session.freeze_filter and not session.freeze_on:
        yield Problem("freeze_filter", "is the filter of freeze_on, which is missing")
    if not session.freeze_on:
        return
    if session.mode != FLIGHT_RECORDER:
        hint = f'mode = "{FLIGHT_RECORDER}"'
        yield Problem("freeze_on", "only a flight recorder can be frozen", hint)
    if session.target.scope not in FREEZABLE:
        yield Problem(
            "freeze_on",
            f"cannot be combined with scope '{session.target.scope}': an event of one task cannot "
            "stop a ring",
            ", ".join(f'scope = "{scope}"' for scope in FREEZABLE),
        )
    ftrace = any(isinstance(source, TracefsSourceConfig) for source in session.source)
    if any(isinstance(source, BpfSourceConfig) for source in session.source):
        yield Problem("freeze_on", "a flight recorder of a BPF program cannot be frozen")
    spec = session.freeze_on
    if ftrace and (not isinstance(spec.body, Tracepoint) or spec.modifiers != Modifiers()):
        yield Problem("freeze_on", "a tracefs source can be frozen by a tracepoint only")


def _program(
    session: SessionConfig, source: BpfSourceConfig, programs: set[str]
) -> Iterator[Problem]:
    """Yield problems of a BPF program's session; `programs` are those before it."""
    if any(isinstance(other, PerfSourceConfig) for other in session.source):
        yield Problem(
            "kind", "there are BPF and perf sources in one session", "give each its own session"
        )
    if source.program in programs:
        yield Problem("program", f"{source.program} is listed twice", "give it its own session")
    programs.add(source.program)
    if session.target.scope not in (ScopeKind.SYSTEM, ScopeKind.CPUS):
        yield Problem(
            "kind",
            f"a BPF program observes whole CPUs, not scope '{session.target.scope}'",
            'scope = "system" or "cpus"; programs have parameters such as pid',
        )


def _bpf(bpf: BpfConfig) -> Iterator[Problem]:
    for key in ("programs", "python", "headers", "cache"):
        path = getattr(bpf, key)
        if path and not path.startswith("/"):
            yield Problem(key, f"{path!r} is not an absolute path")
    for key in ("compile_time", "compile_memory"):
        if getattr(bpf, key) <= 0:
            yield Problem(key, "must not be 0")


def _control(control: ControlConfig) -> Iterator[Problem]:
    if not 0 <= control.max_sessions <= _STARTED_MAX:
        hint = f"0 (none may be started) to {_STARTED_MAX}"
        yield Problem("max_sessions", f"{control.max_sessions} sessions", hint)
    for key in ("max_duration", "max_bytes", "max_memory"):
        if getattr(control, key) <= 0:
            yield Problem(key, "must not be 0", "max_sessions = 0 allows none")


def _daemon(daemon: DaemonConfig) -> Iterator[Problem]:
    if not daemon.state_dir.startswith("/"):
        yield Problem("state_dir", f"{daemon.state_dir!r} is not an absolute path")
    if not 0 <= daemon.shards <= SHARDS_MAX:
        yield Problem("shards", f"{daemon.shards} threads", f"0 (automatic) to {SHARDS_MAX}")
    if daemon.chunk % _CHUNK_ALIGN_BYTES or not (
        _CHUNK_MIN_BYTES <= daemon.chunk <= _CHUNK_MAX_BYTES
    ):
        yield Problem("chunk", f"{daemon.chunk} bytes", "a multiple of 4KiB from 128KiB to 1GiB")
    elif daemon.staging < CHUNKS_MIN * daemon.chunk:
        yield Problem("staging", f"{daemon.staging} bytes", f"at least {CHUNKS_MIN} chunks")
    if daemon.flush_interval <= 0:
        yield Problem("flush_interval", "must not be 0", 'a duration, e.g. "1s"')
    if daemon.budget.bytes:
        yield Problem("budget", "is a share of all CPUs, not a size", 'e.g. "0.5%"')


def _target(target: TargetConfig) -> Iterator[Problem]:
    scope = target.scope
    given = {
        "cpus": bool(target.cpus),
        "pids": bool(target.pids),
        "user": target.user is not None,
        "cgroup": bool(target.cgroup),
        "comm": bool(target.comm),
        "executable": bool(target.executable),
        "unit": bool(target.unit),
    }
    needed = _KEY_OF_SCOPE.get(scope)
    if needed is not None and not given[needed]:
        yield Problem(needed, f"scope '{scope}' needs this key")
    for key, present in given.items():
        # Any scope but `system` can be narrowed to CPUs.
        if present and key != needed and (key != "cpus" or scope is ScopeKind.SYSTEM):
            hint = 'scope = "cpus"' if key == "cpus" else ""
            yield Problem(key, f"cannot be combined with scope '{scope}'", hint)
    if target.per_thread and scope not in TASK_SCOPES:
        yield Problem(
            "per_thread", f"cannot be combined with scope '{scope}'", ", ".join(TASK_SCOPES)
        )
    for pid in target.pids:
        if not 0 < pid <= PID_MAX:
            yield Problem("pids", f"{pid} is not a process id", f"above 0, up to {PID_MAX}")
    if target.user is not None and target.user < 0:
        yield Problem("user", f"{target.user} is not a user id")
    yield from _following(target)


def _following(target: TargetConfig) -> Iterator[Problem]:
    """Yield problems of a scope of all processes that match."""
    if target.scope not in FOLLOWING:
        return
    if target.limit <= 0:
        yield Problem("limit", f"{target.limit} processes", "1 or more")
    if target.per_thread:
        yield Problem("per_thread", f"cannot be combined with scope '{target.scope}'")
    if not target.inherit:
        yield Problem(
            "inherit",
            f"cannot be combined with scope '{target.scope}': what a matching process starts is "
            "recorded with it",
        )
    if "*" not in target.comm and "[" not in target.comm and len(target.comm) > _COMM_MAX:
        hint = f"names of processes have up to {_COMM_MAX} characters: {target.comm[:_COMM_MAX]!r}"
        yield Problem("comm", f"{target.comm!r} matches no process", hint)
    if target.executable and target.executable[0] not in "/*?[":
        hint = f"paths are matched whole: '*/{target.executable}'"
        yield Problem("executable", f"{target.executable!r} matches no path", hint)


def _perf(source: PerfSourceConfig) -> Iterator[Problem]:
    yield from _rate(source)
    if not source.events:
        yield Problem("events", "an event is needed", 'e.g. events = ["cpu-clock"]')
    for index, event in enumerate(source.events):
        yield from under(f"events[{index}]", _rate(event))
    if source.aux_flush and source.aux_flush < _AUX_FLUSH_MIN_NS:
        hint = '"0" turns it off; each flush stops and starts the events'
        yield Problem("aux_flush", "less than 1ms", hint)
    if not 0 <= source.max_stack <= _MAX_STACK:
        yield Problem("max_stack", f"{source.max_stack} frames", f"0 to {_MAX_STACK}")


def _tracefs(source: TracefsSourceConfig) -> Iterator[Problem]:
    if not source.events and not source.probes:
        yield Problem(
            "events", "an event or a probe is needed", 'e.g. events = ["sched:sched_switch"]'
        )
    names: set[str] = set()
    for index, probe in enumerate(source.probes):
        if probe.name in names:
            message = f"there is a second probe {probe.name!r}"
            yield Problem(f"probes[{index}].name", message, "names are unique")
        names.add(probe.name)


def _rate(settings: PerfSourceConfig | EventConfig) -> Iterator[Problem]:
    if settings.frequency is not None and settings.period is not None:
        yield Problem("period", "frequency and period cannot be combined")
    if settings.frequency is not None and settings.frequency <= 0:
        yield Problem("frequency", f"{settings.frequency} Hz", "samples per second, 1 or more")
    if settings.period is not None and settings.period <= 0:
        yield Problem("period", f"{settings.period}", "events per sample, 1 or more")
