# SPDX-License-Identifier: Apache-2.0
"""The tokens of a text of C: strings, numbers, characters, names and signs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from collectord.errors import CodecError

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<string>\"(?:\\.|[^\"\\])*\")|(?P<number>0[xX][0-9a-fA-F]+|\d+)(?P<suffix>[uUlL]*)"
    r"|(?P<char>'(?:\\.|[^'\\])')|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>->|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^!~?:(){}\[\],.]))",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_END: Final = "end"


def refusal(what: str) -> CodecError:
    """Return the error of a format that cannot be carried out."""
    return CodecError(f"print fmt: {what}", offset=0, reason="format")


class Token(NamedTuple):
    """A token. The kind is the name of its group in the expression above, or "end"."""

    kind: str
    text: str
    suffix: str = ""  # of a number


class Tokens:
    """The tokens of a text, and a position in it.

    Attributes:
        at: the number of the next one; what was read may be read again.

    Raises:
        CodecError: the text has something that is no token.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[Token] = []
        self.at = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                if text[at:].strip():
                    raise refusal(f"at {text[at : at + 20]!r}")
                break
            kind = "number" if found.lastgroup == "suffix" else found.lastgroup or ""
            self._tokens.append(Token(kind, found[kind], found["suffix"] or ""))
            at = found.end()
        self._tokens.append(Token(_END, ""))

    @property
    def next(self) -> Token:
        """The next token; the last one is the end."""
        return self._tokens[self.at]

    @property
    def sign(self) -> str:
        """The sign that is next, "" if something else is."""
        return self.next.text if self.next.kind == "sign" else ""

    def take(self) -> Token:
        """Read a token."""
        token = self.next
        self.at += 1
        return token

    def takes(self, sign: str) -> bool:
        """Read a sign if it is next; return whether it was."""
        is_next = self.sign == sign
        self.at += is_next
        return is_next

    def expect(self, sign: str) -> None:
        """Read a sign. Raises CodecError."""
        if not self.takes(sign):
            raise refusal(f"no {sign!r} at {self.next.text!r}")

    def name(self) -> str:
        """Read a name. Raises CodecError."""
        if self.next.kind != "name":
            raise refusal(f"no name at {self.next.text!r}")
        return self.take().text

    def string(self) -> str:
        """Read a string, or several that are one. Raises CodecError."""
        if self.next.kind != "string":
            raise refusal(f"no text at {self.next.text!r}")
        made = ""
        while self.next.kind == "string":
            made += unescaped(self.take().text[1:-1])
        return made

    def end(self) -> None:
        """See that nothing is left. Raises CodecError."""
        if self.next.kind != _END:
            raise refusal(f"at {self.next.text!r}")

    def skip_to(self, sign: str, brackets: tuple[str, str] = ("({[", ")}]")) -> None:
        """Skip to a sign that is in no brackets of these kinds, or to the end."""
        opening, closing = map(frozenset, brackets)
        depth = 0
        while self.next.kind != _END and (depth or self.sign != sign):
            depth += (self.sign in opening) - (self.sign in closing)
            self.at += 1

    def words_in_brackets(self) -> list[str]:
        """Return what is between a bracket, which is next, and the one that closes it.

        Nothing is read.

        Returns:
            [] if there is anything but names and stars.
        """
        words: list[str] = []
        for token in self._tokens[self.at + 1 :]:
            if token.kind != "name" and token.text != "*":
                return words if token.text == ")" else []
            words.append(token.text)
        return []


def unescaped(text: str) -> str:
    """Return a text with what its escapes stand for."""

    def one(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] == "x" and len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(one, text)
