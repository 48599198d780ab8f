# SPDX-License-Identifier: Apache-2.0
"""Filters of perf's events: of a tracepoint's fields, or of an AUX event's addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from collectord.config import address_filter
from collectord.errors import UsageError

if TYPE_CHECKING:
    from collectord.config.address_filter import AddressFilter


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter, kept as text for the kernel and parsed as addresses.

    Only the host tells which of them its event takes: a PMU may trace there, or not.

    Attributes:
        text: the user's spelling, "" for none.
    """

    text: str = ""
    _addresses: tuple[AddressFilter, ...] = field(default=(), repr=False)
    _problem: UsageError | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.text)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a filter of either kind; `addresses` reports errors of an address filter."""
        try:
            return cls(text, address_filter.parse(text) if text else ())
        except UsageError as error:
            return cls(text, _problem=error)

    @property
    def addresses(self) -> tuple[AddressFilter, ...]:
        """The addresses where an AUX event is to trace.

        Raises:
            UsageError: it is not an address filter.
        """
        if self._problem is not None:
            raise self._problem
        return self._addresses
