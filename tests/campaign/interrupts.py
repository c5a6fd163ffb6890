"""KeyboardInterrupt at any moment, as from the keyboard and as from a notebook."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import shutil
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embmap.errors import StaleIndexWarning
from tests.campaign.children import Nursery
from tests.campaign.concurrency import (
    ANSWERED,
    BACKENDS,
    InChildren,
    all_end,
    answers_of,
)
from tests.campaign.operations import OPERATIONS, perform
from tests.campaign.part import Part
from tests.campaign.reading import FILES, answer_of, open_source
from tests.campaign.stage import Stage


class InterruptedReads(InChildren):
    name = "KeyboardInterrupt, readers"
    promise = (
        "KeyboardInterrupt at any moment of a question: the file gives right answers afterwards, "
        "to other threads too."
    )
    patience = 90.0

    def trial(self, rng: random.Random) -> Counter[str]:
        own = self.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(self.sources / "1", own)
        arguments = rng.choice(FILES), rng.choice(BACKENDS), rng.random()
        return Counter(self.outcome("interrupt_questions", str(own), *arguments))


def interrupt_questions(folder: str, name: str, backend: str, seed: float) -> Any:
    """Interrupt questions to a file, each opened anew or not."""
    path = f"{folder}/{name}"
    right = answers_of(path)
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    file = None
    for _ in range(15):
        if file is None or rng.random() < 0.3:
            file = open_source(path, backend)
        question = rng.choice(sorted(right))
        begun = time.perf_counter()
        with open_source(path, backend) as other:
            answer_of(other, question)
        seconds = time.perf_counter() - begun
        work = functools.partial(answer_of, file, question)
        kind, found = interrupted(work, rng.random() * seconds, rng)
        outcomes[kind] += 1
        if kind == "done":
            assert found == right[question], f"{question}: another answer"
        check = rng.sample(sorted(right), 2)
        wrong: list[str] = []
        ask = threading.Thread(target=_compare, args=(file, right, check, wrong), daemon=True)
        all_end([ask])
        _compare(file, right, check, wrong)
        assert not wrong, f"after {question} was interrupted: {wrong}"
    return outcomes


def _compare(file: Any, right: dict[str, Any], questions: list[str], wrong: list[str]) -> None:
    for question in questions:
        try:
            if answer_of(file, question) != right[question]:
                wrong.append(f"{question}: another answer")
        except BaseException as error:
            wrong.append(f"{question}: {type(error).__name__}: {error}")


def interrupted(work: Callable[[], Any], after: float, rng: random.Random) -> tuple[str, Any]:
    """Work, with a KeyboardInterrupt after so many seconds; says whether it came in time."""
    if rng.random() < 0.5:  # as from the keyboard
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(after, 1e-6))
            found = work()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return "interrupted", None
        finally:
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0)
        return "done", found
    told: list[Any] = []

    def inside() -> None:
        try:
            told.append(("done", work()))
        except KeyboardInterrupt:
            told.append(("interrupted", None))
        except BaseException as error:
            told.append(("raised", error))

    # As notebooks interrupt what runs in a thread of theirs.
    thread = threading.Thread(target=inside, daemon=True)
    thread.start()
    time.sleep(after)
    number = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(KeyboardInterrupt))
    thread.join(ANSWERED)
    assert not thread.is_alive(), "what was interrupted hangs"
    if not told:  # it came between the last line of the thread and its end
        return "interrupted", None
    kind, found = told[0]
    if kind == "raised":
        raise found
    return kind, found


class InterruptedWrites(Part):
    name = "KeyboardInterrupt, writers and conversions"
    promise = (
        "KeyboardInterrupt at any moment of writing: the old file or the new one, no temporary "
        "file left, and the next run succeeds."
    )
    patience = 90.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nursery = Nursery(folder)
        self.stage = Stage(folder)

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(sorted(OPERATIONS))
        old = rng.random() < 0.8
        self.stage.lay(name, old=old)
        arguments = self.stage.arguments(name)
        ended = self.nursery.run(f"{__name__}:interrupt_writing", *arguments, rng.random())
        try:
            assert ended.status == 0, ended
            assert ended.raised is None, ended.trace
            kind = ended.returned
            state = self.stage.state(name)
            assert not self.stage.temporaries(), f"{kind}, left {self.stage.temporaries()}"
            allowed = ("old file" if old else "no file", "new file", "refused")
            assert state in (allowed if kind == "interrupted" else ("new file",)), (
                f"{kind}: {state}"
            )
            self.stage.run_again(name)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        return f"{state}, {kind}"

    def close(self) -> None:
        self.nursery.close()


def interrupt_writing(name: str, folder: str, sources: str, version: int, seed: float) -> Any:
    """Write once to know how long that takes, then again with an interrupt."""
    rng = random.Random(seed)
    warnings.simplefilter("ignore", StaleIndexWarning)
    own = Path(folder).with_name("measured")
    shutil.rmtree(own, ignore_errors=True)
    shutil.copytree(folder, own)
    begun = time.perf_counter()
    perform(name, str(own), sources, version)
    seconds = time.perf_counter() - begun
    kind, _ = interrupted(
        lambda: perform(name, folder, sources, version), 1.1 * rng.random() * seconds, rng
    )
    return kind
