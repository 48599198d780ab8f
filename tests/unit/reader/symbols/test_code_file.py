# SPDX-License-Identifier: Apache-2.0
"""Functions at offsets of files that were mapped."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from collectord.codec import elf
from collectord.reader.symbols import code_file, symbolic_names
from collectord.reader.symbols.address_spaces import Mapping
from collectord.reader.symbols.code_file import CodeFile, open_code
from collectord.reader.symbols.symbol_cache import SymbolCache
from tests.support.programs import SOURCE, compile_busy, compile_rare, offset_of

if TYPE_CHECKING:
    from pathlib import Path


def _id(path: Path) -> bytes:
    data = path.read_bytes()
    return elf.build_id(lambda size, at: data[at : at + size])


def _opened(path: Path, build_id: bytes, cache: SymbolCache | None = None) -> CodeFile:
    mapping = Mapping(0, 1 << 20, 0, str(path), inode=path.stat().st_ino)
    return open_code(mapping, build_id, iter(()), cache)


def _names(file: CodeFile, place: int) -> tuple[str, ...]:
    return tuple(one.name for one in file.find(place))


@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
def test_functions_are_found_wherever_a_file_is_loaded(tmp_path: Path, kind: str) -> None:
    """With those that are inlined, the innermost first."""
    binary = compile_busy(tmp_path, "-g", kind)
    found = _opened(binary, _id(binary))
    outer = offset_of(binary, "outer")
    source = str(tmp_path / "busy.c")
    (inner,) = found.find(offset_of(binary, "inner") + 2)
    assert (inner.name, inner.offset, inner.source) == ("inner", 2, source)
    assert SOURCE.splitlines()[inner.line - 1].startswith(("__attribute__", "{"))
    assert _names(found, outer) == ("outer",)
    nested = next(told for at in range(80) if len(told := found.find(outer + at)) == 2)
    assert [one.name for one in nested] == ["woven", "outer"]
    assert [one.offset for one in nested] == [None, pytest.approx(40, abs=40)]
    assert "while" in SOURCE.splitlines()[nested[0].line - 1]
    assert SOURCE.splitlines()[nested[1].line - 1] == "    woven(turns / 2);"
    assert found.find(0) == ()
    assert found.find(1 << 40) == ()


def test_a_file_that_was_replaced_names_nothing(tmp_path: Path) -> None:
    """By its build-id; without one its inode must be the one that was mapped."""
    binary = compile_busy(tmp_path)
    place = offset_of(binary, "inner")
    assert _opened(binary, bytes(20)) == code_file.NOTHING
    other = Mapping(0, 1 << 20, 0, str(binary), inode=binary.stat().st_ino + 1)
    assert open_code(other, b"", iter(()), None) == code_file.NOTHING
    assert open_code(other._replace(inode=0), b"", iter(()), None) == code_file.NOTHING
    assert _names(_opened(binary, b""), place) == ("inner",)


def test_the_root_of_a_process_has_a_file_that_is_not_here(tmp_path: Path) -> None:
    """Containers have names while they live."""
    binary = compile_busy(tmp_path)
    build_id = _id(binary)
    mapping = Mapping(0, 1 << 20, 0, str(binary))
    pids = iter((1 << 30, os.getpid()))
    place = offset_of(binary, "inner")
    assert _names(open_code(mapping, build_id, pids, None), place) == ("inner",)


def test_debug_files_have_the_names_of_stripped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they are of the same build."""
    whole = compile_busy(tmp_path, "-g")
    place = offset_of(whole, "inner")
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, whole], check=True)
    build_id = _id(stripped)
    monkeypatch.setattr(code_file, "_DEBUG", tmp_path / "debug")
    assert _opened(stripped, build_id).find(place) == ()
    text = build_id.hex()
    debug = tmp_path / "debug" / text[:2] / f"{text[2:]}.debug"
    debug.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", whole, debug], check=True)
    assert _names(_opened(stripped, build_id), place) == ("inner",)
    other = compile_busy(tmp_path, "-g", "-DOTHER", "-Wl,--build-id=0x" + "11" * 20, name="other")
    shutil.copy(other, debug)
    assert _opened(stripped, build_id).find(place) == ()


def test_a_function_with_a_rare_part_elsewhere_has_its_own_name(tmp_path: Path) -> None:
    """Debug information changes no name, nor does the cache; the parts have names of their own."""
    binary = compile_rare(tmp_path)
    cache = SymbolCache(tmp_path / "cache")
    for _ in range(2):
        found = _opened(binary, _id(binary), cache)
        for name in ("first", "second", "third", "second.cold", "third.cold"):
            begin = offset_of(binary, name)
            (function,) = found.find(begin + 1)
            assert (function.name, function.offset) == (name, 1)
            assert (function.source, bool(function.line)) == (str(tmp_path / "rare.c"), True)
        (either,) = found.find(offset_of(binary, "first.cold"))
        assert either.name in {"first.cold", "neighbour.cold"}


def test_what_was_read_is_kept_and_the_oldest_goes(tmp_path: Path) -> None:
    """Within the limit; what is damaged in it is read anew."""
    binary = compile_busy(tmp_path, "-g")
    place = offset_of(binary, "inner")
    folder = tmp_path / "cache/symbols"
    cache = SymbolCache(folder)
    assert _names(_opened(binary, _id(binary), cache), place) == ("inner",)
    (kept,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    names = symbolic_names.of_encoded(kept.read_bytes())
    assert names is not None
    kept.write_bytes(b"damaged")
    assert _names(_opened(binary, _id(binary), cache), place) == ("inner",)
    assert kept.stat().st_size > 100
    small = SymbolCache(folder, limit_bytes=kept.stat().st_size + 10)
    os.utime(kept, (1, 1))
    small.put("newer", names)
    assert [path.name for path in folder.iterdir()] == ["newer.symcache"]
    SymbolCache(folder, limit_bytes=10).put("large", names)
    assert [path.name for path in folder.iterdir()] == ["newer.symcache"]


def test_the_code_that_the_kernel_maps_has_names() -> None:
    """Its symbols are in every process."""
    found = code_file.own_vdso()
    named = {name for at in range(0, 0x2000, 16) for name in found.find(at)}
    assert any("clock_gettime" in name for name in named)


def test_names_of_cpp_and_rust() -> None:
    """They are as in the source; a name that would grow without bound stays as it is."""
    assert symbolic_names.demangled("_ZN3foo1A3barEi") == "foo::A::bar(int)"
    rust = "_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE"
    assert symbolic_names.demangled(rust) == "core::fmt::Formatter::write_str"
    for name in ("plain", "_ZN", "_Z" + "N" * 3000, "_ZZ4mainENKUlvE_clEv"):
        assert symbolic_names.demangled(name) == name
    growing = "_Z1fSt4pairIiiE" + "".join(f"S_IS{at}_S{at}_E" for at in "0123456789ABC")
    assert symbolic_names.demangled(growing) == growing
    assert symbolic_names.demangled(growing[:45]) != growing[:45]
