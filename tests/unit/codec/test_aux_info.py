# SPDX-License-Identifier: Apache-2.0
"""AUXTRACE_INFO by its words; that perf takes it as meant is in the golden lane."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from collectord.codec.aux_info import Switches, encode_info
from collectord.codec.aux_pmu import AuxPmuFacts, EtmFacts, TimeConversion, decoder_of
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import iter_records
from collectord.errors import CodecError
from tests.support.aux_files import ETE, ETMV3, ETMV4, PT, PT_FORMATS, SPE

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOCK: Final = TimeConversion(shift=10, mult=400, zero=77, zero_known=True)
NO_CLOCK: Final = TimeConversion()


def words(
    aux: AuxPmuFacts,
    cpus: Sequence[int] = (0, 1),
    clock: TimeConversion = NO_CLOCK,
    **values: Any,  # noqa: ANN401 - of encode_info
) -> tuple[int, list[int]]:
    """Return the decoder's number, and the values."""
    plain: dict[str, Any] = {
        "pmu_type": 9,
        "formats": PT_FORMATS,
        "config": 0,
        "per_cpu": True,
        "snapshot": False,
    }
    raw = encode_info(aux, clock=clock, cpus=cpus, **(plain | values))
    *_, header = iter_records(raw)
    assert header.type == RecordType.AUXTRACE_INFO
    body = raw[header.offset + 8 :]
    kind, reserved = struct.unpack_from("<II", body)
    assert not reserved
    return kind, list(struct.unpack(f"<{len(body) // 8 - 1}Q", body[8:]))


def test_intel_pt() -> None:
    """The values stand in the order of perf's enum, with the ratio of clocks where it is known."""
    facts = replace(
        PT,
        caps={
            "max_nonturbo_ratio": 24,
            "tsc_art_numerator": 176,
            "tsc_art_denominator": 2,
            "event_trace": 1,
        },
    )
    kind, values = words(
        facts, clock=CLOCK, snapshot=True, per_cpu=False, switches=Switches.SWITCH
    )
    assert kind == 1
    assert values == [
        *(9, 10, 400, 77, 1, 1 << 10, 1 << 11, 2, 1, 0, 1 << 9, 0xF << 14),
        *(176, 2, 1 << 1, 24, 0, 1),
    ]


def test_intel_pt_of_an_older_kernel() -> None:
    """Terms that the PMU lacks have no bits, and nothing is made up for what is unknown."""
    kind, values = words(AuxPmuFacts("intel_pt"), formats={"tsc": "config:10", "x": "config1:0-3"})
    assert kind == 1
    assert values == [9, 0, 0, 0, 0, 1 << 10, 0, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("text", ["filter 0x1000/0x20@/bin/a", "x" * 8, "x" * 7])
def test_filter(text: str) -> None:
    """The length leaves out the NUL and the padding that follow."""
    _, values = words(PT, filter_text=text)
    assert values[16] == len(text)
    raw = struct.pack(f"<{len(values) - 18}Q", *values[17:-1])
    assert raw == text.encode() + bytes(8 - len(text) % 8)


def test_coresight() -> None:
    """Each CPU that is traced has a block, which counts what the CPU's kind of unit has."""
    kind, values = words(ETMV4, config=1 << 12 | 1 << 14 | 1 << 15 | 1 << 28 | 1 << 29)
    trcconfigr = 1 << 4 | 1 << 6 | 1 << 7 | 1 << 15 | 1 << 11 | 1 << 12
    registers = (0x28000EA1, 0x4100F424, 0x20001088, 0, 0xCC)
    minus_one = (1 << 64) - 1
    assert kind == 3
    assert values == [
        *(1, 9 << 32 | 2, 0),
        *(0x4040404040404040, 0, 8, trcconfigr, 0x10, *registers, minus_one),
        *(0x4040404040404040, 1, 8, trcconfigr, 0x12, *registers, minus_one),
    ]
    _, values = words(ETE, cpus=(1,), snapshot=True)
    assert values[:6] == [1, 9 << 32 | 1, 1, 0x5050505050505050, 1, 9]
    assert values[-2:] == [0x47705A13, 1]
    _, values = words(ETMV3, cpus=(0,), config=0x1000)
    assert values[3:] == [0x3030303030303030, 0, 4, 0x1000, 0x10, 0x34C01AC2, 0x411CF312]


def test_coresight_without_trace_units() -> None:
    """A header that describes no CPU would be refused by every reader."""
    with pytest.raises(CodecError, match="no trace unit"):
        words(ETMV4, cpus=(7,))


def test_coresight_of_a_very_large_host() -> None:
    """Too much data for one record is an error, not a wrong header."""
    many = AuxPmuFacts("cs_etm", etms=tuple(EtmFacts(cpu, "etmv4") for cpu in range(800)))
    with pytest.raises(CodecError, match="record_size"):
        words(many, cpus=range(800))


def test_spe() -> None:
    """Type and kind of rings; the clock stands in a record of its own ahead."""
    assert words(SPE, per_cpu=False) == (4, [9, 0])
    raw = encode_info(
        SPE, pmu_type=9, formats={}, config=0, clock=CLOCK, cpus=(), per_cpu=True, snapshot=False
    )
    conversion, _ = iter_records(raw)
    assert conversion.type == RecordType.TIME_CONV
    assert struct.unpack_from("<QQQQQBB6x", raw, 8) == (10, 400, 77, 0, 0, 1, 0)


@pytest.mark.parametrize(
    ("pmu", "decoder"),
    [
        ("intel_pt", "intel_pt"),
        ("cs_etm", "cs_etm"),
        ("arm_spe_0", "arm_spe"),
        ("arm_spe_12", "arm_spe"),
        ("arm_spe_x", None),
        ("arm_spe", None),
        ("intel_bts", None),
        ("test_pmu", None),
    ],
)
def test_decoder_by_name(pmu: str, decoder: str | None) -> None:
    """Perf's decoders go by the PMU's name; others' traces are hidden from it."""
    assert decoder_of(pmu) == decoder
