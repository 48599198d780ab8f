# SPDX-License-Identifier: Apache-2.0
"""The forms that a profile can be written in, by the end of the file's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.errors import UsageError
from collectord.reader.flame import firefox, folded, page, pprof, speedscope, svg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from collectord.reader.flame.picture import Picture


class Form(NamedTuple):
    """A form.

    Attributes:
        suffix: of the file's name.
        encode: yields the file, piece by piece.
        compares: it shows what is more and what is less.
    """

    suffix: str
    encode: Callable[[Picture], Iterator[str] | Iterator[bytes]]
    compares: bool = False


def _folded_lines(picture: Picture) -> Iterator[str]:
    for line in folded.lines(picture):
        yield f"{line}\n"


FOLDED: Final = Form(".folded", _folded_lines, compares=True)
FORMS: Final = (
    FOLDED,
    Form(".svg", svg.draw, compares=True),
    Form(".html", page.draw, compares=True),
    Form(".speedscope.json", speedscope.encode),
    Form(".pprof", pprof.encode),
    Form(".firefox.json", firefox.encode),
)


def form_of(name: str) -> Form:
    """Return the form of a file by its name. Raises UsageError."""
    for form in FORMS:
        if name.endswith(form.suffix):
            return form
    known = ", ".join(form.suffix for form in FORMS)
    raise UsageError(f"{name} does not say in which form", hint=f"end its name in one of {known}")
