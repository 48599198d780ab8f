# SPDX-License-Identifier: Apache-2.0
"""Manifests of BPF programs: what is read, and how a wrong one is told."""

from __future__ import annotations

from typing import Any, Final

import pytest

from collectord.errors import ConfigError
from collectord.programs.manifest_text import load_manifest
from collectord.programs.parameter import ParameterConfig, read_value, show_value
from collectord.programs.program_manifest import BpfManifest
from tests.support.bpf_pairs import MANIFEST

PARAMETER: Final = '[parameter.x]\ntype = "{0}"\nhelp = "h"\n{1}\n'
ATTACH: Final = '[[attach]]\nkind = "{0}"\nfunction = "f"\nplace = "{1}"\n{2}\n'
METRIC: Final = '[[metric]]\nname = "{0}"\ntype = "{1}"\nhelp = "h"\ntable = "t"\n{2}\n'
ANSWER: Final = '[[answer]]\nkind = "{0}"\ntable = "t"\n{1}\n'
HEAD: Final = 'summary = "s"\nlicense = "GPL-2.0-only"\n'


def read(text: str) -> BpfManifest:
    """Return a manifest."""
    return load_manifest(text.encode(), "/p/x.toml")


def refused(text: str) -> ConfigError:
    """Return the error of a manifest: one line that names the file."""
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.path == "/p/x.toml"
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_whole_manifest() -> None:
    """Every part arrives as a value, defaults included."""
    manifest = read(MANIFEST)
    assert manifest.tracepoints == ("sched:sched_switch",)
    parameter = manifest.parameter["pid"]
    assert (parameter.type, parameter.default, parameter.min, parameter.max) == ("int", 0, 0, None)
    assert manifest.event is not None
    assert [(one.field, one.show) for one in manifest.event.columns] == [
        ("pid", "decimal"),
        ("comm", "text"),
    ]
    (metric,) = manifest.metric
    assert (metric.scale, metric.slot, metric.step, metric.labels[0].max) == ("log2", "slot", 1, 8)
    (answer,) = manifest.answer
    assert answer.by[0].title == "DEVICE"


def test_the_least_manifest() -> None:
    """A summary and a licence are enough."""
    assert read(HEAD) == BpfManifest(summary="s", license="GPL-2.0-only")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GPL", "GPL"),
        ("GPL v2", "GPL v2"),
        ("Dual BSD/GPL", "Dual BSD/GPL"),
        ("GPL-2.0-or-later", "GPL"),
        ("GPL-2.0-only OR BSD-2-Clause", "GPL"),
        ("(MIT OR GPL-2.0)", "GPL"),
    ],
)
def test_licences_that_the_kernel_takes(text: str, words: str) -> None:
    """The kernel is told its own words."""
    assert read(f'summary = "s"\nlicense = "{text}"\n').kernel_license == words


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("", "", "missing required field summary"),
        ('summary = "s"\n', "", "missing required field license"),
        (HEAD.replace("GPL-2.0-only", "Apache-2.0"), "license", "Dual MIT/GPL"),
        (
            HEAD.replace("GPL-2.0-only", "GPL-3.0-only"),
            "license",
            "not let 'GPL-3.0-only' programs",
        ),
        (HEAD.replace('"s"', '"s\\nt"'), "summary", "one line"),
        (HEAD + "sumary = 1", "sumary", 'did you mean "summary"'),
        (HEAD + "[event]\ncolumn = []", "event.column", 'did you mean "columns"'),
        (HEAD + "x =", "", "not TOML"),
        (HEAD + 'tracepoints = ["sched"]', "tracepoints[0]", "SYSTEM:NAME"),
        (HEAD + 'tracepoints = ["a:*"]', "tracepoints[0]", "not a tracepoint"),
        (HEAD + 'tracepoints = ["a:b", "a:b"]', "tracepoints[1]", "listed twice"),
        (HEAD + 'raw_tracepoints = ["a:b"]', "raw_tracepoints[0]", "not a tracepoint"),
        (HEAD + 'requires = ["kprobe"]', "requires[0]", 'did you mean "kprobes"'),
        (HEAD + "[event]\ncolumns = []", "event.columns", "a column is needed"),
    ],
)
def test_a_wrong_head(text: str, key: str, words: str) -> None:
    """The error has the key and what would do."""
    error = refused(text)
    assert error.key == key
    assert words in str(error)


@pytest.mark.parametrize(
    ("kind", "rest", "key", "words"),
    [
        ("int", 'default = "1"', "default", "is a string"),
        ("int", "default = true", "default", "true is not of type int"),
        ("int", "default = 18446744073709551616", "default", "64 bits"),
        ("int", "default = 0\nmin = 1", "default", "0 is below 1"),
        ("int", "default = 9\nmax = 8", "default", "9 is above 8"),
        ("int", "", "", "missing required field default"),
        ("int", "default = 1\nmaximum = 1", "maximum", 'did you mean "max"'),
        ("int", 'default = 1\nmin = "1"', "min", "expected an integer"),
        ("bool", 'default = "true"', "default", "is a string"),
        ("bool", "default = 1", "default", "neither true nor false"),
        ("bool", "default = true\nmin = 1", "min", "cannot be combined with type 'bool'"),
        ("duration", "default = 10", "default", "ns, us, ms"),
        ("duration", 'default = "10"', "default", "has no unit"),
        ("duration", 'default = "10ms"\nunit = "ms"', "unit", "cannot be combined with"),
        ("bytes", 'default = "10ms"', "default", "unit 'ms' is unknown"),
        ("bytes", 'default = "8KiB"\nmax = 4096', "default", "above 4KiB"),
        ("string", "default = 1", "default", "not a string"),
        ("string", 'default = "abc"\nmax_bytes = 2', "default", "3 bytes are more than 2"),
        ("string", 'default = "a"\nmax_bytes = 9999', "max_bytes", "1 to 4096"),
        ("string", 'default = "a\\u0000"', "default", "NUL"),
        ("string", 'default = "a"\nchoices = ["b", "c"]', "default", "'a' is none of b, c"),
        ("string", 'default = "a"\nchoices = ["a", "a"]', "choices[1]", "a is listed twice"),
        ("int", 'default = 1\nchoices = ["1"]', "choices", "cannot be combined with type 'int'"),
        ("float", "default = 1", "type", "allowed: int, bool"),
    ],
)
def test_wrong_parameters(kind: str, rest: str, key: str, words: str) -> None:
    """The parameter is named, although its name is free."""
    error = refused(HEAD + PARAMETER.format(kind, rest))
    assert error.key == (f"parameter.x.{key}" if key else "parameter.x")
    assert words in str(error)


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("int", "-7", -7),
        ("bool", "true", 1),
        ("duration", '"10ms"', 10_000_000),
        ("bytes", '"8KiB"', 8192),
        ("string", '"10ms"', "10ms"),
    ],
)
def test_a_default_is_a_value(kind: str, default: str, value: int | str) -> None:
    """It is read with the manifest, and nothing behind that parses it again."""
    manifest = read(HEAD + PARAMETER.format(kind, f"default = {default}"))
    assert manifest.parameter["x"].default == value


def test_a_parameter_is_a_c_name() -> None:
    """It becomes part of a macro's name."""
    text = (HEAD + PARAMETER.format("int", "default = 1")).replace(".x]", '."x) 1"]')
    assert "small letters" in str(refused(text))


@pytest.mark.parametrize(
    ("kind", "given", "value", "shown"),
    [
        ("int", "-7", -7, "-7"),
        ("int", "0x1F", 31, "31"),
        ("int", "18446744073709551615", (1 << 64) - 1, "18446744073709551615"),
        ("bool", "yes", 1, "true"),
        ("bool", "0", 0, "false"),
        ("bool", True, 1, "true"),
        ("duration", "10ms", 10_000_000, "10ms"),
        ("duration", "0", 0, "0ns"),
        ("bytes", "64KiB", 65536, "64KiB"),
        ("string", 'a "b"', 'a "b"', 'a "b"'),
    ],
)
def test_values(kind: Any, given: str | bool, value: int | str, shown: str) -> None:  # noqa: ANN401
    """Numbers arrive in ns, bytes or as they are, and are shown as they are given."""
    parameter = ParameterConfig(type=kind, help="h", default=0)
    assert read_value(parameter, given) == value
    assert show_value(parameter, value) == shown


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("tracepoint", "sched:sched_switch"),
        ("raw_tracepoint", "sys_enter"),
        ("kprobe", "do_sys_openat2"),
        ("kretprobe", "foo.isra.0"),
        ("uprobe", "/usr/lib/libc.so.6:malloc"),
        ("uretprobe", "libc:malloc"),
        ("usdt", "/usr/bin/python3:python:function__entry"),
    ],
)
def test_places(kind: str, place: str) -> None:
    """Every kind of attachment has its own way to say where."""
    (attach,) = read(HEAD + ATTACH.format(kind, place, "")).attach
    assert (attach.kind, attach.place) == (kind, place)


@pytest.mark.parametrize(
    ("kind", "place", "rest", "key", "words"),
    [
        ("tracepoint", "sched_switch", "", "place", "sched:sched_switch"),
        ("raw_tracepoint", "a:b", "", "place", "sys_enter"),
        ("kprobe", "a b", "", "place", "not a place for a kprobe"),
        ("uprobe", "malloc", "", "place", "libc:malloc"),
        ("uprobe", "../x:malloc", "", "place", "not a place"),
        ("usdt", "/a:b", "", "place", "provider:probe"),
        ("fentry", "vfs_open", "", "function", "kfunc__vfs_open"),
        ("fexit", "vfs_open", "", "function", "kretfunc__vfs_open"),
        ("perf_event", "cpu-clok", "frequency = 9", "place", 'did you mean "cpu-clock"'),
        ("perf_event", "1:x", "frequency = 9", "place", "TYPE:CONFIG"),
        ("perf_event", "cpu-clock", "", "frequency", "either frequency or period"),
        ("perf_event", "1:0", "frequency = 9\nperiod = 9", "frequency", "either"),
        ("perf_event", "1:0x0", "period = 0", "frequency", "1 or more"),
        ("kprobe", "f", "period = 9", "period", "only a perf_event"),
        ("lsm", "f", "", "kind", "allowed: tracepoint"),
    ],
)
def test_wrong_places(kind: str, place: str, rest: str, key: str, words: str) -> None:
    """The kernel is not needed to see that they lead nowhere."""
    error = refused(HEAD + ATTACH.format(kind, place, rest))
    assert error.key == f"attach[0].{key}"
    assert words in str(error)


CHOICES: Final = PARAMETER.format("string", 'default = "a"\nchoices = ["a", "b"]')
CHOOSING: Final = '[[attach]]\nkind = "{0}"\nfunction = "f"\nparameter = "{1}"\n{2}\n'


def test_a_parameter_chooses_a_place() -> None:
    """With its value the attachment is as if the place stood there."""
    places = 'places = { a = "a_open", b = "b_open" }'
    manifest = read(HEAD + CHOICES + CHOOSING.format("kprobe", "x", places))
    (attach,) = manifest.attach
    (same,) = read(HEAD + ATTACH.format("kprobe", "b_open", "")).attach
    assert attach.chosen({"x": "b"}) == same
    assert same.chosen({"x": "a"}) == same


@pytest.mark.parametrize(
    ("kind", "parameter", "rest", "key", "words"),
    [
        ("kprobe", "x", 'places = { a = "a_open" }', "places", "there is none for x = 'b'"),
        (
            "kprobe",
            "x",
            'places = { a = "f", b = "f", bb = "f" }',
            "places.bb",
            'did you mean "b"',
        ),
        (
            "kretprobe",
            "x",
            'places = { a = "f", b = "a b" }',
            "places.b",
            "not a place for a kret",
        ),
        (
            "kprobe",
            "y",
            'places = { a = "f" }',
            "parameter",
            "'y' is not a parameter with choices",
        ),
        ("kprobe", "", 'places = { a = "f" }', "parameter", "'' is not a parameter with choices"),
        ("kprobe", "x", 'place = "f"\nplaces = { a = "f", b = "f" }', "place", "be combined with"),
        ("tracepoint", "x", 'places = { a = "a:b", b = "a:b" }', "parameter", "of a tracepoint"),
        ("fentry", "x", 'places = { a = "f", b = "f" }', "parameter", "those of raw_tracepoint"),
        ("perf_event", "x", "period = 9", "parameter", "of a perf_event"),
    ],
)
def test_wrong_choices_of_a_place(
    kind: str, parameter: str, rest: str, key: str, words: str
) -> None:
    """Each value of the parameter has a place, and nothing else has one."""
    error = refused(HEAD + CHOICES + CHOOSING.format(kind, parameter, rest))
    assert error.key == f"attach[0].{key}"
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "kind", "rest", "key", "words"),
    [
        ("a-b", "gauge", "", "name", "small letters"),
        ("collectord_x", "gauge", "", "name", "is put before it"),
        ("x", "counter", "", "name", "ends in _total"),
        ("x_total", "counter", 'unit = "ns"', "name", "ends in _seconds_total"),
        ("x", "gauge", 'unit = "bytes"', "name", "ends in _bytes"),
        ("x", "histogram", "", "scale", "log2, linear"),
        ("x", "histogram", 'scale = "log"', "scale", "allowed: , log2, linear"),
        ("x", "histogram", 'scale = "linear"\nstep = 0', "step", "1 or more"),
        ("x", "histogram", 'scale = "log2"\nstep = 2', "step", "only a linear"),
        ("x", "gauge", 'scale = "log2"', "scale", "only a histogram"),
        ("x", "gauge", 'slot = "s"', "slot", "only a histogram"),
        ("x", "gauge", 'sum_table = "s"', "sum_table", "only a histogram"),
        ("x", "gauge", 'unit = "s"', "unit", "allowed: ns, us, ms"),
        ("x", "gauge", 'value = "a-b"', "value", "not a field"),
        ("x", "gauge", 'labels = [{ name = "pid", field = "p" }]', "labels[0].name", "no bound"),
        ("x", "gauge", 'labels = [{ name = "le", field = "p" }]', "labels[0].name", "taken"),
        (
            "x",
            "gauge",
            'labels = [{ name = "a", field = "p", max = 0 }]',
            "labels[0].max",
            "1 to 1024",
        ),
        (
            "x",
            "gauge",
            'labels = [{ name = "a", field = "p", max = 99 }, { name = "b", field = "q" }]',
            "labels",
            "up to 1700 series",
        ),
        (
            "x",
            "gauge",
            'labels = [{ name = "a", field = "p", show = "devise" }]',
            "labels[0].show",
            'did you mean "device"',
        ),
        (
            "x",
            "histogram",
            'scale = "log2"\nlabels = [{ name = "a", field = "p" }]',
            "slot",
            "which field",
        ),
    ],
)
def test_wrong_metrics(name: str, kind: str, rest: str, key: str, words: str) -> None:
    """Names as Prometheus wants them, bounded labels, and nothing that does not go together."""
    error = refused(HEAD + METRIC.format(name, kind, rest))
    assert error.key == f"metric[0].{key}"
    assert words in str(error)


def test_metrics_have_names_of_their_own() -> None:
    """A second one of a name is refused."""
    error = refused(HEAD + 2 * METRIC.format("x", "gauge", ""))
    assert error.key == "metric[1].name"


@pytest.mark.parametrize(
    ("kind", "rest", "key", "words"),
    [
        ("histogram", "", "scale", "a histogram needs this key"),
        (
            "histogram",
            'scale = "log2"\nby = [{ field = "a", title = "A" }]',
            "slot",
            "which field",
        ),
        ("histogram", 'scale = "log2"\nlimit = 3', "limit", "only a table"),
        ("table", "", "columns", "a column is needed"),
        ("table", 'columns = [{ field = "a", title = "" }]', "columns[0].title", "empty"),
        ("table", 'columns = [{ field = "", title = "A" }]', "columns[0].field", "not a field"),
        ("table", 'columns = [{ field = "a", title = "A" }]\nlimit = -1', "limit", "0 for all"),
        ("folded", 'kernel_stack = "k"', "stacks", "not a valid map name"),
        ("folded", 'stacks = "s"', "kernel_stack", "needs kernel_stack or user_stack"),
        ("folded", 'stacks = "s"\nuser_stack = "u"', "pid", "user stacks need"),
        (
            "folded",
            'stacks = "s"\nkernel_stack = "k"\nframes_first = ["a b"]',
            "frames_first[0]",
            "not a field",
        ),
        ("graph", "", "kind", "allowed: histogram"),
    ],
)
def test_wrong_answers(kind: str, rest: str, key: str, words: str) -> None:
    """An answer has what its kind needs, and nothing of another's."""
    error = refused(HEAD + ANSWER.format(kind, rest))
    assert error.key == f"answer[0].{key}"
    assert words in str(error)


def test_filters_are_parameters() -> None:
    """They stand before the program's own, with types, limits and help of their own."""
    manifest = read(HEAD + 'filters = ["pid", "path"]\n' + PARAMETER.format("int", "default = 1"))
    assert list(manifest.parameter) == ["pid", "path", "x"]
    path = manifest.parameter["path"]
    assert (path.type, path.default, path.max_bytes) == ("string", "", 128)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('filters = ["pdi"]', "filters[0]", 'did you mean "pid"'),
        ('filters = ["pid", "pid"]', "filters[1]", "listed twice"),
        ('members = ["sock"]', "members[0]", "STRUCT.MEMBER"),
        ('members = ["a.b", "a.b"]', "members[1]", "listed twice"),
    ],
)
def test_wrong_filters_and_members(text: str, key: str, words: str) -> None:
    """The error names the entry."""
    error = refused(HEAD + text)
    assert error.key == key
    assert words in str(error)


def test_a_filter_and_a_parameter_of_one_name() -> None:
    """It would not be clear which one the program compares with."""
    parameter = PARAMETER.format("int", "default = 1").replace("parameter.x", "parameter.pid")
    error = refused(f'{HEAD}filters = ["pid"]\n{parameter}')
    assert error.key == "parameter.pid"
    assert "filter already" in str(error)
