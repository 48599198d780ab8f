# SPDX-License-Identifier: Apache-2.0
"""The number of drain threads, their CPUs, their rings, and their priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from collectord._native._core import Core
from collectord.config.scheduling import SHARDS_MAX, DrainCpus, DrainPriority
from collectord.config.schema import Config, DaemonConfig
from collectord.errors import PlanError
from collectord.plan.build import build
from collectord.plan.drain_threads import DrainThread
from tests.support.hosts import host

if TYPE_CHECKING:
    from collectord.facts.kernel_facts import KernelFacts
    from collectord.plan.drain_threads import DrainThreads

NODES = ((0, 1, 4, 5), (2, 3, 6, 7))
TWO_NODES = host(cpus_online=tuple(range(8)), numa_nodes=NODES)
# The limits of a user who may do nothing, and of root.
NOBODY: dict[str, Any] = {"nice_min": 0, "realtime_max": 0}
ROOT: dict[str, Any] = {"nice_min": -20, "realtime_max": 99}


def drain(facts: KernelFacts, **daemon: Any) -> DrainThreads:  # noqa: ANN401
    """Return the threads of a `[daemon]` on a host."""
    return build(Config(daemon=DaemonConfig(**daemon)), facts).core.drain


def test_one_node_confines_nobody() -> None:
    """The threads share the CPUs' rings, and run wherever the process may."""
    found = drain(host(numa_nodes=((0, 1, 2, 3),)), shards=2)
    assert found.threads == (DrainThread((0, 2)), DrainThread((1, 3)))
    assert [found.shard_of(cpu) for cpu in (0, 1, 2, 3)] == [0, 1, 0, 1]


def test_rings_of_no_one_cpu_are_anybodys() -> None:
    """The same holds for rings of a CPU that came later."""
    found = drain(host(), shards=2)
    assert found.shard_of(-1) is None
    assert found.shard_of(100) is None


def test_each_node_has_its_thread() -> None:
    """It drains the rings of the node's CPUs, and runs there."""
    found = drain(TWO_NODES)
    assert found.threads == tuple(DrainThread(cpus, cpus) for cpus in NODES)


@pytest.mark.parametrize("shards", range(1, 12))
def test_each_cpu_is_drained_once(shards: int) -> None:
    """However many threads there are, and threads that drain only one node run on it."""
    found = drain(TWO_NODES, shards=shards).threads
    assert len(found) == shards
    assert sorted(cpu for one in found for cpu in one.drains) == list(range(8))
    assert all(set(one.drains) <= set(one.cpus) for one in found)


def test_more_threads_than_nodes_share_a_node() -> None:
    """The third thread is the first node's second one."""
    found = drain(TWO_NODES, shards=3).threads
    assert found == (
        DrainThread((0, 4), NODES[0]),
        DrainThread(NODES[1], NODES[1]),
        DrainThread((1, 5), NODES[0]),
    )


def test_fewer_threads_than_nodes_have_several() -> None:
    """A single thread for both nodes runs on both."""
    (found,) = drain(TWO_NODES, shards=1).threads
    assert found == DrainThread(tuple(range(8)), tuple(range(8)))


def test_cpus_that_are_named() -> None:
    """Each thread takes the named CPUs of its node, or all named ones if there are none."""
    both = drain(TWO_NODES, drain_cpus=DrainCpus((1, 2, 3))).threads
    assert [one.cpus for one in both] == [(1,), (2, 3)]
    far = drain(TWO_NODES, drain_cpus=DrainCpus((0,))).threads
    assert [one.cpus for one in far] == [(0,), (0,)]
    assert [one.drains for one in far] == list(NODES)
    assert drain(host(), drain_cpus=DrainCpus((1,))).threads[0].cpus == (1,)


def test_a_cpu_that_is_not_there() -> None:
    """It is an error of the plan, which says what there is."""
    with pytest.raises(PlanError, match="CPU 7 is not online") as caught:
        drain(host(), drain_cpus=DrainCpus((1, 7)))
    assert "0-3" in str(caught.value)


@pytest.mark.parametrize(
    ("facts", "asked", "given", "lacks"),
    [
        (ROOT, "auto", "fifo:1", ""),
        (NOBODY, "auto", "normal", ""),
        ({"nice_min": 0, "realtime_max": 1}, "auto", "fifo:1", ""),
        ({"nice_min": -20}, "auto", "normal", ""),
        # Somebody who gave the process a nice value, or a real-time priority, has chosen.
        ({**ROOT, "nice": 19}, "auto", "normal", ""),
        ({**ROOT, "realtime": True}, "auto", "normal", ""),
        (ROOT, "normal", "normal", ""),
        (ROOT, "fifo:10", "fifo:10", ""),
        ({"nice_min": 0, "realtime_max": 10}, "fifo:10", "fifo:10", ""),
        ({"nice_min": 0, "realtime_max": 9}, "fifo:10", "fifo:9", "LimitRTPRIO=10"),
        ({"nice_min": -20, "realtime_max": 0}, "fifo:10", "normal", "LimitRTPRIO=10"),
        (ROOT, "nice:-20", "nice:-20", ""),
        (NOBODY, "nice:5", "nice:5", ""),
        (NOBODY, "nice:-1", "normal", "LimitNICE=-1"),
        ({"nice_min": -5}, "nice:-15", "nice:-5", "LimitNICE=-15"),
        ({"nice": 10, "nice_min": 10}, "nice:5", "normal", "LimitNICE=5"),
    ],
)
def test_priorities(facts: dict[str, Any], asked: str, given: str, lacks: str) -> None:
    """A permitted priority is set; a refused one is reported if it was requested by name."""
    config = Config(daemon=DaemonConfig(drain_priority=DrainPriority.parse(asked)))
    plan = build(config, host(**facts))
    assert str(plan.core.drain.priority) == given
    shortfall = plan.core.drain.shortfall
    assert (shortfall is not None) == bool(lacks)
    if shortfall is not None:
        assert (str(shortfall.asked), shortfall.given) == (asked, plan.core.drain.priority)
        assert lacks in shortfall.need
        assert shortfall.words() in plan.warnings
        assert shortfall.words() == plan.to_dict()["core"]["drain"]["lacks"]


def test_a_plan_tells_its_threads() -> None:
    """They are in the text of `check` and in its JSON."""
    config = Config(
        daemon=DaemonConfig(
            shards=2, drain_priority=DrainPriority.parse("fifo:7"), drain_cpus=DrainCpus((2, 3))
        )
    )
    plan = build(config, host(**ROOT))
    assert plan.describe()[0].endswith("drain threads: 2 at fifo:7 on CPUs 2-3")
    assert plan.to_dict()["core"]["drain"] == {
        "priority": "fifo:7",
        "lacks": "",
        "threads": [{"drains": "0,2", "cpus": "2-3"}, {"drains": "1,3", "cpus": "2-3"}],
    }


def test_no_more_threads_are_planned_than_the_core_has_room_for() -> None:
    """However large the host: the core takes as many, and no more."""
    with pytest.raises(OSError, match="Invalid argument"):
        Core(shards=SHARDS_MAX + 1)
    large = host(cpus_online=tuple(range(2048)), numa_nodes=())
    assert len(drain(large).threads) == SHARDS_MAX
    assert Core(shards=SHARDS_MAX).drain_tids() == ()
