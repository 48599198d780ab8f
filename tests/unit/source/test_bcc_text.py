# SPDX-License-Identifier: Apache-2.0
"""The text that BCC compiles: the header in its place, and every line under its own number."""

from __future__ import annotations

import re
from typing import Final

import pytest

from collectord.source import bcc_text

HEADER: Final = "header line 1\nheader line 2\n"
LINE: Final = re.compile(r'#line (\d+) "([^"]+)"')


def numbered(text: str) -> dict[tuple[str, int], str]:
    """Return each line with the compiler's number for it."""
    found: dict[tuple[str, int], str] = {}
    file, number = "", 0
    for line in text.splitlines():
        directive = LINE.fullmatch(line)
        if directive:
            number, file = int(directive[1]), directive[2]
            continue
        key = (file, number)
        # A line that was cut in two has its second part in the columns that it had.
        first = found.get(key, "")
        assert not first or line[: len(first)].strip() == "", (key, line)
        found[key] = first + line[len(first) :]
        number += 1
    return found


def check(source: str, **parts: str) -> str:
    """Prepare a text, and find every line of it under its number."""
    text = bcc_text.prepare("prog", source, header=HEADER, **parts)
    lines = numbered(text)
    for number, line in enumerate(source.splitlines(), 1):
        if '"collectord.h"' not in line:
            assert lines.get(("prog.bpf.c", number), "").rstrip() == line.rstrip(), number
    return text


def test_the_header_stands_where_it_is_included() -> None:
    """Once; a second inclusion is nothing, and one that a comment hides is none."""
    text = check('a\n  #  include "collectord.h" // why\nb\n#include "collectord.h"\nc')
    assert numbered(text)["collectord.h", 2] == "header line 2"
    assert text.count("header line 1") == 1
    assert text.index("header line 2") < text.index("\nb\n")
    hidden = check('a\n/* x\n#include "collectord.h" /*\n*/\n// #include "collectord.h"\nb\n')
    assert "header line" not in hidden
    assert 'include "collectord.h"' in hidden
    assert "header line" in check('char *c = "/*";\n#include "collectord.h"\nb /* */\n')
    assert "header line" not in check('#include <collectord.h>\n#include "other.h"\n')


def test_parameters_come_first() -> None:
    """They have no lines of the program."""
    text = check("a\n", defines="#define PARAMETER_A 1\n#define PARAMETER_B 2\n")
    assert numbered(text)["prog.toml", 2] == "#define PARAMETER_B 2"
    assert text.index("PARAMETER_B") < text.index("\na\n")


@pytest.mark.parametrize(
    "source",
    [
        "x\nTRACEPOINT_PROBE(sched, sched_switch)\n{\n  y1;\n}\ny2;\n",
        "x\nTRACEPOINT_PROBE(sched, sched_switch) {\n  y1;\n}\n",
        "x\nTRACEPOINT_PROBE(a,\n\tb)\n{\n  y1;\n}\n",
        "\tTRACEPOINT_PROBE(a, b) { y1; }\ny2",
        "TRACEPOINT_PROBE(a, b) { y1; } y2;\nTRACEPOINT_PROBE(c, d)\n{\n\n  y3;}",
        "TRACEPOINT_PROBE(a, b) /* { */ { y1; }\nTRACEPOINT_PROBE(c, d)\n{\n}\ny2;\n",
        "int f(void) { char *s = \"}\", c = '}'; if (s) { y1; } y2;\n y3; }\ny4;\n",
        "#define M { {\nint f(void)\n{ // }\n  y1;\n}\ny2;\n",
        "int f(void)\r\n{\r\n  y1;\r\n}\r\ny2;\r\n",
    ],
)
def test_lines_are_told_anew_in_each_function(source: str) -> None:
    """BCC puts lines before it and behind its brace; what follows keeps lines and columns."""
    text = check(source)
    head = re.compile(r"(?ms)^([^\n]*\b(?:TRACEPOINT_PROBE|int f)\b.*?\))(.*?)(\{[ \t\r]*$|\{ )")
    changed = head.sub(r"struct {\n};\nattribute\n\1\2{\nargument\n\3", text)
    assert changed != text
    assert len(LINE.findall(text)) == 1 + len(head.findall(source))
    lines = numbered_loosely(changed)
    for number, line in enumerate(source.splitlines(), 1):
        for word in re.findall(r"y\d", line):
            assert any(word in part for part in lines["prog.bpf.c", number]), (word, number)


def numbered_loosely(text: str) -> dict[tuple[str, int], list[str]]:
    """Return all pieces that a compiler would call by a line's number, without blanks around."""
    found: dict[tuple[str, int], list[str]] = {}
    file, number = "", 0
    for line in text.splitlines():
        directive = LINE.fullmatch(line)
        if directive:
            number, file = int(directive[1]), directive[2]
            continue
        found.setdefault((file, number), []).append(line.strip())
        number += 1
    return found


@pytest.mark.parametrize(
    "source",
    [
        "#define P(x) TRACEPOINT_PROBE(a, x) { x; }\nx\n",
        "#define P(x) \\\n  TRACEPOINT_PROBE(a, x) \\\n  { }\nx\n",
        "/* f() { } */\nx\n",
        "// f() { }\nx\n",
        "M({ x; })\ny\n",
        "char *s = \"{ }\", c = '{';\n",
        "/* never closed { }\n",
    ],
)
def test_other_text_is_left_alone(source: str) -> None:
    """A directive would break a macro or its arguments; comments and literals have no blocks."""
    assert check(source) == f'#line 1 "prog.bpf.c"\n{source}'
