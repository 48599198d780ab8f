# SPDX-License-Identifier: Apache-2.0
"""The bcc worker on the running kernel: what it attaches outlives it, and goes with its fds."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.errors import BpfError, CollectordError, MissingFeature
from collectord.kernel.bpf import bpf_calls
from collectord.kernel.bpf.kernel_headers import find_headers, make_headers
from collectord.programs.program_manifest import AttachConfig
from collectord.source import bcc_client, bcc_python, bcc_text
from tests.support import bpf
from tests.support.patience import patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from collectord.source.loaded_program import Loaded

pytestmark = pytest.mark.beside

ROOT: Final = Path(__file__).resolve().parents[2]
GETPPID: Final = {"x86_64": 110, "aarch64": 173}[os.uname().machine]
KPROBES: Final = Path("/sys/bus/event_source/devices/kprobe").exists()
UPROBES: Final = Path("/sys/bus/event_source/devices/uprobe").exists()
CALLS: Final = 1000
DEADLINE_S: Final = patient(60)
COMPILING_KIB: Final = 140 << 10

# Counts what a function of this process's does: thread id and tgid are told by its parameter.
COUNTING: Final = """
BPF_ARRAY(calls, u64, 1);

static inline void count(void)
{
    if (bpf_get_current_pid_tgid() >> 32 == PARAMETER_PID)
        calls.atomic_increment(0);
}
"""
RAW: Final = f"""{COUNTING}
RAW_TRACEPOINT_PROBE(sys_enter)
{{
    if (ctx->args[1] == {GETPPID})
        count();
    return 0;
}}
"""
TRACEPOINT: Final = f"""{COUNTING}
TRACEPOINT_PROBE(raw_syscalls, sys_enter)
{{
    if (args->id == {GETPPID})
        count();
    return 1;
}}
"""
ON_CALL: Final = f"""{COUNTING}
int on_call(void *ctx)
{{
    count();
    return 0;
}}
"""
# Takes clang half a minute: loops with a thousand copies of their bodies each.
_PART: Final = """
static inline u64 part%d(u64 key)
{
#pragma unroll
    for (int i = 0; i < 1000; i++) {
        key = key * 31 + i;
        if (key & 1)
            slots.increment(key);
    }
    return key;
}
"""
SLOW: Final = "".join(
    (
        "BPF_HASH(slots, u64, u64);",
        *(_PART % number for number in range(40)),
        "RAW_TRACEPOINT_PROBE(sys_enter) { u64 key = bpf_ktime_get_ns();",
        *(f"key = part{number}(key);" for number in range(40)),
        "return key; }",
    )
)


def attach(kind: str, place: str, function: str = "on_call", **rate: int) -> AttachConfig:
    """Return an entry of a manifest."""
    return AttachConfig(kind=kind, function=function, place=place, **rate)  # type: ignore[arg-type]


class Loader:
    """Loads programs with this host's bcc and headers."""

    def __init__(self, python: str, headers: str) -> None:
        self.python = python
        self.headers = headers

    def request(self, source: str, *attached: AttachConfig, name: str = "prog") -> Any:  # noqa: ANN401
        """Return a program that knows which process it is about."""
        defines = f"#define PARAMETER_PID {os.getpid()}\n#define PARAMETER_PPID {os.getppid()}\n"
        text = bcc_text.prepare(name, source, header="", defines=defines)
        return bcc_client.Request(name, text, self.headers, attached)

    def load(self, stack: ExitStack, source: str, *attached: AttachConfig, **how: Any) -> Loaded:  # noqa: ANN401
        """Load the program into a stack."""
        request = self.request(source, *attached)
        return bcc_client.load(request, python=self.python, stack=stack, **how)

    def error(self, source: str, *attached: AttachConfig, **how: Any) -> CollectordError:  # noqa: ANN401
        """Return the error that loading ends with; no descriptor stays."""
        with ExitStack() as stack, pytest.raises(CollectordError) as caught:
            self.load(stack, source, *attached, **how)
        assert "\n" not in str(caught.value)
        return caught.value


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Loader:
    """Return an interpreter with bcc, and headers."""
    python, version = bcc_python.find_python()
    assert python, version
    tree = find_headers(os.uname().release)
    assert tree, "make setup installs kernel headers"
    return Loader(python, str(make_headers(tree, tmp_path_factory.mktemp("headers"))))


def counted(loaded: Loaded) -> int:
    """Return the counts of COUNTING."""
    value = bpf_calls.map_lookup(loaded.tables["calls"].fd, struct.pack("=I", 0))
    assert value
    return int(struct.unpack("=Q", value)[0])


def call() -> None:
    """CALLS calls of getppid() by way of the C library."""
    libc = ctypes.CDLL(None)
    for _ in range(CALLS):
        libc.getppid()


def await_true(what: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def workers(parent: int) -> list[int]:
    """Workers of a process."""
    found = []
    for entry in Path("/proc").glob("[1-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            any(word.endswith(b"/bcc_worker.py") for word in words)
            and str(parent).encode() in words
        ):
            found.append(int(entry.name))
    return found


def await_compiling(parent: int) -> int:
    """Return the worker of a process, once LLVM is in its memory."""
    await_true(lambda: workers(parent))
    worker = workers(parent)[0]

    def resident_kib() -> int:
        status = Path(f"/proc/{worker}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0])

    await_true(lambda: resident_kib() > COMPILING_KIB)
    return worker


def await_another(parent: int, killed: int) -> int:
    """Return the worker that is started for one that was killed, as `await_compiling` does."""
    await_true(lambda: killed not in workers(parent))
    return await_compiling(parent)


@pytest.mark.parametrize(
    ("source", "attached"),
    [(RAW, "raw_tracepoint sys_enter"), (TRACEPOINT, "tracepoint raw_syscalls:sys_enter")],
)
def test_a_program_runs_while_its_descriptors_are_open(
    loader: Loader, source: str, attached: str
) -> None:
    """It counts exactly, long after the worker, and nothing of it is left when they are closed."""
    with ExitStack() as stack:
        loaded = loader.load(stack, source)
        assert workers(os.getpid()) == []
        call()
        assert counted(loaded) == CALLS
        call()
        assert counted(loaded) == 2 * CALLS
        (program,) = loaded.programs
        assert program.attachments == (attached,)
        assert len(loaded.attachment_fds) == 1
        table = loaded.tables["calls"]
        assert program.id in bpf_calls.program_ids()
        assert table.id in bpf.map_ids()
        fds = (table.fd, program.fd, *loaded.attachment_fds)
        assert not any(os.get_inheritable(fd) for fd in fds)
    await_true(lambda: program.id not in bpf_calls.program_ids())
    await_true(lambda: table.id not in bpf.map_ids())


def test_a_program_of_several_functions(loader: Loader) -> None:
    """Each function is attached, and has a descriptor of its own."""
    with ExitStack() as stack:
        loaded = loader.load(stack, RAW + TRACEPOINT.removeprefix(COUNTING))
        call()
        assert counted(loaded) == 2 * CALLS
        assert len(loaded.programs) == 2
        assert len(set(loaded.attachment_fds)) == 2


def test_tables_are_described(loader: Loader) -> None:
    """Descriptions have the kernel's numbers, and bcc's names of types."""
    source = """
struct inner { u8 a; u64 b; };
struct leaf { char text[16]; u32 many[3]; struct inner in; };
BPF_HASH(hash, u32, struct leaf, 77);
BPF_PERCPU_ARRAY(each, u64, 1);
BPF_PERF_OUTPUT(ring);
BPF_STACK_TRACE(stacks, 128);
BPF_QUEUE(queue, u64, 10);
RAW_TRACEPOINT_PROBE(sys_enter) { return 0; }
"""
    with ExitStack() as stack:
        loaded = loader.load(stack, source)
        tables = loaded.tables
        assert set(tables) == {"hash", "each", "ring", "stacks", "queue"}
        for table in tables.values():
            info = bpf_calls.map_info(table.fd)
            assert (table.id, table.type, table.key_bytes) == (info.id, info.type, info.key_bytes)
            assert (table.leaf_bytes, table.max_entries) == (info.value_bytes, info.max_entries)
        assert tables["hash"].key == "unsigned int"
        inner = [["a", "unsigned char"], ["__pad_1", "char", [7]], ["b", "unsigned long long"]]
        assert tables["hash"].leaf == [
            "leaf",
            [
                ["text", "char", [16]],
                ["many", "unsigned int", [3]],
                ["__pad_2", "char", [4]],
                ["in", ["inner", inner, "struct_packed"]],
            ],
            "struct_packed",
        ]
        assert tables["queue"].key is None
        assert tables["hash"].max_entries == 77


def test_warnings_are_handed_over(loader: Loader) -> None:
    """Warnings of a program that compiles are passed on."""
    with ExitStack() as stack:
        loaded = loader.load(stack, "#warning mind the gap\n" + RAW)
        assert "prog.bpf.c:1:2: warning: mind the gap" in loaded.messages
        assert loader.load(stack, RAW).messages == ""


def check_calls(loader: Loader, source: str, *attached: AttachConfig) -> Loaded:
    """A program counts each call; what it was is given back closed."""
    with ExitStack() as stack:
        loaded = loader.load(stack, source, *attached)
        call()
        assert counted(loaded) == CALLS * len(loaded.attachment_fds)
        (program,) = loaded.programs
        names = tuple(f"{entry.kind} {entry.place}" for entry in attached)
        assert program.attachments == names
    await_true(lambda: program.id not in bpf_calls.program_ids())
    return loaded


def test_attaching_by_the_manifest_to_tracepoints(loader: Loader) -> None:
    """An entry attaches a function of any name."""
    source = TRACEPOINT.replace(
        "TRACEPOINT_PROBE(raw_syscalls, sys_enter)", "int f(struct a *args)"
    )
    source = source.replace("BPF_ARRAY", "struct a { u64 common; long id; };\nBPF_ARRAY")
    check_calls(loader, source, attach("tracepoint", "raw_syscalls:sys_enter", "f"))
    source = RAW.replace(
        "RAW_TRACEPOINT_PROBE(sys_enter)", "int f(struct bpf_raw_tracepoint_args *ctx)"
    )
    check_calls(loader, source, attach("raw_tracepoint", "sys_enter", "f"))


@pytest.mark.parametrize("kind", ["uprobe", "uretprobe"])
@pytest.mark.parametrize("library", ["libc", "c", "path"])
def test_attaching_to_functions_of_processes(loader: Loader, kind: str, library: str) -> None:
    """Libraries go by name or path; a kernel without uprobes is reported."""
    if library == "path":
        maps = Path("/proc/self/maps").read_text().split()
        library = next(word for word in maps if "/libc.so" in word or "/libc-" in word)
    entry = attach(kind, f"{library}:getppid")
    if kind == "uretprobe":  # only on return is the result there
        source = "#include <uapi/linux/ptrace.h>\n" + ON_CALL.replace("void *", "struct pt_regs *")
        source = source.replace(
            "    count();\n    return",
            "    if (PT_REGS_RC(ctx) == PARAMETER_PPID) count(); return",
        )
    else:
        source = ON_CALL
    if UPROBES:
        check_calls(loader, source, entry)
    else:
        assert "uprobes" in str(loader.error(ON_CALL, entry))


USDT_PROGRAM: Final = """
#include <stdlib.h>
static unsigned short semaphore __attribute__((used, section(".probes")));
int main(int count, char **words)
{
    for (long n = atol(words[1]); n > 0; n--)
        __asm__ volatile("990: nop\\n"
            ".pushsection .note.stapsdt, \\"\\", \\"note\\"\\n"
            ".balign 4\\n"
            ".4byte 992f - 991f, 994f - 993f, 3\\n"
            "991: .asciz \\"stapsdt\\"\\n"
            "992: .balign 4\\n"
            "993: .8byte 990b, 0, SEMAPHORE\\n"
            ".asciz \\"testing\\"\\n"
            ".asciz \\"tick\\"\\n"
            ".asciz \\"8@%0\\"\\n"
            "994: .balign 4\\n"
            ".popsection\\n" : : "r"(n));
    return 0;
}
"""


def usdt_program(folder: Path, semaphore: str) -> Path:
    """Return a program with the probe testing:tick, whose argument counts down to 1."""
    source, binary = folder / "ticks.c", folder / "ticks"
    source.write_text(USDT_PROGRAM.replace("SEMAPHORE", semaphore))
    subprocess.run(["cc", "-O1", "-no-pie", "-o", binary, source], check=True)
    return binary


def test_attaching_to_a_usdt_probe(loader: Loader, tmp_path: Path) -> None:
    """Its arguments are read; one that waits for its semaphore is reported as useless."""
    program = """
BPF_ARRAY(sum, u64, 1);
int on_tick(struct pt_regs *ctx)
{
    u64 value = 0;

    bpf_usdt_readarg(1, ctx, &value);
    sum.atomic_increment(0, value);
    return 0;
}
"""
    source = "#include <uapi/linux/ptrace.h>\n" + program
    entry = attach("usdt", f"{usdt_program(tmp_path, '0')}:testing:tick", "on_tick")
    if not UPROBES:
        assert "uprobes" in str(loader.error(source, entry))
        return
    with ExitStack() as stack:
        loaded = loader.load(stack, source, entry)
        subprocess.run([tmp_path / "ticks", "100"], check=True)
        value = bpf_calls.map_lookup(loaded.tables["sum"].fd, struct.pack("=I", 0))
    assert value == struct.pack("=Q", 5050)
    usdt_program(tmp_path, "semaphore")
    assert "has a semaphore, which bcc raises" in str(loader.error(source, entry))


def test_attaching_one_function_to_several_places(loader: Loader) -> None:
    """The same place may be named in different ways."""
    entries = [attach("uprobe", "libc:getppid"), attach("uretprobe", "libc:getppid")]
    if UPROBES:
        assert len(check_calls(loader, ON_CALL, *entries).attachment_fds) == 2
    else:
        assert "uprobes" in str(loader.error(ON_CALL, *entries))


def test_attaching_to_an_event(loader: Loader) -> None:
    """It is attached on each CPU; the function runs as often as the event says."""
    with ExitStack() as stack:
        loaded = loader.load(stack, ON_CALL, attach("perf_event", "task-clock", frequency=997))
        assert len(loaded.attachment_fds) == os.sysconf("SC_NPROCESSORS_ONLN")

        def seen() -> bool:
            call()
            return counted(loaded) > 2

        await_true(seen)


def test_more_descriptors_than_a_message_takes(loader: Loader) -> None:
    """They come in several messages, each in its place."""
    cpus = os.sysconf("SC_NPROCESSORS_ONLN")
    entries = [attach("perf_event", "dummy", period=1)] * (600 // cpus)
    with ExitStack() as stack:
        loaded = loader.load(stack, ON_CALL, *entries)
        assert len(loaded.attachment_fds) == 600 // cpus * cpus
        kinds = {Path(f"/proc/self/fd/{fd}").readlink().name for fd in loaded.attachment_fds}
        assert kinds == {"anon_inode:[perf_event]"}


@pytest.mark.parametrize(
    ("attached", "feature"),
    [
        (attach("tracepoint", "sched:no_such"), "tracepoint sched:no_such"),
        (attach("raw_tracepoint", "no_such"), "raw tracepoint no_such"),
        (attach("kprobe", "no_such"), "function no_such" if KPROBES else "kprobes"),
        (attach("kretprobe", "no_such"), "function no_such" if KPROBES else "kprobes"),
        (attach("fentry", "no_such", "kfunc__no_such"), "function no_such"),
        (attach("fexit", "no_such", "kretfunc__no_such"), "function no_such"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernel_has_not_is_named(
    loader: Loader, attached: AttachConfig, feature: str
) -> None:
    """The message names the place, or the feature."""
    head = f"int {attached.function}(unsigned long long *ctx)"
    error = loader.error(ON_CALL.replace("int on_call(void *ctx)", head), attached)
    assert isinstance(error, MissingFeature)
    assert error.feature == feature
    assert feature in str(error)


@pytest.mark.parametrize(
    ("source", "feature"),
    [
        ("TRACEPOINT_PROBE(sched, no_such) { return args->x; }", "tracepoint sched:no_such"),
        ("TRACEPOINT_PROBE(sched, no_such) { return 1; }", "tracepoint sched:no_such"),
        ("RAW_TRACEPOINT_PROBE(no_such) { return 0; }", "raw tracepoint no_such"),
        (
            "int kprobe__no_such(void *c) { return 0; }",
            "function no_such" if KPROBES else "kprobes",
        ),
    ],
)
def test_what_a_functions_name_asks_for_in_vain_is_named(
    loader: Loader, source: str, feature: str
) -> None:
    """A missing tracepoint would read as an incomplete struct otherwise."""
    error = loader.error(source)
    assert isinstance(error, MissingFeature)
    assert error.feature == feature


@pytest.mark.vm
def test_a_kernel_function(loader: Loader) -> None:
    """It is attached if the kernel has kprobes; otherwise the error says so."""
    source = ON_CALL.replace("on_call", "kprobe____x64_sys_getppid")
    if KPROBES:
        check_calls(loader, source, attach("kprobe", "sys_getppid", "kprobe____x64_sys_getppid"))
    else:
        assert "this kernel has no kprobes" in str(loader.error(source))


def test_a_trampoline(loader: Loader) -> None:
    """It is attached if the kernel has trampolines; otherwise the error says so."""
    source = COUNTING + "KFUNC_PROBE(wake_up_new_task, void *task) { count(); return 0; }"
    try:
        with ExitStack() as stack:
            loaded = loader.load(stack, source)
            subprocess.run(["true"], check=True)
            assert counted(loaded) > 0
    except MissingFeature as error:
        assert error.feature in {"fentry", "btf"}  # noqa: PT017 - one of two outcomes


@pytest.mark.parametrize(
    ("attached", "message"),
    [
        (attach("uprobe", "libc:no_such"), "/libc.so.6 has no function no_such"),
        (attach("uprobe", "/no/such:f"), "there is no file, library or program /no/such"),
        (attach("uprobe", "no_such:f"), "there is no file, library or program no_such"),
        (attach("uprobe", "/etc/passwd:f"), "/etc/passwd has no function f"),
        (attach("usdt", "libc:no:such"), "has no probe no:such"),
        (attach("usdt", "/no/such:no:such"), "there is no file, library or program /no/such"),
        (attach("fentry", "tcp_connect"), "the function is kfunc__tcp_connect"),
        (attach("perf_event", "1:99", period=1), "perf_event 1:99 cannot be attached"),
        (attach("raw_tracepoint", "sys_enter", "no_such"), "there is no function no_such"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_place_that_is_none_is_named(
    loader: Loader, attached: AttachConfig, message: str
) -> None:
    """The message names the file, function, probe or event."""
    error = loader.error(ON_CALL, attached)
    assert isinstance(error, BpfError)
    assert error.step == "attach"
    assert message in str(error)


def test_a_function_that_is_attached_nowhere_is_named(loader: Loader) -> None:
    """It would be useless; so would a program without any function."""
    assert "function on_call is attached to nothing" in str(loader.error(ON_CALL))
    assert "no function to attach" in str(loader.error("BPF_ARRAY(a, u64, 1);"))


FAULTY: Final = """struct event { u64 a; };
BPF_HASH(m, u32, u64);
#define COLLECTORD_EVENT struct event
#include "collectord.h"
TRACEPOINT_PROBE(sched, sched_switch) { return MARK5; }

int raw_tracepoint__sys_enter(void *ctx)
{
    u32 key = 0;
    u64 *value = m.lookup(&key);
    MARK11;
    return 0;
}

TRACEPOINT_PROBE(sched,
                 sched_wakeup)
{
    MARK18;
    return 1;
}
"""


def _with(mark: str, text: str) -> str:
    """Return FAULTY with one mark set."""
    source = FAULTY.replace(mark, text)
    return source.replace("MARK5", "1").replace("MARK11", "").replace("MARK18", "")


@pytest.mark.parametrize(
    ("mark", "line"),
    [("MARK5", "5:48"), ("MARK11", "11:5"), ("MARK18", "18:5")],
)
def test_an_error_is_told_at_its_line(loader: Loader, mark: str, line: str) -> None:
    """The line is that of the program's own file, whatever bcc and the header put before it."""
    header = "BPF_PERF_OUTPUT(collectord_ring);\nstatic inline void x(void)\n{\n}\n"
    text = bcc_text.prepare("prog", _with(mark, "oops"), header=header, defines="#define A 1\n")
    request = bcc_client.Request("prog", text, loader.headers)
    with ExitStack() as stack, pytest.raises(BpfError) as caught:
        bcc_client.load(request, python=loader.python, stack=stack)
    error = caught.value
    assert error.step == "compile"
    assert str(error) == f"prog.bpf.c:{line}: error: use of undeclared identifier 'oops'"
    assert str(error) in error.text
    assert "oops" in error.text.splitlines()[1]


def test_an_error_in_the_header_is_told_there(loader: Loader) -> None:
    """The message has the header's name and line."""
    source = 'int x;\n#include "collectord.h"\n'
    text = bcc_text.prepare("prog", source, header="int y;\nint z = oops;\n")
    request = bcc_client.Request("prog", text, loader.headers)
    with ExitStack() as stack, pytest.raises(BpfError, match=r"prog: collectord\.h:2:9: error: "):
        bcc_client.load(request, python=loader.python, stack=stack)


@pytest.mark.parametrize(("mark", "line"), [("MARK11", 11), ("MARK18", 18)])
def test_what_the_verifier_rejects_is_told(loader: Loader, mark: str, line: int) -> None:
    """The error has its reason, the function, and the end of its log, which names the line."""
    reading = "{ u32 k = 0; u64 *v = m.lookup(&k); *v = 1; }"
    error = loader.error(_with(mark, reading).replace('#include "collectord.h"', ""))
    assert isinstance(error, BpfError)
    assert error.step == "load"
    assert "the verifier rejects " in str(error)
    function = "raw_tracepoint__sys_enter" if line == 11 else "tracepoint__sched__sched_wakeup"
    assert function in str(error)
    assert "invalid mem access" in str(error)
    assert "processed " in error.text
    if Path("/sys/kernel/btf/vmlinux").exists():
        assert f"prog.bpf.c:{line}" in error.text


def test_a_map_that_cannot_be_made_is_named(loader: Loader) -> None:
    """The message has the kernel's reason."""
    error = loader.error("BPF_HASH(vast, u32, u64, 4000000000);\n" + RAW)
    assert isinstance(error, BpfError)
    assert error.step == "load"
    assert "map vast cannot be made: " in str(error)


def test_the_licence_is_the_kernels(loader: Loader) -> None:
    """The error says that the licence does not permit a helper."""
    source = 'RAW_TRACEPOINT_PROBE(sys_enter) { bpf_trace_printk("x"); return 0; }'
    with ExitStack() as stack:
        loader.load(stack, source)
    request = bcc_client.Request("prog", source, loader.headers, (), "Proprietary")
    with ExitStack() as stack, pytest.raises(BpfError, match="GPL-restricted function"):
        bcc_client.load(request, python=loader.python, stack=stack)


def test_memory_is_limited(loader: Loader) -> None:
    """Memory beyond the limit is refused to clang and reported, wherever it happens."""
    for mib in (100, 200, 240, 248, 260, 272, 280):
        error = loader.error(RAW, memory_bytes=mib << 20)
        assert isinstance(error, BpfError)
        assert f"more memory than its limit of {mib} MiB" in str(error)


def test_time_is_limited(loader: Loader) -> None:
    """A compilation that takes clang too long is given up."""
    error = loader.error(SLOW, timeout_s=1.0)
    assert isinstance(error, BpfError)
    assert error.step == "worker"
    assert "more than 1 s" in str(error)
    assert workers(os.getpid()) == []


@pytest.mark.parametrize(("name", "starts"), [("SIGKILL", bcc_client.STARTS_MAX), ("SIGSEGV", 1)])
def test_killing_the_worker_while_it_compiles(loader: Loader, name: str, starts: int) -> None:
    """The error names the last kill; others go on meanwhile, and nothing is left."""
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        failing = pool.submit(loader.error, SLOW)
        worker = await_compiling(os.getpid())
        loaded = loader.load(stack, RAW)
        os.kill(worker, signal.Signals[name])
        for _ in range(1, starts):
            worker = await_another(os.getpid(), worker)
            os.kill(worker, signal.Signals[name])
        error = failing.result(DEADLINE_S)
        call()
        assert counted(loaded) == CALLS
    assert isinstance(error, BpfError)
    assert error.step == "worker"
    assert f"killed by {name}" in str(error)


def test_the_worker_dies_with_its_parent(loader: Loader) -> None:
    """A daemon that is killed leaves no compiler behind."""
    request = loader.request(SLOW)
    words = [request.name, request.source, request.headers]
    code = (
        "import sys, json, contextlib\n"
        "from collectord.source import bcc_client\n"
        "words = json.load(sys.stdin)\n"
        "with contextlib.ExitStack() as stack:\n"
        f"    bcc_client.load(bcc_client.Request(*words), python={loader.python!r}, stack=stack)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdin
        parent.stdin.write(json.dumps(words).encode())
        parent.stdin.close()
        worker = await_compiling(parent.pid)
        parent.kill()
    await_true(lambda: worker not in workers(parent.pid), deadline_s=3)


def test_the_worker_is_bounded(loader: Loader) -> None:
    """It leaves no core, and is the first to go when the host is out of memory."""
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(loader.error, SLOW)
        worker = await_compiling(os.getpid())
        limits = Path(f"/proc/{worker}/limits").read_text()
        score = Path(f"/proc/{worker}/oom_score_adj").read_text()
        os.kill(worker, signal.SIGSEGV)  # after which none is started again
        failing.result(DEADLINE_S)
    rows = {line[:26].strip(): line[26:].split()[:2] for line in limits.splitlines()}
    assert rows["Max core file size"] == ["0", "0"]
    assert rows["Max address space"] == [str(bcc_client.MEMORY_BYTES)] * 2
    assert score.strip() == "1000"


def test_two_at_once(loader: Loader) -> None:
    """Each has its own worker and its own descriptors."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        stacks = [stack.enter_context(ExitStack()) for _ in range(2)]
        first, second = pool.map(lambda own: loader.load(own, RAW), stacks)
        call()
        assert (counted(first), counted(second)) == (CALLS, CALLS)
        stacks[0].close()
        call()
        assert counted(second) == 2 * CALLS


@pytest.mark.parametrize(
    ("capabilities", "source", "need"),
    [
        ("", "BPF_PERCPU_ARRAY(m, u64, 1);\n" + RAW, "CAP_BPF and CAP_PERFMON"),
        ("", "RAW_TRACEPOINT_PROBE(sys_enter) { return 0; }", "CAP_BPF and CAP_PERFMON"),
        (",+bpf,+perfmon", RAW, ""),
        (",+bpf,+perfmon", TRACEPOINT, ""),
    ],
)
def test_privileges(loader: Loader, capabilities: str, source: str, need: str) -> None:
    """CAP_BPF and CAP_PERFMON suffice; without them the error says that they are wanted."""
    request = loader.request(source)
    words = [request.name, request.source, request.headers]
    code = (
        "import sys, json, contextlib\n"
        "from collectord.errors import MissingPrivilege\n"
        "from collectord.source import bcc_client\n"
        "words = json.load(sys.stdin)\n"
        "with contextlib.ExitStack() as stack:\n"
        "    try:\n"
        f"        bcc_client.load(bcc_client.Request(*words), python={loader.python!r},"
        " stack=stack)\n"
        "    except MissingPrivilege as error:\n"
        "        print(error.need)\n"
    )
    dropped = f"--bounding-set=-all{capabilities}"
    done = subprocess.run(
        ["setpriv", "--inh-caps=-all", "--ambient-caps=-all", dropped, sys.executable, "-c", code],
        input=json.dumps(words),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.strip() == need


def test_names_of_addresses(loader: Loader) -> None:
    """Names of the kernel and of processes are found; a missing one is shown as unknown."""
    symbols = Path("/proc/kallsyms").read_text().splitlines()
    symbol = next(line.split() for line in symbols if line.endswith(" T schedule"))
    own = ctypes.cast(ctypes.CDLL(None).getppid, ctypes.c_void_p).value
    assert own
    gone = subprocess.Popen(["true"])
    gone.wait()
    stacks = [
        (bcc_client.KERNEL, [int(symbol[0], 16) + 4, 16]),
        (os.getpid(), [own + 1, 16]),
        (gone.pid, [own]),
        (os.getpid(), []),
    ]
    names = bcc_client.symbols(stacks, python=loader.python)
    assert names[0] == ["schedule", "[unknown]"]
    assert names[1] == ["getppid", "[unknown]"]
    assert names[2:] == [["[unknown]"], []]


def test_an_address_without_a_name_is_told_by_its_file(loader: Loader, tmp_path: Path) -> None:
    """In a file without symbols it has its offset and the file's name, whatever bytes it is."""
    (tmp_path / "idle.c").write_text("#include <stdio.h>\nint main(void) { return getchar(); }")
    binary = tmp_path / os.fsdecode(b"idle\xff")
    subprocess.run(["cc", "-s", "-o", binary, tmp_path / "idle.c"], check=True)
    with subprocess.Popen([binary], stdin=subprocess.PIPE) as process:
        maps = Path(f"/proc/{process.pid}/maps")

        def code() -> list[list[str]]:
            lines = [line.split() for line in maps.read_text(errors="replace").splitlines()]
            return [words for words in lines if "idle" in words[-1] and words[1] == "r-xp"]

        await_true(code)
        start, _, _ = code()[0][0].partition("-")
        ((name,),) = bcc_client.symbols(
            [(process.pid, [int(start, 16) + 1])], python=loader.python
        )
        assert process.stdin
        process.stdin.close()
    assert re.fullmatch(r"0x[0-9a-f]+ \[idle\\xff\]", name), name


def test_nothing_of_bcc_is_in_this_process(loader: Loader) -> None:
    """Its libraries are as large as all else together."""
    with ExitStack() as stack:
        loader.load(stack, RAW)
        assert "libbcc" not in Path("/proc/self/maps").read_text()
    assert "bcc" not in sys.modules
