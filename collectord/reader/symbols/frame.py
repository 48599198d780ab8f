# SPDX-License-Identifier: Apache-2.0
"""A frame of a stack: a function, or what stands for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from collectord.model import KERNEL_MARK

if TYPE_CHECKING:
    from collections.abc import Iterable

UNKNOWN: Final = "[unknown]"


class Function(NamedTuple):
    """A function that was found at an address.

    Attributes:
        name: of it.
        offset: the bytes from its beginning to the address, None if nothing tells them.
        source: the file of its code, "" if nothing tells it.
        line: in the source, 0 if nothing tells it.
    """

    name: str
    offset: int | None = None
    source: str = ""
    line: int = 0


class Frame(NamedTuple):
    """A frame.

    Attributes:
        name: of the function, `[FILE+OFFSET]` if the file does not tell it, `[unknown]` if there
            is no file.
        module: the file or the kernel's module that it is in, "" if it is not known.
        is_kernel: it ran in the kernel.
    """

    name: str
    module: str = ""
    is_kernel: bool = False

    @property
    def text(self) -> str:
        """The name as folded stacks have it; a semicolon would end it."""
        return self.name.replace(";", ":") + (KERNEL_MARK if self.is_kernel else "")


class Place(NamedTuple):
    """A frame at a line of a program.

    Attributes:
        frame: of a stack.
        is_named: it is a function, and does not only stand for one.
        build_id: of the file, empty if it is not known.
        source: the file of its code, "" if nothing tells it.
        line: in the source, 0 if nothing tells it.
        is_inlined: its code is within that of the next frame.
    """

    frame: Frame
    is_named: bool = False
    build_id: bytes = b""
    source: str = ""
    line: int = 0
    is_inlined: bool = False


class Located(NamedTuple):
    """A place that an address of a call chain is at.

    Attributes:
        address: of the call chain.
        offset: the bytes from the beginning of the function, None if nothing tells them.
        place: of the address.
    """

    address: int
    offset: int | None
    place: Place

    @property
    def text(self) -> str:
        """FUNCTION+OFFSET (FILE), or what is known instead, such as the address alone."""
        frame = self.place.frame
        if not self.place.is_named:
            return frame.name if frame.module and not frame.is_kernel else f"{self.address:#x}"
        if self.place.is_inlined:
            return f"{frame.name} (inlined)"
        offset = "" if self.offset is None else f"+{self.offset:#x}"
        return f"{frame.name}{offset} ({frame.module})"


def frames_of(chain: Iterable[Located]) -> list[Frame]:
    """Return the frames of a call chain, the outermost first.

    Addresses at which nothing is mapped, one behind the other, are one unknown frame: without
    frame pointers a chain is made of whatever lies on the stack.
    """
    found: list[Frame] = []
    for _, _, place in chain:
        frame = place.frame
        if frame.name != UNKNOWN or not found or found[-1] != frame:
            found.append(frame)
    found.reverse()
    return found


def folded(frames: Iterable[Frame]) -> str:
    """Return frames as folded stacks have them."""
    return ";".join(frame.text for frame in frames)


def of_text(text: str) -> Frame:
    """Return the frame of a text of folded stacks."""
    if text.endswith(KERNEL_MARK):
        return Frame(text.removesuffix(KERNEL_MARK), is_kernel=True)
    return Frame(text)
