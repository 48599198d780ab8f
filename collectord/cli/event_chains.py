# SPDX-License-Identifier: Apache-2.0
"""Names of functions at addresses and in call chains, as `collectord events` prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from collectord.cli.output import complain
from collectord.cli.query_parts import complain_of_names
from collectord.errors import install_command
from collectord.reader.chain_texts import ChainTexts, are_named
from collectord.reader.symbols.symbol_cache import user_cache
from collectord.text.foreign import visible
from collectord.text.nearest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from collectord.reader.event_file import EventFile, Window
    from collectord.reader.symbols.debuginfod import Debuginfod

_CALLED_BY: Final = " <- "


def _as_text(names: Sequence[str]) -> bytes:
    return _CALLED_BY.join(names).encode()


def _as_cell(names: Sequence[str]) -> bytes:
    return b'"' + _CALLED_BY.join(names).replace('"', '""').encode() + b'"'


_JOINS: Final[Mapping[str, Callable[[Sequence[str]], bytes]]] = {
    "text": _as_text,
    "json": msgspec.json.encode,
    "csv": _as_cell,
}


class NamedChains:
    """Names for the functions in several files, one after the other.

    Args:
        form: of the output.
        window: the time that is asked for.
        servers: of debug files that are not here.
    """

    def __init__(self, form: str, window: Window, servers: Debuginfod | None) -> None:
        self.is_possible = are_named()
        self._join = _JOINS[form]
        self._window = window
        self._cache = user_cache(servers)
        self._is_named = False
        self._nameless: list[EventFile] = []
        self._left_out = 0

    def of(self, file: EventFile) -> ChainTexts | None:
        """Return the names for a file; None if there are none."""
        if not self.is_possible:
            return None
        return ChainTexts(
            file,
            self._window,
            self._join,
            cache=self._cache,
            shown=visible,
            nearest=did_you_mean,
        )

    def end(self, file: EventFile, chains: ChainTexts | None) -> None:
        """Note what had no names in a file."""
        names = chains.names if chains is not None else None
        if names is None:
            return
        self._is_named = True
        if names.symbolizer.lacks_kernel and not names.knows_kernel:
            self._nameless.append(file)
        self._left_out += names.left_out

    def complain(self) -> None:
        """Say why functions have no names."""
        if not self.is_possible:
            hint = install_command("query", "symbols")
            complain(f"functions have no names without DuckDB; {hint}")
        elif self._is_named:
            complain_of_names(self._nameless, self._left_out)
