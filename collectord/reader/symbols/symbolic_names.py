# SPDX-License-Identifier: Apache-2.0
"""Functions in ELF files by the library `symbolic`: symbol tables, DWARF, inlined functions.

It is loaded when the first file is read, and need not be installed: then files have no names.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from collectord.reader.symbols.frame import Function

if TYPE_CHECKING:
    from types import ModuleType

_NAMES: Final = 1 << 16
_NAME_MAX: Final = 4096
# The beginning of a function of which the library does not tell it, such as an inlined one.
_NO_BEGIN: Final = (1 << 32) - 1
# References to what a mangled name has before. With n of them it may grow by e**(n / e).
_BACK: Final = re.compile(r"[ST][0-9A-Z]*_")
_BACKS_MAX: Final = 32
# Compilers append these to the name of a function for its rare part, which is elsewhere.
_COLD: Final = ".cold"
_RARE_PART: Final = re.compile(rf"{re.escape(_COLD)}(?:\.[0-9]+)?$")
# The section without which a file has no debug information, and a name that means nothing.
_DEBUG_SECTION: Final = b".debug_info\0"
_NO_SECTION: Final = b".plain_info\0"
# Before what is encoded: which form it has, and how long the first of its two parts is.
_FORM: Final = b"names 2\0"
_HEAD: Final = struct.Struct("<8sQ")
_RUST_HASH: Final = re.compile(r"::h[0-9a-f]{16}$")


def is_installed() -> bool:
    """Whether names can be read."""
    return _symbolic() is not None


class FileNames:
    """The functions of one file, from what `encode` or the library made of it.

    By debug information the library names all parts of a function after the symbol at the lowest
    one: that is often the rare part, or an empty one of a neighbour at the same address. The
    symbol table alone has a symbol for each part.

    Args:
        cache: of the library.
        symbols: the same of the symbol table alone; None if no name needs it.
    """

    def __init__(self, cache: Any, symbols: Any = None) -> None:  # noqa: ANN401  # of the library
        self._cache = cache
        self._symbols = symbols

    def find(self, address: int) -> tuple[Function, ...]:
        """Return the functions at an address, which counts from the first part that is loaded.

        The innermost is first, behind it those that it is inlined into.
        """
        symbolic = _symbolic()
        if symbolic is None or address < 0:
            return ()
        try:
            found = [one for one in self._cache.lookup(address) if one.symbol]
            if found and self._symbols is not None and _RARE_PART.search(found[-1].symbol):
                for known in self._symbols.lookup(address):
                    found[-1].symbol, found[-1].sym_addr = known.symbol, known.sym_addr
        except (symbolic.SymbolicError, OverflowError):  # damaged
            return ()
        return tuple(_function(one, address) for one in found)

    def encoded(self) -> bytes:
        """Return the names in the form that `of_encoded` reads."""
        data = _bytes_of(self._cache)
        rest = b"" if self._symbols is None else _bytes_of(self._symbols)
        return _HEAD.pack(_FORM, len(data)) + data + rest


def _bytes_of(cache: Any) -> bytes:  # noqa: ANN401  # of the library
    with cache.open_stream() as stream:
        data: bytes = stream.read()
    return data


def _function(found: Any, address: int) -> Function:  # noqa: ANN401  # of the library
    begin = found.sym_addr
    offset = address - begin if begin != _NO_BEGIN and begin <= address else None
    return Function(demangled(found.symbol), offset, found.full_path or "", found.line)


def of_elf(data: bytes) -> FileNames | None:
    """Return the functions of an ELF file; None for one that is damaged, or no ELF."""
    symbolic = _symbolic()
    if symbolic is None:
        return None
    try:
        cache = _cache_of(symbolic, data)
        symbols = None
        if _COLD.encode() in data and _DEBUG_SECTION in data:
            symbols = _cache_of(symbolic, data.replace(_DEBUG_SECTION, _NO_SECTION))
    except symbolic.SymbolicError:
        return None
    return FileNames(cache, symbols) if cache is not None else None


def _cache_of(symbolic: ModuleType, data: bytes) -> Any:  # noqa: ANN401  # of the library
    """Return what the library makes of a file, None of one without code.

    Raises:
        symbolic.SymbolicError: it is damaged.
    """
    archive = symbolic.Archive.from_bytes(data)  # which reads the data as long as it lives
    return next((one.make_symcache() for one in archive.iter_objects()), None)


def of_encoded(data: bytes) -> FileNames | None:
    """Return what was encoded; None if it is damaged, or of another version of the library."""
    symbolic = _symbolic()
    if symbolic is None:
        return None
    if len(data) < _HEAD.size:
        return None
    form, size = _HEAD.unpack_from(data)
    if form != _FORM:
        return None
    begin, end = _HEAD.size, _HEAD.size + size
    try:
        cache = symbolic.SymCache.from_bytes(data[begin:end])
        symbols = symbolic.SymCache.from_bytes(data[end:]) if data[end:] else None
    except symbolic.SymbolicError:
        return None
    return FileNames(cache, symbols) if cache.is_latest_version else None


@lru_cache(maxsize=1)
def _symbolic() -> ModuleType | None:
    try:
        import symbolic  # noqa: PLC0415  # of the verbs that name addresses
    except ImportError:
        return None
    return symbolic


@lru_cache(maxsize=_NAMES)
def demangled(name: str) -> str:
    """Return the name that a C++ or Rust program has for a symbol; others are returned as is."""
    if not name.startswith("_Z") or len(name) > _NAME_MAX or len(_BACK.findall(name)) > _BACKS_MAX:
        return name
    try:
        import itanium_demangler  # noqa: PLC0415  # as above
    except ImportError:
        return name
    try:
        parsed = itanium_demangler.parse(name)  # type: ignore[no-untyped-call]
        return _RUST_HASH.sub("", str(parsed)) if parsed is not None else name
    except (RecursionError, NotImplementedError, AssertionError, AttributeError):
        return name
    except (ValueError, LookupError, TypeError):
        return name
