# SPDX-License-Identifier: Apache-2.0
"""NAME.sql: a question with its answer in SQL, below a head of TOML in comments.

Answers that are shipped lie in the package, the host's own in /etc/collectord/answers. One of the
host's own replaces a shipped one of the same name, so that it can be changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from collectord.config.decode import decode
from collectord.config.document import parse
from collectord.config.problems import ANSWER_NAME, Problem, raise_first, under
from collectord.errors import ConfigError, UnsafePath, UsageError
from collectord.folders.walk import open_folder
from collectord.programs.manifest_rules import TRACEPOINT, check_parameter
from collectord.programs.parameter import ParameterConfig, with_defaults
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL: Final = Path("/etc/collectord/answers")
BPF: Final = "bpf"
_SHIPPED: Final = Path(__file__).resolve().parent.parent / "answers"
_SUFFIX: Final = ".sql"
_COMMENT: Final = "--"
_FILE_MAX_BYTES: Final = 64 << 10
_FILES_MAX: Final = 256
_NAME_WORDS: Final = "small letters, digits, - and _"
_COLUMN: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}", re.ASCII)
_MEASURE: Final = re.compile(r"sum|rows|max|mean by [a-z_][a-z0-9_]{0,63}", re.ASCII)
# Verbs' words that no answer is called.
LIST: Final = "list"

Render = Literal["table", "histogram", "timeline", "stacks"]
ColumnType = Literal[
    "TIMESTAMP_NS", "INTEGER", "BIGINT", "USMALLINT", "UINTEGER", "UBIGINT", "VARCHAR", "BLOB"
]


class CompareConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The columns by which `fleet answer --against` compares two groups of hosts.

    Attributes:
        keys: rows with the same values are of the same thing on all hosts.
        measures: how the values of a column are put together, by its name: sum, rows (the number
            of rows, as a column of that name), max, or "mean by COLUMN", of which it is the mean.
            Rows are in the order of the first one's difference.
    """

    keys: tuple[str, ...]
    measures: dict[str, str]


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """The head of an answer.

    Attributes:
        summary: the question, in one line.
        needs: lists of events; of the first list that was recorded whole the statement reads.
            Tracepoints are SYSTEM:NAME, BPF programs bpf:NAME, software events software:NAME.
        optional: events that make the answer better.
        call_chains: their records must have call chains, which `frames` and `stacks` tell.
        columns: by event, the columns that the statement reads, with DuckDB's types. The table of
            an event that was not recorded is empty, and has these.
        render: the form in which rows are printed.
        compare: how it is compared between hosts; None: it cannot be.
        parameter: `[parameter.NAME]`, `$NAME` in the statement.
    """

    summary: str
    needs: tuple[tuple[str, ...], ...]
    optional: tuple[str, ...] = ()
    call_chains: bool = False
    columns: dict[str, dict[str, ColumnType]] = {}
    render: Render = "table"
    compare: CompareConfig | None = None
    parameter: dict[str, ParameterConfig] = {}

    @property
    def events(self) -> tuple[str, ...]:
        """All events that the statement may read."""
        return tuple(
            dict.fromkeys((*(one for need in self.needs for one in need), *self.optional))
        )


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """An answer.

    Attributes:
        name: of the answer, and of its file.
        origin: "shipped" with this program, or "local", of this host.
        path: of the file.
        text: the whole file.
        head: the parsed head.
    """

    name: str
    origin: Literal["shipped", "local"]
    path: str
    text: str
    head: AnswerHead


def load(name: str, local: Path = LOCAL) -> AnswerFile:
    """Load one answer.

    Args:
        name: its name.
        local: the host's own folder; it need not exist.

    Raises:
        UsageError: there is no such answer; the hint names the nearest.
        ConfigError: its file makes no answer, or cannot be read.
    """
    places = _places(local)
    if name not in places:
        hint = did_you_mean(name, places) or "`collectord answer list` shows all"
        raise UsageError(f"there is no answer {name!r}", hint=hint)
    return _read(name, places[name], local)


def load_all(local: Path = LOCAL) -> dict[str, AnswerFile | ConfigError]:
    """Return all answers by name, with an error for each file that makes none.

    Raises:
        ConfigError: the host's own folder cannot be read.
    """
    found: dict[str, AnswerFile | ConfigError] = {}
    for name, folder in sorted(_places(local).items()):
        try:
            found[name] = _read(name, folder, local)
        except ConfigError as error:
            found[name] = error
    return found


def _places(local: Path) -> dict[str, Path]:
    """Return the folder of each answer; the host's own come before the shipped ones."""
    places: dict[str, Path] = {}
    for folder in (_SHIPPED, local):
        try:
            with open_folder(folder) as opened:
                names = [entry.name for entry in opened.entries()]
        except FileNotFoundError:
            continue
        except (OSError, UnsafePath) as error:
            raise _unreadable(error, folder) from error
        names = [name for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
        if len(names) > _FILES_MAX:
            raise ConfigError(f"has more than {_FILES_MAX} answers", path=str(folder))
        places |= dict.fromkeys((name.removesuffix(_SUFFIX) for name in names), folder)
    return places


def _read(name: str, folder: Path, local: Path) -> AnswerFile:
    path = folder / f"{name}{_SUFFIX}"
    try:
        with open_folder(folder) as opened:
            data = opened.read(path.name, _FILE_MAX_BYTES)
    except (OSError, UnsafePath) as error:
        raise _unreadable(error, path) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: byte {error.start}", path=str(path)) from error
    if ANSWER_NAME.fullmatch(name) is None or name == LIST:
        message = f"{name!r} is not a valid name of an answer"
        raise ConfigError(message, path=str(path), hint=_NAME_WORDS)
    head = decode(parse(_head_of(text).encode(), str(path)), AnswerHead, str(path))
    raise_first(_problems(head), str(path))
    head = msgspec.structs.replace(head, parameter=with_defaults(head.parameter, str(path)))
    return AnswerFile(name, "local" if folder == local else "shipped", str(path), text, head)


def _head_of(text: str) -> str:
    """Return the TOML in the comments that the text begins with; its lines keep their numbers."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith(_COMMENT):
            break
        lines.append(line.removeprefix(_COMMENT).removeprefix(" "))
    return "\n".join(lines)


def _unreadable(error: OSError | UnsafePath, path: Path) -> ConfigError:
    if isinstance(error, UnsafePath):
        return ConfigError(error.reason, path=str(path), hint=error.hint)
    return ConfigError(error.strerror or str(error), path=str(path))


def _problems(head: AnswerHead) -> Iterator[Problem]:
    """Yield what is wrong with a head beyond its types."""
    if not head.summary:
        yield Problem("summary", "must say what the answer tells")
    if not head.needs or not all(head.needs):
        yield Problem("needs", "names no event", "[[SYSTEM:NAME, ...], ...]")
    for event in head.events:
        if TRACEPOINT.fullmatch(event) is None:
            yield Problem(
                "needs",
                f"{event!r} is not a valid event",
                "SYSTEM:NAME, bpf:NAME or software:NAME",
            )
    plain = [event.partition(":")[2] for event in head.events]
    if len({*plain}) < len(plain):
        yield Problem("needs", "two events have one name", "the statement cannot tell them apart")
    for event in _spared(head):
        if event not in head.columns:
            hint = f'[columns."{event}"]'
            yield Problem("columns", f"lacks {event}, which need not be recorded", hint)
    yield from _column_problems(head)
    if head.compare is not None:
        yield from _compare_problems(head.compare)
    for name, parameter in head.parameter.items():
        yield from under(f"parameter.{name}", check_parameter(name, parameter))


def _column_problems(head: AnswerHead) -> Iterator[Problem]:
    for event, columns in head.columns.items():
        if event not in head.events:
            yield Problem(f"columns.{event}", "no such event is needed")
        if not columns:
            yield Problem(f"columns.{event}", "names no column")
        for column in columns:
            if _COLUMN.fullmatch(column) is None:
                yield Problem(f"columns.{event}", f"{column!r} is not a valid column name")


def _compare_problems(compare: CompareConfig) -> Iterator[Problem]:
    if not compare.keys:
        yield Problem("compare.keys", "names no column")
    if not compare.measures:
        yield Problem("compare.measures", "names no column")
    for column in (*compare.keys, *compare.measures):
        if _COLUMN.fullmatch(column) is None:
            yield Problem("compare", f"{column!r} is not a valid column name")
    for column in compare.keys:
        if column in compare.measures:
            yield Problem("compare", f"{column} is a key and a measure")
    for column, how in compare.measures.items():
        if _MEASURE.fullmatch(how) is None:
            hint = "sum, rows, max or mean by COLUMN"
            yield Problem(f"compare.measures.{column}", f"{how!r} is not a known measure", hint)


def _spared(head: AnswerHead) -> set[str]:
    """Return the events without which the answer may do."""
    always = set.intersection(*map(set, head.needs)) if head.needs else set()
    return set(head.events) - always
