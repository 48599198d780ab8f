# SPDX-License-Identifier: Apache-2.0
"""`bpf list` and `bpf check` without a compiler: what is told, and with which exit status."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord import cli
from collectord.cli import bpf as verb
from collectord.codec.bpf_struct import Field, Layout
from collectord.errors import BpfError, CollectordError
from collectord.facts.kernel_facts import BpfFacts, KernelFacts
from collectord.kernel.bpf import catalogue
from collectord.kernel.linux import LinuxKernel
from collectord.source.loaded_program import Loaded, LoadedProgram, LoadedTable
from tests.support.bpf_pairs import MANIFEST, SOURCE, program
from tests.support.hosts import host

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.programs.bpf_program import BpfProgram

PROGRAM: Final = program()
BPF: Final = BpfFacts(
    python="/usr/bin/python3",
    bcc_version="0.26",
    headers="/h",
    headers_kind="merged",
    headers_release="6.1.0-x",
    headers_match=False,
    programs={"switches": PROGRAM},
)
LAYOUT: Final = Layout("switches", 32, (Field("pid", "unsigned int", 8, 4, 0, "uint"),))
LOADED: Final = Loaded(
    tables={"latency": LoadedTable("latency", 5, 1, 1, 8, 8, 10240, None, None)},
    programs=(
        LoadedProgram(
            "tracepoint__sched__sched_switch",
            4,
            7,
            ("tracepoint sched:sched_switch",),
            counted=True,
        ),
    ),
    attachment_fds=(6,),
    messages="a warning",
)


class Setting:
    """The verb's surroundings: a program, facts, and the result of compiling."""

    def __init__(self) -> None:
        self.facts: KernelFacts = host(bpf=BPF)
        self.program: BpfProgram = PROGRAM
        self.failure: CollectordError | None = None
        self.values: dict[str, int | str] = {}
        self.hides = False
        self.loaded = LOADED

    def load(self, *given: Any) -> object:  # noqa: ANN401 - what the verb passes on
        """Note the values of the parameters, and succeed or fail."""
        self.values = given[-1]
        if self.failure is not None:
            raise self.failure
        return self.loaded, LAYOUT, "/h/merged", self.hides


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    """Return a host that can run the program."""
    made = Setting()
    monkeypatch.setattr(verb, "bpf_wanted", lambda *_: None)
    monkeypatch.setattr(LinuxKernel, "facts", lambda *_: made.facts)
    monkeypatch.setattr(catalogue, "load", lambda _name, _folder: made.program)
    monkeypatch.setattr(verb, "_load", made.load)
    return made


@pytest.fixture
def checked(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, dict[str, Any], str]]:
    """Run `bpf check --json switches WORDS`: status, document, stderr."""
    del setting

    def check(*words: str) -> tuple[int, dict[str, Any], str]:
        status = cli.main(LinuxKernel, ["bpf", "check", "switches", "--json", *words])
        captured = capsys.readouterr()
        return status, json.loads(captured.out or "{}"), captured.err

    return check


def test_a_program_that_runs(checked: Callable[..., tuple[int, dict[str, Any], str]]) -> None:
    """All that is known of it is in the document."""
    status, report, err = checked()
    assert (status, err) == (0, "")
    assert (report["name"], report["origin"], report["available"]) == ("switches", "local", True)
    assert report["tracepoints"] == {"sched:sched_switch": True}
    assert report["headers"] == {
        "path": "/h/merged",
        "kind": "merged",
        "release": "6.1.0-x",
        "match": False,
    }
    (parameter,) = report["parameters"]
    assert (parameter["name"], parameter["default"], parameter["unit"]) == ("pid", "0 pid", "pid")
    (output,) = report["outputs"]
    assert (output["table"], output["basis"]) == ("collectord_ring", "exact")
    assert report["may_suppress"] is False
    assert report["event"]["fields"][0]["offset"] == 8
    assert report["tables"][0]["type"] == "hash"
    assert report["functions"][0]["attachments"] == ["tracepoint sched:sched_switch"]


def test_parameters_are_given(
    setting: Setting, checked: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    """The program is compiled with them."""
    _, report, _ = checked("--bpf-arg", "pid=7")
    assert setting.values == {"pid": 7}
    assert report["parameters"][0]["value"] == 7


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--bpf-arg", "pdi=1"], 'did you mean "pid"'),
        (["--bpf-arg", "pid"], "is not NAME=VALUE"),
        (["--bpf-arg", "pid=1", "--bpf-arg", "pid=2"], "given twice"),
        (["--bpf-arg", "pid=x"], "default 0 pid"),
    ],
)
def test_wrong_parameters(
    words: list[str], told: str, checked: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    """It gives status 2, one line, and no result."""
    status, report, err = checked(*words)
    assert (status, report, err.count("\n")) == (2, {}, 1)
    assert told in err


@pytest.mark.parametrize(
    ("source", "counted", "ledger"),
    [
        (SOURCE, True, ("exact", "counts every event")),
        (SOURCE, False, ("lost_only", "without collectord_submit()")),
        (SOURCE, None, ("exact", "predicted")),
        (
            SOURCE.replace("#define COLLECTORD_EVENT struct event", "BPF_PERF_OUTPUT(own);"),
            False,
            ("lost_only", "does not submit with collectord_submit()"),
        ),
    ],
)
def test_what_the_ledger_rests_on(
    source: str,
    counted: bool | None,
    ledger: tuple[str, str],
    setting: Setting,
    checked: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    """The loaded program decides the basis; of one that does not load it is predicted."""
    setting.program = replace(PROGRAM, source=source)
    (function,) = LOADED.programs
    setting.loaded = replace(LOADED, programs=(replace(function, counted=bool(counted)),))
    if counted is None:
        setting.failure = BpfError("it does not compile", program="switches", step="compile")
    _, report, _ = checked()
    (output,) = report["outputs"]
    assert output["basis"] == ledger[0]
    assert ledger[1] in output["reason"]


@pytest.mark.parametrize("hides", [False, True])
def test_what_hides_events_is_told(
    hides: bool,
    setting: Setting,
    checked: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    """The loaded program decides it; of one that does not load it is unknown."""
    setting.hides = hides
    assert checked()[1]["may_suppress"] is hides
    setting.failure = BpfError("it does not compile", program="switches", step="compile")
    assert checked()[1]["may_suppress"] is None


@pytest.mark.parametrize(
    ("bpf", "status", "told"),
    [
        (replace(BPF, problem="no bcc", remedy="install it"), 5, "switches: no bcc; install it"),
        (replace(BPF, problem="closed", need="CAP_BPF"), 4, "needs CAP_BPF"),
    ],
)
def test_a_host_that_cannot(
    bpf: BpfFacts,
    status: int,
    told: str,
    setting: Setting,
    checked: Callable[..., tuple[int, dict[str, Any], str]],
) -> None:
    """The document says so as well, and nothing was compiled."""
    setting.facts = host(bpf=bpf)
    given, report, err = checked()
    assert (given, report["available"], setting.values) == (status, False, {})
    assert told in err
    assert told in report["reason"]
    assert "tables" not in report


def test_missing_features_are_marked(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """Each requirement is listed, and missing ones are marked."""
    setting.program = replace(PROGRAM, source=SOURCE + "int kprobe__f(void *c) { return 0; }")
    setting.facts = host(bpf=replace(BPF, kprobes=False))
    assert cli.main(LinuxKernel, ["bpf", "check", "switches"]) == 5
    assert "needs: kprobes (MISSING), sched:sched_switch\n" in capsys.readouterr().out


def test_a_compilers_words(
    setting: Setting, checked: Callable[..., tuple[int, dict[str, Any], str]]
) -> None:
    """All of them go to stderr, made visible, before the one line that sums up."""
    setting.failure = BpfError(
        "switches.bpf.c:3:1: error: no", program="switches", step="compile", text="a\n\x1b[31mb\n"
    )
    status, report, err = checked()
    assert (status, report["available"]) == (1, False)
    assert err.splitlines() == [
        "collectord: a",
        "collectord: \\x1b[31mb",
        "collectord: switches.bpf.c:3:1: error: no",
    ]


@pytest.mark.usefixtures("setting")
def test_the_report_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Lines, then tables of parameters, of the event's fields and of maps."""
    assert cli.main(LinuxKernel, ["bpf", "check", "switches"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("switches: switches to a process\n  local, /p/switches.bpf.c")
    for words in (
        "headers: /h/merged, of 6.1.0-x, NOT of the running kernel",
        "events by collectord_ring: basis exact",
        "runs tracepoint__sched__sched_switch at tracepoint sched:sched_switch",
        "its event has 32 bytes",
        "compiler: a warning",
        "PARAMETER  VALUE  DEFAULT  TYPE",
        "latency  hash    8      8    10240",
    ):
        assert words in out


def test_choices_of_a_parameter(
    setting: Setting,
    checked: Callable[..., tuple[int, dict[str, Any], str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are told with its meaning, and nothing else is taken."""
    more = '[parameter.which]\ntype = "string"\ndefault = "a"\nchoices = ["a", "b"]\nhelp = "h"\n'
    manifest = MANIFEST.replace("[event]", f"{more}[event]")
    setting.program = program(SOURCE + "char c[] = PARAMETER_WHICH;\n", manifest)
    _, report, _ = checked("--bpf-arg", "which=b")
    assert report["parameters"][1]["choices"] == ["a", "b"]
    assert setting.values["which"] == "b"
    assert cli.main(LinuxKernel, ["bpf", "check", "switches"]) == 0
    assert re.search(r"^which +a +a +string +h: a, b$", capsys.readouterr().out, re.MULTILINE)
    assert cli.main(LinuxKernel, ["bpf", "check", "switches", "--bpf-arg", "which=c"]) == 2
    assert "which: 'c' is none of a, b; h (default a)" in capsys.readouterr().err


def test_the_list(setting: Setting, capsys: pytest.CaptureFixture[str]) -> None:
    """Every program with what it gives and why it cannot run, and what is none."""
    setting.facts = host(
        tracepoints={}, bpf=replace(BPF, program_problems={"broken": "x.toml: no"})
    )
    assert cli.main(LinuxKernel, ["bpf", "list", "--json"]) == 0
    broken, switches = json.loads(capsys.readouterr().out)["programs"]
    assert broken == {"name": "broken", "available": False, "reason": "x.toml: no"}
    assert switches["gives"] == ["events", "metrics", "histogram"]
    assert switches["available"] is False
    assert switches["reason"] == "this kernel has no tracepoint sched:sched_switch"
    setting.facts = host(bpf=BPF)
    assert cli.main(LinuxKernel, ["bpf", "list"]) == 0
    (title, line) = capsys.readouterr().out.splitlines()
    assert title.split()[0] == "PROGRAM"
    assert line.split()[:3] == ["switches", "local", "yes"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["check"], "takes the NAME"),
        (["list", "x"], "neither NAME"),
        (["list", "--bpf-arg", "a=1"], "neither NAME"),
        (["lits"], "list|check"),
        ([], "list|check"),
    ],
)
def test_wrong_words(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It gives status 2 and one line."""
    assert cli.main(LinuxKernel, ["bpf", *words]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("tracefs_of_root")
def test_programs_on_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    """Shipped programs are listed, whoever asks; unknown ones have the nearest name."""
    assert cli.main(LinuxKernel, ["bpf", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["programs"]
    assert "syscall_stream" in {one["name"] for one in listed}
    assert cli.main(LinuxKernel, ["bpf", "check", "syscal_stream"]) == 2
    assert 'did you mean "syscall_stream"' in capsys.readouterr().err
    assert cli.main(LinuxKernel, ["list", "--json", "bpf"]) == 0
    events = json.loads(capsys.readouterr().out)["events"]
    assert {event["kind"] for event in events} == {"bpf"}
    assert "syscall_stream" in {event["name"] for event in events}
