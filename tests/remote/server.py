"""The process of :mod:`.stores`: moto's S3 server behind a front that counts and fails on demand.

Takes pickled ``(operation, arguments)`` from its standard input, and answers each on its standard
output. It also serves the objects of a bucket as a plain web server would, below ``/plain/``.
"""

from __future__ import annotations

import collections
import email.utils
import json
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"  # before moto: every request is to be signed

from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import iam_backends
from moto.moto_api._internal import mock_random
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
#: By fault: status and body.
ANSWERS = {
    "busy": (
        "503 Slow Down",
        b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
    ),
    "expired": (
        "400 Bad Request",
        b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>",
    ),
}
ALLOW = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}


class Front:
    """Counts the requests for objects, and has the next ones fail as it was told."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._lock = threading.Lock()
        self.requests: collections.Counter[tuple[str, str]] = collections.Counter()
        self.fault = ""
        self.n_faults = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with self._lock:
            self.requests[environ["REQUEST_METHOD"], environ["PATH_INFO"].lstrip("/")] += 1
            fault = self.fault if self.n_faults else ""
            if fault == "unreadable":
                fault = "busy" if environ["REQUEST_METHOD"] == "GET" else ""
            self.n_faults -= bool(fault)
        if fault in ANSWERS:
            status, body = ANSWERS[fault]
            start_response(status, [("Content-Length", str(len(body)))])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        if fault == "reset":
            reset(environ)
            return []
        application = plain if environ["PATH_INFO"].startswith("/plain/") else self._application
        answer = application(environ, start_response)
        return cut(environ, answer) if fault == "cut" else answer


def cut(environ: dict[str, Any], answer: Iterable[bytes]) -> Iterable[bytes]:
    """Give the first half of an answer, and break the connection."""
    data = b"".join(answer)
    yield data[: len(data) // 2]
    reset(environ)


def reset(environ: dict[str, Any]) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def plain(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Serve an object whole, whatever range of it is asked for."""
    _, _, bucket, key = environ["PATH_INFO"].split("/", 3)
    found = store.get_object(bucket, key)
    if found is None:
        status = "403 Forbidden" if key.endswith("private") else "404 Not Found"
        start_response(status, [("Content-Length", "0")])
        return []
    date = email.utils.format_datetime(found.last_modified, usegmt=False)
    length = [] if key.endswith("untold") else [("Content-Length", str(found.size))]
    start_response("200 OK", [*length, ("Last-Modified", date), ("ETag", found.etag)])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [found.value]


def control(front: Front, operation: str, *arguments: Any) -> Any:
    if operation == "put":
        bucket, key, data = arguments
        if bucket not in store.buckets:
            store.create_bucket(bucket, "us-east-1")
        store.put_object(bucket, key, data)
    elif operation == "delete":
        store.delete_object(*arguments)
    elif operation == "fail":
        front.fault, front.n_faults = arguments
    elif operation == "requests":
        return dict(front.requests)
    elif operation == "forget":
        front.requests.clear()
    return None


def main(port: int) -> None:
    mock_random.seed(0)  # the same keys after a restart
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user("us-east-1", "reader")
    key = iam.create_access_key("reader")
    iam.put_user_policy(
        "reader", "all", json.dumps({"Version": "2012-10-17", "Statement": [ALLOW]})
    )
    front = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", port, front, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answer = server.server_port, key.access_key_id, key.secret_access_key
    while True:
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        try:
            answer = control(front, *pickle.load(sys.stdin.buffer))
        except EOFError:
            return


if __name__ == "__main__":
    store = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    main(int(sys.argv[1]))
