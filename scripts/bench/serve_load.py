"""Sends requests to a server from several clients at once, each as soon as it has its last answer; prints one line of JSON.

    python -m scripts.bench.serve_load http://127.0.0.1:8000 rows.jsonl --clients 64 --requests 2000

CPU time is reported separately for the clients, which is that of this process, and the server, by --pid. `serving.py` runs
it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from scripts.bench.prediction_inputs import read_rows

_JSON = b"application/json"
# What nobody should send: (content type, body). Each must get a status of 4xx.
MALFORMED = (
    (_JSON, b"{"),
    (_JSON, b'{"inputs": 3}'),
    (_JSON, b'{"inputs": NaN}'),
    (_JSON, b'{"inputs": ["a", null]}'),
    (_JSON, b'{"inputs": "\\ud800"}'),
    (_JSON, b'{"inputs": "a", "parameters": {"top_k": "b"}}'),
    (_JSON, b'{"inputs": "\xff"}'),
    (_JSON, b"[" * 50_000),
    (_JSON, b'{"inputs": "' + b"a" * 2**22 + b'"}'),
    (b"text/plain", b'{"inputs": "a"}'),
)


class Load:
    """Clients, and what they have seen. rss: MiB of the server by the number of requests that were answered."""

    def __init__(self, options: argparse.Namespace) -> None:
        url = urlsplit(options.url)
        self.host, self.port, self.options = url.hostname, url.port, options
        rows = read_rows(options.rows)
        texts = [{name: row[name] for name in ("text", "text_pair") if name in row} for row in rows]
        self.good = [self._request(_JSON, json.dumps({"inputs": text}).encode()) for text in texts]
        self.bad = [self._request(*each) for each in MALFORMED]
        self.malformed = np.random.default_rng(0).random(options.requests) < options.malformed
        self.next = 0
        self.milliseconds: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.unexpected = 0
        self.rss: dict[int, float] = {}

    def _request(self, kind: bytes, body: bytes) -> bytes:
        head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body))
        return head + body

    async def client(self) -> None:
        """Ask until all requests are sent."""
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        while self.next < self.options.requests:
            number, self.next = self.next, self.next + 1
            is_bad = self.malformed[number]
            request = self.bad[number % len(self.bad)] if is_bad else self.good[number % len(self.good)]
            start = time.perf_counter()
            if streams is None:
                streams = await asyncio.open_connection(self.host, self.port)
            status, streams = await self._ask(streams, request)
            self.statuses[status] += 1
            if (status[0] != "4") if is_bad else (status != "200"):
                self.unexpected += 1
            if not is_bad:
                self.milliseconds.append(1000 * (time.perf_counter() - start))
            answered = sum(self.statuses.values())
            if self.options.pid and answered % 5000 == 0:
                self.rss[answered] = resident(self.options.pid)
        if streams is not None:
            streams[1].close()

    async def _ask(self, streams: Any, request: bytes) -> tuple[str, Any]:
        """The status, and the connection unless the server has closed it."""
        reader, writer = streams
        with suppress(ConnectionError):  # it need not read a request to its end that it refuses
            writer.write(request)
            await writer.drain()
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return "4 closed", None  # what was still unread of a large request resets the connection
        lines = head.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        await reader.readexactly(length)
        status = head.split(b" ", 2)[1].decode()
        if b"connection: close" in lines or status == "413":
            writer.close()
            return status, None
        return status, streams


def resident(pid: int) -> float:
    """MiB of memory of a process, where /proc says."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def processor_seconds(pid: int) -> float:
    """What a process has used of all processors."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    load = Load(options)
    of_server = processor_seconds(options.pid) if options.pid else 0.0
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.gather(*(load.client() for _ in range(options.clients)))
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    p50, p99 = np.percentile(load.milliseconds, [50, 99]).tolist()
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {
        "requests_per_s": options.requests / seconds,
        "p50_ms": p50,
        "p99_ms": p99,
        "client_cpu": used / seconds,
        "statuses": dict(sorted(load.statuses.items())),
        "unexpected": load.unexpected,
    }
    if options.pid:
        found |= {"server_cpu": (processor_seconds(options.pid) - of_server) / seconds, "rss_mib": load.rss}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("rows", type=Path, help="JSON lines with text, and maybe text_pair")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--malformed", type=float, default=0.0, help="share of requests that nobody should send")
    parser.add_argument("--pid", type=int, help="the server's process")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
