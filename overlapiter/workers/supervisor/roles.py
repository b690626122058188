"""What a forked worker becomes: a file reader or a prefetcher."""

from __future__ import annotations

import functools
import os
import resource
import socket
from collections.abc import Callable

from overlapiter.board import Row
from overlapiter.sources import Dataset
from overlapiter.store.site import Run
from overlapiter.tracing import open_trace
from overlapiter.workers.ipc.channel import Channel
from overlapiter.workers.plan import StagingPlan, SupervisorPlan
from overlapiter.workers.prefetcher.prefetcher import Prefetcher
from overlapiter.workers.reader.face import Face
from overlapiter.workers.reader.reader import FileReader

#: Runs a worker on its end of the channel, counting in its row, until the channel closes.
Role = Callable[[Channel, Row], None]


def read(dataset: Dataset, plan: SupervisorPlan, channel: Channel, row: Row) -> None:
    """Be a file reader."""
    FileReader(channel, dataset, plan, row).run()


def stage(dataset: Dataset, plan: SupervisorPlan, run: Run, channel: Channel, row: Row) -> None:
    """Be a prefetcher of a run."""
    assert plan.staging is not None
    number = row.number - plan.n_readers
    trace = open_trace(plan.trace, f"prefetcher {number}", 100 + number)
    face = plan.face or Face(dataset)
    prepare = functools.partial(face.begin, number % plan.n_readers, plan.n_readers)
    whose = (channel, dataset, plan.staging, run, plan.index_type, row)
    Prefetcher(*whose, is_first=number == 0, trace=trace, prepare=prepare).run()


def serve(staging: StagingPlan | None, listener_fd: int, channel: Channel, _row: Row) -> None:
    """Be the server for other nodes."""
    assert staging is not None
    plan = staging.peers
    assert plan is not None
    from overlapiter.peers.catalogue import Catalogue
    from overlapiter.peers.server import Server

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # it waits in epoll
    catalogue = Catalogue(staging.sites, staging.source, staging.real_source, staging.place)
    with socket.socket(fileno=os.dup(listener_fd)) as listener:
        server = Server(listener, plan.secret, catalogue, plan.since)

        def let_go() -> None:
            channel.receive()  # that something was removed; else its end, which ends this process
            server.let_go()

        server.watch(channel.fileno(), let_go)
        channel.send(("serving",))
        while True:
            server.take_turn()
