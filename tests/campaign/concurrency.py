"""Many threads that share a file, and children of every kind."""

from __future__ import annotations

import multiprocessing
import random
import shutil
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import embmap
from embmap.errors import ClosedError
from tests.campaign.children import Nursery
from tests.campaign.operations import make_sources
from tests.campaign.part import Part
from tests.campaign.reading import FILES, QUESTIONS, answer_of, open_source

__all__ = ["ANSWERED", "BACKENDS", "InChildren", "all_end", "answers_of"]

ANSWERED = 30.0  # seconds in which another thread or process has to answer
BACKENDS = ("mmap", "read")
_LARGE = "large.fifu"  # large enough for the threads of BLAS


class InChildren(Part):
    """What the parts of this module share: each trial has a process of its own, which may hang."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.nursery = Nursery(folder, n_threads=4)
        self.sources = make_sources(folder)

    def outcome(self, task: str, *arguments: Any) -> Any:
        ended = self.nursery.run(f"{type(self).__module__}:{task}", *arguments)
        told = f"{task}{arguments}"
        assert ended.status == 0, f"{told}: {ended}"
        assert ended.raised is None, f"{told}: {ended.trace}"
        return ended.returned

    def close(self) -> None:
        self.nursery.close()


def answers_of(path: str) -> dict[str, Any]:
    """What is right, asked in peace."""
    with open_source(path, "mmap") as file:
        return {ask: answer_of(file, ask) for ask in QUESTIONS}


# Threads


class Threads(InChildren):
    name = "64 threads"
    promise = (
        "Threads that ask one file everything at once, while its indexes are built and it may be "
        "closed, get the right answers, or ClosedError after it was closed."
    )
    patience = 90.0

    def trial(self, rng: random.Random) -> Counter[str]:
        shutil.rmtree(self.folder / "own", ignore_errors=True)
        own = shutil.copytree(self.sources / "1", self.folder / "own")
        arguments = rng.choice(FILES), rng.choice(BACKENDS), rng.random() < 0.5, rng.random()
        return Counter(self.outcome("ask_in_threads", str(own), *arguments))


def ask_in_threads(folder: str, name: str, backend: str, closing: bool, seed: float) -> Any:
    """Ask a file in 64 threads; one builds its index, and one may close it."""
    path = f"{folder}/{name}"
    right = answers_of(path)
    file = open_source(path, backend)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    started = threading.Barrier(64)

    def ask(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        started.wait(ANSWERED)
        for _ in range(4):
            question = rng.choice(list(QUESTIONS))
            try:
                if number == 0 and name.endswith((".fifu", ".weights")):
                    file.build_index()
                    outcomes["index built"] += 1
                    continue
                found = answer_of(file, question)
            except ClosedError:
                outcomes["closed"] += 1
                if not closing:
                    wrong.append(f"{question}: ClosedError")
            except BaseException as error:
                wrong.append(f"{question}: {type(error).__name__}: {error}")
            else:
                outcomes["right answer"] += 1
                if found != right[question]:
                    wrong.append(f"{question}: another answer")
            if closing and number == 1:
                time.sleep(rng.random() / 50)
                file.close()

    all_end([threading.Thread(target=ask, args=(i,), daemon=True) for i in range(64)])
    assert not wrong, f"{len(wrong)} wrong: {wrong[:5]}"
    return outcomes


def all_end(threads: list[threading.Thread]) -> None:
    """Start threads; all have to end."""
    for thread in threads:
        thread.start()
    until = time.monotonic() + ANSWERED
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
        assert not thread.is_alive(), "a thread hangs"


# Children


class Children(InChildren):
    name = "fork, forkserver and spawn"
    promise = (
        "Children started while threads of their parent look words up, search, index and convert "
        "answer rightly from the parent's file, inherited or pickled, and end."
    )
    patience = 90.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        vectors = np.random.default_rng(3).standard_normal((20_000, 64), np.float32)
        embmap.finalfusion.write(folder / _LARGE, [f"w{i}" for i in range(20_000)], vectors)

    def trial(self, rng: random.Random) -> Counter[str]:
        method = rng.choices(("fork", "forkserver", "spawn"), (8, 1, 1))[0]
        arguments = rng.choice((*FILES, _LARGE, _LARGE)), rng.choice(BACKENDS), rng.random()
        own = self.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(self.sources / "1", own)
        (own / _LARGE).hardlink_to(self.folder / _LARGE)
        return Counter(self.outcome("ask_in_children", str(own), method, *arguments))


def ask_in_children(folder: str, method: str, name: str, backend: str, seed: float) -> Any:
    """Start children while threads use the file; each child answers and ends."""
    path = f"{folder}/{name}"
    right = answers_of(path)
    file = open_source(path, backend)
    done, begun = threading.Event(), threading.Barrier(5)
    wrong: list[str] = []

    def work(number: int) -> None:
        rng = random.Random(f"{seed}/{number}")
        begun.wait(ANSWERED)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while not done.is_set():
                try:
                    _work(rng, file, path, f"{folder}/work{number}", right)
                except Exception as error:
                    wrong.append(f"in the parent: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    begun.wait(ANSWERED)
    context = multiprocessing.get_context(method)
    rng = random.Random(seed)
    n_children = 12 if method == "fork" else 2
    try:
        for _ in range(n_children):
            time.sleep(rng.random() / 100)
            given = path if rng.random() < 0.2 else file
            questions = rng.sample(sorted(right), 3)
            asked = {each: right[each] for each in questions}
            child = context.Process(target=answer_as_child, args=(given, backend, asked))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads and fork
                child.start()
            child.join(ANSWERED)
            assert child.exitcode is not None, f"a child hangs: {method}, {questions}"
            assert child.exitcode == 0, f"a child ended with {child.exitcode}: {questions}"
    finally:
        done.set()
    for thread in threads:
        thread.join(ANSWERED)
        assert not thread.is_alive(), "a thread of the parent hangs"
    assert not wrong, wrong[:3]
    return {f"child by {method}": n_children}


def _work(rng: random.Random, file: Any, path: str, scratch: str, right: dict[str, Any]) -> None:
    """Do what a child may be started in the middle of."""
    kind = rng.randrange(4)
    if kind == 0 and file.format in ("finalfusion", "embd"):
        file.build_index(f"{scratch}.embx")
    elif kind == 1 and file.format == "finalfusion":
        embmap.convert(path, f"{scratch}.weights")
    else:
        question = rng.choice(sorted(right))
        assert answer_of(file, question) == right[question], question


def answer_as_child(given: Any, backend: str, asked: dict[str, Any]) -> None:
    file = open_source(given, backend) if isinstance(given, str) else given
    for question, right in asked.items():
        found = answer_of(file, question)
        assert found == right, f"{question}: another answer"
