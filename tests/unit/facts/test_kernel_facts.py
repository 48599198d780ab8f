# SPDX-License-Identifier: Apache-2.0
"""Kernel facts and their JSON."""

from __future__ import annotations

import json

import pytest

from collectord.errors import ConfigError
from collectord.facts.kernel_facts import Check
from collectord.plan.facts_document import read_facts
from tests.support.hosts import host, unprivileged


def test_facts_survive_json() -> None:
    """Facts that doctor writes on one machine can be read by check on another."""
    facts = host(checks=(Check("tracefs", ok=False, detail="d", remedy="r"),))
    assert read_facts(facts.to_json()) == facts


def test_a_doctor_report_and_newer_facts_are_read() -> None:
    """Facts may lie under "facts", and may have fields that this version does not know."""
    document = json.loads(host().to_json())
    assert read_facts(json.dumps({"facts": document, "ok": True})) == host()
    assert read_facts(json.dumps(document | {"later": 1})) == host()


@pytest.mark.parametrize(
    ("data", "key", "words"),
    [
        (b"", "", "not JSON"),
        (b"\xff\xfe", "", "not JSON"),
        (b"[]", "", "not kernel facts"),
        (b"{}", "", "not kernel facts"),
        (host().to_json().replace(b'"page_size": 4096', b'"page_size": "x"'), "page_size", "int"),
        (
            json.dumps(json.loads(host().to_json()) | {"ftrace": {"clock_mono": 2}}),
            "ftrace",
            "bool",
        ),
        (host().to_json().replace(b'"version": 1', b'"version": 9'), "version", "version 9"),
        (host(cpus_online=()).to_json(), "", "no online CPU"),
        (host(page_size=0).to_json(), "", "no page size"),
    ],
)
def test_a_bad_file_is_a_config_error(data: bytes | str, key: str, words: str) -> None:
    """The error names the file, the field and how to make a good one."""
    with pytest.raises(ConfigError) as caught:
        read_facts(data, path="facts.json")
    assert caught.value.path == "facts.json"
    assert caught.value.key == key
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("level", "capability", "allowed"),
    [
        (-1, "", "open cpus kernel raw lock"),
        (0, "", "open cpus kernel"),
        (1, "", "open kernel"),
        (2, "", "open"),
        (3, "", ""),
        (2, "CAP_PERFMON", "open cpus kernel raw"),
        (3, "CAP_PERFMON", ""),
        (4, "CAP_SYS_ADMIN", "open cpus kernel raw"),
        (2, "CAP_IPC_LOCK", "open lock"),
    ],
)
def test_what_each_paranoid_level_allows(level: int, capability: str, allowed: str) -> None:
    """Levels as in the sysctl's documentation, Debian's closed one, and what lifts them."""
    facts = unprivileged(perf_event_paranoid=level, capabilities=frozenset({capability} - {""}))
    found = {
        "open": facts.may_open,
        "cpus": facts.may_observe_cpus,
        "kernel": facts.may_observe_kernel,
        "raw": facts.may_read_tracepoints,
        "lock": facts.locks_freely,
    }
    assert " ".join(name for name, yes in found.items() if yes) == allowed
