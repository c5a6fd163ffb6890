"""An interrupt in any call of what spreads work over threads ends the work and hangs nothing."""

import sys
import threading

import pytest

from embmap import threads
from embmap.threads import in_parallel

PLACES = (threads.__file__, threading.__file__)


def interrupted(n_calls, told):
    """Spread work, with an interrupt where a function of embmap or of threading begins or ends.

    Python lets interrupts in there, and not between any two lines.
    """
    done = []

    def trace(frame, event, _):
        nonlocal n_calls
        if frame.f_code.co_filename in PLACES and event in ("call", "return"):
            n_calls -= 1
            if n_calls == 0:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        in_parallel(done.append, range(4))
        told.append(sorted(done))
    except KeyboardInterrupt:
        told.append("interrupted")
    finally:
        sys.settrace(None)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_work_that_is_interrupted_anywhere_ends(monkeypatch):
    monkeypatch.setenv("EMBMAP_THREADS", "3")
    for n_calls in range(1, 1000):
        told = []
        thread = threading.Thread(target=interrupted, args=(n_calls, told), daemon=True)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), f"hangs after an interrupt at event {n_calls}"
        if told != ["interrupted"]:
            break
    assert told == [[0, 1, 2, 3]]
    assert n_calls > 5
