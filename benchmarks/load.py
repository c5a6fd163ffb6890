"""How many vectors a server sends: ``python -m benchmarks.load``.

Loopback only and bounded: client processes send single GETs and batches of 256 words as .npy over
connections that stay open, to one worker and to two.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import embmap
from embmap.bench.probes import machine

BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=4, help="client processes")
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=300)
    options = parser.parse_args()
    print(json.dumps(machine()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "load.fifu"
        rows = np.random.default_rng(0).standard_normal((options.words, options.dim), np.float32)
        embmap.finalfusion.write(path, [f"word{i}" for i in range(options.words)], rows)
        embmap.open(path).build_index()
        for workers in (1, 2):
            for row in measure(path, workers, options):
                print(json.dumps(row))


def measure(path: Path, workers: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Start a server and load it with each kind of request."""
    command = [sys.executable, "-m", "embmap", "serve", str(path), "--port", "0"]
    start = time.perf_counter()
    server = subprocess.Popen(
        [*command, "--workers", str(workers)], stdout=subprocess.PIPE, text=True
    )
    try:
        port = int(server.stdout.readline().rpartition(":")[2])
        up = time.perf_counter() - start
        found = []
        for what in ("get", "batch"):
            tasks = [
                (port, what, options.seconds, options.words, i) for i in range(options.clients)
            ]
            with multiprocessing.get_context("spawn").Pool(options.clients) as pool:
                times = np.concatenate(pool.starmap(client, tasks))
            rate = times.size / options.seconds
            each = BATCH if what == "batch" else 1
            found.append(
                {
                    "what": what,
                    "workers": workers,
                    "requests_per_s": round(rate),
                    "vectors_per_s": round(rate * each),
                    "p50_ms": round(float(np.percentile(times, 50)) * 1e3, 2),
                    "p99_ms": round(float(np.percentile(times, 99)) * 1e3, 2),
                }
            )
        found.append(
            {"what": "process", "workers": workers, "up_s": round(up, 2), **memory(server)}
        )
        return found
    finally:
        server.terminate()
        server.wait(30)


def client(port: int, what: str, seconds: float, n_words: int, seed: int) -> np.ndarray:
    """Send requests for some seconds; return how long each took, in seconds: shape (n,)."""
    rng = np.random.default_rng(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"Accept": "application/x-npy", "Content-Type": "application/json"}
    times = []
    ask(connection, "GET", "/v1/load/vectors/word0", None, headers)
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        if what == "get":
            path = f"/v1/load/vectors/word{rng.integers(n_words)}"
            ask(connection, "GET", path, None, headers)
        else:
            words = [f"word{i}" for i in rng.integers(n_words, size=BATCH).tolist()]
            body = json.dumps({"words": words})
            start = time.perf_counter()
            ask(connection, "POST", "/v1/load/lookup", body, headers)
        times.append(time.perf_counter() - start)
    return np.array(times)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: str | None,
    headers: dict[str, str],
) -> None:
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(content)


def memory(server: subprocess.Popen) -> dict[str, Any]:
    """Memory of each worker: its own (USS) and with its share of what others use too (PSS)."""
    parent = psutil.Process(server.pid)
    workers = [each for each in parent.children() if "spawn_main" in " ".join(each.cmdline())]
    facts = [each.memory_full_info() for each in workers or [parent]]
    return {
        "uss_mb": [round(each.uss / 1e6, 1) for each in facts],
        "pss_mb": [round(getattr(each, "pss", 0) / 1e6, 1) for each in facts],
    }


if __name__ == "__main__":
    main()
