"""Files for a server on bad days, and load on it."""

import contextlib
import threading

import numpy as np

WORDS = [f"w{i}" for i in range(40)]
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((len(WORDS), 6), np.float32)
MANY = [str(i) for i in range(60_000)]


@contextlib.contextmanager
def asking(ask, n=3):
    """Ask in threads as long as the block lasts; yields the answers so far."""
    seen, done = set(), threading.Event()

    def load():
        while not done.is_set():
            seen.add(ask())

    threads = [threading.Thread(target=load) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        done.set()
        for thread in threads:
            thread.join()


def value_of(server, route="/v1/a/lookup"):
    status, answer = server.json(route, {"words": ["w1", "w39"]})
    return status, answer["vectors"][0][0] if status == 200 else answer["error"]["code"]


def rows_near(server, **options):
    """Ask for an approximate search; return its rows, or the status and code of a refusal."""
    body = {"word": "3", "n": 5, "approximate": True, **options}
    status, answer = server.json("/v1/a/similar", body)
    if status == 200:
        return tuple(each["row"] for each in answer["neighbors"])
    return status, answer["error"]["code"]
