# SPDX-License-Identifier: Apache-2.0
"""A trace.dat that is sealed while it is read: its pages move, and a reader says so."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from collectord.cli.asking import complain_of
from collectord.reader.segment_tables import open_catalogue
from tests.support.trace_segments import closing, fill, make_sink, opening, write_segment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("sealed", [False, True])
def test_a_seal_while_a_file_is_read_is_told(
    sealed: bool,  # parametrized
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The result is not taken for a whole one; a file that goes on, or was sealed before, is."""
    sink = make_sink(tmp_path)
    write_segment(sink)
    running = sink.next_segment(2, opening())
    done = fill(running)
    with ExitStack() as stack:
        catalogue = open_catalogue([tmp_path], stack, session=None, nearest=lambda *_: "")
        if sealed:
            assert sink.seal(running, done, closing()) is not None
        status = complain_of(catalogue, ())
    told = capsys.readouterr().err
    assert status == int(sealed)
    assert told.count("was sealed while it was read") == int(sealed)
    if not sealed:
        assert sink.seal(running, done, closing()) is not None
