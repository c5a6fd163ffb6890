"""Faults under load: files, indexes and workers change, with every answer compared.

The history of the file is kept: an answer must come from a version that was in place at some
moment between the question and the answer.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import embmap
from tests.campaign.part import Part
from tests.campaign.wire import require_server
from tests.served import Served

try:
    import psutil
except ImportError:  # require_server skips
    psutil = None  # type: ignore[assignment]

_CLIENTS = 5
# Before 3.11.8, Python may raise SystemError when two threads read the head of an .npy (gh-106905).
_ONE_BY_ONE = threading.Lock() if sys.version_info < (3, 11, 8) else contextlib.nullcontext()
_EVENTS = 12
_RECOVERED = 20.0  # seconds in which a server has to answer again
_REFUSALS = {  # codes of refusals, by status
    404: {"unknown_word"},
    408: {"timeout"},
    429: {"busy"},
    503: {"model_unavailable", "busy"},
}


@dataclass(frozen=True)
class Version:
    """A file by its words and vectors, and when it was in place."""

    rows: dict[str, int]
    vectors: np.ndarray
    begun: float
    ended: float = float("inf")
    half_written: bool = False  # until when nobody can know what was read


class Truth:
    """What was in place when."""

    def __init__(self) -> None:
        self._versions: list[Version] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def changing(
        self, rows: dict[str, int] | None, vectors: Any = None, *, in_place: bool = False
    ) -> Iterator[None]:
        """The version counts from the beginning of the block, the one before to its end."""
        with self._lock:
            before = len(self._versions)
            if in_place:
                self._versions.append(Version({}, None, time.monotonic(), half_written=True))
                before += 1
            if rows is not None:
                self._versions.append(Version(rows, vectors, time.monotonic()))
        yield
        with self._lock:
            now = time.monotonic()
            self._versions[:before] = [
                replace(each, ended=min(each.ended, now)) for each in self._versions[:before]
            ]

    def between(self, begin: float, end: float) -> list[Version]:
        with self._lock:
            return [each for each in self._versions if each.begun <= end and each.ended >= begin]

    def is_right(self, words: list[str], found: list[Any], begin: float, end: float) -> bool:
        """Whether one version has given all the vectors; None is a word that it does not have."""
        return any(
            version.half_written
            or all(
                word not in version.rows
                if value is None
                else word in version.rows
                and np.array_equal(np.float32(value), version.vectors[version.rows[word]])
                for word, value in zip(words, found, strict=True)
            )
            for version in self.between(begin, end)
        )


class _Served(Part):
    """A server, clients and a file that changes."""

    options: ClassVar[tuple[object, ...]] = ()
    patience = 150.0
    promise = (
        "While the file is replaced, rewritten, truncated or removed, its index damaged and "
        "workers killed, each answer comes from a version in place between question and answer, "
        "or a documented refusal, and the server recovers."
    )

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        require_server()
        self.path = folder / "a.fifu"
        self.link = folder / "link.fifu"
        self.versions = []
        self.words = [f"w{i}" for i in range(300)]
        for number in range(4):
            words = random.Random(number).sample(self.words, 250)
            vectors = np.random.default_rng(number).standard_normal((250, 12), np.float32)
            made = embmap.finalfusion.write(folder / f"version{number}", words, vectors)
            self.versions.append((made, {w: i for i, w in enumerate(words)}, vectors))
        shutil.copyfile(self.versions[0][0], self.path)
        self.link.symlink_to(self.path)
        self.server = Served(self.link, *self.options)
        self.base = "/v1/link"
        self._told: Any = None  # with the last refusal

    def trial(self, rng: random.Random) -> Counter[str]:
        truth, done = Truth(), threading.Event()
        self._put(truth, rng)
        self._recover(truth)
        outcomes: Counter[str] = Counter()
        wrong: list[str] = []
        seeds = [rng.random() for _ in range(_CLIENTS)]

        def ask(seed: float) -> None:
            own = random.Random(seed)
            while not done.is_set() and not wrong:
                way = own.choice((self._get, self._post, self._npy, self._client))
                begin = time.monotonic()
                try:
                    label = way(own, truth, begin)
                except (ConnectionError, http.client.IncompleteRead) as error:
                    if not self._killing:
                        wrong.append(f"{way.__name__}: {error!r}")
                    label = "connection lost"
                except Exception as error:
                    wrong.append(f"{way.__name__}: {type(error).__name__}: {error}")
                    return
                outcomes[label] += 1

        self._killing = False
        threads = [threading.Thread(target=ask, args=(seed,), daemon=True) for seed in seeds]
        for thread in threads:
            thread.start()
        did = []
        try:
            for _ in range(_EVENTS):
                event = rng.choice(self._events())
                did.append(event.__name__.strip("_"))
                event(truth, rng)
                time.sleep(rng.random() / 20)
        finally:
            done.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), f"a client hangs after {did}"
        assert not wrong, f"after {did}: {wrong[:3]}"
        self._put(truth, rng)
        self._recover(truth)
        return outcomes

    # Ways to ask

    def _get(self, rng: random.Random, truth: Truth, begin: float) -> str:
        word = rng.choice(self.words)
        status, _, body = self.server.ask(f"{self.base}/vectors/{word}")
        end = time.monotonic()
        told = json.loads(body)
        if status == 200:
            assert told["word"] == word, told
            assert truth.is_right([word], [told["vector"]], begin, end), f"{word}: {told}"
            return "right answer"
        self._refused(status, told)
        if status == 404:
            assert truth.is_right([word], [None], begin, end), f"{word} is there"
            return "right answer"
        return f"{status}"

    def _post(self, rng: random.Random, truth: Truth, begin: float) -> str:
        words = rng.sample(self.words, 20)
        asked = {"words": words, "missing": "null"}
        status, told = self.server.json(f"{self.base}/lookup", asked)
        end = time.monotonic()
        if status != 200:
            self._refused(status, told)
            return f"{status}"
        assert truth.is_right(words, told["vectors"], begin, end), "a batch of no version"
        return "right answer"

    def _npy(self, rng: random.Random, truth: Truth, begin: float) -> str:
        words = rng.sample(self.words, 20)
        asked = {"words": words, "missing": "null"}
        status, headers, body = self.server.ask(
            f"{self.base}/lookup", asked, Accept="application/x-npy"
        )
        end = time.monotonic()
        if status != 200:
            self._refused(status, json.loads(body))
            return f"{status}"
        with _ONE_BY_ONE:
            found: list[Any] = list(np.load(io.BytesIO(body)))
        for place in filter(None, headers.get("embmap-missing", "").split(",")):
            found[int(place)] = None
        assert truth.is_right(words, found, begin, end), "an array of no version"
        return "right answer"

    def _client(self, rng: random.Random, truth: Truth, begin: float) -> str:
        from embmap.client import RemoteError

        word = rng.choice(self.words)
        try:
            with _ONE_BY_ONE:
                found = embmap.connect(self.server.url)["link"].get(word)
        except RemoteError as error:
            if not error.status and self._killing:
                return "connection lost"
            status = error.status
        else:
            status = 200
        if status != 200:
            assert status in _REFUSALS, status
            return f"{status}"
        assert truth.is_right([word], [found], begin, time.monotonic()), f"{word} by the client"
        return "right answer"

    def _refused(self, status: int, told: Any) -> None:
        self._told = told
        assert status in _REFUSALS, f"{status}: {told}"
        assert told["error"]["code"] in _REFUSALS[status], f"{status}: {told}"

    # What happens meanwhile

    def _events(self) -> list[Callable[[Truth, random.Random], None]]:
        files = [self._put, self._put, self._turn_link, self._rewrite, self._truncate, self._remove]
        return [*files, self._write_index, self._damage_index, self._remove_index]

    def _put(self, truth: Truth, rng: random.Random) -> None:
        """Replace the file, as embmap and all who care do."""
        made, rows, vectors = rng.choice(self.versions)
        beside = self.folder / "beside"
        shutil.copyfile(made, beside)
        with truth.changing(rows, vectors):
            beside.replace(self.path)
            self._point(self.path)

    def _turn_link(self, truth: Truth, rng: random.Random) -> None:
        made, rows, vectors = rng.choice(self.versions)
        with truth.changing(rows, vectors):
            self._point(made)

    def _point(self, target: Path) -> None:
        spare = self.folder / "spare"
        spare.unlink(missing_ok=True)
        spare.symlink_to(target)
        spare.replace(self.link)

    def _rewrite(self, truth: Truth, rng: random.Random) -> None:
        """Write other bytes into the file that is served, and put its time back."""
        made, rows, vectors = rng.choice(self.versions)
        self._put(truth, rng)
        with truth.changing(rows, vectors, in_place=True), open(self.path, "r+b") as out:
            before = os.fstat(out.fileno())
            data = made.read_bytes()
            cut = rng.randrange(len(data))
            out.write(data[:cut])
            out.flush()
            time.sleep(rng.random() / 200)
            out.write(data[cut:])
            out.truncate()
            out.flush()
            if rng.random() < 0.5:
                os.utime(out.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))

    def _truncate(self, truth: Truth, rng: random.Random) -> None:
        self._put(truth, rng)
        with truth.changing(None):
            os.truncate(self.path, rng.randrange(self.path.stat().st_size))

    def _remove(self, truth: Truth, rng: random.Random) -> None:
        there = self.link.resolve() == self.path  # else the path leads to a version
        with truth.changing(None):
            (self.path if there and rng.random() < 0.5 else self.link).unlink(missing_ok=True)

    def _index(self) -> Path:
        return self.link.with_name(f"{self.link.name}.embx")

    def _write_index(self, truth: Truth, rng: random.Random) -> None:
        """Write the index of the file, or the index of another version."""
        source = rng.choice((self.link, rng.choice(self.versions)[0]))
        with contextlib.suppress(embmap.EmbmapError, OSError), embmap.open(source) as file:
            file.build_index(self._index())

    def _damage_index(self, truth: Truth, rng: random.Random) -> None:
        with contextlib.suppress(OSError), open(self._index(), "r+b") as out:
            size = os.fstat(out.fileno()).st_size
            if rng.random() < 0.3:
                out.truncate(rng.randrange(size + 1))
            else:
                out.seek(rng.randrange(max(size - 8, 1)))
                out.write(rng.randbytes(8))

    def _remove_index(self, truth: Truth, rng: random.Random) -> None:
        self._index().unlink(missing_ok=True)

    # Afterwards

    def _recover(self, truth: Truth) -> None:
        """Ask until twenty answers in a row come from the version in place."""
        until = time.monotonic() + _RECOVERED
        in_a_row = 0
        rng = random.Random(0)
        label = ""
        while in_a_row < 20:
            assert time.monotonic() < until, f"the server does not recover: {label}, {self._told}"
            with contextlib.suppress(ConnectionError):
                label = self._get(rng, truth, time.monotonic())
                in_a_row = in_a_row + 1 if label == "right answer" else 0

    def close(self) -> None:
        status, _, told = self.server.stop()
        assert status == 0, f"exit status {status}: {told}"
        assert "Traceback" not in told, told


class ServedByOne(_Served):
    name = "faults under load, one worker"


class ServedByTwo(_Served):
    name = "faults under load, two workers of which some are killed"
    options = ("--workers", 2)

    def _events(self) -> list[Callable[[Truth, random.Random], None]]:
        return [*super()._events(), self._kill]

    def _kill(self, truth: Truth, rng: random.Random) -> None:
        """Kill a worker; those who speak with it lose their connection, and nobody else."""
        self._killing = True
        workers = []
        for child in psutil.Process(self.server.process.pid).children():
            with contextlib.suppress(psutil.Error):  # it is dead already
                if "spawn_main" in " ".join(child.cmdline()):
                    workers.append(child)
        if len(workers) > 1:  # another answers while it is replaced
            rng.choice(workers).kill()
