"""A real S3 server for tests, in a process that can be killed, and files that it has, too."""

from __future__ import annotations

import contextlib
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("server.py")


class ObjectStore(contextlib.AbstractContextManager["ObjectStore"]):
    """moto's S3 server, which checks signatures; its objects come back with a restart.

    Attributes:
        options: ``storage_options`` for it.
    """

    def __init__(self) -> None:
        self._objects: dict[tuple[str, str], bytes] = {}
        self._port = 0  # any that is free
        self.start()

    def start(self) -> None:
        """Start the server, at the address that it had before."""
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER), str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._port, key, secret = self._answer()
        self.options = {"endpoint_url": self.url, "key": key, "secret": secret}
        for (bucket, name), data in self._objects.items():
            self._ask("put", bucket, name, data)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def put(self, bucket: str, name: str, data: bytes) -> None:
        self._objects[bucket, name] = data
        self._ask("put", bucket, name, data)

    def delete(self, bucket: str, name: str) -> None:
        del self._objects[bucket, name]
        self._ask("delete", bucket, name)

    def fail(self, fault: str, n_requests: int) -> None:
        """Have the next requests fail.

        ``"busy"`` (503), ``"unreadable"`` (the same, but for HEAD), ``"expired"`` (the token),
        ``"reset"`` or ``"cut"`` in the middle.
        """
        self._ask("fail", fault, n_requests)

    def requests(self, method: str) -> dict[str, int]:
        """Return how often each path has been asked for since :meth:`forget`."""
        found = self._ask("requests")
        return {path: number for (kind, path), number in found.items() if kind == method}

    def forget(self) -> None:
        self._ask("forget")

    def kill(self) -> None:
        """Kill the server."""
        self._process.kill()
        self._close()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _close(self) -> None:
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _ask(self, *question: Any) -> Any:
        assert self._process.stdin is not None
        pickle.dump(question, self._process.stdin)
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return pickle.load(self._process.stdout)


class Objects:
    """Files in a folder, and the same as objects of a bucket of their own.

    Attributes:
        names: Their names.
        root: The URL of the bucket.
    """

    n_made = 0

    def __init__(self, store: ObjectStore, folder: Path, n: int = 24) -> None:
        Objects.n_made += 1
        self.store = store
        self.folder = folder
        self.bucket = f"bucket-{Objects.n_made}"
        self.root = f"s3://{self.bucket}/train"
        self.plain = f"{store.url}/plain/{self.bucket}/train"
        self.names = [f"{number // 8}/{number}.bin" for number in range(n)]
        for number, name in enumerate(self.names):
            self.put(name, random.Random(number).randbytes(3000 + 10 * number))
        store.forget()

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.store.put(self.bucket, f"train/{name}", data)

    def delete(self, name: str) -> None:
        self.store.delete(self.bucket, f"train/{name}")

    def requests(self, method: str) -> dict[str, int]:
        """Return how often each of the objects has been asked for."""
        found = self.store.requests(method)
        prefix = f"{self.bucket}/train/"
        return {
            path[len(prefix) :]: number for path, number in found.items() if path.startswith(prefix)
        }
