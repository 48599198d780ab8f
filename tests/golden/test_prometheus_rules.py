# SPDX-License-Identifier: Apache-2.0
"""The rules for Prometheus and the dashboard, read by the stock promtool."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.support import manual, promtool, rule_cases
from tests.support.rule_cases import Expected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.promtool import Promtool
    from tests.support.rule_cases import Case

pytestmark = pytest.mark.slow

FOLDER: Final = manual.ROOT / "config/prometheus"
RULES: Final = FOLDER / "collectord.rules.yml"
DASHBOARD: Final = manual.ROOT / "config/grafana/collectord.json"
# Metrics of the stock set that the Prometheus client adds.
STOCK: Final = {"process_resident_memory_bytes"}
# Grafana's variables, as they are for one host.
VARIABLES: Final = {
    "$__rate_interval": "5m",
    "$instance": "host:9590",
    "$session": "exec",
}


@pytest.fixture(scope="module")
def tool() -> Promtool:
    """Return the promtool."""
    return promtool.fetched()


def alerts() -> list[str]:
    """Return the names of the alerts, in their order."""
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def recordings() -> set[str]:
    """Return the names of the recording rules."""
    return set(re.findall(r"^ +- record: (\S+)$", RULES.read_text(), re.MULTILINE))


def metrics() -> set[str]:
    """Return the names of the series that the manual's metrics have."""
    rows = re.findall(
        r"^\| `(collectord_\w+)` \| (\w+) \|",
        (manual.DOCS / "metrics.md").read_text(),
        re.MULTILINE,
    )
    parts = {"histogram": ("_bucket",), "summary": ("_count", "_sum")}
    return {name + part for name, kind in rows for part in parts.get(kind, ("",))}


def used(text: str) -> set[str]:
    """Return the names of metrics and of recordings that expressions use."""
    text = re.sub(r'"[^"]*"', "", text)
    text = re.sub(r"\b(?:by|on|ignoring|without|group_left)\s*\([^)]*\)", "", text)
    return set(re.findall(r"\b(?:\w+:)?(?:collectord_|process_)[\w:]+", text))


def annotated() -> dict[str, tuple[str, dict[str, str]]]:
    """Return the severity and the annotations of each alert."""
    found = {}
    for rule in re.split(r"^ +- alert: ", RULES.read_text(), flags=re.MULTILINE)[1:]:
        words = {
            key: value[1:-1] if value.startswith("'") else value
            for key, value in re.findall(
                r"^ +(severity|summary|description): (.*)$", rule, re.MULTILINE
            )
        }
        found[rule.split("\n", 1)[0]] = (words.pop("severity"), words)
    return found


def fired(alert: str, labels: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return an alert as the rules' tests expect it: with all labels and the texts of the rule."""
    severity, texts = annotated()[alert]
    every = rule_cases.HOST | labels
    return {
        "exp_labels": every | {"severity": severity},
        "exp_annotations": {
            name: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: every[found[1]], text)
            for name, text in texts.items()
        },
    }


def expectations(case: Case) -> list[dict[str, Any]]:
    """Return what the alerts must say in it: nothing at any time, where it expects none."""
    expected = case.expected or [
        Expected(minute, alert) for alert in alerts() for minute in range(5, 120, 5)
    ]
    return [
        {
            "eval_time": f"{each.minute}m",
            "alertname": each.alert,
            "exp_alerts": [fired(each.alert, labels) for labels in each.labels],
        }
        for each in expected
    ]


def a_test(name: str, series: dict[str, str], **expected: object) -> dict[str, Any]:
    """Return one test of the rules."""
    return {
        "name": name,
        "interval": rule_cases.INTERVAL,
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        **expected,
    }


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the panels that show something; rows do not."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel


def expressions() -> list[tuple[str, str]]:
    """Return the expressions of the dashboard with the titles of their panels."""
    return [
        (panel["title"], target["expr"])
        for panel in panels(json.loads(DASHBOARD.read_text()))
        for target in panel["targets"]
    ]


def test_the_rules_are_right(tool: Promtool) -> None:
    """Their syntax and their expressions; the example of a configuration finds them."""
    tool.run("check", "rules", "--lint=all", "--lint-fatal", RULES)
    tool.run("check", "config", FOLDER / "scrape.yml")


def test_the_rules_do_what_they_should(tool: Promtool, tmp_path: Path) -> None:
    """Alerts fire at what each is for, and neither on a quiet host nor for a flight recorder."""
    tests = [
        a_test(case.name, rule_cases.QUIET | case.changes, alert_rule_test=expectations(case))
        for case in rule_cases.CASES
    ]
    recorded = [
        {
            "expr": labels.split("{")[0],
            "eval_time": "1h",
            "exp_samples": [{"labels": labels, "value": value}],
        }
        for labels, value in rule_cases.RECORDINGS.items()
    ]
    tests.append(a_test("recordings", rule_cases.RECORDED, promql_expr_test=recorded))
    path = tmp_path / "tests.yml"  # JSON is YAML.
    path.write_text(
        json.dumps(
            {
                "rule_files": [str(RULES)],
                "evaluation_interval": rule_cases.INTERVAL,
                "group_eval_order": re.findall(
                    r"^  - name: (\S+)$", RULES.read_text(), re.MULTILINE
                ),
                "tests": tests,
            }
        )
    )
    tool.run("test", "rules", path)


def test_each_alert_is_tried() -> None:
    """A rule without a case that makes it fire could be silent for ever."""
    fire = {each.alert for case in rule_cases.CASES for each in case.expected if each.labels}
    assert fire == set(alerts())


def test_rules_name_what_is_exported() -> None:
    """A rule on a name that does not exist would be silent for ever."""
    lines = [line for line in RULES.read_text().splitlines() if not line.lstrip().startswith("#")]
    kept = [line for line in lines if not re.match(r" +(?:summary|description|- record):", line)]
    text = "\n".join(line for line in kept if "- name:" not in line)
    assert used(text) <= metrics() | recordings() | STOCK


def test_the_manual_explains_each_alert() -> None:
    """docs/metrics.md has a row for each alert, in their order, and no other."""
    page = (manual.DOCS / "metrics.md").read_text()
    assert re.findall(r"^\| `(Collectord\w+)` \|", page, re.MULTILINE) == alerts()


def test_the_dashboard_names_what_is_exported(tool: Promtool, tmp_path: Path) -> None:
    """Each expression is right, and on names that exist."""
    rules = ["groups:", "  - name: dashboard", "    rules:"]
    for number, (title, expression) in enumerate(expressions()):
        for variable, value in VARIABLES.items():
            expression = expression.replace(variable, value)  # noqa: PLW2901 - is the same one
        assert "$" not in expression, title
        assert used(expression), title
        assert used(expression) <= metrics() | recordings() | STOCK, title
        # JSON's strings are YAML's.
        rules += [f"      - record: panel:{number}", f"        expr: {json.dumps(expression)}"]
    path = tmp_path / "dashboard.yml"
    path.write_text("\n".join(rules) + "\n")
    tool.run("check", "rules", path)


def test_the_dashboards_panels() -> None:
    """Each has a number of its own, a title, a unit, and room that no other takes."""
    dashboard = json.loads(DASHBOARD.read_text())
    shown = list(panels(dashboard))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["description"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    taken = [
        (x, y)
        for panel in dashboard["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(taken)) == len(taken)
    assert max(x for x, _ in taken) < 24
