# SPDX-License-Identifier: Apache-2.0
"""Part of the program `bcc_worker`: a BPF program from its text to attached functions.

bcc's Python interface compiles and attaches. Only calls whose form has stayed the same over the
years are used, step by step, so that each failure has a place and an errno.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.source.bcc_submissions import counts_submissions

    Entry = dict[str, Any]
else:
    from bcc_submissions import counts_submissions


class Kind(NamedTuple):
    """A kind of attachment: its enum bpf_prog_type, its method in bcc and its PMU, if any.

    A function whose name begins with the prefix is attached without a request.
    """

    program_type: int
    prefix: str
    method: str
    pmu: str = ""


_KINDS: Final = {
    "kprobe": Kind(2, "kprobe__", "attach_kprobe", "kprobe"),
    "kretprobe": Kind(2, "kretprobe__", "attach_kretprobe", "kprobe"),
    "uprobe": Kind(2, "", "attach_uprobe", "uprobe"),
    "uretprobe": Kind(2, "", "attach_uprobe", "uprobe"),
    "usdt": Kind(2, "", "attach_uprobe", "uprobe"),
    "tracepoint": Kind(5, "tracepoint__", "attach_tracepoint"),
    "perf_event": Kind(7, "", "attach_perf_event"),
    "raw_tracepoint": Kind(17, "raw_tracepoint__", "attach_raw_tracepoint"),
    "fentry": Kind(26, "kfunc__", "attach_kfunc"),
    "fexit": Kind(26, "kretfunc__", "attach_kretfunc"),
}
_TRACING: Final = 26
# These are left by clang, which has looked for files. libbcc makes the maps behind it, and leaves
# the kernel's answer.
_OF_COMPILER: Final = (0, errno.ENOENT)
# libbcc loses the errno of most events; the machine may lack hardware for these.
_NO_EVENT: Final = (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV)
_HARDWARE: Final = (0, 3, 4)  # PERF_TYPE_HARDWARE, HW_CACHE, RAW
_PMUS: Final = Path("/sys/bus/event_source/devices")
_BTF: Final = Path("/sys/kernel/btf/vmlinux")
_TRACEFS: Final = (
    Path("/sys/kernel/tracing/events"),
    Path("/sys/kernel/debug/tracing/events"),
)
_COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_TRACEPOINT: Final = re.compile(r"\bTRACEPOINT_PROBE\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)")
_PRIVILEGED: Final = (1 << 21, 1 << 38 | 1 << 39)  # CAP_SYS_ADMIN; CAP_PERFMON and CAP_BPF


class Failure(Exception):
    """A failure, sent instead of descriptors.

    Args:
        step: compile, map, load, attach, describe or worker.
        message: what failed, naming the function or place.
        facts: `errno`; `lack`, a missing feature of kernel or host; `need`, the missing privilege
            (bpf, perf, tracefs).
    """

    def __init__(self, step: str, message: str, **facts: object) -> None:
        super().__init__(message)
        text = message.encode(errors="backslashreplace").decode()  # file names are bytes
        self.facts = {"step": step, "message": text, **facts}


class Program:
    """One program, from its text to its descriptors."""

    def __init__(self, bcc: Any, request: dict[str, Any]) -> None:  # noqa: ANN401 - a module
        self._bcc = bcc
        self._lib = bcc.lib
        self._attached: dict[str, list[str]] = {}
        self._fds: list[int] = []
        self._counting = {name: request[name] for name in ("ring", "counts")}
        _declare(bcc.lib)
        entries = request["attach"]
        self._usdt = [(e, self._probe(e)) for e in entries if e["kind"] == "usdt"]
        self._bpf = self._compile(request["source"], request["license"])
        names = (self._lib.bpf_num_functions, self._lib.bpf_function_name)
        functions = [name.decode() for name in _listed(self._bpf.module, *names)]
        named = {entry["function"] for entry in entries}
        for name in sorted(named.difference(functions)):
            raise Failure("attach", f"there is no function {name}")
        self._entries: list[Entry] = entries + [_by_name(f) for f in functions if f not in named]
        if not self._entries:
            raise Failure("attach", "there is no function to attach")

    def _compile(self, source: str, licence: str) -> Any:  # noqa: ANN401 - an object of bcc's
        contexts = [context.get_context() for _, context in self._usdt]
        array_type = ctypes.c_void_p * len(contexts)
        arguments = self._lib.bcc_usdt_genargs(array_type(*contexts), len(contexts))
        if arguments is None:
            places = ", ".join(entry["place"] for entry, _ in self._usdt)
            raise Failure("attach", f"bcc finds no arguments for all processes of {places}")
        # Attaching comes later, one by one, so that each failure has a name and an errno.
        module = type("Module", (self._bcc.BPF,), {"_trace_autoload": lambda _: None})
        front = f"#define BPF_LICENSE {licence}\n".encode() + arguments
        ctypes.set_errno(0)
        try:
            return module(text=front + source.encode())
        except Exception as error:  # bcc raises nothing narrower, here and below
            code = ctypes.get_errno()
            if code not in _OF_COMPILER:
                need = "bpf" if code == errno.EPERM and not _privileged() else ""
                raise Failure("map", "its maps", errno=code, need=need) from error
            for place in _missing_tracepoints(source):
                raise _lacking(f"tracepoint {place}", errno.ENOENT) from error
            raise Failure("compile", str(error)) from error

    def load(self) -> None:
        """Load each function, which the verifier checks."""
        for entry in self._entries:
            kind, function, place = entry["kind"], entry["function"], entry["place"]
            _check_kernel(kind, place)
            what = _KINDS[kind]
            tracing, prefix = what.program_type == _TRACING, what.prefix
            if tracing and function != prefix + place:
                named = f"bcc attaches {kind} {place} only if the function is {prefix}{place}"
                raise Failure("attach", named)
            ctypes.set_errno(0)
            try:
                self._bpf.load_func(function.encode(), what.program_type)
            except Exception as error:
                code = ctypes.get_errno()
                if code == errno.EPERM and not _privileged():
                    raise Failure("load", function, errno=code, need="bpf") from error
                if tracing and code == errno.ENOENT:
                    raise _lacking(f"function {place}", code) from error
                if tracing and code == errno.EPERM:
                    raise _lacking("fentry", code) from error
                raise Failure("load", function, errno=code) from error

    def attach(self) -> None:
        """Attach each function; its kernel may run it from now on."""
        for entry in self._entries:
            kind, place = entry["kind"], entry["place"]
            ctypes.set_errno(0)
            try:
                self._attach(kind, entry)
            except Failure:
                raise
            except Exception as error:
                raise self._refused(entry, ctypes.get_errno()) from error
            self._take_fds()
            self._attached.setdefault(entry["function"], []).append(f"{kind} {place}")

    def _refused(self, entry: Entry, code: int) -> Failure:
        kind, place = entry["kind"], entry["place"]
        if code in (errno.EPERM, errno.EACCES) and not _privileged():
            return Failure("attach", f"{kind} {place}", errno=code, need="perf")
        if kind == "raw_tracepoint" and code == errno.ENOENT:
            return _lacking(f"raw tracepoint {place}", code)
        if kind == "perf_event" and (code in _NO_EVENT or entry["type"] in _HARDWARE):
            return _lacking(f"perf event {place}", code)
        if kind in ("kprobe", "kretprobe"):
            function = self._bpf.fix_syscall_fnname(place.encode())
            if self._bpf.ksymname(function) < 0:
                return _lacking(f"function {place}", code)
        return Failure("attach", f"{kind} {place} cannot be attached", errno=code)

    def _take_fds(self) -> None:
        """Move descriptors out of bcc's tables, which keep one for each place only."""
        bpf = self._bpf
        flat = (
            bpf.tracepoint_fds,
            bpf.raw_tracepoint_fds,
            bpf.kfunc_entry_fds,
            bpf.kfunc_exit_fds,
        )
        for table in (*bpf.kprobe_fds.values(), *bpf.open_perf_events.values(), *flat):
            self._fds += table.values()
            table.clear()

    def _attach(self, kind: str, entry: Entry) -> None:
        bpf, function, place = self._bpf, entry["function"], entry["place"]
        attach = getattr(bpf, _KINDS[kind].method)
        if kind in ("uprobe", "uretprobe"):
            self._attach_uprobe(entry)
        elif kind == "usdt":
            self._attach_usdt(entry)
        elif kind == "perf_event":
            how = {"sample_period": entry["period"], "sample_freq": entry["frequency"]}
            attach(entry["type"], entry["config"], function, **how)  # on every CPU online
        elif kind in ("kprobe", "kretprobe"):
            attach(event=bpf.fix_syscall_fnname(place.encode()), fn_name=function)
        elif kind in ("tracepoint", "raw_tracepoint"):
            attach(tp=place, fn_name=function)
        else:
            attach(fn_name=function)

    def _attach_uprobe(self, entry: Entry) -> None:
        """Attach to a function of a file, in all processes."""
        name, _, symbol = entry["place"].rpartition(":")
        path = self._binary(name)
        try:
            place = self._bpf._check_path_symbol(path, symbol.encode(), None, -1)  # noqa: SLF001
        except Exception as error:
            raise Failure("attach", f"{os.fsdecode(path)} has no function {symbol}") from error
        self._open_uprobe(entry, *place)

    def _attach_usdt(self, entry: Entry) -> None:
        """Attach to all places of a probe."""
        context = next(context for own, context in self._usdt if own is entry)
        for path, _, address, _ in context.enumerate_active_probes():
            place = self._bpf._check_path_symbol(path, b"", address, -1)  # noqa: SLF001
            self._open_uprobe(entry, *place)

    def _open_uprobe(self, entry: Entry, path: bytes, offset: int) -> None:
        """Attach at a file's offset.

        bcc's own method omits the last argument, the place in the process's memory where the
        kernel keeps a counter: libbcc then takes it from whatever lies on the stack.
        """
        program = self._bpf.funcs[entry["function"].encode()].fd
        returns = entry["kind"] == "uretprobe"
        name = b"collectord_%d_%d" % (os.getpid(), len(self._fds))
        ctypes.set_errno(0)
        fd = self._lib.bpf_attach_uprobe(program, returns, name, path, offset, -1, 0)
        if fd < 0:
            code = ctypes.get_errno()
            # A probe that the PMU refuses is tried by a name in tracefs, which would stay there.
            self._lib.bpf_detach_uprobe(name)
            raise self._refused(entry, code)
        self._fds.append(fd)

    def _probe(self, entry: Entry) -> Any:  # noqa: ANN401 - an object of bcc's
        """Return the context of a USDT probe; bcc writes the code that reads its arguments."""
        name, provider, label = entry["place"].rsplit(":", 2)
        path, probe = os.fsdecode(self._binary(name)), f"{provider}:{label}"
        try:
            context = self._bcc.USDT(path=path)
            found = [known for known in context.enumerate_probes() if known.short_name() == probe]
            if found and not found[0].semaphore:
                context.enable_probe(probe, entry["function"])
        except Exception as error:
            raise Failure("attach", f"bcc cannot use probe {probe} of {path}") from error
        if not found:
            raise Failure("attach", f"{path} has no probe {probe}")
        if found[0].semaphore:
            what = f"probe {probe} of {path} has a semaphore"
            raise Failure("attach", f"{what}, which bcc raises in single processes only")
        return context

    def _binary(self, name: str) -> bytes:
        """Return the file of a path, of a library (`libc` or `c`) or of a program on the PATH."""
        if "/" in name:
            found = os.fsencode(name) if Path(name).is_file() else b""
        else:
            library = self._bcc.BPF.find_library(name.removeprefix("lib").encode())
            found = library or os.fsencode(shutil.which(name) or "")
        if not found:
            raise Failure("attach", f"there is no file, library or program {name}")
        return found

    def describe(self) -> tuple[dict[str, Any], list[int]]:
        """Return the answer, and the descriptors that it counts."""
        lib, module = self._lib, self._bpf.module
        fds: list[int] = []
        tables, programs = [], []
        for index, name in enumerate(_listed(module, lib.bpf_num_tables, lib.bpf_table_name)):
            key, leaf = (
                _parsed(name, description(module, index))
                for description in (lib.bpf_table_key_desc_id, lib.bpf_table_leaf_desc_id)
            )
            tables.append({"name": name.decode(), "fd": len(fds), "key": key, "leaf": leaf})
            fds.append(lib.bpf_table_fd_id(module, index))
        maps = {table["name"]: fds[table["fd"]] for table in tables}
        counting = {what: maps.get(name, -1) for what, name in self._counting.items()}
        for name, function in self._bpf.funcs.items():
            programs.append(
                {
                    "function": name.decode(),
                    "fd": len(fds),
                    "attached": self._attached[name.decode()],
                    "counted": counts_submissions(self._bpf.dump_func(name), **counting),
                }
            )
            fds.append(function.fd)
        attachments = list(range(len(fds), len(fds) + len(self._fds)))
        answer = {"tables": tables, "programs": programs, "attachments": attachments}
        return answer, fds + self._fds


def _declare(lib: Any) -> None:  # noqa: ANN401 - a library
    """Declare types that bcc omits, for which ctypes would cut pointers and 64-bit numbers."""
    int_, u32, u64, text = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
    lib.bpf_num_tables.argtypes = [ctypes.c_void_p]
    lib.bpf_num_tables.restype = ctypes.c_size_t
    for name in ("name", "key_desc_id", "leaf_desc_id", "fd_id"):
        function = getattr(lib, f"bpf_table_{name}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        function.restype = int_ if name == "fd_id" else text
    lib.bpf_attach_uprobe.argtypes = [int_, int_, text, text, u64, int_, u32]
    lib.bpf_attach_perf_event.argtypes = [int_, u32, u32, u64, u64, int_, int_, int_]


def _listed(module: int, count: Callable[..., int], item: Callable[..., bytes]) -> Iterator[bytes]:
    return (item(module, index) for index in range(count(module)))


def _parsed(table: bytes, description: bytes | None) -> Any:  # noqa: ANN401 - as bcc has it
    """Return a type as bcc describes it, None where the table has none."""
    if not description:
        return None
    try:
        return json.loads(description)
    except ValueError as error:
        message = f"bcc describes table {table.decode()} in a way that is not JSON"
        raise Failure("describe", message) from error


def _by_name(function: str) -> Entry:
    """Return the attachment that a function's name asks for."""
    for kind, what in _KINDS.items():
        if what.prefix and function.startswith(what.prefix):
            place = function[len(what.prefix) :]
            if kind == "tracepoint":
                place = place.replace("__", ":", 1)
            return {"kind": kind, "function": function, "place": place}
    raise Failure("attach", f"function {function} is attached to nothing and not static inline")


def _check_kernel(kind: str, place: str) -> None:
    """Check the kernel's features, about which libbcc's messages are unclear."""
    pmu, tracing = _KINDS[kind].pmu, _KINDS[kind].program_type == _TRACING
    if pmu and not (_PMUS / pmu).exists():
        raise _lacking(f"{pmu}s", errno.ENOENT)
    if tracing and not _BTF.exists():
        raise _lacking("btf", errno.ENOENT)
    if kind == "tracepoint":
        try:
            _look_up(*place.split(":", 1))
        except PermissionError as error:
            raise Failure("attach", place, errno=error.errno, need="tracefs") from error
        except FileNotFoundError as error:
            raise _lacking(f"tracepoint {place}", errno.ENOENT) from error


def _look_up(system: str, name: str) -> None:
    """Find a tracepoint in tracefs.

    Raises:
        FileNotFoundError, PermissionError: it is absent, or tracefs may not be read.
    """
    root = next((path for path in _TRACEFS if path.is_dir()), None)
    if root is None:
        raise _lacking("tracefs", errno.ENOENT)
    (root / system / name / "id").read_bytes()


def _missing_tracepoints(source: str) -> Iterator[str]:
    """Yield tracepoints that a source names and tracefs lacks; clang calls them incomplete."""
    for system, name in _TRACEPOINT.findall(_COMMENT.sub("", source)):
        try:
            _look_up(system, name)
        except FileNotFoundError:
            yield f"{system}:{name}"
        except PermissionError as error:
            raise Failure(
                "compile", f"{system}:{name}", errno=error.errno, need="tracefs"
            ) from error


def _lacking(what: str, code: int) -> Failure:
    return Failure("attach", what, errno=code, lack=what)


def _privileged() -> bool:
    """Whether this process has the privileges to load and attach."""
    lines = Path("/proc/self/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return any(mask & need == need for need in _PRIVILEGED)
