# SPDX-License-Identifier: Apache-2.0
"""Read stage: files put together in their own format: what they must have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from collectord._native._columns import Scan, cut
from collectord.errors import UsageError
from collectord.reader.event_file import EventFile, Window
from collectord.reader.event_tables import Found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord._native._columns import Cut
    from collectord.codec.perf_merge import Renaming
    from collectord.errors import CodecError
    from collectord.reader.event_file import Source, Span

F = TypeVar("F", bound=EventFile)

_NEVER: Final = Window(1, 0)
_HINT: Final = "export them one by one: choose by --session or --since, or name one"


@dataclass(slots=True)
class CutFiles(Generic[F]):
    """The parts of files that a new file is made of.

    Attributes:
        inside: the files with records in the time, as far as that is known, and the time in the
            clock of each.
        untimed: files without a clock beside UTC, which a window of time leaves out.
        records: events that were copied.
        first_ns: stamp of the first one, 0 without any.
        last_ns: stamp of the last one.
        without_aux: files of which data of AUX areas were left out.
    """

    inside: list[tuple[F, Window]] = field(default_factory=list)
    untimed: list[F] = field(default_factory=list)
    records: int = 0
    first_ns: int = 0
    last_ns: int = 0
    without_aux: list[F] = field(default_factory=list)
    _found: dict[EventFile, Found] = field(default_factory=dict)

    def found(self) -> dict[EventFile, Found]:
        """Return what was found in each file so far."""
        return self._found

    def copy(
        self,
        file: F,
        scan: Scan,
        place: tuple[int, int],
        renaming: Renaming | None = None,
        *,
        keeps_rounds: bool = False,
    ) -> Cut:
        """Copy a part of a file to a place of the new one.

        Args:
            file: to be copied from.
            scan: of the part.
            place: descriptor of the new file, and an offset in it.
            renaming: of a perf.data's events.
            keeps_rounds: as for `cut`.

        Raises:
            OSError: the new file cannot be written.
        """
        ids = renaming._asdict() if renaming is not None else {}
        made = cut(scan, *place, keeps_rounds=keeps_rounds, **ids)
        found = Found(made.records, made.lost, made.lost_untold, made.damaged)
        self._found[file] = self._found.get(file, Found()).and_also(found)
        self.records += made.records
        if made.records:
            self.first_ns = min(self.first_ns or made.first_ns, made.first_ns)
            self.last_ns = max(self.last_ns, made.last_ns)
        if made.aux and file not in self.without_aux:
            self.without_aux.append(file)
        return made


def scan_of(
    file: EventFile, source: Source, window: Window, spans: Sequence[Span] | None = None
) -> Scan:
    """Return a scan of a file's source, or of some spans of it."""
    fd, every = file.contents(source)
    scan = Scan("all", ())
    scan.add(
        fd,
        source.kind,  # type: ignore[arg-type]  # of the decoder
        (),
        every if spans is None else spans,
        since_ns=window.since_ns,
        until_ns=window.until_ns,
        **source.options,
    )
    return scan


def choose(files: Sequence[EventFile], kind: type[F], form: str, window: Window) -> CutFiles[F]:
    """Return the files of a format that may have records in a time.

    If none can have any, that is one of them: a file without records has events nevertheless.

    Args:
        files: of any format.
        kind: those of the format.
        form: its name.
        window: the time.

    Raises:
        UsageError: there is none among the files, or their stamps are not of one clock.
    """
    of_kind = [file for file in files if isinstance(file, kind)]
    if not of_kind:
        raise UsageError(
            f"there is no {form} in what was named",
            hint="`collectord segments list` shows the formats of segments",
        )
    chosen = CutFiles[F]()
    outside = []
    for file in of_kind:
        span = file.window(window)
        if span is None:
            chosen.untimed.append(file)
        elif file.is_outside(span):
            outside.append((file, span))
        else:
            chosen.inside.append((file, span))
    chosen.inside = chosen.inside or outside[:1] or [(of_kind[0], _NEVER)]
    _check_clocks([file for file, _ in chosen.inside])
    return chosen


def _check_clocks(files: Sequence[EventFile]) -> None:
    clocks = {_clock(file): file for file in files}
    if len(clocks) > 1:
        first, *_, last = clocks.values()
        raise UsageError(
            f"the stamps of {first.path} and {last.path} are not of one clock and one boot, as "
            "far as is known",
            hint=_HINT,
        )


def _clock(file: EventFile) -> tuple[str, str]:
    """Return what tells the clocks of files apart; without a manifest each has its own."""
    if file.manifest is None:
        return "", file.path_text
    return file.manifest.boot_id, file.manifest.clock


def unlike(files: Sequence[EventFile], error: CodecError) -> UsageError:
    """Return the refusal of files whose events do not go into one file."""
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return UsageError(
        f"no new file can have the events of {files[0].path}{more}: {error.message}", hint=_HINT
    )
