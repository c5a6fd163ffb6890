"""How many requests a server answers: ``python -m benchmarks.load``.

Four client processes on the same machine send requests over connections that stay open, each one
request at a time: first as fast as they are answered, then at half that rate. Latency counts from
the moment a request was due. Each figure is the median of the passes. ``--write`` puts the table
into the docs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np
import psutil

from benchmarks.files import Files, cache_folder
from benchmarks.page import write
from benchmarks.table import MISSED
from embmap.bench.probes import describe_machine

NAME = "load"  # of the file in requests
BATCHES = (256, 1024)
N_CLIENTS = 4
N_REQUESTS = 2000  # made by each client before the clock runs
TARGETS = {1: 10_000, 256: 600_000, 1024: 600_000}  # vectors for each second of a processor
HEADINGS = ("", "1 worker", "2 workers", "target", "met?")


@dataclass(frozen=True)
class Kind:
    """A kind of request: its title in the table, its number of words, and its media type."""

    title: str
    n: int
    accept: str


KINDS = (
    Kind("single GETs, JSON", 1, "application/json"),
    Kind("single GETs, .npy", 1, "application/x-npy"),
    *(Kind(f"batches of {n}, .npy", n, "application/x-npy") for n in BATCHES),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="duration of each measurement")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--words", type=int, default=1_000_000, help="number of words in the file")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    files = Files(cache_folder(options.words), options.words)
    passes: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(options.passes):
        for workers, found in passes.items():
            found.append(measure(files, workers, options.seconds))
    facts = describe_machine()
    where = (
        f"{options.words:,} words of 300 float32 with an index file; {facts['processors']} "
        f"processors, {facts['system']}, Python {facts['python']}; {N_CLIENTS} client processes on "
        f"the same processors; medians of {options.passes} passes."
    )
    text = f"{where}\n\n{markdown({workers: medians(found) for workers, found in passes.items()})}"
    print(text)
    if options.write:
        write("load", text)


def medians(passes: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: median(each[name] for each in passes) for name in passes[0]}


def measure(files: Files, workers: int, seconds: float) -> dict[str, float]:
    """Start a server and load it with each kind of request."""
    read_whole(files.indexed)
    start = time.perf_counter()
    with serving(files.indexed, workers) as (server, port):
        found = {"up": time.perf_counter() - start}
        for kind in KINDS:
            load(files, port, kind, 1.0, None)  # every worker has opened the file
            before = processor_seconds(server)
            full = load(files, port, kind, seconds, None)
            spent = processor_seconds(server) - before
            rate = full.size / seconds
            half = load(files, port, kind, seconds, rate / 2)
            found |= {
                f"{kind.title}, rate": rate,
                f"{kind.title}, a processor": full.size / spent,
                f"{kind.title}, p99": float(np.percentile(full, 99)),
                f"{kind.title}, p99 at half": float(np.percentile(half, 99)),
            }
            found |= {f"{name}, {kind.n}": nbytes for name, nbytes in memory(server).items()}
        return found


@contextmanager
def serving(path: Path, workers: int) -> Iterator[tuple[psutil.Process, int]]:
    """Start a server; yields its process, which is the worker or their parent, and its port."""
    command = [sys.executable, "-m", "embmap", "serve", f"{NAME}={path}", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield psutil.Process(server.pid), int(server.stdout.readline().rpartition(":")[2])
    finally:
        server.terminate()
        server.stdout.close()
        server.wait(60)


def workers_of(server: psutil.Process) -> list[psutil.Process]:
    """Return the processes that answer."""
    found = [each for each in server.children() if "spawn_main" in " ".join(each.cmdline())]
    return found or [server]


def processor_seconds(server: psutil.Process) -> float:
    """Return the time that processors have worked for the workers."""
    times = [each.cpu_times() for each in workers_of(server)]
    return sum(each.user + each.system for each in times)


def load(files: Files, port: int, kind: Kind, seconds: float, rate: float | None) -> np.ndarray:
    """Send requests for some seconds, at a rate or as fast as they are answered.

    Returns the latency of each request in seconds: shape (n,).
    """
    each = None if rate is None else N_CLIENTS / rate
    tasks = [(port, requests(files, kind, i), seconds, each) for i in range(N_CLIENTS)]
    with multiprocessing.get_context("spawn").Pool(N_CLIENTS) as pool:
        return np.concatenate(pool.starmap(client, tasks, chunksize=1))


def requests(files: Files, kind: Kind, seed: int) -> list[bytes]:
    """Return HTTP requests for random words."""
    n = max(N_REQUESTS // kind.n, 100)
    words = files.known(n * kind.n, seed)[0]
    common = f"HTTP/1.1\r\nHost: localhost\r\nAccept: {kind.accept}\r\n"
    if kind.n == 1:
        return [f"GET /v1/{NAME}/vectors/{quote(each)} {common}\r\n".encode() for each in words]
    found = []
    for i in range(n):
        body = json.dumps({"words": words[i * kind.n : (i + 1) * kind.n]}).encode()
        head = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        found.append(f"POST /v1/{NAME}/lookup {common}{head}".encode() + body)
    return found


def client(port: int, requests: list[bytes], seconds: float, each: float | None) -> np.ndarray:
    """Send requests one after the other; return their latencies in seconds: shape (n,)."""
    buffer = memoryview(bytearray(1 << 21))
    times = []
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, requests[0], buffer)
        start = time.perf_counter()
        while True:
            due = now = time.perf_counter()
            if each is not None:
                due = start + len(times) * each
                if due > now:
                    time.sleep(due - now)
            if due > start + seconds:
                return np.array(times)
            ask(connection, requests[len(times) % len(requests)], buffer)
            times.append(time.perf_counter() - due)


def ask(connection: socket.socket, request: bytes, buffer: memoryview) -> None:
    """Send a request and read its whole answer."""
    connection.sendall(request)
    n = received(connection, buffer)
    while (end := bytes(buffer[: min(n, 2048)]).find(b"\r\n\r\n")) < 0:
        n += received(connection, buffer[n:])
    head = bytes(buffer[:end])
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(bytes(buffer[:n]))
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while n < end + 4 + length:
        n += received(connection, buffer[n:])


def received(connection: socket.socket, buffer: memoryview) -> int:
    """Read the bytes that have arrived; return how many."""
    n = connection.recv_into(buffer)
    if not n:
        raise ConnectionError("the server is gone")
    return n


def read_whole(path: Path) -> None:
    """Read the file into memory, where a server has it after a while."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def memory(server: psutil.Process) -> dict[str, float]:
    """Return the memory of the largest worker.

    ``dirty`` is memory that it has written. ``uss`` adds pages of files that no other process maps,
    and ``pss`` also a proportional part of pages that others map.
    """
    os.sync()  # dirty pages of files, such as a new index, would count as written memory
    workers = workers_of(server)
    facts = [each.memory_full_info() for each in workers]
    return {
        "dirty": max(dirty_nbytes(each) for each in workers),
        "uss": max(each.uss for each in facts),
        "pss": max(getattr(each, "pss", 0) for each in facts),
    }


def dirty_nbytes(process: psutil.Process) -> int:
    """Return the memory that a process has written and does not share."""
    return sum(each.private_dirty for each in process.memory_maps(grouped=False))


def markdown(found: dict[int, dict[str, float]]) -> str:
    """Return the table."""
    one, two = found[1], found[2]
    rows: list[tuple[str, str, str, str, bool | None]] = []

    def row(title: str, name: str, show: str, factor: float, target: str, limit: float) -> None:
        both = one[name] * factor, two[name] * factor
        met = max(both) <= limit if target else None
        rows.append((title, show.format(both[0]), show.format(both[1]), target, met))

    for kind in KINDS:
        what = "" if kind.n == 1 else " vectors"
        rates = [each[f"{kind.title}, rate"] * kind.n for each in (one, two)]
        rows.append((kind.title, *(f"{rate:,.0f}{what}/s" for rate in rates), "", None))
        own = [each[f"{kind.title}, a processor"] * kind.n for each in (one, two)]
        target, met = f"≥ {TARGETS[kind.n]:,}", own[0] >= TARGETS[kind.n]
        shown = (f"{rate:,.0f}{what}" for rate in own)
        rows.append(("… in a second of a worker's processor", *shown, target, met))
        row("… p99", f"{kind.title}, p99", "{:.1f} ms", 1e3, "", 0)
        half = "… p99 at half that rate"
        row(half, f"{kind.title}, p99 at half", "{:.1f} ms", 1e3, "≤ 20 ms", 20)
    row("private memory after single GETs", "dirty, 1", "{:.0f} MB", 1e-6, "≤ 60 MB", 60)
    row("… after batches, which load compiled loops", "dirty, 1024", "{:.0f} MB", 1e-6, "", 0)
    row("… with files that only it maps (USS)", "uss, 1024", "{:.0f} MB", 1e-6, "", 0)
    row("… with its share of the others (PSS)", "pss, 1024", "{:.0f} MB", 1e-6, "", 0)
    row("from the command to its URL", "up", "{:.2f} s", 1, "", 0)
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for *cells, met in rows:
        verdict = "" if met is None else "yes" if met else MISSED
        lines.append("| " + " | ".join([*cells, verdict]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
