# SPDX-License-Identifier: Apache-2.0
"""Segments and manifests with damage of every kind, and the required behaviour for each.

One case alone: `python -m tests.support.damage SEED NUMBER`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, Final

from collectord.cli import events, segments
from collectord.errors import CodecError, CollectordError
from collectord.plan.sink_plan import SinkPlan
from collectord.reader.verify import list_segments, verify
from collectord.recovery.ftrace_rings import read_prior_run
from collectord.sink import chain_log
from collectord.sink.formats import open_stored
from collectord.sink.outcome import Action
from collectord.sink.output_dir import OutputDir
from collectord.sink.repair import repair
from collectord.sink.segment import PARTIAL, SegmentPaths
from collectord.sink.stored_file import Check
from tests.support import damage_runs
from tests.support import segments as perf_segments
from tests.support.damage_templates import make_templates
from tests.support.odd_bytes import EDGES, odd_bytes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator
    from pathlib import Path

_VICTIM: Final = b"of somebody else"
_COMMANDS: Final = 0.25  # share of cases that go through the command line
_JSON: Final = (".json", ".json.partial", ".json.new")
_ODD_VALUES: Final = (
    *("-1", "0", "1.5", "1e400", "true", "null", "[]", "{}", '""', '"\\u0000"', '"\\ud800"'),
    *("9223372036854775807", "9223372036854775808", "1" + "0" * 30, "9" * 5000, "-" + "9" * 40),
    *('"../../etc/passwd"', '"/dev/zero"', '".."', '"trace.dat"', '"relay.0"', '"%s"'),
    *('"' + "a" * 70_000 + '"', "[" * 100_000, '{"a":' * 50_000, "[" * 400 + "]" * 400),
)


class Case:
    """One directory with damage.

    Args:
        templates: result of `make_templates`.
        work: name of an empty directory, which is made here.
        choice: determines the case.
    """

    def __init__(self, templates: Path, work: Path, choice: random.Random) -> None:
        self._random = choice
        self._root = work
        kind = self._random.choice(sorted(path.name for path in templates.iterdir()))
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
        """Return the files of segments: no manifests, and not the list of what was sealed."""
        return [
            one
            for one in self._files()
            if not one.name.endswith(_JSON) and not one.is_dir() and one.name != chain_log.NAME
        ]

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
            odd = str(holder[key] + self._random.choice((-1, 1, *EDGES)))
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
        made = odd_bytes(self._random, data)
        self._tell(path, made.what)
        return made.data

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


if __name__ == "__main__":
    sys.exit(damage_runs.main(make_templates, Case) > 0)
