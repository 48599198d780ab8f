# SPDX-License-Identifier: Apache-2.0
"""BPF programs by BCC, from the daemon's side: run the worker, check its answer, own its fds.

bcc itself, and LLVM with it, is never in this process.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from collectord.codec import event_names
from collectord.programs import bpf_program
from collectord.source import bcc_child, bcc_text
from collectord.source.bcc_errors import Failure, Words
from collectord.source.loaded_program import Loaded, LoadedProgram, LoadedTable
from collectord.text.foreign import decode_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.programs.bpf_program import BpfProgram
    from collectord.programs.program_manifest import AttachConfig
    from collectord.source.bcc_child import Outcome

_LOG: Final = structlog.get_logger()
# Memory for compiling: a program with few headers maps 290 MiB (130 MiB resident, 0.3 s), one with
# those of network and block layer 400 MiB (230 MiB, 3 s). The limit counts mapped memory.
TIMEOUT_S: Final = 60.0
MEMORY_BYTES: Final = 1 << 30
KERNEL: Final = -1
# One that is killed is started again, so often in all.
STARTS_MAX: Final = 3
# The kernel's words for the kind of a descriptor.
_FDINFO: Final = Path("/proc/self/fdinfo")


@dataclass(frozen=True, slots=True)
class Request:
    """A program to compile and attach.

    Attributes:
        name: name of the program.
        source: its text, as `bcc_text.prepare` gives it.
        headers: tree of kernel headers.
        attach: what bcc does not attach by the functions' names, each with its place.
        license: license in the kernel's words.
    """

    name: str
    source: str
    headers: str
    attach: tuple[AttachConfig, ...] = ()
    license: str = "GPL"


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    fd: int
    key: Any
    leaf: Any


class _Program(msgspec.Struct, forbid_unknown_fields=True):
    function: str
    fd: int
    attached: tuple[str, ...]
    counted: bool = False  # an opener of before may not tell


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """A worker's answer: a failure; or tables, programs and attachments; or names."""

    failure: Failure | None = None
    tables: list[_Table] = []
    programs: list[_Program] = []
    attachments: list[int] = []
    names: list[list[str]] = []


def request(
    program: BpfProgram, values: Mapping[str, int | str], *, headers: str, library: str
) -> Request:
    """Return the request for a program of the catalogue.

    Args:
        program: the program.
        values: values of its parameters, as `programs.parameter.values_of` gives them.
        headers: tree of kernel headers.
        library: text of collectord.h.
    """
    defines = bpf_program.defines(program, values)
    source = bcc_text.prepare(program.name, program.source, header=library, defines=defines)
    manifest = program.manifest
    attach = tuple(one.chosen(values) for one in manifest.attach)
    return Request(program.name, source, headers, attach, manifest.kernel_license)


def load(
    request: Request,
    *,
    python: str,
    stack: ExitStack,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
    abort: int = bcc_child.NEVER,
) -> Loaded:
    """Compile, load and attach a program in a worker process; it runs from then on.

    The call blocks as long as that takes. The worker dies with the calling thread. One that
    somebody kills is started again.

    Args:
        request: the program.
        python: interpreter that has bcc.
        stack: receives all descriptors, which are close-on-exec; closing them ends the program.
            After an error none is left.
        timeout_s: time limit for the whole call.
        memory_bytes: memory that the worker may map, program files and libraries included.
        abort: see `source.base.Source`.

    Raises:
        BpfError: it does not compile, load or attach, or the worker failed; the step says which.
        MissingFeature: kernel or host lack a requirement.
        MissingPrivilege: the kernel does not let this process load or attach.
    """
    words = Words(request.name, python, timeout_s, memory_bytes)
    if not (Path(request.headers) / "include").is_dir():
        raise words.error("compile", f"no kernel headers in {request.headers or 'no directory'!r}")
    entries = [_entry(attach) for attach in request.attach]
    question = {
        "source": request.source,
        "license": request.license,
        "attach": entries,
        "ring": bpf_program.RING,
        "counts": bpf_program.COUNTS,
    }
    deadline_s = time.monotonic() + timeout_s
    starts = 0
    while True:
        starts += 1
        received = stack.enter_context(ExitStack())
        try:
            left_s = deadline_s - time.monotonic()
            outcome = _ask(
                words,
                "load",
                question,
                request.headers,
                received,
                timeout_s=left_s,
                abort=abort,
            )
            if not outcome.was_killed or starts == STARTS_MAX:
                return _loaded(words, outcome, _answer(words, outcome))
        except BaseException:
            received.close()
            raise
        received.close()
        _LOG.warning("bcc_worker_killed", program=request.name, starts=starts)


def handed_on(name: str, described: bytes, fds: Sequence[int]) -> Loaded:
    """Return a program that another process has loaded.

    Args:
        name: of the program.
        described: see `Loaded`.
        fds: likewise; the caller closes them.

    Raises:
        BpfError: they are not of each other.
    """
    words = Words(name, sys.executable, TIMEOUT_S, MEMORY_BYTES)
    outcome = bcc_child.Outcome(answer=described, fds=list(fds))
    return _loaded(words, outcome, _answer(words, outcome))


def symbols(
    stacks: Sequence[tuple[int, Sequence[int]]],
    *,
    python: str,
    timeout_s: float = TIMEOUT_S,
    memory_bytes: int = MEMORY_BYTES,
) -> list[list[str]]:
    """Return names of addresses.

    Args:
        stacks: a process and addresses within it, or KERNEL and addresses of the kernel.
        python: interpreter that has bcc.
        timeout_s: time limit for all of them.
        memory_bytes: memory that the worker may map.

    Returns:
        names in the same order; "0x1234 [libc.so.6]", the offset within a file, or "[unknown]"
        where there is none, as for a process that is gone.

    Raises:
        BpfError: the worker failed.
        MissingFeature: the interpreter has no bcc.
    """
    words = Words("symbols", python, timeout_s, memory_bytes)
    with ExitStack() as received:
        outcome = _ask(words, "symbols", {"stacks": stacks}, "", received, timeout_s=timeout_s)
        answer = _answer(words, outcome)
    if [len(names) for names in answer.names] != [len(addresses) for _, addresses in stacks]:
        raise words.garbage(outcome)
    return answer.names


def _entry(attach: AttachConfig) -> dict[str, object]:
    """Return an attachment in the worker's form."""
    entry: dict[str, object] = {
        "kind": attach.kind,
        "function": attach.function,
        "place": attach.place,
    }
    if attach.kind != "perf_event":
        return entry
    named = event_names.find_named(attach.place)
    kind, config = (
        (int(named.type), named.config)
        if named
        else (int(number, 0) for number in attach.place.split(":"))
    )
    rates = {"frequency": attach.frequency or 0, "period": attach.period or 0}
    return {**entry, "type": kind, "config": config, **rates}


def _ask(
    words: Words,
    mode: str,
    question: Mapping[str, object],
    headers: str,
    stack: ExitStack,
    *,
    timeout_s: float,
    abort: int = bcc_child.NEVER,
) -> Outcome:
    text = json.dumps({"mode": mode, "memory_bytes": words.memory_bytes, **question})
    try:
        outcome = bcc_child.ask(
            words.python,
            text.encode(),
            headers,
            timeout_s=timeout_s,
            stack=stack,
            abort=abort,
        )
    except OSError as error:
        raise words.not_started(error) from error
    return outcome


def _answer(words: Words, outcome: Outcome) -> _Answer:
    """Parse the answer of a worker that did what it was asked.

    Raises:
        CollectordError: the worker failed.
    """
    problem = words.of_outcome(outcome)
    if problem is not None:
        raise problem
    try:
        answer = decode_json(outcome.answer or b"", _Answer)
    except msgspec.DecodeError as error:
        raise words.garbage(outcome) from error
    if answer.failure is not None:
        raise words.of_failure(answer.failure, outcome)
    return answer


def _loaded(words: Words, outcome: Outcome, answer: _Answer) -> Loaded:
    """Combine the answer with the kernel's info of the descriptors."""
    used = [table.fd for table in answer.tables] + [one.fd for one in answer.programs]
    if sorted(used + answer.attachments) != list(range(len(outcome.fds))) or not answer.programs:
        raise words.garbage(outcome)
    try:
        tables = [_table(one, outcome.fds[one.fd]) for one in answer.tables]
        programs = [_program(one, outcome.fds[one.fd]) for one in answer.programs]
    except (KeyError, ValueError, OSError) as error:
        raise words.garbage(outcome) from error
    return Loaded(
        tables={table.name: table for table in tables},
        programs=tuple(programs),
        attachment_fds=tuple(outcome.fds[index] for index in answer.attachments),
        messages=outcome.said.beginning,
        described=outcome.answer or b"",
        fds=tuple(outcome.fds),
    )


def _table(said: _Table, fd: int) -> LoadedTable:
    facts = _fdinfo(fd)
    return LoadedTable(
        name=said.name,
        fd=fd,
        id=int(facts["map_id"]),
        type=int(facts["map_type"]),
        key_bytes=int(facts["key_size"]),
        leaf_bytes=int(facts["value_size"]),
        max_entries=int(facts["max_entries"]),
        key=said.key,
        leaf=said.leaf,
    )


def _program(said: _Program, fd: int) -> LoadedProgram:
    number = int(_fdinfo(fd)["prog_id"])
    return LoadedProgram(said.function, fd, number, said.attached, counted=said.counted)


def _fdinfo(fd: int) -> dict[str, str]:
    lines = (_FDINFO / str(fd)).read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
