# SPDX-License-Identifier: Apache-2.0
"""Values of BPF programs as people read them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectord.codec.bpf_show import SHOWS, show

if TYPE_CHECKING:
    from collectord.codec.bpf_struct import Value


class Numbers:
    """Names made from the numbers."""

    def interface(self, ifindex: int) -> str:
        """Return `if` and the number."""
        return f"if{ifindex}"

    def device(self, dev: int) -> str:
        """Return `dev` and the number."""
        return f"dev{dev}"


V6 = bytes.fromhex("20010db8000000000000000000000001")
MAPPED = bytes(10) + b"\xff\xff\x7f\0\0\1"


@pytest.mark.parametrize(
    ("how", "value", "text"),
    [
        ("decimal", -5, "-5"),
        ("decimal", True, "1"),
        ("decimal", "text", "text"),
        ("decimal", b"\x01\xff", "01ff"),
        ("decimal", [1, -2], "[1,-2]"),
        ("decimal", 1.5, "1.5"),
        ("hex", 255, "0xff"),
        ("hex", b"\x02\x42", "0242"),
        ("hex", [1, 16], "[0x1,0x10]"),
        ("errno", 3, "3"),
        ("errno", 0, "0"),
        ("errno", -errno.ENOENT, "ENOENT"),
        ("errno", 2**32 - errno.EACCES, "EACCES"),
        ("errno", 2**64 - errno.EINTR, "EINTR"),
        ("errno", -9999, "-9999"),
        ("errno", 2**31, "2147483648"),
        ("duration", 0, "0ns"),
        ("duration", 999, "999ns"),
        ("duration", 1_000, "1us"),
        ("duration", 1_234_567, "1.235ms"),
        ("duration", 999_999, "1000us"),
        ("duration", 12_345_678_901, "12.35s"),
        ("duration", 3_600_000_000_000, "3600s"),
        ("duration", 123_456_789_000_000_000, "123456789s"),
        ("duration", -1_500, "-1.5us"),
        ("bytes", 0, "0 B"),
        ("bytes", 1023, "1023 B"),
        ("bytes", 4096, "4 KiB"),
        ("bytes", 1_500_000, "1.431 MiB"),
        ("bytes", 2**60, "1048576 TiB"),
        ("text", "\x1b[31m", "\x1b[31m"),
        ("text", b"lo\0\xff", "lo"),
        ("text", b"\xff", "\\xff"),
        ("text", 7, "7"),
        ("ip", 0x0100_007F, "127.0.0.1"),
        ("ip", b"\x0a\0\0\1", "10.0.0.1"),
        ("ip", V6, "2001:db8::1"),
        ("ip", MAPPED, "127.0.0.1"),
        ("ip", int.from_bytes(V6, "little"), "2001:db8::1"),
        ("ip", [0xB80D0120, 0, 0, 0x01000000], "2001:db8::1"),
        ("ip", b"\1\2", "0102"),
        ("ip", [16, -1], "[16.0.0.0,ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]"),
        ("ip", -1, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("port_be", 0x5000, "80"),
        ("port_be", 0xBB01, "443"),
        ("ifindex", 2, "if2"),
        ("device", 8 << 20, "dev8388608"),
        ("signal", 9, "SIGKILL"),
        ("signal", 0, "0"),
        ("signal", 34, "SIGRTMIN"),
        ("signal", 64, "SIGRTMIN+30"),
        ("signal", 32, "32"),
        ("signal", 99, "99"),
        ("tcp_state", 1, "ESTABLISHED"),
        ("tcp_state", 10, "LISTEN"),
        ("tcp_state", 13, "BOUND_INACTIVE"),
        ("tcp_state", 0, "0"),
        ("tcp_state", 14, "14"),
    ],
)
def test_show(how: str, value: Value, text: str) -> None:
    """Each way to show a value, with what is at its edges."""
    assert show(value, how, Numbers()) == text


@given(
    st.sampled_from(SHOWS),
    st.one_of(
        st.integers(-(2**127), 2**128 - 1),
        st.text(max_size=20),
        st.binary(max_size=20),
        st.booleans(),
        st.floats(),
        st.lists(st.integers(-(2**63), 2**64 - 1), max_size=5),
        st.lists(st.booleans(), max_size=5),
        st.lists(st.floats(), max_size=5),
    ),
)
def test_any_value_can_be_shown(how: str, value: Value) -> None:
    """A program may ask for any of them of any field."""
    assert isinstance(show(value, how, Numbers()), str)
