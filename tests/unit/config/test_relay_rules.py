# SPDX-License-Identifier: Apache-2.0
"""Relay sources: what of their keys goes together, and the plan of each device and channel."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from collectord.codec.blktrace import ALL_ACTIONS, Action
from collectord.config.rules import check_config
from collectord.config.schema import Config
from collectord.config.schema_session import Mode, RelaySourceConfig, SessionConfig, TargetConfig
from collectord.daemon.coverage import Coverage
from collectord.errors import MissingFeature, MissingPrivilege, NoSuchTarget
from collectord.facts.kernel_facts import KernelFacts, RelayFacts
from collectord.model import Basis, ScopeKind
from collectord.plan.build import build
from collectord.plan.relay_source import RelayPlan
from collectord.text.units import Bytes
from tests.support.hosts import host

CHANNEL = "/sys/kernel/debug/dir/chan"
RELAY = RelayFacts(
    debugfs="/sys/kernel/debug",
    blktrace=True,
    devices=("/dev/vda", "/dev/vdb"),
    channels={CHANNEL: (0, 1, 2), "/sys/kernel/debug/one": (-1,)},
)


def facts(**relay: Any) -> KernelFacts:  # noqa: ANN401 - fields
    """Return a host with relay as RELAY, but for these fields."""
    return replace(host(), relay=replace(RELAY, **relay))


def config(source: RelaySourceConfig, *, mode: Mode = "stream", scope: Any = "system") -> Config:  # noqa: ANN401
    """Return a configuration with one session, `s`, with this source."""
    target = TargetConfig(scope=ScopeKind(scope), cpus=(0,) if scope == "cpus" else ())
    return Config(session=(SessionConfig(name="s", mode=mode, target=target, source=(source,)),))


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ({}, "device", "there is neither device nor path"),
        (
            {"device": ("/dev/vdb",), "path": (CHANNEL,)},
            "device",
            "there are both device and path",
        ),
        ({"device": ("vdb",)}, "device", "not an absolute path"),
        ({"device": ("/dev/vdb", "/dev/vdb")}, "device", "named twice"),
        ({"path": (CHANNEL,), "transport": "mmap"}, "transport", "cannot be read by mmap"),
        ({"path": (CHANNEL,), "transport": "splice"}, "transport", "no splice"),
        ({"path": (CHANNEL,), "actions": (Action.COMPLETE,)}, "actions", "only blktrace"),
        ({"path": (CHANNEL,), "pid": 1}, "pid", "only blktrace"),
        (
            {"device": ("/dev/vdb",), "start_lba": 9, "end_lba": 9},
            "end_lba",
            "not above start_lba",
        ),
        ({"device": ("/dev/vdb",), "pid": -1}, "pid", "below 0"),
        ({"device": ("/dev/vdb",), "subbuf": Bytes(64)}, "subbuf", "64 bytes"),
        ({"device": ("/dev/vdb",), "subbufs": 1}, "subbufs", "1 sub-buffers"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], key: str, said: str) -> None:
    """The problem is of the key that is wrong, in words."""
    problems = list(check_config(config(RelaySourceConfig(**keys))))
    assert [problem.key for problem in problems] == [f"session[0].source[0].{key}"]
    assert said in problems[0].message


def test_mmap_is_refused_with_the_reason() -> None:
    """The kernel does not export what one would have to know."""
    source = RelaySourceConfig(path=(CHANNEL,), transport="mmap")
    (problem,) = check_config(config(source))
    assert "produced and consumed are not exported to user space" in problem.hint


@pytest.mark.parametrize(
    ("options", "key"), [({"mode": "flight-recorder"}, "mode"), ({"scope": "cpus"}, "kind")]
)
def test_sessions_that_relay_cannot_have(options: dict[str, Any], key: str) -> None:
    """No flight recorder, and no part of the CPUs."""
    source = RelaySourceConfig(device=("/dev/vdb",))
    (problem,) = check_config(config(source, **options))
    assert problem.key == f"session[0].{key}"


def test_a_device_is_planned_as_blktrace_would() -> None:
    """Four sub-buffers of 512 KiB a CPU, all actions, exact."""
    (plan,) = build(config(RelaySourceConfig(device=("/dev/vdb",))), facts()).sessions
    relay = plan.payload_of(RelayPlan)
    assert (relay.subbuf_bytes, relay.subbufs) == (512 << 10, 4)
    assert relay.actions == ALL_ACTIONS
    assert (plan.basis, plan.sink.format) == (Basis.EXACT, "blktrace")
    assert [ring.cpu for ring in plan.rings] == list(facts().cpus_online)
    assert all(ring.data_bytes == 2 << 20 for ring in plan.rings)
    text = "\n".join(plan.describe())
    assert "blktrace /dev/vdb, actions all" in text
    assert "buffers 4 x 512KiB a CPU" in text
    json.dumps(plan.to_dict())


def test_each_device_is_a_plan_of_its_own() -> None:
    """Each plan has the settings for all devices."""
    source = RelaySourceConfig(
        device=("/dev/vda", "/dev/vdb"),
        actions=(Action.ISSUE, Action.COMPLETE),
        pid=7,
        end_lba=100,
    )
    plans = build(config(source), facts()).sessions
    assert [plan.payload_of(RelayPlan).device for plan in plans] == ["/dev/vda", "/dev/vdb"]
    assert [(plan.name, plan.source) for plan in plans] == [("s", "relay"), ("s", "relay-2")]
    assert [plan.kind for plan in plans] == ["relay", "relay"]
    assert {ring.source for ring in plans[1].rings} == {"relay-2"}
    (words,) = {line.strip() for plan in plans for line in plan.describe() if "vda, " in line}
    assert words == "blktrace /dev/vda, actions issue,complete, sectors 0 to 100, pid 7"


def test_a_channel_is_planned_as_it_is() -> None:
    """A ring for each file; nothing is known of what is lost."""
    (plan,) = build(config(RelaySourceConfig(path=(CHANNEL,))), facts()).sessions
    assert [ring.cpu for ring in plan.rings] == [0, 1, 2]
    assert (plan.basis, plan.sink.format) == (Basis.NONE, "relay")
    assert any("losses are unknown" in note for note in plan.notes)
    (plan,) = build(config(RelaySourceConfig(path=("/sys/kernel/debug/one",))), facts()).sessions
    assert [ring.cpu for ring in plan.rings] == [-1]
    assert any("one for all CPUs" in line for line in plan.describe())


def test_a_channel_covers_no_cpus() -> None:
    """Its files are its client's; those of a device are one for each CPU."""
    online = facts().cpus_online
    channel, device = RelaySourceConfig(path=(CHANNEL,)), RelaySourceConfig(device=("/dev/vdb",))
    for source, uncovered in ((channel, 0), (device, 1)):
        coverage = Coverage(build(config(source), facts()).sessions, online)
        assert coverage.covered == frozenset(online)
        coverage.change([*online, max(online) + 1])
        assert len(coverage.online - coverage.covered) == uncovered


@pytest.mark.parametrize(
    ("keys", "relay", "error", "said"),
    [
        ({"device": ("/dev/vdc",)}, {}, NoSuchTarget, "no block device /dev/vdc"),
        ({"device": ("/dev/vdb",)}, {"blktrace": False}, MissingFeature, "cannot trace /dev/vdb"),
        ({"path": ("/sys/kernel/debug/x",)}, {}, MissingFeature, "no relay channel"),
        (
            {"device": ("/dev/vdb",)},
            {"problem": "debugfs is not mounted", "remedy": "mount it"},
            MissingFeature,
            "debugfs is not mounted; mount it",
        ),
        (
            {"device": ("/dev/vdb",)},
            {"hidden": ("/dev/vda", "/dev/vdb")},
            MissingPrivilege,
            "/dev/vdb is hidden from this process; needs PrivateDevices=no",
        ),
        (
            {"device": ("/dev/disk/by-label/db",)},
            {"hidden": ("/dev/vda", "/dev/vdb")},
            NoSuchTarget,
            "no block device /dev/disk/by-label/db; devices are hidden .*PrivateDevices=no",
        ),
        (
            {"path": (CHANNEL,)},
            {"problem": "kernel lockdown closes relay files", "need": "no lockdown"},
            MissingPrivilege,
            "kernel lockdown closes relay files",
        ),
    ],
)
def test_what_the_host_lacks(
    keys: dict[str, Any], relay: dict[str, Any], error: type[Exception], said: str
) -> None:
    """An error that says so; with `when = "present"` a session that says so."""
    with pytest.raises(error, match=said):
        build(config(RelaySourceConfig(**keys)), facts(**relay))
    (plan,) = build(config(RelaySourceConfig(**keys, when="present")), facts(**relay)).sessions
    assert plan.rings == ()
    assert any(re.search(said, reason) for reason in plan.degraded)
    assert plan.may_fail
    assert plan.is_absent


def test_facts_without_relay_leave_it_open() -> None:
    """Facts of an older program do not say that relay is missing."""
    plain = replace(host(), relay=None)
    (plan,) = build(config(RelaySourceConfig(device=("/dev/sdz",))), plain).sessions
    assert len(plan.rings) == len(plain.cpus_online)
