# SPDX-License-Identifier: Apache-2.0
"""Configuration files."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import re
import tomllib
import typing
from pathlib import Path

import msgspec
import pytest

from collectord.codec.blktrace import Action
from collectord.config.load import config_files, load, load_files
from collectord.config.schema import Config
from collectord.config.schema_session import (
    BpfSourceConfig,
    PerfSourceConfig,
    RelaySourceConfig,
    SessionConfig,
)
from collectord.config.schema_trigger import TriggerConfig
from collectord.errors import ConfigError
from collectord.facts.kernel_facts import BpfFacts
from collectord.plan.bpf_plan import BpfPlan
from collectord.plan.build import build
from collectord.plan.ftrace_plan import FtracePlan
from collectord.programs.bpf_program import tracepoints
from collectord.text.units import NS_PER_SECOND, Bytes, RingSize, Share
from tests.support.configs import perf_event
from tests.support.hosts import TRACEPOINTS, WITHOUT_BCC, host

MANUAL = Path(__file__).resolve().parents[3] / "config" / "collectord.toml"

SESSION = """
[[session]]
name = "a"
[[session.source]]
kind = "perf"
events = ["cpu-clock"]
"""
RELAY = """
[[session]]
name = "a"
[[session.source]]
kind = "relay"
device = "/dev/vda"
"""


def write(folder: Path, text: str, name: str = "collectord.toml") -> Path:
    """Return a configuration file."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def refused(folder: Path, text: str) -> ConfigError:
    """Return the error of a file with this text."""
    path = write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load([path])
    assert caught.value.path == str(path)
    assert caught.value.exit_code == 6
    assert "\n" not in str(caught.value)
    return caught.value


def test_defaults_need_no_file(tmp_path: Path) -> None:
    """An empty file is the default configuration without sessions."""
    assert load([write(tmp_path, "")]) == Config()


def test_every_key_is_typed(tmp_path: Path) -> None:
    """Sizes, durations, shares and entries of their own arrive as values."""
    config = load(
        [
            write(
                tmp_path,
                """
                [daemon]
                staging = "128MiB"
                flush_interval = "500ms"
                [retention]
                free = "5GiB"
                [[session]]
                name = "a"
                target = { scope = "cpus", cpus = "0-1" }
                [[session.source]]
                kind = "perf"
                events = ["cs", { event = "sched:sched_switch", filter = "prev_pid > 0" }]
                ring = "64pages"
                watermark = "10%"
                """,
            )
        ]
    )
    assert config.daemon.staging == 128 << 20
    assert config.daemon.flush_interval == 500_000_000
    assert config.retention.free == Share(5 << 30)
    (source,) = config.session[0].source
    assert isinstance(source, PerfSourceConfig)
    assert source.events == (
        perf_event("cs"),
        perf_event("sched:sched_switch", filter="prev_pid > 0"),
    )
    assert (source.ring, source.watermark) == (RingSize(pages=64), Share(percent=10.0))


def test_drop_ins_win_by_key_and_sessions_by_name(tmp_path: Path) -> None:
    """The last file's keys win in a table; a session replaces its namesake in place."""
    base = write(tmp_path, '[daemon]\nshards = 2\nlog_level = "debug"\n' + SESSION)
    second = SESSION.replace('"a"', '"b"')
    write(tmp_path, "[daemon]\nshards = 3\n" + second, "collectord.d/20.toml")
    write(
        tmp_path,
        "[daemon]\nshards = 4\n" + SESSION.replace("cpu-clock", "cs"),
        "collectord.d/10.toml",
    )
    write(tmp_path, "not TOML", "collectord.d/README")
    files = config_files(base)
    config = load(files)
    assert [file.name for file in files] == ["collectord.toml", "10.toml", "20.toml"]
    assert (config.daemon.shards, config.daemon.log_level) == (3, "debug")
    assert [session.name for session in config.session] == ["a", "b"]
    (source,) = config.session[0].source
    assert isinstance(source, PerfSourceConfig)
    assert source.events == (perf_event("cs"),)
    assert config.session[0].origin.endswith("10.toml")


def test_values_that_only_clash_together_are_found(tmp_path: Path) -> None:
    """A drop-in may break what the main file set: the merged configuration is checked again."""
    base = write(tmp_path, '[daemon]\nstaging = "4MiB"\n')
    extra = write(tmp_path, '[daemon]\nchunk = "16MiB"\n', "collectord.d/1.toml")
    with pytest.raises(ConfigError, match=r"daemon\.staging.*at least 4 chunks"):
        load([base, extra])


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[deamon]", "deamon", 'did you mean "daemon"'),
        ("[daemon]\nshard = 1", "daemon.shard", 'did you mean "shards"'),
        ("[metrics]\nzzz = 1", "metrics.zzz", "allowed: listen, per_cpu"),
        (SESSION + "rign = 1", "session[0].source[0].rign", 'did you mean "ring"'),
        (SESSION + '[session.target]\nx = ""', "session[0].target.x", "allowed: scope"),
        (SESSION.replace('name = "a"', 'name = "a"\norigin = ""'), "session[0].origin", "unknown"),
        (
            SESSION.replace('"cpu-clock"', '"cs", { event = "cs", filtr = "" }'),
            "session[0].source[0].events[1].filtr",
            'did you mean "filter"',
        ),
    ],
)
def test_unknown_keys_name_the_nearest(tmp_path: Path, text: str, key: str, words: str) -> None:
    """At every depth the error has the dotted key and what was probably meant."""
    error = refused(tmp_path, text)
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('[daemon]\nshards = "2"', "daemon.shards", "expected an integer, got a string"),
        ('[daemon]\ndrain_cpus = "1-0"', "daemon.drain_cpus", "CPU range '1-0' runs backwards"),
        ("[daemon]\nstaging = 64", "daemon.staging", "KiB, MiB, GiB"),
        ('[daemon]\nstaging = "64"', "daemon.staging", "has no unit"),
        ('[daemon]\nstaging = "64s"', "daemon.staging", "unit 's' is unknown"),
        ('[daemon]\nflush_interval = "1MiB"', "daemon.flush_interval", "ns, us, ms, s, m, h or d"),
        ('[daemon]\nflush_interval = "0"', "daemon.flush_interval", "must not be 0"),
        ('[daemon]\nlog_level = "inof"', "daemon.log_level", 'did you mean "info"'),
        ('[daemon]\nlog_level = "inof"', "daemon.log_level", "allowed: debug, info"),
        ('[daemon]\nstate_dir = "x"', "daemon.state_dir", "not an absolute path"),
        ('[daemon]\nchunk = "5000B"', "daemon.chunk", "multiple of 4KiB"),
        ('[daemon]\nchunk = "64KiB"', "daemon.chunk", "from 128KiB"),
        ("[daemon]\nshards = -1", "daemon.shards", "0 (automatic)"),
        ("[daemon]\nshards = 65", "daemon.shards", "0 (automatic) to 64"),
        ('[metrics]\nlisten = "x"', "metrics.listen", "HOST:PORT"),
        ('[metrics]\nlisten = "h:70000"', "metrics.listen", "HOST:PORT"),
        (
            RELAY + 'actions = ["issue", "complet"]',
            "session[0].source[0].actions[1]",
            'did you mean "complete"? allowed: read, write',
        ),
        ('[retention]\nfree = "120%"', "retention.free", "between 0% and 100%"),
        ("daemon = 1", "daemon", "expected a table"),
        ("[[session]]\nsource = []", "session[0]", "missing required field name"),
        ('[[session]]\nname = "a"\nsource = []', "session[0].source", "needs a source"),
        (SESSION.replace('"a"', '"a/b"'), "session[0].name", "not a valid session name"),
        (SESSION + SESSION, "session[1].name", "a second session 'a'"),
        (SESSION + "events = 1", "", "not TOML"),
        (SESSION.replace('"perf"', '"prf"'), "session[0].source[0].kind", 'did you mean "perf"'),
        (SESSION.replace('["cpu-clock"]', "[]"), "session[0].source[0].events", "an event is"),
        (
            SESSION.replace("cpu-clock", "cycles:x"),
            "session[0].source[0].events[0]",
            "unknown modifier",
        ),
        (
            SESSION.replace('"cpu-clock"', '{ event = "{a" }'),
            "session[0].source[0].events[0].event",
            "unbalanced",
        ),
        (
            SESSION.replace('"cpu-clock"', '{ event = "cs", frequency = 1, period = 1 }'),
            "session[0].source[0].events[0].period",
            "cannot be combined",
        ),
        (
            SESSION + "frequency = 1\nperiod = 1",
            "session[0].source[0].period",
            "cannot be combined",
        ),
        (SESSION + "frequency = 0", "session[0].source[0].frequency", "1 or more"),
        (
            SESSION + 'frequency = "19Hz"',
            "session[0].source[0].frequency",
            "expected an integer, got a string",
        ),
        (SESSION + "period = -1", "session[0].source[0].period", "1 or more"),
        (SESSION + 'call_graph = "fpp"', "session[0].source[0].call_graph", "fp, dwarf"),
        (SESSION + "max_stack = 70000", "session[0].source[0].max_stack", "0 to 65535"),
        (SESSION + 'ring = "0"', "session[0].source[0].ring", "not a ring size"),
        (SESSION + "[session.target]\npids = [1]", "session[0].target.pids", "scope 'system'"),
        (SESSION + '[session.target]\ncpus = "1"', "session[0].target.cpus", 'scope = "cpus"'),
        (SESSION + '[session.target]\nscope = "cpus"', "session[0].target.cpus", "needs this key"),
        (
            SESSION + '[session.target]\nscope = "process"\npids = [0]',
            "session[0].target.pids",
            "above 0",
        ),
        (
            SESSION + '[session.target]\nscope = "cpus"\ncpus = "3-1"',
            "session[0].target.cpus",
            "backwards",
        ),
        (
            SESSION + "[session.target]\nper_thread = true",
            "session[0].target.per_thread",
            "process, thread",
        ),
        (
            SESSION + '[session.target]\nscope = "user"\nuser = -1',
            "session[0].target.user",
            "not a user id",
        ),
        (
            SESSION + '[session.target]\nscope = "user"\nuser = "roott"',
            "session[0].target.user",
            'did you mean "root"',
        ),
    ],
)
def test_wrong_values_say_where_and_what_is_allowed(
    tmp_path: Path, text: str, key: str, words: str
) -> None:
    """Type, unit, spelling and combination errors name file, key and what would do."""
    error = refused(tmp_path, text)
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    "target",
    [
        'scope = "cpus"\ncpus = "0"',
        'scope = "process"\npids = [1]\ncpus = "0-1"\nper_thread = true',
        'scope = "user"\nuser = 0\ncpus = "0"',
        'scope = "cgroup"\ncgroup = "a"\ncpus = "0"',
        'scope = "command"',
        'scope = "comm"\ncomm = "work-*"\nlimit = 8\ncpus = "0"',
        'scope = "executable"\nexecutable = "*/nginx"',
        'scope = "unit"\nunit = "nginx.service"',
    ],
)
def test_scopes_take_their_keys_and_cpus(tmp_path: Path, target: str) -> None:
    """All scopes but `system` can be narrowed to CPUs."""
    (session,) = load([write(tmp_path, f"{SESSION}[session.target]\n{target}\n")]).session
    assert session.target.scope in target


@pytest.mark.parametrize(
    ("target", "key", "words"),
    [
        ('scope = "comm"', "target.comm", "needs this key"),
        ('scope = "unit"\nunit = "a"\nlimit = 0', "target.limit", "1 or more"),
        ('scope = "unit"\nunit = "a"\nper_thread = true', "target.per_thread", "scope 'unit'"),
        ('scope = "unit"\nunit = "a"\ninherit = false', "target.inherit", "recorded with it"),
        ('scope = "comm"\ncomm = "sixteen-letters-"', "target.comm", "sixteen-letters'"),
        ('scope = "executable"\nexecutable = "nginx"', "target.executable", "*/nginx"),
    ],
)
def test_scopes_that_follow_are_checked(tmp_path: Path, target: str, key: str, words: str) -> None:
    """A pattern that nothing can match, and what such a scope cannot be combined with."""
    error = refused(tmp_path, f"{SESSION}[session.target]\n{target}\n")
    assert error.key == f"session[0].{key}"
    assert words in str(error)


def test_a_flight_recorder_cannot_follow(tmp_path: Path) -> None:
    """Its events belong to a CPU from the start to the end."""
    recorder = SESSION.replace('name = "a"', 'name = "a"\nmode = "flight-recorder"')
    text = recorder + '[session.target]\nscope = "comm"\ncomm = "a"\n'
    assert refused(tmp_path, text).key == "session[0].mode"


def test_the_hash_is_that_of_the_files_bytes(tmp_path: Path) -> None:
    """With one file it is what sha256sum prints; a comment changes it, the path does not."""
    first, second = write(tmp_path, SESSION), write(tmp_path, "# no key\n", "second.toml")
    alone = load_files([first]).sha256
    assert alone == hashlib.sha256(first.read_bytes()).hexdigest()
    both = hashlib.sha256(first.read_bytes() + second.read_bytes()).hexdigest()
    assert load_files([first, second]).sha256 == both != alone
    assert load_files([first.rename(tmp_path / "moved.toml")]).sha256 == alone


def test_users_are_looked_up(tmp_path: Path) -> None:
    """A name becomes its id, a number stays."""
    me = pwd.getpwuid(os.getuid())
    for spelt in (f'"{me.pw_name}"', f'"{me.pw_uid}"', str(me.pw_uid)):
        text = SESSION + f'[session.target]\nscope = "user"\nuser = {spelt}\n'
        assert load([write(tmp_path, text)]).session[0].target.user == me.pw_uid


def test_groups_are_looked_up(tmp_path: Path) -> None:
    """The group of those who may change the daemon is a name or a number; none is the default."""
    ours = grp.getgrgid(0)
    for spelt, gid in ((ours.gr_name, 0), ("54321", 54_321), ("", None)):
        text = f'[control]\nadmin_group = "{spelt}"\n{SESSION}'
        assert load([write(tmp_path, text)]).control.admin_group == gid
    error = refused(tmp_path, f'[control]\nadmin_group = "{"x" * 40}"\n{SESSION}')
    assert (error.key, "no group" in str(error)) == ("control.admin_group", True)


def test_unreadable_files_are_config_errors(tmp_path: Path) -> None:
    """Absent, a folder, no text or far too long: one line each."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load([path])
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not TOML"):
        load([binary])
    for size_bytes in (5 << 20, 1 << 40):
        os.truncate(binary, size_bytes)
        with pytest.raises(ConfigError, match="cannot be read: it has more than"):
            load([binary])


def test_configuration_is_a_plain_file(tmp_path: Path) -> None:
    """A FIFO or a device is not waited for, nor as a drop-in; a link to a file is one."""
    path = write(tmp_path, SESSION)
    (tmp_path / "link.toml").symlink_to(path)
    assert len(load([tmp_path / "link.toml"]).session) == 1
    drop_ins = tmp_path / "collectord.d"
    drop_ins.mkdir()
    os.mkfifo(drop_ins / "fifo.toml")
    for paths in (config_files(path), [Path("/dev/zero")]):
        with pytest.raises(ConfigError, match="it is not a regular file") as caught:
            load(paths)
        assert caught.value.path == str(paths[-1])


def _keys(struct: type[msgspec.Struct]) -> dict[str, object]:
    hints = typing.get_type_hints(struct)
    return {
        item.encode_name: (item.default, hints[item.name])
        for item in msgspec.structs.fields(struct)
        if item.name not in SessionConfig.code_only
    }


def _manual() -> tuple[str, str]:
    """The manual without its last session, and that one, which is a comment, switched on."""
    text, mark, example = MANUAL.read_text().partition("\n# [[session]]")
    assert mark
    return text, re.sub(r"^# ?", "", (mark + example).lstrip("\n"), flags=re.MULTILINE)


def test_the_manual_has_every_key_and_no_other() -> None:
    """Each key of the schema stands in config/collectord.toml, set or commented out."""
    text = "\n".join(_manual())
    known: set[str] = set()
    for name in Config.__struct_fields__:
        struct = type(getattr(Config(), name))
        if issubclass(struct, msgspec.Struct):
            known |= set(_keys(struct))
    session = typing.get_args(typing.get_type_hints(Config)["session"])[0]
    known |= set(_keys(session)) - {"target", "source"}
    hints = typing.get_type_hints(session)
    known |= set(_keys(hints["target"]))
    for source in typing.get_args(typing.get_args(hints["source"])[0]):
        known |= set(_keys(source)) | {"kind"}
    known |= set(_keys(TriggerConfig))
    shown = set(re.findall(r"^(?:# )?([a-z_]+) = ", text, re.MULTILINE))
    assert shown == known


def test_the_manuals_commented_values_are_the_defaults(tmp_path: Path) -> None:
    """With every commented key switched on nothing changes.

    But for those that exclude others, and those whose default is of the session's other keys.
    """
    text, _ = _manual()
    tables = text[: text.index("\n[[session]]")]
    opened = re.sub(r"^# ([a-z_]+ = )", r"\1", tables, flags=re.MULTILINE)
    assert len(tomllib.loads(opened)["daemon"]) == len(Config().daemon.__struct_fields__)
    assert load([write(tmp_path, opened)]) == Config()
    sessions = text[text.index("\n[[session]]") :]
    left = "user|period|aux_flush|include_self|max"
    opened = re.sub(rf"^# ((?!{left})[a-z_]+ = )", r"\1", sessions, flags=re.MULTILINE)
    assert opened.count("\n# ") < sessions.count("\n# ")
    path = write(tmp_path, opened)
    assert load([path]).session == load([write(tmp_path, sessions)]).session


def test_the_manuals_examples(tmp_path: Path) -> None:
    """Switched on they are sessions, whose keys have the values that they have left out."""
    programs, disk = load([write(tmp_path, _manual()[1])]).session
    assert programs.source == (BpfSourceConfig(program="opensnoop", arguments={"failed": True}),)
    (relay,) = disk.source
    assert isinstance(relay, RelaySourceConfig)
    assert relay == RelaySourceConfig(
        device=("/dev/vdb",),
        actions=(Action.ISSUE, Action.COMPLETE),
        # Left out they are 0, and the plan has these.
        subbuf=Bytes(512 << 10),
        subbufs=4,
    )


def test_the_default_sessions() -> None:
    """`profile` samples at 19 Hz, `exec` counts processes, `blackbox` is a flight recorder."""
    profile, execs, blackbox = build(load([MANUAL]), host(hardware_pmu=False)).sessions
    assert (profile.name, profile.scope.describe()) == ("profile", "system")
    clock = profile.events[0]
    assert (clock.name, clock.attr.freq, clock.attr.sample_period) == ("cpu-clock:I", True, 19)
    assert (execs.name, str(execs.basis)) == ("exec", "exact")
    assert [event.name for event in execs.events][:3] == [
        "sched:sched_process_exec",
        "sched:sched_process_fork",
        "sched:sched_process_exit",
    ]
    assert (blackbox.name, blackbox.source, blackbox.mode) == (
        "blackbox",
        "tracefs",
        "flight-recorder",
    )
    assert [str(event) for event in blackbox.payload_of(FtracePlan).events] == [
        "sched:sched_switch",
        "sched:sched_wakeup",
        "sched:sched_process_exec",
        "sched:sched_process_exit",
    ]
    # This host has neither disks nor memory to run out of.
    assert len(blackbox.degraded) == 3
    assert "ftrace, as the host lacks what is preferred: " in "\n".join(blackbox.notes)


def test_the_default_flight_recorder_is_a_program_where_bpf_runs() -> None:
    """`blackbox` takes the BPF program of that name, and ftrace is left out."""
    wanted = dict.fromkeys(tracepoints(WITHOUT_BCC.programs["blackbox"]), 1)
    bpf = BpfFacts(python="python3", programs=WITHOUT_BCC.programs)
    able = host(bpf=bpf, tracepoints={**TRACEPOINTS, **wanted})
    *_, blackbox = build(load([MANUAL]), able).sessions
    assert (blackbox.name, blackbox.source, blackbox.degraded) == ("blackbox", "bpf", ())
    assert blackbox.payload_of(BpfPlan).names == ("blackbox",)
    assert blackbox.payload.window_ns == 30 * NS_PER_SECOND
    assert "ftrace is not needed: the host can run what is preferred" in blackbox.notes


def test_documented_probes_show_whole_values() -> None:
    """An example takes a register whole, or what it points to: half a pointer tells nothing."""
    lines = [line for line in MANUAL.read_text().splitlines() if "arguments =" in line]
    registers = re.findall(r"=%\w+(?::\w+)?", "\n".join(lines))
    assert lines
    assert all(text.endswith(("64", "string")) for text in registers), registers
