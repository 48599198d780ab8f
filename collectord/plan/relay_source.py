# SPDX-License-Identifier: Apache-2.0
"""Plans of relay sources: the trace of each device, and each channel to read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from collectord.codec.blktrace import ALL_ACTIONS, action_mask, action_names
from collectord.codec.file_formats import BLKTRACE, RELAY
from collectord.config.schema_session import RelaySourceConfig
from collectord.errors import MissingFeature, MissingPrivilege, NoSuchTarget
from collectord.facts.kernel_facts import SEES_DEVICES
from collectord.model import Basis, RingRole
from collectord.plan.payload import Payload
from collectord.plan.ring_plan import RingPlan
from collectord.plan.source_draft import SourceDraft
from collectord.text.foreign import plain
from collectord.text.nearest import did_you_mean
from collectord.text.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from collectord.config.schema import Config
    from collectord.facts.kernel_facts import KernelFacts, RelayFacts

SOURCE: Final = RelaySourceConfig.kind

# blktrace's own sizes: a pass that comes a second late meets 40,000 records.
_SUBBUF_BYTES: Final = 512 << 10
_SUBBUFS: Final = 4
# The most that one pass reads of a channel whose size is unknown.
CHANNEL_BYTES: Final = 64 << 20
# Relay file of a CPU; the current segment and the one that is prepared, two descriptors each.
_FILES_PER_RING: Final = 5
# The device, `dropped`, the note, and the memory beside it.
_FILES_OF_TRACE: Final = 4


@dataclass(frozen=True, slots=True)
class RelayPlan(Payload):
    """One device to trace, or one channel to read.

    Attributes:
        device: path of the block device, "" for a channel.
        channel: path of the channel without the CPU's number, or of its only file.
        actions: mask of the actions that blktrace records, 0 for a channel.
        start_lba, end_lba: sectors of the device; 0 and 0 for all.
        pid: process whose requests are traced, 0 for all.
        subbuf_bytes, subbufs: size and number of each CPU's sub-buffers; for a channel as its
            client made them, 0 where unknown.
        lasts: the trace goes on after the daemon's end, for the next one.
    """

    device: str = ""
    channel: str = ""
    actions: int = 0
    start_lba: int = 0
    end_lba: int = 0
    pid: int = 0
    subbuf_bytes: int = 0
    subbufs: int = 0
    lasts: bool = False

    fails_alone: ClassVar[bool] = True
    leaves_with_cpu: ClassVar[bool] = False

    @property
    def names(self) -> tuple[str, ...]:
        """See `Payload`."""
        return (self.name,)

    @property
    def is_exclusive(self) -> bool:
        """See `Payload`: a device has one trace, and what is read is gone."""
        return True

    @property
    def watches_cpus(self) -> bool:
        """See `Payload`: a channel has the files that its client made."""
        return self.is_blktrace

    @property
    def is_blktrace(self) -> bool:
        """Whether its records are known, and counted; otherwise there are only bytes."""
        return bool(self.device)

    @property
    def name(self) -> str:
        """The device, or the channel."""
        return self.device or self.channel

    @property
    def buffer_bytes(self) -> int:
        """Bytes of one CPU's buffer, 0 where unknown."""
        return self.subbuf_bytes * self.subbufs

    def describe(self) -> Iterator[str]:
        """Yield the lines that `check` prints."""
        if not self.is_blktrace:
            yield f"channel {self.channel}, bytes as its client wrote them"
            return
        words = "all" if self.actions == ALL_ACTIONS else ",".join(action_names(self.actions))
        limits = f", sectors {self.start_lba} to {self.end_lba}" if self.end_lba else ""
        limits += f", pid {self.pid}" if self.pid else ""
        yield f"blktrace {self.device}, actions {words}{limits}"
        yield f"buffers {self.subbufs} x {show_bytes(self.subbuf_bytes)} a CPU"
        if self.lasts:
            yield "records on while the daemon restarts"

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for `check --json`."""
        return {"relay": {**plain(self), "actions": list(action_names(self.actions))}}


def sources(config: Config) -> tuple[RelaySourceConfig, ...]:
    """Return all relay sources of a configuration."""
    return tuple(
        source
        for session in config.session
        for source in session.source
        if isinstance(source, RelaySourceConfig)
    )


def draft(source: RelaySourceConfig, facts: KernelFacts) -> Iterator[SourceDraft]:
    """Plan a relay source, one draft for each device or channel.

    Raises:
        NoSuchTarget: there is no such device, and it is not optional.
        MissingFeature, MissingPrivilege: the host lacks it, and it is not optional.
    """
    may_fail = source.when == "present"
    for device in source.device:
        plan = RelayPlan(
            device=device,
            actions=action_mask(source.actions),
            start_lba=source.start_lba,
            end_lba=source.end_lba,
            pid=source.pid,
            subbuf_bytes=source.subbuf or _SUBBUF_BYTES,
            subbufs=source.subbufs or _SUBBUFS,
        )
        yield _drafted(plan, facts, may_fail=may_fail)
    for path in source.path:
        plan = RelayPlan(
            channel=path,
            subbuf_bytes=source.subbuf,
            subbufs=source.subbufs,
        )
        yield _drafted(plan, facts, may_fail=may_fail)


def _drafted(plan: RelayPlan, facts: KernelFacts, *, may_fail: bool) -> SourceDraft:
    form = BLKTRACE if plan.is_blktrace else RELAY
    draft = SourceDraft(SOURCE, form, plan, may_fail=may_fail)
    try:
        cpus = _cpus(plan, facts)
    except (MissingFeature, MissingPrivilege, NoSuchTarget) as error:
        if not may_fail:
            raise
        return replace(draft, degraded=(f"{SOURCE}: {error}",))
    size = plan.buffer_bytes or CHANNEL_BYTES
    rings = tuple(
        RingPlan(
            source=SOURCE,
            role=RingRole.DATA,
            cpu=cpu,
            requested_bytes=size,
            data_bytes=size,
            watermark_bytes=plan.subbuf_bytes,
            events=(),
            own_basis=Basis.EXACT if plan.is_blktrace else Basis.NONE,
        )
        for cpu in cpus
    )
    notes = []
    if not plan.is_blktrace:
        notes.append("relay does not count for user space: losses are unknown")
        notes.append("only its client may write: overwritten data are stored unchanged")
    files = len(rings) * _FILES_PER_RING + (_FILES_OF_TRACE if plan.is_blktrace else 0)
    return replace(draft, rings=rings, files=files, notes=tuple(notes))


def _cpus(plan: RelayPlan, facts: KernelFacts) -> tuple[int, ...]:
    """Return CPUs that have a file each; -1 for the only file of a channel.

    Raises:
        MissingFeature, MissingPrivilege, NoSuchTarget: the channel is not available.
    """
    relay = facts.relay
    if relay is None:  # facts of a host that was not probed for it
        return facts.cpus_online
    if relay.need:
        raise MissingPrivilege(relay.problem, need=relay.need, hint=relay.remedy)
    if relay.problem:
        raise MissingFeature(relay.problem, feature="relay", hint=relay.remedy)
    if plan.is_blktrace:
        _check_device(plan.device, relay)
        return facts.cpus_online
    found = relay.channels.get(plan.channel)
    if found is None:
        near = did_you_mean(plan.channel, relay.channels)
        raise MissingFeature(
            f"no relay channel {plan.channel}",
            feature=f"relay channel {plan.channel}",
            hint=near
            or "its client creates it, perhaps later; `collectord list relay` shows some",
        )
    return found


def _check_device(device: str, relay: RelayFacts) -> None:
    if device in relay.hidden:
        raise MissingPrivilege(f"{device} is hidden from this process", need=SEES_DEVICES)
    if device not in relay.devices:
        hint = did_you_mean(device, relay.devices)
        if relay.hidden:  # with all names that udev has given them
            hint = f"devices are hidden from this process, which needs {SEES_DEVICES}"
        raise NoSuchTarget(
            f"no block device {device}",
            hint=hint or "`collectord list blktrace` shows those that can be traced",
        )
    if not relay.blktrace:
        raise MissingFeature(
            f"cannot trace {device}",
            feature="blktrace",
            hint="a kernel with CONFIG_BLK_DEV_IO_TRACE",
        )
