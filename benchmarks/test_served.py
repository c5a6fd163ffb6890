"""Vectors over the network: ``embmap.connect`` and Redis, and what a worker can answer."""

import contextlib
import shutil
import socket
import subprocess
import time

import numpy as np
import pytest

import embmap
from benchmarks import files, load

REDIS_AT_ONCE = 5000  # vectors stored by one command
SECONDS = 3.0


@pytest.fixture(scope="module")
def served(data, warmed):
    """A server of one worker with the dense file; its process and port."""
    pytest.importorskip("uvicorn", reason="what the server needs is not installed here")
    warmed(data.indexed)
    with load.serving(data.indexed, 1) as (server, port):
        yield server, port


@pytest.fixture(scope="module")
def remote(served):
    with embmap.connect(f"http://127.0.0.1:{served[1]}") as server:
        yield server[load.NAME]


@pytest.fixture(scope="module")
def redis(data, tmp_path_factory):
    """A client of a Redis server that has all vectors by their words, in memory only."""
    library = pytest.importorskip("redis", reason="redis is not installed here")
    pytest.importorskip("hiredis", reason="hiredis is not installed here")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed here")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""]
    command += ["--appendonly", "no", "--dir", str(tmp_path_factory.mktemp("redis"))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            with library.Redis(port=port) as client:
                while process.poll() is None:
                    with contextlib.suppress(library.ConnectionError):
                        client.ping()
                        break
                    time.sleep(0.01)
                store(client, data)
                yield client
        finally:
            process.terminate()


def store(client, data):
    with embmap.open(data.dense) as file:
        for begin in range(0, len(file), REDIS_AT_ONCE):
            words = file.vocab[begin : begin + REDIS_AT_ONCE]
            vectors = np.asarray(file.vectors[begin : begin + REDIS_AT_ONCE])
            client.mset({word: each.tobytes() for word, each in zip(words, vectors, strict=True)})


def from_embmap(remote, words):
    return remote.batch(words)


def from_redis(client, words):
    """Return one array, as embmap does: the answers joined, and a view of their numbers."""
    return np.frombuffer(b"".join(client.mget(words)), np.float32).reshape(len(words), -1)


WAYS = {"embmap": ("remote", from_embmap), "Redis": ("redis", from_redis)}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("n", [256, 1024])
def test_vectors_by_word(benchmark, record, request, data, rounds, n, way):
    name, ask = WAYS[way]
    library = request.getfixturevalue(name)
    batches = [data.known(n, seed) for seed in range(rounds(200))]
    for words, _ in batches[:100]:
        ask(library, words)
    waiting = iter(batches)

    def ask_next():
        return ask(library, next(waiting)[0])

    found = benchmark.pedantic(ask_next, rounds=len(batches))
    record(f"{n} words, served", way)
    assert np.array_equal(found, files.rows(batches[-1][1]))


@pytest.mark.parametrize("kind", load.KINDS, ids=lambda kind: kind.title)
def test_what_a_worker_answers(benchmark, record, served, data, kind):
    """As many requests as a client sends that only receives; the worker's own time counts."""
    server, port = served
    requests = load.requests(data, kind, 0)
    seconds = SECONDS if benchmark.enabled else 0.01
    load.client(port, requests, seconds, None)
    before = load.processor_seconds(server)
    times = benchmark.pedantic(load.client, (port, requests, seconds, None), rounds=1)
    spent = load.processor_seconds(server) - before
    record(
        f"{kind.title}, served",
        "embmap",
        seconds_of_worker=spent / (times.size * kind.n),
        seconds_p99=float(np.percentile(times, 99)),
    )
    assert times.size
