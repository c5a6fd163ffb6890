"""Mutated inputs of conversions: an error and no output, or an output that verifies."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import random
import shutil
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import embmap
from tests.campaign.bounds import Bounds
from tests.campaign.documents import hostile_json, hostile_text
from tests.campaign.mutation import Anatomy, mutated
from tests.campaign.part import Part, Skipped
from tests.judges import inputs
from tests.judges.damage import loaded
from tests.judges.everything import ask_file
from tests.reference.other_tools import decode_fasttext, decode_word2vec

WORDS = ["berlin", "zürich", "東京", "a"]
VECTORS = np.random.default_rng(5).standard_normal((4, 3)).astype("<f4")
DECODERS = {"word2vec": decode_word2vec, "fasttext": decode_fasttext}
OUTPUTS = (".fifu", ".fifu", ".fifu", ".weights", ".cvc", ".vec", ".npy")


def text_lines(head: bool) -> bytes:
    """A text of words and vectors."""
    lines = [f"{len(WORDS)} {VECTORS.shape[1]}"] if head else []
    lines += [f"{word} {' '.join(map(str, row))}" for word, row in zip(WORDS, VECTORS, strict=True)]
    return "".join(f"{line}\n" for line in lines).encode()


def floret_lines() -> bytes:
    """A table of floret."""
    head = "4 3 1 3 2 7 < >"
    lines = [head, *(f"{i} {' '.join(map(str, row))}" for i, row in enumerate(VECTORS))]
    return "".join(f"{line}\n" for line in lines).encode()


def valid_inputs() -> dict[str, bytes]:
    """A small valid input of each format."""
    archive = io.BytesIO()
    np.savez_compressed(archive, vectors=VECTORS)
    tensor = {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, VECTORS.nbytes]}
    return {
        "word2vec-text": text_lines(head=True),
        "glove": text_lines(head=False),
        "floret": floret_lines(),
        "word2vec": inputs.word2vec(WORDS)[0],
        "fasttext": inputs.fasttext(["a", "bc"], buckets=2)[0],
        "fasttext-first": inputs.fasttext(["a", "bc"], buckets=2, version=None)[0],
        "npy": inputs.npy(VECTORS),
        "npz": archive.getvalue(),
        "safetensors": inputs.tensors({"x": tensor}, VECTORS.tobytes()),
    }


def format_of(name: str) -> str:
    """The format of a valid input."""
    return name.removesuffix("-first")


def anatomy(data: bytes) -> Anatomy:
    """Every aligned number of the first bytes, and sections of a few bytes."""
    fields = [(at, size) for size in (1, 2, 4, 8) for at in range(0, min(len(data), 200) - 8, size)]
    edges = [*range(0, len(data), 16), len(data)]
    sections = list(pairwise(edges))
    return Anatomy(data, fields, sections, sections)


class Converted(Part):
    """Inputs that are converted, and what is left in the folder."""

    memory = 4 << 30
    allowed: ClassVar[tuple[type[Exception], ...]] = ()  # more errors that are clear

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.vocab = folder / "vocab.txt"
        self.vocab.write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
        self.work = folder / "work"

    def convert(self, data: bytes, format: str, target: str, **options: Any) -> str:
        """Convert an input; check that what is left is whole, or nothing."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        path, output = self.work / "input", self.work / f"output{target}"
        path.write_bytes(data)
        if format in ("npy", "npz", "safetensors"):
            options["vocab"] = self.vocab
        try:
            with np.errstate(all="ignore"):
                report = embmap.convert(path, output, **options)
        except (embmap.EmbmapError, ValueError, *self.allowed) as error:
            refused = error
        else:
            self.check_output(output, report)
            return "converted"
        message = str(refused)
        # Of ValueError only what embmap raised itself, not what a library made of the bytes.
        own = (
            isinstance(refused, (embmap.EmbmapError, *self.allowed)) or type(refused) is ValueError
        )
        assert own, f"{type(refused).__name__}: {message}"
        assert 0 < len(message) < 2000, f"{type(refused).__name__}: {message[:200]!r}"
        left = sorted(set(os.listdir(self.work)) - {"input"})
        assert not left, f"{message}, but {left} is left"
        return f"refused with {type(refused).__name__}"

    def check_output(self, output: Path, report: embmap.ConversionReport) -> None:
        """Check that an output can be opened and is whole."""
        assert report.n_words >= 0
        if output.suffix in (".fifu", ".weights", ".cvc"):
            with embmap.open(output) as f:
                verified = f.verify()
                assert verified.ok, f"the output: {verified.problems[0].message}"
                assert len(f) == report.n_words


class MutatedInputs(Converted):
    name = "mutated inputs of conversions"
    promise = "An error and no output, or an output that verifies."

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.anatomies = {name: anatomy(data) for name, data in valid_inputs().items()}
        try:
            import gensim
        except ImportError:
            pass
        else:
            vectors = gensim.models.KeyedVectors(3)
            vectors.add_vectors(WORDS, VECTORS)
            vectors.save(str(folder / "gensim"))
            self.anatomies["gensim"] = anatomy((folder / "gensim").read_bytes())
        for name, valid in self.anatomies.items():
            outcome = self.convert(valid.data, name, ".fifu", input_format=format_of(name))
            assert outcome == "converted", f"a valid input of {name} is {outcome}"
        self.bounds = Bounds(
            sum(len(valid.data) for valid in self.anatomies.values()),
            lambda: [
                self.convert(valid.data, name, ".fifu", input_format=format_of(name))
                for name, valid in self.anatomies.items()
            ],
        )

    def damaged(self, rng: random.Random, name: str) -> bytes:
        """A valid input, damaged."""
        valid = self.anatomies[name]
        data = valid.data
        if name in ("word2vec-text", "glove", "floret") and rng.random() < 0.7:
            return hostile_text(rng, data)
        if name == "safetensors" and rng.random() < 0.6:
            length = int.from_bytes(data[:8], "little")
            header = hostile_json(rng, data[8 : 8 + length])
            return len(header).to_bytes(8, "little") + header + data[8 + length :]
        return mutated(rng, valid, list(self.anatomies.values()))

    def trial(self, rng: random.Random) -> str:
        name, target = rng.choice(list(self.anatomies)), rng.choice(OUTPUTS)
        data = self.damaged(rng, name)
        options: dict[str, Any] = {"lossy": rng.random() < 0.3}
        if rng.random() < 0.6:
            options["input_format"] = format_of(name)
        if rng.random() < 0.2:
            options["limit"] = rng.choice((0, 1, 3, 100))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.bounds.hold(
                rng, len(data), lambda: self.convert(data, name, target, **options)
            )


class OpenedInputs(MutatedInputs):
    name = "mutated files of other tools, opened in place"
    promise = "Every question is answered, or refused with an error of embmap's, in bounded memory."
    kinds = ("word2vec", "fasttext", "fasttext-first", "npy", "safetensors")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "opened"
        self.anatomies = {name: self.anatomies[name] for name in self.kinds}
        self.bounds = Bounds(
            sum(len(valid.data) for valid in self.anatomies.values()),
            lambda: [self.ask(valid.data, name, "mmap") for name, valid in self.anatomies.items()],
        )

    def ask(self, data: bytes, name: str, backend: str) -> str:
        """Open a file, compare it with the reference decoder, and ask it for everything."""
        self.path.write_bytes(data)
        options: dict[str, Any] = {"backend": backend, "format": format_of(name)}
        decode = DECODERS.get(format_of(name))
        if decode is not None:
            loaded(lambda: self.compare(decode(data), **options))
        with np.errstate(all="ignore"):
            found = ask_file(self.path, WORDS, **options)
        return "answered" if found else "refused"

    def compare(self, expected: Any, **options: Any) -> None:
        """Compare words and stored rows, as far as embmap reads them."""
        with contextlib.suppress(embmap.EmbmapError), embmap.open(self.path, **options) as f:
            words = [word for _, word in f.vocab.encoded()]
            stored = f.stored if hasattr(f, "stored") else (f.vectors,)
            rows = np.concatenate([np.asarray(each) for each in stored])
            assert expected is not None, "the reference decoder reads no such file"
            assert words == expected[0]
            assert rows.tobytes() == expected[1][: len(rows)].tobytes()

    def trial(self, rng: random.Random) -> str:
        name, backend = rng.choice(self.kinds), rng.choice(("mmap", "read", "cached"))
        data = self.damaged(rng, name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.bounds.hold(rng, len(data), lambda: self.ask(data, name, backend))


class HostilePickles(Converted):
    name = "hostile pickles"
    promise = "Nothing that a pickle names is called; an error, or an output that verifies."
    allowed = (FileNotFoundError,)  # of the arrays that gensim saves beside a pickle

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if importlib.util.find_spec("tests.judges.pickles") is None:
            raise Skipped("there are no hostile pickles")
        self.pickles = importlib.import_module("tests.judges.pickles")
        self.corpus = list(self.pickles.CORPUS.values())
        self.small = [each for each in self.corpus if len(each) < 10_000]
        self.small.append(self.pickles.saved())
        valid = self.pickles.saved()
        self.bounds = Bounds(
            len(valid), lambda: self.convert(valid, "gensim", ".fifu", input_format="gensim")
        )

    def trial(self, rng: random.Random) -> str:
        kind = rng.random()
        if kind < 0.02:
            data = rng.choice(self.corpus)
        elif kind < 0.5:
            data = self.pickles.assembled(rng)
        else:
            data = self.pickles.mutated(rng.choice(self.small), rng)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return self.bounds.hold(
                rng,
                len(data),
                lambda: self.convert(data, "gensim", ".fifu", input_format="gensim", lossy=True),
            )
