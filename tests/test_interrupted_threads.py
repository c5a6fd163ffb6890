"""An interrupt in any call of what spreads work over threads ends the work and hangs nothing."""

import _thread
import sys
import threading
import time

import pytest

from embmap import threads
from embmap.threads import away_from_signals, in_parallel

PLACES = (threads.__file__, threading.__file__)


def in_four_pieces():
    done = []
    in_parallel(done.append, range(4))
    return sorted(done)


def in_another_thread():
    return away_from_signals(lambda: [0, 1, 2, 3])


def interrupted(work, n_calls, told):
    """Work, with an interrupt where a function of embmap or of threading begins or ends.

    Python lets interrupts in there, and not between any two lines.
    """

    def trace(frame, event, _):
        nonlocal n_calls
        if frame.f_code.co_filename in PLACES and event in ("call", "return"):
            n_calls -= 1
            if n_calls == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        told.append(work())
    except KeyboardInterrupt:
        told.append("interrupted")
    finally:
        sys.settrace(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("work", [in_four_pieces, in_another_thread])
def test_work_that_is_interrupted_anywhere_ends(monkeypatch, work):
    monkeypatch.setenv("EMBMAP_THREADS", "3")
    monkeypatch.setattr(threading, "main_thread", threading.current_thread)
    for n_calls in range(1, 1000):
        told = []
        thread = threading.Thread(target=interrupted, args=(work, n_calls, told), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"hangs after an interrupt at event {n_calls}"
        if told != ["interrupted"]:
            break
    assert told == [[0, 1, 2, 3]]
    assert n_calls > 5


def test_an_interrupt_is_raised_once_the_function_has_returned():
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread only")
    ended = []

    def work():
        _thread.interrupt_main()
        time.sleep(0.05)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        away_from_signals(work)
    assert ended


def test_values_and_errors_come_out_of_the_other_thread():
    assert away_from_signals(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        away_from_signals(lambda: 1 // 0)
