"""Trying again: which failures of a remote store may pass, and how long they are waited for."""

from __future__ import annotations

import asyncio
import errno
import math
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from overlapiter.origins.outages import Outages

ResultT = TypeVar("ResultT")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 8.0

#: HTTP: request timeout, too early, too many requests; beside these, errors of the server (5xx),
#: except those that say that it never can.
_PASSING = {408, 425, 429}
_LASTING = {501, 505}
#: What S3 answers a question about an object, without a reason, where a token has expired, or the
#: bucket is in another region.
_WITHOUT_REASON = {301, 400}
_STATUS = re.compile("[1-5][0-9][0-9]")
#: By their names, so that no client library is imported for it: those of botocore and aiohttp.
_BROKEN_CONNECTIONS = {
    "HTTPClientError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "IncompleteReadError",
    "ResponseParserError",
}
#: Those of them that never came about.
_NO_CONNECTION = {
    "ClientConnectorError",
    "ConnectTimeoutError",
    "ConnectionTimeoutError",
    "EndpointConnectionError",
}
_NO_SUCH_HOST = {socket.EAI_NONAME, socket.EAI_NODATA}


def call_again(
    action: Callable[[], ResultT], patience_seconds: float, outages: Outages, name: str
) -> ResultT:
    """Return what ``action`` returns, calling it again while it fails in a way that may pass.

    Blocks, between the calls for twice as long each time, less a random part, so that those whom
    a store turned away together do not come back together.

    It is called for the last time so many seconds after its first failure. What failed before
    counts: of the same file, and of any other since the store last answered.

    Raises:
        Exception: What ``action`` raised last.
    """
    pause_seconds = _FIRST_PAUSE_SECONDS
    deadline = math.inf
    while True:
        try:
            result = action()
        except Exception as error:
            if not may_pass(error):
                outages.end(name)
                raise
            now = time.monotonic()
            deadline = min(deadline, outages.note(name, now) + patience_seconds)
            if now >= deadline:
                raise
        else:
            outages.end(name)
            return result
        time.sleep(min(random.uniform(0.5, 1) * pause_seconds, deadline - now))
        pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)


def may_pass(error: BaseException) -> bool:
    """Return whether a failure is of a kind that passes by itself.

    Decided by what the server answered, where it did: libraries translate that to errors that
    tell less (fsspec reports an HTTP status of 503 as a file that is not found).
    """
    chain = list(causes(error))
    if any(getattr(cause, "errno", None) in _NO_SUCH_HOST for cause in chain):
        return False  # a name that does not exist now will not do so in a moment
    for cause in chain:
        if _is_broken_connection(cause):
            return True
        status = _own_status(cause)
        if status is not None:
            return status in _PASSING or (status >= 500 and status not in _LASTING)
    return False


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status with which a server refused; None if it did not answer."""
    return next((s for s in map(_own_status, causes(error)) if s is not None), None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Give an error, what caused it, what caused that, and so on."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _own_status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    elif type(error).__name__ == "HttpError":  # gcsfs
        status = getattr(error, "code", None)
    else:  # aiohttp
        status = getattr(error, "status", None)
    return int(status) if _STATUS.fullmatch(str(status)) else None


def trouble_words(error: BaseException) -> str:
    """Return what is the matter with a store that cannot be read, and what to look at."""
    status = status_of(error)
    chain = list(causes(error))
    if status in _WITHOUT_REASON:
        return (
            f"the server answers {status}; see whether the credentials have expired, and whether "
            f"endpoint and region are right"
        )
    if status is not None:
        return f"the server answers {status}"
    if any(getattr(cause, "errno", None) == errno.ECONNREFUSED for cause in chain):
        return "the server refuses connections; see whether it runs, and at this port"
    if any(isinstance(cause, socket.gaierror) or _NO_CONNECTION & _kinds(cause) for cause in chain):
        return "the server cannot be reached; see whether its name is right and the network is up"
    return "the connection broke" if may_pass(error) else "the request failed"


def _is_broken_connection(error: BaseException) -> bool:
    return (
        isinstance(error, (TimeoutError, asyncio.TimeoutError))
        or not _BROKEN_CONNECTIONS.isdisjoint(_kinds(error))
        or getattr(error, "errno", None) in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    )


def _kinds(error: BaseException) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
