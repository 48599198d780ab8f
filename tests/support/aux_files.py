# SPDX-License-Identifier: Apache-2.0
"""perf.data files with AUX traces, built by the codec as a segment would be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from collectord.codec.aux_info import encode_info
from collectord.codec.aux_pmu import AuxPmuFacts, EtmFacts, TimeConversion
from collectord.codec.aux_record import auxtrace_index
from collectord.codec.perf_attr import (
    CLOCK_MONOTONIC,
    EventType,
    PerfEventAttr,
    RecordType,
    SampleType,
    SoftwareId,
)
from collectord.codec.perf_data import AttrSection, build_head, build_tail
from collectord.codec.perf_features import Features
from collectord.codec.perf_record import SampleId, frame
from collectord.codec.perf_sideband import Comm, Mmap2, encode
from tests.support import aux_records
from tests.support.aux_pieces import encode_piece
from tests.support.samples import Sample, encode_sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.aux_records import AuxRecord

_IDS: Final = SampleType.IDENTIFIER | SampleType.TID | SampleType.TIME | SampleType.CPU
PMU_TYPE: Final = 9
PID: Final = 4321
CPUS: Final = (0, 1)
# The TSC counts ns of perf's clock.
PLAIN_CLOCK: Final = TimeConversion(shift=0, mult=1, zero=0, zero_known=True)
PT: Final = AuxPmuFacts("intel_pt", caps={"max_nonturbo_ratio": 24, "event_trace": 0})
SPE: Final = AuxPmuFacts("arm_spe")
_ETMV4: Final = {
    "trcidr0": 0x28000EA1,
    "trcidr1": 0x4100F424,
    "trcidr2": 0x20001088,
    "trcidr8": 0,
    "trcauthstatus": 0xCC,
}
ETMV4: Final = AuxPmuFacts("cs_etm", etms=tuple(EtmFacts(cpu, "etmv4", _ETMV4) for cpu in CPUS))
ETE: Final = AuxPmuFacts(
    "cs_etm",
    etms=tuple(EtmFacts(cpu, "ete", _ETMV4 | {"trcdevarch": 0x47705A13}, 1) for cpu in CPUS),
)
ETMV3: Final = AuxPmuFacts(
    "cs_etm",
    etms=tuple(
        EtmFacts(cpu, "etmv3", {"etmccer": 0x34C01AC2, "etmidr": 0x411CF312}) for cpu in CPUS
    ),
)
# The formats of arch/x86/events/intel/pt.c.
PT_FORMATS: Final = {
    "pt": "config:0",
    "cyc": "config:1",
    "mtc": "config:9",
    "tsc": "config:10",
    "noretcomp": "config:11",
    "branch": "config:13",
    "mtc_period": "config:14-17",
}
PT_CONFIG: Final = 1 << 0 | 1 << 10 | 1 << 13


@dataclass(frozen=True, slots=True)
class AuxFile:
    """The contents of a file.

    Attributes:
        aux: the event whose trace it is; None for a PMU that perf has no decoder for.
        filter_text: address filter of the trace.
    """

    aux: AuxPmuFacts | None = PT
    config: int = PT_CONFIG
    clock: TimeConversion = PLAIN_CLOCK
    filter_text: str = ""

    @property
    def hidden(self) -> bool:
        """Whether perf skips the trace."""
        return self.aux is None

    @property
    def owner(self) -> PerfEventAttr:
        """The AUX event, not on CLOCK_MONOTONIC: decoders convert to perf's own clock."""
        return PerfEventAttr(
            type=PMU_TYPE,
            config=self.config,
            sample_period=1,
            sample_type=_IDS | SampleType.IP,
            sample_id_all=True,
            use_clockid=self.hidden,
            clockid=CLOCK_MONOTONIC if self.hidden else 0,
        )

    @property
    def clocked(self) -> PerfEventAttr:
        """An ordinary event in the same rings."""
        return replace(self.owner, type=EventType.SOFTWARE, config=SoftwareId.CPU_CLOCK)

    @property
    def dummy(self) -> PerfEventAttr:
        """The sideband event."""
        return replace(
            self.owner,
            type=EventType.SOFTWARE,
            config=SoftwareId.DUMMY,
            **dict.fromkeys(("mmap", "mmap2", "comm", "task", "context_switch"), True),
        )

    def info(self) -> bytes:
        """Return the record that precedes the trace."""
        if self.aux is None:
            return b""
        return encode_info(
            self.aux,
            pmu_type=PMU_TYPE,
            formats=PT_FORMATS if self.aux.decoder == "intel_pt" else {},
            config=self.config,
            clock=self.clock,
            cpus=CPUS,
            per_cpu=True,
            snapshot=False,
            filter_text=self.filter_text,
        )

    def side(self, record: AuxRecord, time_ns: int, cpu: int = 0) -> bytes:
        """Return a record of the AUX event, or a switch of the sideband event."""
        switch = isinstance(record, aux_records.SwitchCpuWide)
        event_id, attr = (21 + cpu, self.dummy) if switch else (1 + cpu, self.owner)
        sample_id = SampleId(pid=PID, tid=PID, time_ns=time_ns, id=event_id, cpu=cpu)
        return aux_records.encode(record, attr, sample_id)

    def sample(self, time_ns: int, cpu: int = 0) -> bytes:
        """Return a sample of the ordinary event."""
        sample = Sample(
            id=11 + cpu, ip=0x400100, pid=PID, tid=PID, time_ns=time_ns, cpu=cpu, misc=2
        )
        return encode_sample(sample, self.clocked)

    def piece(self, payload: bytes, offset: int = 0, cpu: int = 0) -> bytes:
        """Return a piece of the trace."""
        return encode_piece(
            payload, offset=offset, cpu=cpu, idx=cpu, reference=1_000, hidden=self.hidden
        )

    def opening(self) -> bytes:
        """Return a task that runs on all CPUs, traced."""
        ids = SampleId(pid=PID, tid=PID, id=21)
        place = (0x400000, 0x100000, 0, 5, 2)
        parts = [
            encode(Comm(PID, PID, b"worker"), self.dummy, ids),
            encode(Mmap2(PID, PID, *place, b"/nonexistent/worker"), self.dummy, ids),
        ]
        for cpu in CPUS:
            parts.append(self.side(aux_records.ItraceStart(PID, PID), 10, cpu))
            parts.append(self.side(aux_records.SwitchCpuWide(0, 0), 11, cpu))
        return b"".join(parts)

    def build(self, records: Sequence[bytes]) -> bytes:
        """Return the file, sealed, with an index of the AUXTRACE records."""
        head = build_head(
            (
                AttrSection(self.owner, (1, 2), "traced//"),
                AttrSection(self.clocked, (11, 12), "cpu-clock"),
                AttrSection(self.dummy, (21, 22), "dummy:u"),
            ),
            features=Features(hostname="h", osrelease="6.12.0", nrcpus=(2, 2), arch="x86_64"),
            first_records=self.info(),
        )
        data = b"".join((self.opening(), *records, frame(RecordType.FINISHED_ROUND, 0, b"")))
        index = tuple(head.write_offset + at for at in auxtrace_index(data))
        size = len(head.first_records) + len(data)
        tail = build_tail(head, size, Features(auxtrace_index=index))
        return tail.header + head.image[len(tail.header) :] + data + tail.tail
