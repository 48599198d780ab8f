# SPDX-License-Identifier: Apache-2.0
"""Read stage: addresses and call chains in lines of records, with the names of functions.

The core leaves a place for each (`codec.line_ops.place_of`); each different one is named once.
"""

from __future__ import annotations

import importlib.util
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from collectord.reader.embedded_db import connect
from collectord.reader.event_file import Window
from collectord.reader.event_tables import tables_of
from collectord.reader.sql import Database
from collectord.reader.symbols.sample_names import names_of, of_events

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from collectord.reader.event_file import EventFile
    from collectord.reader.sql import Nearest
    from collectord.reader.symbols.sample_names import SampleNames
    from collectord.reader.symbols.symbol_cache import SymbolCache

# {process, stamp, addresses}; one that is not known is no number.
_PLACE: Final = re.compile(rb"\xff([^,\xfe]*),([^,\xfe]*),([^\xfe]*)\xfe")
_NUMBER: Final = re.compile(rb"\d+")
_TEXTS_MAX: Final = 1 << 16  # that are remembered


def are_named() -> bool:
    """Whether call chains can have names: DuckDB reads what was mapped where."""
    return importlib.util.find_spec("duckdb") is not None


class ChainTexts:
    """Texts for the call chains of one file.

    Args:
        file: of the samples.
        window: the time that is asked for.
        join: makes the text of a chain, given those of its functions from the innermost on.
        cache: of symbols.
        shown: makes unprintable characters visible.
        nearest: as `Database` takes it.
    """

    def __init__(
        self,
        file: EventFile,
        window: Window,
        join: Callable[[Sequence[str]], bytes],
        *,
        cache: SymbolCache | None,
        shown: Callable[[str], str],
        nearest: Nearest,
    ) -> None:
        self._file = file
        self._window = window
        self._join = join
        self._cache = cache
        self._shown = shown
        self._nearest = nearest
        self._names: SampleNames | None = None
        self._texts: dict[tuple[bytes, int, bytes], bytes] = {}

    @property
    def names(self) -> SampleNames | None:
        """The names, None if no chain has needed them."""
        return self._names

    def fill(self, batch: bytes) -> bytes:
        """Return lines with names in the places of call chains. Raises CollectordError."""
        return _PLACE.sub(self._text, batch)

    def _text(self, place: re.Match[bytes]) -> bytes:
        if self._names is None:
            self._names = self._read()
        symbolizer = self._names.symbolizer
        pid = int(place[1]) if place[1].isdigit() else None
        at_ns = int(place[2]) if place[2].isdigit() else 0
        key = place[1], 0 if pid is None else symbolizer.epoch(pid, at_ns), place[3]
        text = self._texts.get(key)
        if text is None:
            chain = [*map(int, _NUMBER.findall(place[3]))]
            text = self._join([one.text for one in symbolizer.located(pid, at_ns, chain)])
            if len(self._texts) >= _TEXTS_MAX:
                self._texts.clear()
            self._texts[key] = text
        return text

    def _read(self) -> SampleNames:
        with ExitStack() as stack:
            tables = tables_of([self._file])
            base = connect(stack)
            whole = Database(tables, {}, Window(), self._nearest, stack, base=base)
            in_time = Database(tables, {}, self._window, self._nearest, stack, base=base)
            events = [event.full_name for event in self._file.events if event.is_placed]
            samples = f"FROM samples WHERE pid IS NOT NULL AND {of_events(events)}"
            return names_of(
                self._file,
                whole.rows,
                [pid for (pid,) in in_time.rows(f"SELECT DISTINCT pid {samples}")],
                cache=self._cache,
                shown=self._shown,
            )
