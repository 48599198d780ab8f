# SPDX-License-Identifier: Apache-2.0
"""AUXTRACE_INFO: the facts about a recording that perf's decoders of AUX traces need.

    header, u32 type of the decoder, u32 0, u64 values[]

One comes before all AUXTRACE records of a file; perf rejects a file that lacks it. Each decoder
defines its own values: enums of tools/perf/util/intel-pt.h, cs-etm.h and arm-spe.h. Those of perf
6.1 are written, which 6.12 reads as well.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_pmu import ARM_SPE, CS_ETM, INTEL_PT
from collectord.codec.perf_attr import RecordType
from collectord.codec.perf_record import frame
from collectord.errors import CodecError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from collectord.codec.aux_pmu import AuxPmuFacts, EtmFacts, TimeConversion

_U64_MASK: Final = (1 << 64) - 1
_HEAD: Final = struct.Struct("<II")
# time_shift, time_mult, time_zero, time_cycles, time_mask, two flags; up to time_zero before 5.10.
_TIME_CONV: Final = struct.Struct("<QQQQQBB6x")
_TYPES: Final = {INTEL_PT: 1, CS_ETM: 3, ARM_SPE: 4}
# The cs_etm version: 1 counts its parameters, and is the last that perf 6.1 accepts. With 2 older
# readers only refuse the file: AUX_OUTPUT_HW_ID records give trace ids to a perf that knows them.
_CS_VERSION: Final = 1
_CS_MAGIC: Final = {
    "etmv3": 0x3030303030303030,
    "etmv4": 0x4040404040404040,
    "ete": 0x5050505050505050,
}
_ETMV3_REGISTERS: Final = ("etmccer", "etmidr")
_ETMV4_REGISTERS: Final = ("trcidr0", "trcidr1", "trcidr2", "trcidr8", "trcauthstatus")
# Options of a cs_etm event (ETM_OPT_*, include/linux/coresight-pmu.h), laid out as in ETMCR of
# ETMv3, and the bits of TRCCONFIGR that the driver of ETMv4 makes of them.
_TRCCONFIGR_BITS: Final = {
    12: 1 << 4,  # cycacc
    14: 1 << 6,  # contextid of EL1
    15: 1 << 7 | 1 << 15,  # contextid of EL2: VMID and VMIDOPT
    28: 1 << 11,  # timestamp
    29: 1 << 12,  # retstack
}
# CPU n traces with this + 2n; kernels that choose the ids themselves take this one if it is free.
_LEGACY_TRACE_ID: Final = 0x10
_TRACE_ID_MASK: Final = 0x7F


class Switches(IntEnum):
    """The source of context switches for Intel PT's decoder, by the decoder's numbers."""

    NONE = 0
    SCHED_SWITCH = 1
    SWITCH = 2
    SWITCH_CPU_WIDE = 3


def encode_info(
    aux: AuxPmuFacts,
    *,
    pmu_type: int,
    formats: Mapping[str, str],
    config: int,
    clock: TimeConversion,
    cpus: Sequence[int],
    per_cpu: bool,
    snapshot: bool,
    switches: Switches = Switches.SWITCH_CPU_WIDE,
    filter_text: str = "",
) -> bytes:
    """Return the records that precede a segment's AUXTRACE records.

    They are TIME_CONV, if the counter's time is known, and AUXTRACE_INFO. CoreSight and SPE
    decoders take the clock from the former, Intel PT's from the latter.

    Args:
        aux: the host's facts about the PMU.
        pmu_type: type of the AUX event.
        formats: of the PMU's terms, to find their bits in `config`.
        config: of the AUX event.
        clock: from the control page of one of its rings.
        cpus: CPUs that the events are opened on; for CoreSight, the trace units to describe.
        per_cpu: rings belong to CPUs, not to threads.
        snapshot: AUX areas are overwritten.
        switches: where the decoder finds context switches.
        filter_text: address filter of the trace, in the kernel's syntax.

    Raises:
        CodecError: CoreSight's trace units do not fit one record, or none is known.
    """
    if aux.decoder == INTEL_PT:
        values = _intel_pt(aux, pmu_type, formats, clock)
        values[_PT_SWITCHES] = switches
        values[_PT_SNAPSHOT] = snapshot
        values[_PT_PER_CPU] = per_cpu
        values += _filter(filter_text)
        values.append(aux.caps.get("event_trace", 0))
    elif aux.decoder == CS_ETM:
        values = _cs_etm(aux, pmu_type, config, cpus, snapshot=snapshot)
    else:
        values = [pmu_type, int(per_cpu)]
    body = _HEAD.pack(_TYPES[aux.decoder], 0)
    body += b"".join((value & _U64_MASK).to_bytes(8, "little") for value in values)
    return _time_conv(clock) + frame(RecordType.AUXTRACE_INFO, 0, body)


def _time_conv(clock: TimeConversion) -> bytes:
    if not clock.zero_known:
        return b""
    numbers = (clock.shift, clock.mult, clock.zero, clock.cycles, clock.mask)
    return frame(RecordType.TIME_CONV, 0, _TIME_CONV.pack(*numbers, True, clock.short))  # noqa: FBT003


_PT_SWITCHES: Final = 7
_PT_SNAPSHOT: Final = 8
_PT_PER_CPU: Final = 9


def _intel_pt(
    aux: AuxPmuFacts, pmu_type: int, formats: Mapping[str, str], clock: TimeConversion
) -> list[int]:
    """Return the values up to the ratio of clocks; the caller sets three of them.

    Without the counter's time the decoder has no clock for the trace, and cannot order it.
    """
    return [
        pmu_type,
        clock.shift,
        clock.mult,
        clock.zero,
        int(clock.zero_known),
        _bits(formats, "tsc"),
        _bits(formats, "noretcomp"),
        0,
        0,
        0,
        _bits(formats, "mtc"),
        _bits(formats, "mtc_period"),
        aux.caps.get("tsc_art_numerator", 0),
        aux.caps.get("tsc_art_denominator", 0),
        _bits(formats, "cyc"),
        aux.caps.get("max_nonturbo_ratio", 0),
    ]


def _bits(formats: Mapping[str, str], term: str) -> int:
    """Return the bits of `config` that a term has, 0 for a term that the PMU lacks."""
    word, _, ranges = formats.get(term, "").partition(":")
    bits = 0
    for first, _, last in (item.partition("-") for item in ranges.split(",")):
        if word == "config" and first.isdecimal() and (last or first).isdecimal():
            bits |= (2 << int(last or first)) - (1 << int(first))
    return bits


def _filter(text: str) -> list[int]:
    """Return the length of a text, and the text in words, with a NUL at its end."""
    raw = text.encode(errors="surrogateescape")
    if not raw:
        return [0]
    padded = raw + bytes(8 - len(raw) % 8)
    return [len(raw), *struct.unpack(f"<{len(padded) // 8}Q", padded)]


def _cs_etm(
    aux: AuxPmuFacts, pmu_type: int, config: int, cpus: Sequence[int], *, snapshot: bool
) -> list[int]:
    """Return version, PMU and number of trace units, mode, and a block for each unit."""
    etms = [etm for etm in aux.etms if etm.cpu in cpus]
    if not etms:
        raise CodecError("no trace unit is known", offset=0, reason="cs_etm")
    values = [_CS_VERSION, pmu_type << 32 | len(etms), int(snapshot)]
    for etm in etms:
        parameters = _etm_parameters(etm, config)
        values += [_CS_MAGIC[etm.kind], etm.cpu, len(parameters), *parameters]
    return values


def _etm_parameters(etm: EtmFacts, config: int) -> list[int]:
    registers = etm.registers
    trace_id = _LEGACY_TRACE_ID + 2 * etm.cpu & _TRACE_ID_MASK
    if etm.kind == "etmv3":
        return [config, trace_id, *(registers.get(name, 0) for name in _ETMV3_REGISTERS)]
    trcconfigr = sum(bits for option, bits in _TRCCONFIGR_BITS.items() if config >> option & 1)
    values = [trcconfigr, trace_id, *(registers.get(name, 0) for name in _ETMV4_REGISTERS)]
    if etm.kind == "ete":
        values.append(registers.get("trcdevarch", 0))
    return [*values, etm.ts_source]
