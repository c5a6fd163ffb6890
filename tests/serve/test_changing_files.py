"""Batches from files that are truncated, written to and replaced: right vectors, or a refusal."""

import io
import json
import os
import threading

import numpy as np
import psutil
import pytest

import embmap
from embmap.errors import UnsupportedError
from tests.served import serving, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

N, DIM, AT_ONCE = 3000, 40, 400
WORDS = [f"word{i}" for i in range(N)]
VECTORS = np.random.default_rng(5).standard_normal((N, DIM), np.float32)
N_ROUNDS = 8


@pytest.fixture
def path(tmp_path):
    return embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, VECTORS)


def batch(server, rows):
    """Ask for the vectors of words; return the status, and the vectors or the code of an error."""
    body = {"words": [WORDS[row] for row in rows]}
    status, _, content = server.ask("/v1/a/lookup", body, Accept="application/x-npy")
    if status == 200:
        return status, np.load(io.BytesIO(content))
    return status, json.loads(content)["error"]["code"]


def write_in_place(path, data):
    with open(path, "r+b") as file:
        file.write(data)


def truncate_and_restore(path, data, number):
    os.truncate(path, (0, 300, len(data) // 2, len(data) - 1)[number % 4])
    write_in_place(path, data)


def rewrite(path, data, number):
    with open(path, "wb") as file:  # which truncates it
        file.write(data)


def replace(path, data, number):
    embmap.finalfusion.write(path, WORDS, VECTORS + number % 3)


def open_for_writing(path, data, number):
    with open(path, "r+b") as file:
        file.flush()


@pytest.mark.parametrize("n_workers", [1, 4])
@pytest.mark.parametrize("change", [truncate_and_restore, rewrite, replace, open_for_writing])
def test_a_file_changes_while_batches_are_read(path, change, n_workers):
    data = path.read_bytes()
    shifts = {0, 1, 2} if change is replace else {0}
    right, wrong, done = [], [], threading.Event()

    def load(server, seed):
        rng = np.random.default_rng(seed)
        while not done.is_set():
            rows = rng.integers(0, N, AT_ONCE)
            try:
                status, answer = batch(server, rows)
            except OSError as error:
                status, answer = 0, repr(error)
            if status == 200 and any(
                np.array_equal(answer, VECTORS[rows] + shift) for shift in shifts
            ):
                right.append(1)
            elif (status, answer) != (503, "model_unavailable"):
                wrong.append((status, answer))

    with serving(path, "--workers", n_workers) as server:
        process = psutil.Process(server.process.pid)
        workers = {each.pid for each in process.children(recursive=True)}
        threads = [threading.Thread(target=load, args=(server, seed)) for seed in range(2)]
        for thread in threads:
            thread.start()
        try:
            for number in range(N_ROUNDS):
                n_right = len(right)
                while len(right) < n_right + 8 and not wrong:  # the file is being read
                    done.wait(0.001)
                change(path, data, number)
        finally:
            done.set()
            for thread in threads:
                thread.join()
        assert {each.pid for each in process.children(recursive=True)} == workers  # none died
    assert not wrong


def has_lease(pid):
    """Whether a process holds a lease, as the system lists it."""
    with open("/proc/locks") as locks:
        fields = [line.split() for line in locks]
    return any("LEASE" in each and str(pid) in each for each in fields)


def test_batches_are_read_under_a_lease_that_a_writer_gets_back(path):
    from embmap.io.leases import Lease

    try:
        with open(path, "rb") as file:
            lease = Lease([file.fileno()], lambda: True)
            assert lease.begin()
            lease.close()
            lease.end()
    except (UnsupportedError, AssertionError):
        pytest.skip("the system gives no lease here")
    rows = np.arange(AT_ONCE)
    with serving(path) as server:

        def check():
            status, found = batch(server, rows)
            assert status == 200
            assert np.array_equal(found, VECTORS[rows])

        for _ in range(10):
            check()
        if not has_lease(server.process.pid):
            pytest.skip("the system reads nothing without waiting for a disk here")
        with open(path, "r+b"):
            assert not has_lease(server.process.pid)
            check()
        check()
