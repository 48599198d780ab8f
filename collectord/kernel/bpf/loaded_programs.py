# SPDX-License-Identifier: Apache-2.0
"""BPF programs that are loaded: where their code lies and what it is called."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from collectord.codec.bpf_symbols import symbols_of
from collectord.kernel.bpf import program_image

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from collectord.codec.bpf_symbols import BpfSymbols


def symbols(ids: Iterable[int]) -> Iterator[BpfSymbols]:
    """Give the symbols of these programs; what was unloaded meanwhile is left out."""
    types = functools.cache(program_image.read_btf)  # of several programs they are often the same
    for number in ids:
        image = program_image.read_by_id(number, program_image.NAMING)
        if image is not None:
            yield symbols_of(image, types(image.btf_id) if image.btf_id else None)
