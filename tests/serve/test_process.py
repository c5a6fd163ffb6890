"""Signals: the server's processes end together, and no answer is cut short."""

import contextlib
import os
import signal
import threading
import time

import pytest

import embmap
from tests.serve.faulty import VECTORS, WORDS, value_of
from tests.served import Served, serving, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

# Signals


@pytest.mark.parametrize("options", [(), ("--workers", 2)])
def test_sigterm_lets_running_requests_finish(large, options):
    server = Served(large, *options)
    found = []

    def ask():
        body = {"word": "1", "n": 1000, "metric": "euclidean"}
        found.append(server.json("/v1/a/similar", body)[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    while not found:  # the first is answered: the others have been sent
        time.sleep(0.002)
    for _ in range(2):  # and connections are taken in their order
        assert server.ask("/healthz")[0] == 200
    assert server.stop()[0] == 0
    for thread in threads:
        thread.join()
    assert found == [200] * 6


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_under_load_cuts_no_answer_short(path, workers):
    server = Served(path, "--workers", workers)
    answers, gone = [], []

    def load():
        while not gone:
            try:
                status, headers, content = server.ask("/v1/a/vectors/w1")
            except (ConnectionError, TimeoutError):  # nobody listens any more
                gone.append(1)
            else:
                answers.append((status, len(content) == int(headers["content-length"])))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    while len(answers) < 20:
        time.sleep(0.002)
    assert server.stop() == (0, "", "")
    for thread in threads:
        thread.join()
    assert set(answers) == {(200, True)}


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="there is no /proc here")
def test_workers_end_with_the_process_that_started_them(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path, "--workers", 2)
    assert value_of(server)[0] == 200
    server.process.kill()
    server.process.communicate()
    while True:
        try:
            server.ask("/healthz")
        except ConnectionError:
            break
        time.sleep(0.02)
    while list((tmp_path / "temporary").iterdir()):  # the workers clean up instead
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to close here")
@pytest.mark.parametrize("workers", [1, 2])
def test_closing_the_terminal_leaves_nothing(path, tmp_path, monkeypatch, workers):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path, "--workers", workers)
    assert value_of(server)[0] == 200
    server.process.send_signal(signal.SIGHUP)
    try:
        assert server.process.communicate(timeout=20) == ("", "")
    finally:
        server.process.terminate()
    assert server.process.returncode == 0
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to close here")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_closed_terminal_that_is_to_be_ignored_is_ignored(path, workers):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")

    def ignore():  # as nohup does
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with serving(path, "--workers", workers, preexec_fn=ignore) as server:
        group = psutil.Process(server.process.pid).children()
        for each in (*group, server.process):
            each.send_signal(signal.SIGHUP)
        assert value_of(server)[0] == 200
        assert psutil.Process(server.process.pid).children() == group


@pytest.mark.skipif(os.name == "nt", reason="a mapped file cannot be removed here")
def test_a_server_of_one_process_that_is_killed_leaves_nothing(path, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    server = Served(path)
    for _ in range(2):
        assert value_of(server)[0] == 200
        embmap.finalfusion.write(path, WORDS, VECTORS)
    assert value_of(server)[0] == 200
    server.process.kill()
    server.process.communicate()
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_worker_that_dies_is_replaced(path):
    psutil = pytest.importorskip("psutil", reason="psutil is not installed")
    with serving(path, "--workers", 2) as server:
        children = psutil.Process(server.process.pid).children()
        worker, _ = (each for each in children if "spawn_main" in " ".join(each.cmdline()))
        worker.kill()
        answered = 0
        while answered < 20:
            with contextlib.suppress(ConnectionError):
                answered += value_of(server)[0] == 200
