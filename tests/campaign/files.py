"""Mutated files of every format: the right answers or an error of embmap's, in bounded memory."""

from __future__ import annotations

import random
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

import embmap
from tests.campaign import anatomies
from tests.campaign.bounds import Bounds
from tests.campaign.documents import hostile_json, hostile_toml
from tests.campaign.mutation import Anatomy, mutated
from tests.campaign.part import Part
from tests.judges import cvc, dwe, embd, finalfusion
from tests.judges.damage import Verdict, loaded
from tests.judges.everything import ask_file
from tests.judges.index_file import INDEXED, INDEXED_WORDS, Index
from tests.reference import finalfusion as finalfusion_reference

BACKENDS = ("mmap", "read", "cached")
_ASKED = 0.4  # share of the trials in which what the judge leaves out is asked for as well


class MutatedFiles(Part):
    """Small valid files, mutated and judged by the reference decoder."""

    weight = 2.0
    memory = 4 << 30
    suffix: ClassVar[str]
    words: ClassVar[Sequence[str]]
    files: ClassVar[dict[str, bytes]]
    anatomy: ClassVar[Callable[[bytes], Anatomy]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / f"file{self.suffix}"
        self.anatomies = {name: type(self).anatomy(data) for name, data in self.files.items()}
        self.bounds = Bounds(sum(map(len, self.files.values())), self.ask_valid)

    def ask_valid(self) -> None:
        """Ask every valid file for everything."""
        for data in self.files.values():
            self.path.write_bytes(data)
            self.ask("mmap")

    @abstractmethod
    def mended(self, name: str, data: bytes) -> bytes:
        """The bytes with checksums and lengths that hold."""

    @abstractmethod
    def judge(self, name: str, backend: str, data: bytes) -> Verdict:
        """Judge the bytes that the file holds now."""

    def damaged(self, rng: random.Random, name: str) -> bytes:
        """A valid file, damaged."""
        return mutated(rng, self.anatomies[name], list(self.anatomies.values()))

    def ask(self, backend: str) -> None:
        """Ask the file for everything."""
        with np.errstate(all="ignore"):
            ask_file(self.path, self.words, backend=backend)

    def trial(self, rng: random.Random) -> str:
        name, backend = rng.choice(list(self.files)), rng.choice(BACKENDS)
        data = self.damaged(rng, name)
        if rng.random() < 0.6:
            data = self.mended(name, data)
        self.path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            verdict = self.judge(name, backend, data)
            assert not verdict.problem, f"{name}, {backend}: {verdict.problem}"
            if rng.random() < _ASKED:
                self.bounds.hold(rng, len(data), lambda: self.ask(backend))
        return verdict.outcome


class MutatedFinalfusion(MutatedFiles):
    name = "mutated finalfusion files"
    promise = "Every answer is the reference decoder's, or an error of embmap's."
    suffix = ".fifu"
    words = finalfusion.LOOKUPS
    files = finalfusion.SMALL
    anatomy = anatomies.of_finalfusion

    def mended(self, name: str, data: bytes) -> bytes:
        return anatomies.with_finalfusion_lengths(data)

    def damaged(self, rng: random.Random, name: str) -> bytes:
        data = self.files[name]
        if finalfusion.METADATA.encode() in data and rng.random() < 0.5:
            data = anatomies.with_metadata(data, hostile_toml(rng, finalfusion.METADATA))
            if rng.random() < 0.7:
                return data
        return mutated(rng, self.anatomies[name], list(self.anatomies.values()), data)

    def judge(self, name: str, backend: str, data: bytes) -> Verdict:
        return finalfusion.judge(self.path, backend, data, None)


class MutatedEmbd(MutatedFiles):
    name = "mutated EMBD files"
    promise = "Every answer is the reference decoder's, or an error of embmap's."
    suffix = ".weights"
    words = embd.LOOKUPS
    files = embd.SMALL
    anatomy = anatomies.of_embd

    def mended(self, name: str, data: bytes) -> bytes:
        return data if name == "flat" else anatomies.with_embd_checksums(data)

    def judge(self, name: str, backend: str, data: bytes) -> Verdict:
        return embd.judge(self.path, backend, data)


class MutatedCvc(MutatedFiles):
    name = "mutated CVC files"
    promise = "Every answer is the reference decoder's, or an error of embmap's."
    suffix = ".cvc"
    words = ("a", "b", "c")
    files = cvc.SMALL
    anatomy = anatomies.of_cvc

    def mended(self, name: str, data: bytes) -> bytes:
        return anatomies.with_cvc_checksums(data)

    def damaged(self, rng: random.Random, name: str) -> bytes:
        data = self.files[name]
        if rng.random() < 0.5:
            data = cvc.with_header(name, hostile_json(rng, cvc.header_of(data)[1]))
            if rng.random() < 0.6:
                return data
        return mutated(rng, self.anatomies[name], list(self.anatomies.values()), data)

    def judge(self, name: str, backend: str, data: bytes) -> Verdict:
        return cvc.judge(self.path, backend, data, cvc.decode(data))


class MutatedDwe(MutatedFiles):
    name = "mutated DWE files"
    promise = "Every answer is the reference decoder's, or an error of embmap's."
    suffix = ".dwe"
    words = ("a", "b", "c")
    files = dwe.SMALL
    anatomy = anatomies.of_dwe

    def mended(self, name: str, data: bytes) -> bytes:
        return anatomies.with_dwe_size(data)

    def judge(self, name: str, backend: str, data: bytes) -> Verdict:
        parsed = dwe.parse(data)
        values = {} if parsed is None else dwe.groups_of(parsed)
        return dwe.judge(self.path, backend, parsed, values)


class DamagedIndex(Part):
    """An index that is damaged, cut, or about other words, beside a sound file."""

    name = "damaged FILE.embx"
    promise = "Every hit and every miss is right, or the index is refused."
    memory = 4 << 30
    weight = 2.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.indexes = {}
        for name in INDEXED:
            (folder / name).mkdir()
            self.indexes[name] = Index(folder / name / "file.fifu", name)
        self.anatomies = {
            name: anatomies.of_index(index.good) for name, index in self.indexes.items()
        }
        others = self.of_other_words(folder / "other.fifu")
        self.others = [anatomies.of_index(data) for data in others]

    def of_other_words(self, path: Path) -> list[bytes]:
        """Indexes of files with almost the same words."""
        found = []
        for words in (INDEXED_WORDS[::-1], [*INDEXED_WORDS, "more"], INDEXED_WORDS[1:]):
            path.write_bytes(finalfusion_reference.encode(finalfusion.content(words=words)))
            with embmap.open(path, index="memory") as f:
                found.append(f.build_index().read_bytes())
        return found

    def damaged(self, rng: random.Random, name: str) -> bytes:
        """A damaged index, or the index of another file, whole or damaged."""
        others = [*self.anatomies.values(), *self.others]
        if rng.random() < 0.1:
            other = rng.choice(self.others)
            return other.data if rng.random() < 0.5 else mutated(rng, other, others)
        return mutated(rng, self.anatomies[name], others)

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(list(self.indexes))
        index, backend = self.indexes[name], rng.choice(BACKENDS)
        data = self.damaged(rng, name)
        index.index.write_bytes(data)
        index.wrong.clear()
        refused = index.refused
        index.judge("damaged", backend)
        assert not index.wrong, index.wrong[0]
        return "refused" if index.refused > refused else "right answers"


class ForgedIndex(DamagedIndex):
    """The same with matching checksums: an attacker who can write them can hide words."""

    name = "forged FILE.embx"
    promise = "Checksums that hold are believed, but every row exists and nothing crashes."
    weight = 1.0

    def trial(self, rng: random.Random) -> str:
        name = rng.choice(list(self.indexes))
        index, backend = self.indexes[name], rng.choice(BACKENDS)
        data = anatomies.with_index_checksums(self.damaged(rng, name))
        index.index.write_bytes(data)
        words = [*INDEXED_WORDS, "absent", "c", "abab"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", embmap.StaleIndexWarning)
            return loaded(lambda: self.asked(index.path, backend, words))

    def asked(self, path: Path, backend: str, words: Sequence[str]) -> str:
        """Look everything up; the rows that are found exist."""
        try:
            with embmap.open(path, backend=backend, index="require") as f:
                for word, row in zip(words, f.find(words).tolist(), strict=True):
                    assert -1 <= row < len(INDEXED_WORDS), f"{word!r} is in row {row}"
                    found = f.find([word]).tolist()
                    assert found == [row], f"{word!r} is in row {row}, and in {found}"
                list(f.vocab)
                f.verify()
                f.subword_rows("ab")
        except embmap.EmbmapError:
            return "refused"
        return "answered"
