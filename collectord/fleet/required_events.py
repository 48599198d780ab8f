# SPDX-License-Identifier: Apache-2.0
"""The events that an answer needs of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from collectord.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RequiredEvents(NamedTuple):
    """The events of an answer, as `AnswerHead` has them; see there."""

    needs: Sequence[Sequence[str]]
    optional: Sequence[str]
    columns: Mapping[str, Mapping[str, str]]
    call_chains: bool = False

    @property
    def events(self) -> list[str]:
        """All that the statement may read."""
        return [*dict.fromkeys([*(one for need in self.needs for one in need), *self.optional])]

    @property
    def words(self) -> str:
        """The lists of which one is needed, such as "a:b, or c:d and e:f"."""
        return ", or ".join(" and ".join(need) for need in self.needs)


class NotShipped(UsageError):
    """The events that an answer needs are not in the store; the message names them."""
