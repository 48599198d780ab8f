# SPDX-License-Identifier: Apache-2.0
"""Events of an instance: known or not, and filters, refused in the kernel's own words."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from collectord.errors import UnknownEvent, UsageError
from collectord.kernel.values.trace_filter import without_threads
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from collectord.codec.tracepoint import Tracepoint
    from collectord.kernel.tracefs.control_files import ControlFolder
    from collectord.kernel.values.instance_settings import TraceEvent

# The kernel reads a filter as one page with its NUL.
_FILTER_MAX: Final = os.sysconf("SC_PAGESIZE") - 1
_FIELD: Final = re.compile(r"^\tfield:[^;]*?(\w+)(?:\[[^\]]*\])?;", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FilterReason:
    """The reason of a refused filter, in one line, and the word at the mark; "" if unknown."""

    text: str
    word: str


def check_known(
    folder: ControlFolder, event: TraceEvent, available: Callable[[], Iterable[Tracepoint]]
) -> None:
    """Check that an event can be enabled.

    Args:
        folder: the instance.
        event: the event.
        available: returns all; called only to find the nearest.

    Raises:
        UnknownEvent: with the nearest name.
    """
    # A name with ".." would reach the top level's events.
    inside = all("/" not in part and part not in ("", "..") for part in (event.system, event.name))
    if inside and folder.has(event.leaf("enable")):
        return
    if inside and folder.has(event.leaf("format")):
        raise UnknownEvent(f"{event} belongs to ftrace itself and cannot be enabled")
    nearest = did_you_mean(str(event), map(str, available()))
    raise UnknownEvent(f"no tracepoint {event}", hint=nearest or "collectord list shows them")


def set_filter(folder: ControlFolder, event: TraceEvent, *, replaces: bool = False) -> None:
    """Give an event its filter, and the threads that it leaves out.

    Args:
        folder: the instance.
        event: the event.
        replaces: the event records, and its present filter is replaced at one moment.

    Raises:
        UsageError: the kernel refuses it; with its reason and the nearest field.
        MissingPrivilege, KernelError: it cannot be written.
    """
    whole = without_threads(event.filter, event.exclude_tids)
    if replaces:
        _put_filter(folder, event, whole or "0")
        return
    if event.filter:  # alone first: the kernel's reason is to be about what the user wrote
        _put_filter(folder, event, event.filter)
    if event.exclude_tids:
        _put_filter(folder, event, whole)


def _put_filter(folder: ControlFolder, event: TraceEvent, text: str) -> None:
    leaf = event.leaf("filter")
    try:
        folder.put(leaf, text)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise folder.refused(error, folder.path / leaf, text) from error
        found = filter_reason(folder.read(leaf).decode(errors="replace"), text)
        reason = found.text or os.strerror(error.errno or 0)
        if not found.text and len(os.fsencode(text)) > _FILTER_MAX:
            reason = f"it is longer than {_FILTER_MAX} bytes"
        raise UsageError(
            f"the kernel refuses filter {event.filter!r} for {event}: {reason}",
            hint=_field_hint(folder, event, found.word),
        ) from error


def filter_reason(shown: str, text: str) -> FilterReason:
    """Parse a `filter` file after a refusal: the text, a mark below it, the reason.

    The mark is at or just behind the word at fault.
    """
    if not shown.startswith(text + "\n"):
        return FilterReason("", "")
    mark, found, reason = shown[len(text) + 1 :].partition("parse_error:")
    if not found:
        return FilterReason("", "")
    at = max(mark.find("^"), 0)
    word = re.search(r"\w*$", text[: at + 1].rstrip(" !<>=&|~()"))
    return FilterReason(f"{reason.strip()}, at character {at + 1}", word[0] if word else "")


def _field_hint(folder: ControlFolder, event: TraceEvent, word: str) -> str:
    """Return a hint, the nearest field or all fields; "" where `word` is a field or empty."""
    fields = _FIELD.findall(folder.read(event.leaf("format")).decode(errors="replace"))
    if not word or word in fields:
        return ""
    return did_you_mean(word, fields) or "its fields are " + ", ".join(fields)
