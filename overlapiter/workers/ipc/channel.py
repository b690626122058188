"""Channels: whole messages between two processes, over a pair of Unix sockets.

A ``SOCK_SEQPACKET`` socket delivers a message as a whole or not at all, so a process killed in the
middle of sending leaves nothing half-read, and each channel has one process at either end, so
there is no lock that a dead process could hold. A message too large for a packet travels in
anonymous memory whose descriptor is sent instead. Descriptors may accompany any message.
"""

from __future__ import annotations

import array
import errno
import mmap
import os
import pickle
import resource
import select
import socket
from typing import Any

_PACKET_BYTES = 64 * 1024
_MAX_FDS = 8
_CONTROL_BYTES = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
_IN_PACKET, _IN_MEMORY = b"P", b"M"
#: Plain numbers: to combine the enumeration's members takes a microsecond each time.
_DONTWAIT, _CLOEXEC = int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)
_CTRUNC = int(socket.MSG_CTRUNC)
#: The other end is gone, or this one was closed: by the handler of a signal, for example.
_CLOSED = {errno.EPIPE, errno.ECONNRESET, errno.EBADF}
#: Descriptors that the channels of a process leave to others: messages, slots, the dataset.
_SPARE_DESCRIPTORS = 12

#: A message is a tuple whose first element names its kind.
Message = tuple[Any, ...]


class ChannelClosedError(Exception):
    """The process at the other end is gone."""


class Channel:
    """One end of a channel, which takes its socket over."""

    def __init__(self, end: socket.SocketType) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return the two ends of a new channel.

        Raises:
            OSError: Hardly any descriptor is left.
        """
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        last = max(one.fileno(), other.fileno())  # the lowest ones that are free come first
        if limit != resource.RLIM_INFINITY and last + _SPARE_DESCRIPTORS > limit:
            one.close()
            other.close()
            raise _no_descriptor(f"for another process, with {_SPARE_DESCRIPTORS} to spare")
        return cls(one), cls(other)

    @classmethod
    def closed(cls) -> Channel:
        """Return an end that is closed already."""
        return cls(socket.SocketType.__new__(socket.SocketType))  # a socket could not be closed

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Return the end with this descriptor, which the channel takes over."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor, to wait on."""
        return self._socket.fileno()

    def send(self, message: Message, fds: tuple[int, ...] = (), *, wait: bool = True) -> None:
        """Send a message; the descriptors stay the caller's.

        Blocks while the other end has too much unread, unless ``wait`` is False.

        Raises:
            BlockingIOError: It would block.
            ChannelClosedError: The other end is gone.
        """
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        flags = 0 if wait else _DONTWAIT
        try:
            if len(data) < _PACKET_BYTES:
                self._send_packet(_IN_PACKET + data, fds, flags)
                return
            with os.fdopen(os.memfd_create("overlapiter-message", os.MFD_CLOEXEC), "wb") as memory:
                memory.write(data)
                memory.flush()
                self._send_packet(_IN_MEMORY, (memory.fileno(), *fds), flags)
        except OSError as error:
            if error.errno in _CLOSED:
                raise ChannelClosedError from None
            raise

    def _send_packet(self, packet: bytes, fds: tuple[int, ...], flags: int) -> None:
        if fds:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
            self._socket.sendmsg([packet], [rights], flags)
        else:
            self._socket.send(packet, flags)

    def receive(self, *, wait: bool = True) -> tuple[Message, list[int]]:
        """Return the next message and the descriptors that came with it, now the caller's.

        Blocks until there is one, unless ``wait`` is False.

        Raises:
            BlockingIOError: There is none now.
            ChannelClosedError: There will be none.
            OSError: No descriptor is left for those that came with it; the message is lost.
        """
        flags = _CLOEXEC if wait else _CLOEXEC | _DONTWAIT
        try:
            try:
                answer = self._socket.recvmsg(_PACKET_BYTES, _CONTROL_BYTES, flags)
            except ConnectionResetError:  # reported once; what was sent before can still be read
                answer = self._socket.recvmsg(_PACKET_BYTES, _CONTROL_BYTES, flags)
        except OSError as error:
            if error.errno in _CLOSED:
                raise ChannelClosedError from None
            raise
        packet, control, result_flags, _ = answer
        fds = _received_fds(control)
        if result_flags & _CTRUNC:
            for fd in fds:  # there was room for some
                os.close(fd)
            raise _no_descriptor("for what another process sent")
        if not packet:
            raise ChannelClosedError
        if packet[:1] == _IN_PACKET:
            return pickle.loads(memoryview(packet)[1:]), fds
        memory_fd = fds.pop(0)
        try:
            with mmap.mmap(memory_fd, 0, access=mmap.ACCESS_READ) as memory:
                return pickle.loads(memory), fds
        finally:
            os.close(memory_fd)

    def is_readable(self, timeout_seconds: float) -> bool:
        """Wait for a message, or the end; return whether it has come within that time."""
        return self._is_ready(select.POLLIN, timeout_seconds)

    def has_room(self, timeout_seconds: float) -> bool:
        """Wait until a message can be sent, or the end; return whether that was in time."""
        return self._is_ready(select.POLLOUT, timeout_seconds)

    def _is_ready(self, event: int, timeout_seconds: float) -> bool:
        try:
            return is_ready(self._socket, event, timeout_seconds)
        except ValueError:  # closed here: that is the end
            return True

    def close(self) -> None:
        """Close this end; closing twice is fine."""
        self._socket.close()


def is_ready(source: int | socket.SocketType, event: int, timeout_seconds: float) -> bool:
    """Wait for an event of ``poll`` on a descriptor; return whether it came within that time."""
    poller = select.poll()
    poller.register(source, event)
    return bool(poller.poll(timeout_seconds * 1000))


def _no_descriptor(purpose: str) -> OSError:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = (
        f"no descriptor is left {purpose}; raise the limit of open files (ulimit -n, now {limit})"
    )
    return OSError(errno.EMFILE, text)


def _received_fds(control: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
