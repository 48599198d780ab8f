# SPDX-License-Identifier: Apache-2.0
"""Structs of BPF programs: BCC's descriptions against the compiler's, and their records."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectord.codec.bpf_struct import Field, Layout, decoder, from_bcc
from collectord.errors import CodecError

GOLDEN: Final = Path(__file__).resolve().parents[2] / "golden" / "bcc-0.26" / "structs.json"
STRUCTS: Final[dict[str, Any]] = json.loads(GOLDEN.read_bytes())
SCALARS: Final = ("scalar", "byte")
# The message on each struct that cannot be read.
REFUSED: Final = {
    "bit_field": "member a (unsigned int) is a bit field of 3",
    "nested_bit_field": "member in.a (unsigned int) is a bit field of 3",
    "flexible_array": "member d (char) is an array without a size",
    "array_of_arrays": "member a (char) is not fully described",
    "array_of_arrays_behind": "member b (unsigned char) is not fully described",
    "array_by_typedef": "member n (char) is not fully described",
    "vector": "member d (int) is not fully described",
    "long_double": "member d (long double) is of a type that is not read",
    "aligned_union": "take 36 bytes of 48",
}
READ: Final = sorted(STRUCTS.keys() - REFUSED.keys())


def layout_of(name: str) -> Layout:
    """Return the layout of a golden struct."""
    golden = STRUCTS[name]
    return from_bcc(golden["description"], golden["size"], name)


def filled(layout: Layout, **values: bytes) -> bytes:
    """Return a record with these members, and 0xee in between."""
    record = bytearray(b"\xee" * layout.size)
    for field in layout.fields:
        if field.name in values:
            record[field.offset : field.offset + field.size] = values[field.name].ljust(
                field.size, b"\0"
            )
    return bytes(record)


@pytest.mark.parametrize("name", READ)
def test_offsets_are_the_compilers(name: str) -> None:
    """Each member stands where the compiler put it, within the size that it gave the struct."""
    golden = STRUCTS[name]
    layout = layout_of(name)
    assert (layout.name, layout.size) == (name, golden["size"])
    if name not in SCALARS:
        assert {field.name: field.offset for field in layout.fields} == golden["offsets"]
        assert [field.name for field in layout.fields] == list(golden["offsets"])
    for field in layout.fields:
        assert field.offset + field.size <= layout.size
    assert list(decoder(layout)(bytes(layout.size))) == [field.name for field in layout.fields]


@pytest.mark.parametrize("name", REFUSED)
def test_struct_that_cannot_be_read(name: str) -> None:
    """It is refused, and the message names the member and its type."""
    with pytest.raises(CodecError) as caught:
        layout_of(name)
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("wrong", [-1, 1, 8])
def test_size_must_be_the_compilers(name: str, wrong: int) -> None:
    """A description that does not add up to the size of the type is not believed."""
    golden = STRUCTS[name]
    with pytest.raises(CodecError):
        from_bcc(golden["description"], golden["size"] + wrong, name)


@pytest.mark.parametrize(
    "description",
    [
        None, 1, [], ["x"], ["x", [], "class"], ["x", [["a"]], "struct_packed"],
        ["x", [["a", "int", "b"]], "struct_packed"], ["x", [["a", "int", [-1]]], "struct_packed"],
        ["x", [[1, "int"]], "struct_packed"], ["x", ["int"], "struct"], "int[4]", "void",
        ["x", [["a", "int"], ["a", "int"]], "struct_packed"],
        ["x", [["a", ["y", [], "union"], [1 << 40]]], "struct_packed"],
        ["x", [["a", "char", [1 << 40]]], "struct_packed"],
        ["x", [["__pad_0", "char", [1 << 40]]], "struct_packed"],
        json.loads('["x",' * 40 + '[["a", "int"]], "union"' + ', "union"]' * 40),
    ],
)  # fmt: skip
def test_description_that_is_none(description: object) -> None:
    """Whatever else stands in the place of a description is refused."""
    with pytest.raises(CodecError):
        from_bcc(description, 8, "x")


@given(
    st.recursive(
        st.none() | st.integers() | st.sampled_from(["int", "char", "", "union", "struct_packed"]),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=20,
    ),
    st.integers(0, 64),
)
def test_any_description(description: object, size: int) -> None:
    """A description gives a layout that decodes, or a CodecError; nothing else."""
    try:
        layout = from_bcc(description, size, "x")
    except CodecError:
        return
    decoder(layout)(bytes(size))


def test_integers() -> None:
    """Numbers have the width and the sign of their types."""
    layout = layout_of("integers")
    ones = decoder(layout)(b"\xff" * layout.size)
    signed = {"c", "sc", "s", "i", "l", "ll"}
    assert {name for name, value in ones.items() if value == -1} == signed
    assert ones | dict.fromkeys(signed, 0) == {
        **dict.fromkeys(signed, 0),
        "uc": 0xFF,
        "us": 0xFFFF,
        "ui": 0xFFFF_FFFF,
        "ul": 2**64 - 1,
        "ull": 2**64 - 1,
    }
    assert decoder(layout)(filled(layout, i=b"\1\2\3\4"))["i"] == 0x04030201


def test_arrays() -> None:
    """Arrays of char are text, of unsigned char bytes, of other types lists."""
    layout = layout_of("arrays")
    record = filled(
        layout, comm=b"a\xff\x1bb\0rest", mac=b"\1\2\3\4\5\xff", w=struct.pack("<3H", 1, 2, 65535),
        s=struct.pack("<4Q", 1, 2, 3, 2**64 - 1), z=b"\xff\1\2\3", ok=b"\0\1\2", one=b"x",
        p=struct.pack("<2Q", 0, 0xFFFF_8000_0000_0000),
    )  # fmt: skip
    assert decoder(layout)(record) == {
        "comm": "a\\xff\x1bb",
        "mac": b"\1\2\3\4\5\xff",
        "w": [1, 2, 65535],
        "s": [1, 2, 3, 2**64 - 1],
        "z": [-1, 1, 2, 3],
        "ok": [False, True, True],
        "p": [0, 0xFFFF_8000_0000_0000],
        "one": "x",
    }
    assert decoder(layout)(filled(layout, comm=b"x" * 16))["comm"] == "x" * 16


def test_wide_numbers_floats_and_flags() -> None:
    """128 bits are one number; floats and bools are such."""
    layout = layout_of("wide")
    record = filled(layout, a=b"\xff" * 16, b=b"\xff" * 16 + b"\1" * 16, c=b"\7")
    ones = 0x0101_0101_0101_0101_0101_0101_0101_0101
    assert decoder(layout)(record) == {"a": 2**128 - 1, "b": [-1, ones], "c": 7}
    layout = layout_of("floats")
    record = struct.pack("<d3f4x", 1.5, 0.25, -1, 2)
    assert decoder(layout)(record) == {"d": 1.5, "f": 0.25, "g": [-1.0, 2.0]}
    layout = layout_of("kernel_types")
    assert decoder(layout)(filled(layout, ok=b"\2"))["ok"] is True


def test_members_of_a_union_overlap() -> None:
    """Each of them is given, in the order of the declaration."""
    layout = layout_of("union")
    values = decoder(layout)(filled(layout, **{"h": b"\1", "a.v6": bytes(range(16)), "t": b"\2"}))
    assert list(values.items()) == [
        ("h", 1),
        ("a.v4", 0x03020100),
        ("a.v6", bytes(range(16))),
        ("t", 2),
    ]


def test_nested_arrays() -> None:
    """Elements of an array of structs are told by their index."""
    layout = layout_of("nested_array")
    names = {field.name: bytes([index]) for index, field in enumerate(layout.fields, start=1)}
    values = decoder(layout)(filled(layout, **names))
    assert values["i[0].a"] == 2
    assert values["i[2].c"] == 9
    assert values["i[2].n"] == "\n"


@pytest.mark.parametrize(("name", "value"), [("scalar", 0x0807060504030201), ("byte", 1)])
def test_scalar(name: str, value: int) -> None:
    """A type that is a number has one field without a name."""
    assert decoder(layout_of(name))(bytes(range(1, 9))) == {"": value}


@pytest.mark.parametrize("name", READ)
def test_length_is_not_trusted(name: str) -> None:
    """Bytes behind a record are ignored; a record that is too short is refused."""
    layout = layout_of(name)
    record = bytes(number * 37 & 0xFF for number in range(layout.size))
    assert repr(decoder(layout)(memoryview(record + b"\xff" * 7))) == repr(decoder(layout)(record))
    for size in (0, layout.size - 1):
        with pytest.raises(CodecError, match="short"):
            decoder(layout)(record[:size])


def test_layout_goes_through_json() -> None:
    """A layout is written into manifests and read back."""
    for name in READ:
        layout = layout_of(name)
        assert msgspec.json.decode(msgspec.json.encode(layout), type=Layout) == layout


@pytest.mark.parametrize(
    "field",
    [
        Field("a", "int", 6, 4, 0, "int"),
        Field("a", "int", -1, 4, 0, "int"),
        Field("a", "int", 0, 3, 0, "int"),
        Field("a", "int", 0, 0, 0, "int"),
        Field("a", "int", 0, 8, 3, "int"),
        Field("a", "int", 0, 8, -2, "int"),
        Field("a", "int", 0, -4, 0, "int"),
        Field("a", "int", 0, 4, -1, "int"),
        Field("a", "char", 0, 9, 9, "char"),
        Field("a", "char", 0, 8, -2, "char"),
        Field("a", "char", 0, 8, 3, "char"),
        Field("a", "char", 0, 8, 4, "char"),
        Field("a", "unsigned char", 0, 8, 0, "bytes"),
        Field("a", "int", 1 << 63, 4, 0, "int"),
    ],
)
def test_layout_of_a_damaged_manifest(field: Field) -> None:
    """A layout that contradicts itself is refused before any record."""
    with pytest.raises(CodecError):
        decoder(Layout("x", 8, (field,)))


@pytest.mark.parametrize(
    "layout",
    [
        Layout("x", 2**64 - 1, (Field("a", "int", 1 << 63, 4, 0, "int"),)),
        Layout("x", 2**64 - 1, ()),
        Layout("x", (1 << 16) + 1, (Field("a", "int", 0, 4, 0, "int"),)),
        Layout("x", -1, ()),
        Layout("x", 32, (Field("a", "double", 0, 16, 0, "float"),)),
        Layout("x", 8, (Field("a", "int", 0, 4, 0, "int"), Field("a", "int", 4, 4, 0, "int"))),
        Layout("x", 8, tuple(Field(f"a{n}", "int", 0, 4, 0, "int") for n in range(1025))),
    ],
)
def test_layout_of_a_hostile_manifest(layout: Layout) -> None:
    """A layout that no program submits is refused before any work is done for it."""
    with pytest.raises(CodecError):
        decoder(layout)


def test_largest_layout() -> None:
    """The maximal number of members, all at one place, is read."""
    fields = tuple(Field(f"a{n}", "int", (1 << 16) - 4, 4, 0, "int") for n in range(1024))
    values = decoder(Layout("x", 1 << 16, fields))(bytes((1 << 16) - 4) + b"\1\0\0\0")
    assert list(values.values()) == [1] * 1024
