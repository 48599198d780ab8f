# SPDX-License-Identifier: Apache-2.0
"""`bpf check` on the running kernel: programs are compiled, attached, described, and gone."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.config.schema import BpfConfig
from collectord.daemon.host_facts import bpf_wanted
from collectord.kernel.bpf import bpf_calls
from collectord.kernel.linux import LinuxKernel
from collectord.kernel.probe import bpf_probe
from collectord.kernel.values.facts_wanted import FactsWanted
from collectord.plan import bpf_source
from tests.support import bpf, manual
from tests.support.bpf_pairs import MANIFEST, SOURCE, write
from tests.support.daemons import wait_for
from tests.support.recording import result_of

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = [pytest.mark.usefixtures("tracefs", "bcc"), pytest.mark.alone]

ROOT: Final = Path(__file__).resolve().parents[2]
SHIPPED: Final = sorted(
    path.name.removesuffix(".bpf.c") for path in (ROOT / "bpf").glob("*.bpf.c")
)
HISTOGRAM: Final = """
    struct key key = { .dev = 1, .slot = bpf_log2l(args->next_pid) };
    latency.increment(key);
    return 1;
"""
GOOD: Final = SOURCE.replace("    return 1;\n}\n", HISTOGRAM + "}\n")


def ids() -> frozenset[tuple[str, int]]:
    """Return ids of the host's programs, maps and links."""
    lists = {
        "program": bpf_calls.program_ids(),
        "map": bpf.map_ids(),
        "link": bpf.link_ids(),
    }
    return frozenset((kind, number) for kind, numbers in lists.items() for number in numbers)


@pytest.fixture
def leaves_nothing() -> Iterator[None]:
    """Check that loaded programs are unloaded, as soon as the kernel frees them."""
    before = ids()
    yield
    wait_for(lambda: not ids() - before, "programs and maps are gone")


def check(run_cli: Run, name: str, *words: str | Path) -> tuple[int, dict[str, Any], str]:
    """Return status, document and stderr of a check."""
    done = run_cli("bpf", "check", name, "--json", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.usefixtures("leaves_nothing")
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_programs_load_or_say_what_is_missing(name: str, run_cli: Run) -> None:
    """Each compiles and attaches here, exact and without hiding anything; nothing of it stays."""
    status, report, err = check(run_cli, name)
    if status == 5:
        assert report["reason"] in err
        missing = [
            key for key, here in (report["needs"] | report["tracepoints"]).items() if not here
        ]
        assert any(one in report["reason"] for one in missing)
        return
    assert (status, err) == (0, "")
    assert report["functions"]
    assert all(function["attachments"] for function in report["functions"])
    assert report["may_suppress"] is False
    assert {output["basis"] for output in report["outputs"]} <= {"exact"}
    assert bool(report["outputs"]) == (report["event"] is not None)


_JOIN: Final = "#define JOIN(a, b) a##b\n"
_SUBMIT: Final = "    collectord_submit(args, &event);\n"


@pytest.mark.parametrize(
    ("source", "basis"),
    [
        (GOOD, "exact"),
        (GOOD.replace(_SUBMIT, 2 * _SUBMIT), "exact"),
        (
            GOOD.replace(_SUBMIT, _SUBMIT + "    collectord_put(args, &event, 0);\n"),
            "lost_only",
        ),
        (
            _JOIN
            + GOOD.replace(
                _SUBMIT,
                _SUBMIT
                + "    collectord_ring.JOIN(perf_, submit)(args, &event, sizeof(event));\n",
            ),
            "lost_only",
        ),
        (
            _JOIN
            + GOOD.replace("struct key {", "JOIN(BPF_PERF_, OUTPUT)(more);\nstruct key {").replace(
                _SUBMIT, _SUBMIT + "    more.JOIN(perf_, submit)(args, &event, sizeof(event));\n"
            ),
            "lost_only",
        ),
    ],
)
def test_its_instructions_tell_what_is_counted(
    source: str, basis: str, tmp_path: Path, run_cli: Run
) -> None:
    """A submission past collectord_submit() is found, however the text hides it."""
    folder = write(tmp_path / "p", source)
    status, report, err = check(run_cli, "switches", "--program-dir", folder)
    assert (status, err) == (0, "")
    assert report["outputs"][0]["basis"] == basis
    words = ("--program-dir", folder, "--bpf", "switches", "--duration", "0.1s")
    done = run_cli("record", *words, "--output-dir", tmp_path / "out", "--json")
    assert result_of(done.stdout)["ledger_basis"] == basis


def test_a_program_of_ones_own(tmp_path: Path, run_cli: Run) -> None:
    """A pair of files is enough; parameters, struct and tables are as in its text."""
    folder = write(tmp_path / "p", GOOD)
    status, report, err = check(
        run_cli, "switches", "--program-dir", folder, "--bpf-arg", "pid=0x7fffffff"
    )
    assert (status, err) == (0, "")
    assert (report["origin"], report["parameters"][0]["value"]) == ("local", 0x7FFFFFFF)
    assert report["event"]["bytes"] == 32
    fields = {field["name"]: field for field in report["event"]["fields"]}
    assert (fields["comm"]["offset"], fields["comm"]["bytes"]) == (12, 16)
    tables = {table["name"]: table for table in report["tables"]}
    assert (tables["latency"]["type"], tables["latency"]["key_bytes"]) == ("hash", 8)
    assert report["headers"]["release"]
    assert report["headers"]["match"] is (report["headers"]["release"] == os.uname().release)


@pytest.mark.parametrize(
    ("pair", "status", "told"),
    [
        ((GOOD.replace("next_pid;", "next_pdi;"), MANIFEST), 1, r"switches\.bpf\.c:\d+"),
        ((GOOD, MANIFEST.replace('"comm"', '"comn"')), 1, r'did you mean "comm"'),
        ((GOOD, MANIFEST.replace('slot = "slot"', 'slot = "slt"')), 1, r'did you mean "slot"'),
        ((GOOD, MANIFEST.replace("license", "#")), 6, r"license"),
        (
            (GOOD.replace("ed_switch", "ed_swic"), MANIFEST.replace("ed_switch", "ed_swic")),
            5,
            r"no tracepoint sched:sched_swic",
        ),
    ],
)
def test_what_is_wrong_with_a_program(
    pair: tuple[str, str], status: int, told: str, tmp_path: Path, run_cli: Run
) -> None:
    """The last line of stderr names the problem; the status gives its kind."""
    folder = write(tmp_path / "p", *pair)
    given, report, err = check(run_cli, "switches", "--program-dir", folder)
    assert given == status, err
    assert re.search(told, err.splitlines()[-1])
    assert report.get("available", False) is False


def test_strings_reach_the_program_as_they_are(tmp_path: Path, run_cli: Run) -> None:
    """Whatever a value holds, it is one C string of so many bytes and nothing else."""
    text = 'a"; #error \\ \n%s ??/ */ // ü'
    size = len(text.encode()) + 1
    manifest = MANIFEST.replace(
        "[event]", '[parameter.word]\ntype = "string"\ndefault = ""\nhelp = "h"\n[event]'
    )
    source = GOOD + f"_Static_assert(sizeof(PARAMETER_WORD) == {size}, PARAMETER_WORD);\n"
    folder = write(tmp_path / "p", source, manifest)
    words = ("--program-dir", folder, "--bpf-arg", f"word={text}")
    assert check(run_cli, "switches", *words)[0] == 0
    assert check(run_cli, "switches", *words[:2])[0] == 1


def test_numbers_reach_the_program_as_they_are(tmp_path: Path, run_cli: Run) -> None:
    """The ends of both ranges, in C's own arithmetic."""
    manifest = MANIFEST.replace("min = 0\n", "")
    for value, words in (
        (-(1 << 63), "PARAMETER_PID < 0 && PARAMETER_PID + 1 == -0x7fffffffffffffff"),
        ((1 << 64) - 1, "PARAMETER_PID == ~0ULL"),
        (-1, "2 -PARAMETER_PID == 3"),
    ):
        source = GOOD + f'_Static_assert({words}, "value");\n'
        folder = write(tmp_path / "p", source, manifest)
        given = ("--program-dir", folder, "--bpf-arg", f"pid={value}")
        assert check(run_cli, "switches", *given)[0] == 0, value


def test_without_privileges(run_cli: Run) -> None:
    """The status is 4, with the least sufficient privilege, before anything is compiled."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    done = run_cli("bpf", "check", "syscall_stream", prefix=nobody)
    assert done.returncode == 4
    assert "CAP_" in done.stderr
    assert "runs raw_tracepoint" not in done.stdout


@pytest.mark.usefixtures("leaves_nothing")
def test_trials_leave_nothing() -> None:
    """Programs loaded to find out features are removed again."""
    assert bpf_probe.try_load() in (True, False)
    bpf_probe.try_fentry(Path("/sys/kernel/btf/vmlinux"))


def test_facts_of_this_host() -> None:
    """The facts agree with what the kernel shows, and shipped programs can be planned."""
    facts = LinuxKernel().facts(FactsWanted((), bpf=bpf_wanted(BpfConfig(), ("syscall_stream",))))
    assert facts.bpf.problem == ""
    assert facts.bpf.btf is Path("/sys/kernel/btf/vmlinux").exists()
    assert facts.bpf.kprobes is Path("/sys/bus/event_source/devices/kprobe").exists()
    assert facts.bpf.python
    bpf_source.require(facts.bpf.programs["syscall_stream"], facts)
    names = {row.name for row in facts.checks}
    assert {"BPF programs", "bcc", "kernel headers", "BTF", "BPF JIT"} <= names


@pytest.mark.usefixtures("leaves_nothing")
def test_the_manuals_own_program(tmp_path: Path, run_cli: Run) -> None:
    """The pair that the manual shows is one: it compiles, attaches and counts what it submits."""
    for block in manual.blocks(manual.DOCS / "bpf.md"):
        name = manual.named_file(block, "/etc/collectord/bpf")
        if name and name.startswith("forks."):
            (tmp_path / name).write_text(block.text)
    status, report, err = check(run_cli, "forks", "--program-dir", tmp_path)
    assert (status, err) == (0, "")
    assert report["may_suppress"] is False
    assert [output["basis"] for output in report["outputs"]] == ["exact"]


def test_the_metrics_are_told(run_cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Each has the name that a scrape shows, its type and labels, as data and as text."""
    done = run_cli("bpf", "check", "biolatency", "--json")
    metrics = {one["name"]: one for one in json.loads(done.stdout)["metrics"]}
    latency = metrics["collectord_bpf_block_io_latency_seconds"]
    assert (latency["type"], latency["labels"]) == (
        "histogram",
        ["session", "program", "device", "operation"],
    )
    assert metrics["collectord_bpf_block_io_bytes_total"]["type"] == "counter"
    text = run_cli("bpf", "check", "biolatency").stdout
    assert "collectord_bpf_block_io_bytes_total" in text
