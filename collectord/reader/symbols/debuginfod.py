# SPDX-License-Identifier: Apache-2.0
"""Debug files by build-id, from servers that a user names: they may be slow, hostile or gone.

The daemon never asks them, and nobody does without being told to.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Final

from collectord.codec import elf

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

FILE_MAX_BYTES: Final = 256 << 20
FILES_MAX: Final = 64  # that are asked for
FILE_S: Final = 30.0  # that a server has for one file
TOTAL_S: Final = 120.0
_PIECE_BYTES: Final = 1 << 20
_SCHEMES: Final = ("http://", "https://")
_SECURE: Final = "https:"
_NOT_FOUND: Final = 404
_AGENT: Final = "collectord"


class Debuginfod:
    """The debuginfod servers, asked one after the other.

    Args:
        urls: of the servers, as DEBUGINFOD_URLS has them; what is no URL of HTTP is passed over.

    Attributes:
        failures: why others did not, by URL; that a server does not have a file is no failure.
    """

    def __init__(self, urls: str) -> None:
        self.urls = [url.rstrip("/") for url in urls.split() if url.startswith(_SCHEMES)]
        self.failures: dict[str, str] = {}
        self._asked = 0
        self._left_s = TOTAL_S

    def fetch(self, build_id: bytes) -> bytes | None:
        """Return the debug file with a build-id; None if no server has it in time."""
        if self._asked >= FILES_MAX:
            return None
        self._asked += 1
        for server in self.urls:
            url = f"{server}/buildid/{build_id.hex()}/debuginfo"
            if self._left_s <= 0:
                self.failures[url] = f"servers were waited for {TOTAL_S:g} s"
                return None
            begin_s = time.monotonic()
            request = _Request(url, build_id)
            found = request.wait(min(FILE_S, self._left_s))
            self._left_s -= time.monotonic() - begin_s
            if found is not None:
                return found
            if request.failure:
                self.failures[url] = request.failure
        return None


class _Request:
    """A request in a thread: neither the look-up of a name nor a slow answer has an end."""

    def __init__(self, url: str, build_id: bytes) -> None:
        self._url = url
        self._build_id = build_id
        self._answered = threading.Event()
        self._is_given_up = False
        self._data: bytes | None = None
        self.failure = ""

    def wait(self, most_s: float) -> bytes | None:
        """Return what was fetched, None if nothing was in this time."""
        threading.Thread(target=self._run, args=(most_s,), daemon=True).start()
        if not self._answered.wait(most_s):
            self._is_given_up = True
            self.failure = _no_answer(most_s)
            return None
        return self._data

    def _run(self, most_s: float) -> None:
        failure, data = "", None
        try:
            data = self._read(most_s)
            if data is not None and _build_id_of(data) != self._build_id:
                failure, data = "the file has another build-id", None
        except urllib.error.HTTPError as error:
            failure = "" if error.code == _NOT_FOUND else f"status {error.code}"
            error.close()
        except (OSError, http.client.HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            is_late = isinstance(cause, TimeoutError)  # the socket's limit, at the same instant
            failure = _no_answer(most_s) if is_late else str(error) or type(error).__name__
        if not self._is_given_up:
            self._data, self.failure = data, failure
            self._answered.set()

    def _read(self, most_s: float) -> bytes | None:
        """Return the answer, None if nobody waits for it any more. Raises OSError and others."""
        request = urllib.request.Request(self._url, headers={"User-Agent": _AGENT})  # noqa: S310 - HTTP alone
        with _opener().open(request, timeout=most_s) as response:
            told_bytes = response.length
            pieces: list[bytes] = []
            size_bytes = 0
            while piece := response.read1(_PIECE_BYTES):
                size_bytes += len(piece)
                if size_bytes > FILE_MAX_BYTES:
                    raise OSError(f"the file has more than {FILE_MAX_BYTES} bytes")
                if self._is_given_up:
                    return None
                pieces.append(piece)
        if told_bytes is not None and size_bytes != told_bytes:
            raise OSError(f"it ended after {size_bytes} of {told_bytes} bytes")
        return b"".join(pieces)


def _no_answer(most_s: float) -> str:
    return f"no answer within {most_s:g} s"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a few redirections, but none to other protocols, and none from HTTPS to HTTP."""

    def redirect_request(  # noqa: PLR0917 - of the library
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        """Return the next request. Raises OSError."""
        is_downgrade = req.full_url.startswith(_SECURE) and not newurl.startswith(_SECURE)
        if is_downgrade or not newurl.startswith(_SCHEMES):
            fp.close()  # the library closes it only if this returns
            raise OSError("it redirects to another protocol")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> urllib.request.OpenerDirector:
    """Return what opens URLs of HTTP and of nothing else."""
    opener = urllib.request.OpenerDirector()
    handlers: Iterable[urllib.request.BaseHandler] = (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _Redirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    )
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _build_id_of(data: bytes) -> bytes:
    return elf.build_id(lambda size, offset: data[offset : offset + size])
