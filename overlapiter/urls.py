"""URLs as names of files: what one is, and which lie below a source that is a URL."""

from __future__ import annotations

import os
import re
import urllib.parse

from .errors import OptionError

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_COLLAPSED = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]")


def is_url(path: str) -> bool:
    """Return whether ``path`` is a URL, such as ``s3://bucket/a.jpg``."""
    return _URL.match(path) is not None


def protocol_of(url: str) -> str:
    """Return ``s3`` of ``s3://bucket/a.jpg``."""
    return url.partition("://")[0].lower()


def checked_root(source: str) -> str:
    """Return a source root as it is written within overlapiter; a path that is no URL as it is.

    Raises:
        OptionError: It is a URL that cannot be a root, or was one.
    """
    if _COLLAPSED.match(source):
        raise OptionError(
            "source", f"{source!r} was a URL before pathlib took it; give it as a text"
        )
    if not is_url(source):
        return source
    if "::" in source:
        raise OptionError(
            "source",
            "holds '::'; give the outer root alone, such as 'zip://', and what it lies in by "
            "storage_options={'fo': 's3://bucket/images.zip'}",
        )
    if urllib.parse.urlsplit(source).password is not None:
        raise OptionError(
            "source", "holds a password; give it in storage_options, which are hidden"
        )
    root = source.rstrip("/")
    return root + "//" if root.endswith(":") else root


def url_below(prefix: str, path: str) -> str | None:
    """Return ``path`` as a URL if it lies below ``prefix``, a URL that ends in a slash.

    What paths make of a URL is recognized: ``pathlib`` and ``os.path.abspath`` turn
    ``s3://bucket/a.jpg`` into ``s3:/bucket/a.jpg``, relative or below the working directory.
    """
    if path.startswith(prefix):
        return path
    for written in (prefix, prefix.replace("://", ":/", 1)):
        at = path.find(written)
        if at == 0 or (at > 0 and path[at - 1] == os.sep):
            return prefix + path[at + len(written) :]
    return None


def has_plain_name(prefix: str, url: str) -> bool:
    """Return whether a URL below ``prefix`` can be the name of a file below a directory."""
    parts = url[len(prefix) :].split("/")
    return "\0" not in url and not any(part in ("", ".", "..") for part in parts)
