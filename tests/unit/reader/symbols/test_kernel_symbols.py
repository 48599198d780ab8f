# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel by address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from collectord.folders.walk import open_folder
from collectord.reader.symbols.kernel_symbols import KernelSymbols
from collectord.sink import symbol_list

if TYPE_CHECKING:
    from pathlib import Path

TEXT: Final = b"""\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000100 t local_part
ffffffff81000100 T do_work
ffffffff81000100 W weak_work
ffffffff81000200 T __x64_sys_read
ffffffff81000200 T __ia32_sys_read
ffffffff81000300 D some_data
ffffffffc0000000 t ext4_read\t[ext4]
ffffffffc0001000 t bpf_prog_1234_count\t[bpf]
ffffffffc0002000 t behind\t[bpf]
"""
BOOT: Final = "43a8502b-3701-4464-bd27-e912c41ec8d6"


def test_an_address_has_the_name_that_perf_gives_it() -> None:
    """A strong and global symbol counts before others at its place; data are none."""
    symbols = KernelSymbols(TEXT)
    told = {
        0xFFFFFFFF810001FF: ("do_work", "", 0xFFFFFFFF81000100),
        0xFFFFFFFF81000310: ("__ia32_sys_read", "", 0xFFFFFFFF81000200),
        0xFFFFFFFFC0000010: ("ext4_read", "ext4", 0xFFFFFFFFC0000000),
        0xFFFFFFFFC0001FFF: ("bpf_prog_1234_count", "bpf", 0xFFFFFFFFC0001000),
    }
    assert {address: symbols.find(address) for address in told} == told
    assert symbols.find(0x1000) is None
    assert symbols.find(0xFFFFFFFFC0009000) is None


def test_a_kernel_of_the_same_build_elsewhere() -> None:
    """Its own code is moved; modules are anywhere."""
    moved = KernelSymbols(TEXT, moved_by=0x2000000, only_core=True)
    assert moved.find(0xFFFFFFFF83000110) == ("do_work", "", 0xFFFFFFFF83000100)
    assert moved.find(0xFFFFFFFFC2000010) is None
    assert moved.references["_text"] == 0xFFFFFFFF81000000


def test_hidden_addresses_name_nothing() -> None:
    """A user without the privilege sees zeros."""
    assert not len(KernelSymbols(b"0000000000000000 T _text\n0000000000000000 T a\n"))
    assert not len(KernelSymbols(b"\xff\x00 garbage\n"))


def test_a_list_is_kept_for_its_boot(tmp_path: Path) -> None:
    """Only functions of it, and only of the last few boots; hidden addresses are no list."""
    source = tmp_path / "list"
    source.write_bytes(TEXT)
    text = symbol_list.read_symbols(source)
    assert text == b"".join(
        line
        for line in TEXT.splitlines(keepends=True)
        if b" D " not in line and b" A " not in line
    )
    with open_folder(tmp_path) as folder:
        symbol_list.keep_symbols(folder, BOOT, source)
        source.write_bytes(b"ffffffff81000000 T other\n")
        symbol_list.keep_symbols(folder, BOOT, source)
        source.write_bytes(b"0000000000000000 T _text\n")
        symbol_list.keep_symbols(folder, BOOT.replace("4", "5"), source)
        assert symbol_list.kept_symbols(folder, BOOT) == text
        assert symbol_list.kept_symbols(folder, BOOT.replace("4", "5")) == b""
        assert symbol_list.kept_symbols(folder, "../../etc") == b""
        source.write_bytes(TEXT)
        for number in range(9):
            symbol_list.keep_symbols(folder, f"{number:08}{BOOT[8:]}", source)
        assert len([*tmp_path.glob(".kallsyms-*")]) == 8
        assert symbol_list.kept_symbols(folder, BOOT) == b""


@pytest.mark.parametrize("damage", [b"", b"no gzip", b"\x1f\x8b\x08" + bytes(40)])
def test_a_damaged_list_is_none(tmp_path: Path, damage: bytes) -> None:
    """It may be anything by then."""
    (tmp_path / symbol_list.list_name(BOOT)).write_bytes(damage)
    with open_folder(tmp_path) as folder:
        assert symbol_list.kept_symbols(folder, BOOT) == b""
