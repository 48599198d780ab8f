# SPDX-License-Identifier: Apache-2.0
"""Logging: structlog on stderr, a console line on a terminal and JSON otherwise.

In the journal a JSON line has its priority in front, which journald takes away (sd-daemon(3)).

Events are static snake_case names with data as keys: `ring_quarantined ring=exec/perf/data/cpu1`.
Lines about one ring, lines of a library, and lines that a peer or a sender of signals can cause
are limited, so that trouble at a million records a second costs one line per interval. Nothing is
logged from a pass.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from collectord.text.foreign import encodable, visible

# structlog.dev imports rich whenever it is installed, for tracebacks that are not used here. In
# the daemon that is 5.6 MiB of RSS, so the import is refused while structlog loads.
_RICH_WAS_ABSENT: Final = "rich" not in sys.modules
if _RICH_WAS_ABSENT:
    sys.modules["rich"] = None  # type: ignore[assignment]  # the documented way to refuse one
try:
    import structlog
finally:
    if _RICH_WAS_ABSENT:
        del sys.modules["rich"]

# The entry point uses this name: importing this module first keeps rich out.
get_logger = structlog.get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, MutableMapping

    from collectord.cli.line_queue import LineQueue

    EventDict = MutableMapping[str, Any]

INTERVAL_NS: Final = 10_000_000_000
_KINDS_MAX: Final = 4096
_MESSAGE_CHARS: Final = 1000
_INFO: Final = 6
_PRIORITIES: Final = {"debug": 7, "info": _INFO, "warning": 4, "error": 3, "critical": 2}


class RateLimit:
    """A structlog processor that passes at most one line per kind and interval.

    Lines with `ring` are of one kind if event and ring are the same; so are those with the same
    `limit_by`, which is not printed. The next line that passes has `suppressed`, the number of
    those that were dropped.

    Args:
        interval_ns: shortest time between two lines of one kind.
        clock_ns: a monotonic clock.
    """

    def __init__(
        self,
        interval_ns: int = INTERVAL_NS,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._interval_ns = interval_ns
        self._clock_ns = clock_ns
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}

    def __call__(self, _logger: object, _method: str, event_dict: EventDict) -> EventDict:
        """Pass the line on, or drop and count it.

        Raises:
            structlog.DropEvent: the limit is exceeded.
        """
        limit_by = event_dict.pop("limit_by", event_dict.get("ring"))
        if limit_by is None:
            return event_dict
        key = (str(event_dict.get("event")), str(limit_by))
        now_ns = self._clock_ns()
        last_ns, suppressed = self._seen.get(key, (now_ns - self._interval_ns, 0))
        if now_ns - last_ns < self._interval_ns:
            self._seen[key] = (last_ns, suppressed + 1)
            raise structlog.DropEvent
        while len(self._seen) >= _KINDS_MAX and key not in self._seen:
            del self._seen[next(iter(self._seen))]  # the one that was seen first
        self._seen[key] = (now_ns, 0)
        if suppressed:
            event_dict["suppressed"] = suppressed
        return event_dict


class _CurrentStderr:
    """The present `sys.stderr` at each write: a live display replaces it for a time.

    If it cannot be written (a full disk, a pipe without reader) the line is lost: collecting
    continues, and there is no other place to report it.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def _values_encodable(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    return {key: encodable(value) for key, value in event_dict.items()}


def _values_visible(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    for key, value in event_dict.items():
        if key != "exception" and not isinstance(value, int | float | bool | None):
            event_dict[key] = visible(str(value))
    return event_dict


class _ToStructlog(logging.Handler):
    """Passes lines that libraries write with `logging` (asyncio, aiohttp) to the log.

    Lines of one place and one kind of exception are limited: a library repeats them for each
    connection that fails.
    """

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        structlog.get_logger().log(
            record.levelno,
            "library_message",
            logger=record.name,
            message=record.getMessage()[:_MESSAGE_CHARS],
            exc_info=record.exc_info,
            limit_by=f"{record.name}:{record.lineno}:{error}",
        )


class _Without:
    """A structlog processor that drops the lines of some events."""

    def __init__(self, events: Collection[str]) -> None:
        self._events = frozenset(events)

    def __call__(self, _logger: object, _method: str, event_dict: EventDict) -> EventDict:
        """Pass the line on, or raise structlog.DropEvent."""
        if event_dict.get("event") in self._events:
            raise structlog.DropEvent
        return event_dict


class _Admitted:
    """A structlog processor that drops lines for which a queue has no room.

    The next one that it admits has `lines_dropped`, the number of those that were dropped.
    """

    def __init__(self, lines: LineQueue) -> None:
        self._lines = lines

    def __call__(self, _logger: object, _method: str, event_dict: EventDict) -> EventDict:
        """Pass the line on, or raise structlog.DropEvent."""
        dropped = self._lines.admit()
        if dropped is None:
            raise structlog.DropEvent
        if dropped:
            event_dict["lines_dropped"] = dropped
        return event_dict


class _JournalRenderer:
    """Renders a line as JSON behind its priority."""

    def __init__(self) -> None:
        self._to_json = structlog.processors.JSONRenderer(default=str)

    def __call__(self, logger: object, method: str, event_dict: EventDict) -> str:
        """Return the line."""
        priority = _PRIORITIES.get(str(event_dict.get("level")), _INFO)
        return f"<{priority}>{self._to_json(logger, method, event_dict)!s}"


def is_journal() -> bool:
    """Whether stderr is the journal: the service manager says which file that is."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, or with a closed one
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def configure(
    *,
    level: int = logging.INFO,
    console: bool | None = None,
    without: Collection[str] = (),
    lines: LineQueue | None = None,
) -> None:
    """Set structlog up for this process.

    Args:
        level: lowest level that is written, as in `logging`.
        console: True for readable lines, False for JSON, None to decide by whether stderr is a
            terminal.
        without: events that the command reports in its own words.
        lines: writes them to stderr; None for writes that may wait for it.
    """
    if console is None:
        console = sys.stderr.isatty()
    render: list[structlog.typing.Processor]
    if console:
        render = [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.ExceptionRenderer(),
            _values_visible,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=24),
        ]
    else:
        render = [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(),
            _values_encodable,
            _JournalRenderer() if is_journal() else structlog.processors.JSONRenderer(default=str),
        ]
    admitted = [_Admitted(lines)] if lines is not None else []
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _Without(without),
            RateLimit(),
            *admitted,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=lines or _CurrentStderr()),  # type: ignore[arg-type]  # it needs write and flush only
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(handlers=[_ToStructlog()], level=max(level, logging.WARNING), force=True)
