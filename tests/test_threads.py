"""The threads that share work: as many as asked for, each piece once, and errors raised."""

import threading

import pytest

from embmap.threads import in_parallel, n_threads

# ---------------------------------------------------------------------------------------- threads


def test_the_environment_says_how_many_threads_there_are(monkeypatch):
    for asked in ("1", "2", "64", "007"):
        monkeypatch.setenv("EMBMAP_THREADS", asked)
        assert n_threads() == int(asked)
    monkeypatch.delenv("EMBMAP_THREADS")
    assert n_threads() >= 1


@pytest.mark.parametrize("asked", ["0", "-1", "", "many", "1.5", " 2", "2 ", "0x2", "\xb2"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, asked):
    monkeypatch.setenv("EMBMAP_THREADS", asked)
    with pytest.raises(ValueError, match="EMBMAP_THREADS must be a positive number"):
        n_threads()


@pytest.mark.parametrize("n_workers", ["1", "2", "8"])
def test_every_piece_of_work_is_done_once(monkeypatch, n_workers):
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)
    for n in (0, 1, 2, 30):
        done, workers, lock = [], set(), threading.Lock()

        def work(piece, done=done, workers=workers, lock=lock):
            with lock:
                done.append(piece)
                workers.add(threading.get_ident())

        in_parallel(work, range(n))
        assert sorted(done) == list(range(n))
        assert len(workers) <= int(n_workers)


@pytest.mark.parametrize("n_workers", ["1", "2"])
def test_an_exception_in_a_thread_is_raised(monkeypatch, n_workers):
    monkeypatch.setenv("EMBMAP_THREADS", n_workers)

    def work(piece):
        if piece in (3, 5):
            raise KeyError(piece)

    with pytest.raises(KeyError, match="3"):
        in_parallel(work, range(8))
