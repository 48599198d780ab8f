# SPDX-License-Identifier: Apache-2.0
"""Addresses of listeners: what a file spells, and how they are shown."""

from __future__ import annotations

import pytest

from collectord.config.listen_address import ListenAddress
from collectord.errors import UsageError


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9590", "127.0.0.1", 9590),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    """An address is a host and a port, and is shown as it was spelled."""
    address = ListenAddress.parse(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "x", ":1", "h:", "h:65536", "::1:9590", "[h]:1", "a b:1"])
def test_what_is_no_address(text: str) -> None:
    """A text without a host, a port or the brackets of IPv6 is refused with an example."""
    with pytest.raises(UsageError, match="is not an address") as caught:
        ListenAddress.parse(text)
    assert "HOST:PORT" in caught.value.hint
