# SPDX-License-Identifier: Apache-2.0
"""Intel PT packets, encoded as the SDM has them (volume 3, chapter "Intel Processor Trace").

Enough of them to build a trace that a decoder takes, one whose every address is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PAD: Final = b"\x00"
PSB: Final = b"\x02\x82" * 8
PSBEND: Final = b"\x02\x23"
OVF: Final = b"\x02\xf3"
TRACE_STOP: Final = b"\x02\x83"

# Opcodes of the packets that carry an address; bits 7 to 5 say how it is compressed.
_TIP: Final = 0x0D
_PGE: Final = 0x11
_PGD: Final = 0x01
_FUP: Final = 0x1D

_SIGN_EXTENDED: Final = 0b011
_FULL: Final = 0b110
# Low bits that are given where the others are those of the last address: code to bytes.
_UPDATES: Final = ((0b001, 2), (0b010, 4), (0b100, 6))
_SIGNED_BYTES: Final = 6
_TSC_MASK: Final = (1 << 56) - 1
_MODE_64: Final = 0x01
_MODE_TSX: Final = 0x20
_SHORT_TNT_MAX: Final = 6
_LONG_TNT_MAX: Final = 47


def tsc(value: int) -> bytes:
    """Return the low 56 bits of the time-stamp counter."""
    return b"\x19" + (value & _TSC_MASK).to_bytes(7, "little")


def tma(ctc: int, fast_counter: int) -> bytes:
    """Return the crystal clock's low 16 bits, and TSC ticks since then (9 bits), at the TSC."""
    return b"\x02\x73" + ctc.to_bytes(2, "little") + b"\0" + fast_counter.to_bytes(2, "little")


def mtc(ctc: int) -> bytes:
    """Return eight bits of the crystal clock."""
    return bytes((0x59, ctc & 0xFF))


def cyc(cycles: int) -> bytes:
    """Return core cycles since the last CYC: 5 bits in the first byte, 7 in the others."""
    rest = cycles >> 5
    packet = [0b11 | (rest > 0) << 2 | (cycles & 0x1F) << 3]
    while rest:
        packet.append((rest & 0x7F) << 1 | (rest > 0x7F))
        rest >>= 7
    return bytes(packet)


def cbr(ratio: int) -> bytes:
    """Return the ratio of the core's clock to the bus."""
    return bytes((0x02, 0x03, ratio, 0))


def mode_exec(*, long_mode: bool = True) -> bytes:
    """Return the mode: 64-bit code, or 16-bit."""
    return bytes((0x99, _MODE_64 if long_mode else 0))


def mode_tsx(*, in_tx: bool = False, aborted: bool = False) -> bytes:
    """Return whether a transaction is active, as a packet."""
    return bytes((0x99, _MODE_TSX | int(in_tx) | int(aborted) << 1))


def pip(cr3: int) -> bytes:
    """Return the page table that is in use: CR3 bits 51 to 5."""
    return b"\x02\x43" + ((cr3 >> 5 & (1 << 47) - 1) << 1).to_bytes(6, "little")


def tnt(branches: str) -> bytes:
    """Return conditional branches, "T" for a taken and "N" for an untaken one."""
    bits = 1  # the stop bit, then the oldest branch first
    for branch in branches:
        bits = bits << 1 | {"T": 1, "N": 0}[branch]
    if 0 < len(branches) <= _SHORT_TNT_MAX:
        return bytes((bits << 1,))
    if not branches or len(branches) > _LONG_TNT_MAX:
        raise ValueError(f"{len(branches)} branches in one packet")
    return b"\x02\xa3" + bits.to_bytes(6, "little")


@dataclass(slots=True)
class PtTrace:
    """A trace that grows by packets, its addresses compressed against the last one.

    Attributes:
        data: the packets.
        tips: targets of the TIP packets, in order.
        compress: addresses are given by the least bytes, as processors do.
    """

    data: bytearray = field(default_factory=bytearray)
    tips: list[int] = field(default_factory=list)
    compress: bool = True
    _last_ip: int | None = None

    def add(self, *packets: bytes) -> PtTrace:
        """Add packets without an address."""
        for packet in packets:
            self.data += packet
        return self

    def psb(self, *, ip: int, time: int | None = None, ratio: int = 24) -> PtTrace:
        """Add a PSB with what follows it: a place where decoding can begin."""
        self._last_ip = None
        self.data += PSB
        if time is not None:
            self.data += tsc(time)
        self.data += cbr(ratio) + mode_exec()
        self._address(_FUP, ip)
        self.data += PSBEND
        return self

    def tip(self, ip: int) -> PtTrace:
        """Add an indirect branch to `ip`, or a return or an interrupt."""
        self.tips.append(ip)
        return self._address(_TIP, ip)

    def pge(self, ip: int) -> PtTrace:
        """Add the start of tracing at `ip`."""
        return self._address(_PGE, ip)

    def pgd(self, ip: int | None = None) -> PtTrace:
        """Add the end of tracing, with the address where it would continue."""
        return self._address(_PGD, ip)

    def fup(self, ip: int) -> PtTrace:
        """Add an asynchronous event at `ip`."""
        return self._address(_FUP, ip)

    def overflow(self, ip: int) -> PtTrace:
        """Add a loss of packets; tracing continues at `ip`."""
        self.data += OVF
        return self._address(_FUP, ip)

    def _address(self, opcode: int, ip: int | None) -> PtTrace:
        if ip is None:
            self.data.append(opcode)
            return self
        code, size = self._compression(ip)
        self.data.append(opcode | code << 5)
        self.data += (ip & (1 << 8 * size) - 1).to_bytes(size, "little")
        self._last_ip = ip
        return self

    def _compression(self, ip: int) -> tuple[int, int]:
        """Return the encoding of an address, and its number of bytes."""
        last = self._last_ip
        if self.compress and last is not None:
            for code, size in _UPDATES:
                if ip >> 8 * size == last >> 8 * size:
                    return code, size
        canonical = ip >> 8 * _SIGNED_BYTES - 1 in (0, (1 << 17) - 1)
        return (_SIGN_EXTENDED, _SIGNED_BYTES) if canonical else (_FULL, 8)
