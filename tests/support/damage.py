# SPDX-License-Identifier: Apache-2.0
"""Segments and manifests with damage of every kind, and the required behaviour for each.

A case is told by a seed and a number:

    python -m tests.support.damage SEED NUMBER
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import events, segments
from collectord.errors import CodecError, CollectordError
from collectord.folders.trust import Trust
from collectord.folders.walk import open_folder
from collectord.plan.sink_plan import SinkPlan
from collectord.reader.verify import list_segments, verify
from collectord.recovery.ftrace_rings import read_prior_run
from collectord.sink.formats import open_stored
from collectord.sink.outcome import Action
from collectord.sink.output_dir import OutputDir
from collectord.sink.pack import pack_steps
from collectord.sink.repair import repair
from collectord.sink.segment import PARTIAL, SegmentPaths, group_files, run
from collectord.sink.stored_file import Check
from tests.support import bpf_segments, relay_segments, trace_segments
from tests.support import segments as perf_segments
from tests.support.aux_files import AuxFile
from tests.support.relay_records import record
from tests.support.segments import killed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# No case needs more: it is a hang's limit, of processor time, and another one of the clock.
CASE_CPU_S: Final = 5
CASE_S: Final = 60
MEMORY_BYTES: Final = 512 << 20
_MIB: Final = 1 << 20
_VICTIM: Final = b"of somebody else"
_COMMANDS: Final = 0.25  # share of cases that go through the command line
_JSON: Final = (".json", ".json.partial", ".json.new")
_EDGES: Final = tuple(
    sorted({base + near for base in (0, 8, 104, 4096, 1 << 16, 1 << 31, 1 << 32, 1 << 62, 1 << 63)
            for near in (-1, 0, 1)} | {(1 << 64) - 1})
)  # fmt: skip
_ODD_VALUES: Final = (
    *("-1", "0", "1.5", "1e400", "true", "null", "[]", "{}", '""', '"\\u0000"', '"\\ud800"'),
    *("9223372036854775807", "9223372036854775808", "1" + "0" * 30, "9" * 5000, "-" + "9" * 40),
    *('"../../etc/passwd"', '"/dev/zero"', '".."', '"trace.dat"', '"relay.0"', '"%s"'),
    *('"' + "a" * 70_000 + '"', "[" * 100_000, '{"a":' * 50_000, "[" * 400 + "]" * 400),
)


def make_templates(root: Path) -> None:
    """Write directories with sealed and with open segments, of every format."""
    for kind, (seal, leave) in _KINDS.items():
        directory = root / kind / kind
        directory.mkdir(parents=True)
        seal(directory)
        killed(lambda directory=directory, leave=leave: leave(directory))  # type: ignore[misc]


def _seal_perf(directory: Path) -> None:
    sink = perf_segments.make_sink(directory)
    for token in (1, 2):
        perf_segments.write_segment(sink, token, samples=60)
    sink.close()


def _leave_perf(directory: Path) -> None:
    sink = perf_segments.make_sink(directory)
    perf_segments.fill(sink.next_segment(1, perf_segments.OPENING), 60)


def _bpf_chunks() -> list[bytes]:
    made = [
        bpf_segments.sample(bpf_segments.S_NS + n, bpf_segments.opened(500 + n)) for n in range(8)
    ]
    comm = bpf_segments.comm(1, 500, b"task")
    lost = bpf_segments.lost(bpf_segments.S_NS + 9, 3)
    exits = bpf_segments.sample(
        bpf_segments.S_NS + 10, bpf_segments.exited(1), event=bpf_segments.EXITS
    )
    return [bpf_segments.chunk(comm, *made, lost, exits, ends_round=True)] * 2


def _seal_bpf(directory: Path) -> None:
    bpf_segments.write(directory, *_bpf_chunks(), lost_samples={11: 3})


def _leave_bpf(directory: Path) -> None:
    bpf_segments.Writer(directory).write(*_bpf_chunks())


def _trace_options() -> dict[str, Any]:
    return {"segment_bytes": 16 << 10}


def _seal_trace(directory: Path) -> None:
    sink = trace_segments.make_sink(directory, **_trace_options())
    for token in (1, 2):
        trace_segments.write_segment(sink, token)
    sink.close()


def _leave_trace(directory: Path) -> None:
    sink = trace_segments.make_sink(directory, **_trace_options())
    trace_segments.fill(sink.next_segment(1, trace_segments.opening()))


def _relay(form: str) -> tuple[Callable[[Path], None], Callable[[Path], None]]:
    def seal(directory: Path) -> None:
        sink = relay_segments.make_sink(directory, form)
        relay_segments.seal(sink, 1, relay_segments.DATA)

    def leave(directory: Path) -> None:
        relay_segments.filled(relay_segments.make_sink(directory, form), 1, relay_segments.DATA)

    return seal, leave


def _seal_aux(directory: Path) -> None:
    file = AuxFile()
    pieces = [file.piece(bytes(range(256)) * n, offset=n, cpu=n % 2) for n in (1, 2, 3)]
    (directory / "aux.perf.data").write_bytes(file.build([file.sample(1_000), *pieces]))


def _packed(seal: Callable[[Path], object]) -> Callable[[Path], None]:
    def seal_and_pack(directory: Path) -> None:
        seal(directory)
        with open_folder(directory, Trust.WRITE) as folder:
            for group in group_files(folder):
                run(pack_steps(folder, group.paths))

    return seal_and_pack


def _seal_much_perf(directory: Path) -> None:
    perf_segments.write_segment(perf_segments.make_sink(directory), samples=500)


def _seal_much_trace(directory: Path) -> None:
    trace_segments.write_segment(trace_segments.make_sink(directory), counts=(80, 2))


def _seal_much_blktrace(directory: Path) -> None:
    data = {4: b"".join(map(record, range(1, 300))), 5: record(1)}
    relay_segments.seal(relay_segments.make_sink(directory), 1, data)


def _leave_nothing(directory: Path) -> None:
    del directory


_KINDS: Final = {
    "perf": (_seal_perf, _leave_perf),
    "bpf": (_seal_bpf, _leave_bpf),
    "trace": (_seal_trace, _leave_trace),
    "blktrace": _relay("blktrace"),
    "relay": _relay("relay"),
    "aux": (_seal_aux, _leave_nothing),
    "packed perf": (_packed(_seal_much_perf), _leave_nothing),
    "packed trace": (_packed(_seal_much_trace), _leave_nothing),
    "packed blktrace": (_packed(_seal_much_blktrace), _leave_nothing),
}


class Case:
    """One directory with damage.

    Args:
        templates: result of `make_templates`.
        work: name of an empty directory, which is made here.
        seed: with `number`, determines the case.
    """

    def __init__(self, templates: Path, work: Path, seed: int, number: int) -> None:
        self._random = random.Random(f"{seed}/{number}")  # noqa: S311  # cases, not secrets
        self._root = work
        kind = self._random.choice([*_KINDS])
        shutil.copytree(templates / kind, work)
        self._directory = work / kind
        self._victim = work / "victim"
        self._victim.write_bytes(_VICTIM)
        self.told: list[str] = []
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            self._damage()

    def run(self) -> None:
        """Read the files with every reader. Raises the problems found."""
        sealed = self._sealed()
        self._daemon_start()
        if self._random.random() < _COMMANDS:
            self._command(segments.run, "list", self._root)
            self._command(segments.run, "verify", self._root)
        else:
            list_segments([self._root])
            verify([self._root])
        for path in filter(_is_plain, self._data_files()):
            self._open(path)
        for path in self._random.sample(self._data_files(), 1) if self._data_files() else ():
            self._command(events.run, path)
            if self._directory.name == "aux":
                raw = self._root / "raw"
                self._command(segments.run, "aux", path, "--output-dir", raw)
                shutil.rmtree(raw, ignore_errors=True)
        self._repair(sealed=False)
        changed = [path.name for path, digest in sealed.items() if _digest(path) != digest]
        if changed:
            raise AssertionError(f"sealed files changed: {changed}")
        if self._victim.read_bytes() != _VICTIM:
            raise AssertionError("a file elsewhere changed")
        self._repair(sealed=True)
        if self._victim.read_bytes() != _VICTIM:
            raise AssertionError("a file elsewhere changed")

    def _repair(self, *, sealed: bool) -> None:
        """Repair, and check the repaired files."""
        outcomes = repair(self._root, sealed=sealed)
        whole = {o.path for o in outcomes if o.action in {Action.RECOVERED, Action.COMPLETED}}
        wrong = [
            verdict
            for verdict in verify(sorted({path.parent for path in whole}))
            if verdict.path in whole
            and verdict.finding is not None
            and not (sealed and verdict.finding.check is Check.CHAIN)
        ]
        if wrong:
            raise AssertionError(f"repaired to what is wrong: {wrong}")

    def _daemon_start(self) -> None:
        with contextlib.suppress(CollectordError):
            OutputDir(SinkPlan(format="perf.data", directory=str(self._directory)), "perf.data")
        with contextlib.suppress(CollectordError):
            read_prior_run(
                self._directory,
                session="exec",
                boot_id=perf_segments.IDENTITY.boot_id,
                since_ns=0,
                subbuf_bytes=4096,
            )

    def _command(self, run: Callable[[list[str]], int], *words: object) -> None:
        json_wanted = self._random.choice(([], ["--json"]))
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(CollectordError):
            run([*map(str, words), *json_wanted])

    def _open(self, path: Path) -> None:
        form = SegmentPaths(path.parent, path.name.removesuffix(PARTIAL)).set_format
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(CodecError):
                open_stored(fd, form).survey()
        finally:
            os.close(fd)

    def _files(self) -> list[Path]:
        return sorted(self._directory.iterdir())

    def _data_files(self) -> list[Path]:
        return [one for one in self._files() if not one.name.endswith(_JSON) and not one.is_dir()]

    def _sealed(self) -> dict[Path, str]:
        """Return hashes of sealed segments and their manifests."""
        data = [path for path in self._data_files() if not path.name.endswith(PARTIAL)]
        both = [one for path in data for one in (path, path.with_name(path.name + ".json"))]
        return {path: _digest(path) for path in both if _is_plain(path)}

    def _damage(self) -> None:
        files = self._files()
        if not files:
            return
        path = self._random.choice(files)
        if not _is_plain(path):
            return
        data = path.read_bytes()
        what = self._random.random()
        if what < 0.03:  # shares of the kinds of damage
            self._tell(path, "removed")
            path.unlink()
        elif what < 0.06:
            other = self._random.choice(self._files())
            self._tell(path, f"is {other.name}")
            path.write_bytes(other.read_bytes() if _is_plain(other) else b"")
        elif what < 0.09:
            self._plant(path)
        elif path.name.endswith(_JSON) and what < 0.8:
            path.write_bytes(self._odd_json(path, data))
        else:
            path.write_bytes(self._odd_bytes(path, data))

    def _plant(self, path: Path) -> None:
        """Replace it by something that is not a plain file."""
        kind = self._random.choice(("fifo", "folder", "/dev/zero", "nowhere", str(self._victim)))
        self._tell(path, f"is now {kind}")
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(kind)

    def _odd_json(self, path: Path, data: bytes) -> bytes:
        """Return a manifest with an odd value at a place of its own."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return self._odd_bytes(path, data)
        places = [*_places(document)]
        if not places:
            return self._odd_bytes(path, data)
        holder, key = self._random.choice(places)
        self._tell(path, f"{key!r} of {holder!r:.80}")
        if self._random.random() < 0.1:
            del holder[key]
            return json.dumps(document).encode()
        mark = "odd value"
        if isinstance(holder[key], int) and self._random.random() < 0.3:
            odd = str(holder[key] + self._random.choice((-1, 1, *_EDGES)))
        else:
            odd = self._random.choice(_ODD_VALUES)
        holder[key] = mark
        self._tell(path, f"becomes {odd:.40}")
        text = json.dumps(document).replace(f'"{mark}"', odd)
        raw = text.encode()
        if odd == '"%s"':
            raw = raw.replace(
                b"%s", self._random.choice((b"\xff", b"\xed\xa0\x80", b"\x00", b"\n"))
            )
        return raw

    def _odd_bytes(self, path: Path, data: bytes) -> bytes:
        choice = self._random
        made = bytearray(data)
        # Heads and record headers stand at the beginning.
        at = choice.randrange(min(len(made), choice.choice((128, 1024, 8192, 1 << 30))) or 1)
        kind = choice.choice(("flip", "number", "number", "cut", "grow", "copy", "drop", "noise"))
        self._tell(path, f"{kind} at {at}")
        match kind:
            case "flip" if made:
                made[at] ^= 1 << choice.randrange(8)
            case "number":
                size = choice.choice((1, 2, 4, 8))
                at -= at % size
                value = choice.choice((*_EDGES, choice.getrandbits(64)))
                made[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
            case "cut":
                del made[at:]
            case "grow":
                more = choice.choice((1, 7, 8, 4096, 70_000))
                made += choice.choice((bytes(more), b"\xff" * more, choice.randbytes(more)))
            case "copy":
                size = choice.choice((8, 64, 4096))
                made[at:at] = made[choice.randrange(len(made) or 1) :][:size]
            case "drop":
                del made[at : at + choice.choice((1, 8, 64, 4096))]
            case "noise":
                size = choice.choice((2, 16, 256))
                made[at : at + size] = choice.randbytes(size)
        return bytes(made)

    def _tell(self, path: Path, what: str) -> None:
        self.told.append(f"{path.name}: {what}")


def _places(value: object) -> Iterator[tuple[Any, Any]]:
    """Yield all places of a document that hold a value: a container and a key."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = [*value.items()]
    elif isinstance(value, list):
        items = [*enumerate(value)]
    for key, item in items:
        yield value, key
        yield from _places(item)


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if _is_plain(path) else "gone"


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)  # whose default is the process's end


def _run(templates: Path, seed: int, numbers: range | list[int], *, verbose: bool) -> int:
    """Run cases; returns how many failed, and tells of each in a line of JSON."""
    failed = 0
    room = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108  # made below, and unlinked
    with tempfile.TemporaryDirectory(dir=room) as scratch:
        for number in numbers:
            sys.stderr.write(f"case {number}\n")  # the last line if it dies
            signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S)
            faulthandler.dump_traceback_later(CASE_S, exit=True)
            work = Path(scratch) / "case"
            told: list[str] = []
            try:
                case = Case(templates, work, seed, number)
                told = case.told
                case.run()
            except Exception:  # noqa: BLE001  # it is what is looked for
                failed += 1
                what = {"case": number, "told": told, "what": traceback.format_exc()}
                sys.stdout.write(json.dumps(what) + "\n")
            if verbose:
                sys.stderr.write("\n".join(told) + "\n")
            shutil.rmtree(work, ignore_errors=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()
    sys.stderr.write(f"done {len(numbers)}\n")
    return failed


def main(arguments: list[str]) -> int:
    """Run one case, or `TEMPLATES SEED FIRST STEP PAST`."""
    if len(arguments) == 2:
        with tempfile.TemporaryDirectory() as place:
            make_templates(Path(place))
            _limit()
            return _run(Path(place), int(arguments[0]), [int(arguments[1])], verbose=True)
    templates, seed, first, step, past = arguments
    _limit()
    return _run(Path(templates), int(seed), range(int(first), int(past), int(step)), verbose=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
