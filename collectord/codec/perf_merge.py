# SPDX-License-Identifier: Apache-2.0
"""The events of several perf.data files in one: their attributes, and the ids of their records.

Readers tell events apart by the ids in records. One kernel gives no id twice, but two boots do,
and records of a file with a single event may have none. So in a file of several events every
record has an IDENTIFIER, and an id that another event has is replaced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from collectord.codec.perf_attr import SampleType
from collectord.codec.perf_data import AttrSection
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from collectord.codec.perf_attr import PerfEventAttr

    # Events are told apart by attributes, name, and the number of such ones before it in its file.
    Key = tuple[PerfEventAttr, str, int]


class Renaming(NamedTuple):
    """The new ids of the records of one file.

    Attributes:
        ids: {in the file, in the new one} of those that change.
        unnamed: of records that have none.
        adds_id: all records get an IDENTIFIER.
    """

    ids: tuple[tuple[int, int], ...] = ()
    unnamed: int = 0
    adds_id: bool = False


class Merged(NamedTuple):
    """The events of a new file, and a renaming for each file that they are from."""

    attrs: tuple[AttrSection, ...]
    renamings: tuple[Renaming, ...]


def merge(files: Sequence[Sequence[AttrSection]]) -> Merged:
    """Return the events of files together; those that are the same in several are one.

    Raises:
        CodecError: no file can have the records of all of them.
    """
    if len(files) == 1:
        return Merged(tuple(files[0]), (Renaming(),))
    if len({one.attr.sample_id_all for attrs in files for one in attrs}) > 1:
        raise _refused("only some of their records without a sample tell their time")
    keys = [[*_keys(attrs)] for attrs in files]
    is_alone = len({key for of_file in keys for key in of_file}) == 1
    taken: dict[int, Key] = {}
    found: dict[Key, dict[int, None]] = {}
    fresh = max((i for attrs in files for one in attrs for i in one.ids), default=0)
    renamings = []
    for attrs, of_file in zip(files, keys, strict=True):
        identified = {bool(one.attr.sample_type & SampleType.IDENTIFIER) for one in attrs}
        if len(identified) > 1 and not is_alone:
            raise _refused("only some events of one of them have an IDENTIFIER")
        renamed = []
        for one, key in zip(attrs, of_file, strict=True):
            ids = found.setdefault(key, {})
            for number in one.ids:
                new = number
                if taken.setdefault(number, key) != key:
                    fresh += 1
                    new = fresh
                    renamed.append((number, new))
                ids[new] = None
            if not one.ids and not is_alone:
                fresh += 1
                ids[fresh] = None
        unnamed = next(reversed(found[of_file[0]]), 0)
        adds_id = not is_alone and not all(identified)
        renamings.append(Renaming(tuple(renamed), unnamed, adds_id))
    merged = tuple(
        AttrSection(attr if is_alone else _identified(attr), tuple(ids), name)
        for (attr, name, _), ids in found.items()
    )
    return Merged(merged, tuple(renamings))


def _keys(attrs: Sequence[AttrSection]) -> Iterator[Key]:
    seen: Counter[tuple[PerfEventAttr, str]] = Counter()
    for one in attrs:
        named = replace(one.attr, config3=0), one.name
        yield *named, seen[named]
        seen[named] += 1


def _identified(attr: PerfEventAttr) -> PerfEventAttr:
    return replace(attr, sample_type=attr.sample_type | SampleType.IDENTIFIER)


def _refused(why: str) -> CodecError:
    return CodecError(why, offset=0, reason="attrs")
