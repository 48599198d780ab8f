# SPDX-License-Identifier: Apache-2.0
"""Files that code ran from may be anything: they give no names, and never an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from collectord.codec import elf
from collectord.reader.symbols import symbolic_names
from collectord.reader.symbols.code_file import CodeFile
from collectord.reader.symbols.kernel_symbols import KernelSymbols
from collectord.reader.symbols.perf_map import PerfMap
from tests.support.examples import examples
from tests.support.programs import compile_busy, compile_rare


@cache
def _files() -> tuple[bytes, ...]:
    """Return programs, and what is kept of each."""
    with TemporaryDirectory() as folder:
        programs = (compile_busy(Path(folder), "-g"), compile_rare(Path(folder)))
        files = [program.read_bytes() for program in programs]
    kept = [names.encoded() for data in files if (names := symbolic_names.of_elf(data))]
    assert len(kept) == len(files)
    return (*files, *kept)


@settings(max_examples=examples(400), deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=30),
    in_head=st.booleans(),
    kept=st.floats(0.01, 1),
    offset=st.integers(0, 1 << 20),
)
def test_damaged_programs_have_some_names_or_none(
    changes: list[tuple[float, int]], in_head: bool, kept: float, offset: int
) -> None:
    """The kept symbols may be damaged too."""
    for whole in _files():
        data = bytearray(whole[: int(len(whole) * kept)] if not in_head else whole)
        end = 512 if in_head else len(data)
        for share, value in changes:
            data[min(int(share * end), len(data) - 1)] = value
        damaged = bytes(data)

        def read(size: int, at: int, damaged: bytes = damaged) -> bytes:
            return damaged[at : at + size]

        elf.build_id(read)
        for names in (symbolic_names.of_elf(damaged), symbolic_names.of_encoded(damaged)):
            for at in (0, 0x1140, offset, (1 << 64) - 1):
                CodeFile(elf.loaded(read), names).find(at)
                if names is not None:
                    names.find(at)


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text("_ZNST0123456789IiEKcvPR.d", max_size=80))
def test_any_text_may_be_a_mangled_name(text: str) -> None:
    """It is returned as it is, or as another text."""
    assert isinstance(symbolic_names.demangled(f"_Z{text}"), str)


@settings(max_examples=examples(100), deadline=None)
@given(text=st.binary(max_size=200), address=st.integers(0, (1 << 64) - 1))
def test_any_text_may_be_a_list_of_functions(text: bytes, address: int) -> None:
    """It may be the kernel's, or of a process that makes code."""
    named = KernelSymbols(b"00ff T a\n" + text + b"\n1000 t b\n").find(address)
    assert named is None or named.begin <= address
    made = PerfMap(b"10 ff a\n" + text).find(address)
    assert made is None or isinstance(made, str)
