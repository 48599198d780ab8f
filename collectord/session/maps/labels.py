# SPDX-License-Identifier: Apache-2.0
"""Label values of the counts of BPF programs: text, and a bounded number of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from collectord.codec import bpf_show
from collectord.text.foreign import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from collectord.codec.bpf_show import Names
    from collectord.programs.program_manifest import LabelConfig
    from collectord.session.maps.table import Value

OTHER: Final = "other"


class Labels:
    """Assigns label values to each combination of field values, permanently.

    Args:
        configs: the labels.
        names: of interfaces and devices.
        sets_max: number of combinations, the one of all `other` not included.

    A label shows a limited number of values; later ones become `other`. A value that is shown
    stays shown, and one that is `other` stays `other`, because a counter must not decrease.
    """

    def __init__(self, configs: Sequence[LabelConfig], names: Names, sets_max: int) -> None:
        self._configs = tuple(configs)
        self._names = names
        self._shown: tuple[dict[Value, str], ...] = tuple({} for _ in configs)
        self._sets: set[tuple[str, ...]] = set()
        self._sets_max = sets_max
        self.names = tuple(config.name for config in configs)

    def of(self, values: tuple[Value, ...]) -> tuple[str, ...]:
        """Return the label values of one combination of field values."""
        made = tuple(map(self._text, self._configs, self._shown, values))
        if made in self._sets:
            return made
        if len(self._sets) >= self._sets_max:
            return (OTHER,) * len(made)
        self._sets.add(made)
        return made

    def _text(self, config: LabelConfig, shown: dict[Value, str], value: Value) -> str:
        text = shown.get(value)
        if text is None:
            if len(shown) >= config.max:
                return OTHER
            shown_as = list(value) if isinstance(value, tuple) else value
            text = visible(bpf_show.show(shown_as, config.show, self._names))
            shown[value] = text
        return text
