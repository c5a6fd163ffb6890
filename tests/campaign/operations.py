"""Everything that writes a file, by name: each writer, the indexes, each pair of a conversion.

An operation writes version 0 or 1 of its target, so that a trial can distinguish the old file from
the new one and from a mixture. Both versions have as many rows, so that their parts fit together.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import embmap
from embmap.finalfusion import Quantized
from embmap.subwords import BucketIndexer, FloretIndexer
from embmap.words.beside_writer import with_words_beside

__all__ = ["DATA", "OPERATIONS", "PAIRS", "lay_data", "make_sources", "perform", "read_back"]

N, DIM = 400, 16
DATA = "data.fifu"  # beside an index that is written
EXTENSIONS = {
    "finalfusion": "fifu",
    "embd": "weights",
    "cvc": "cvc",
    "dwe": "dwe",
    "word2vec": "bin",
    "word2vec-text": "vec",
    "glove": "txt",
    "npy": "npy",
    "safetensors": "safetensors",
    "gensim": "kv",
    "fasttext": "fasttext",
    "floret": "floret",
}
_BESIDE = ("cvc", "dwe", "npy", "safetensors")  # formats whose words are in a second file


def words_of(version: int) -> list[str]:
    """The words, in another order for each version."""
    return [f"w{i}" for i in range(N)][:: 1 - 2 * version]


@functools.cache
def vectors_of(version: int) -> np.ndarray:
    return np.random.default_rng(version).standard_normal((N, DIM), np.float32)


@functools.cache
def quantized(version: int) -> Quantized:
    rng = np.random.default_rng(version)
    codes = rng.integers(0, 16, (N, 4), np.uint8)
    return Quantized(codes, rng.random((4, 16, 4), np.float32), norms=rng.random(N, np.float32))


@functools.cache
def steps(version: int) -> tuple[np.ndarray, float]:
    return embmap.dwe.quantize([vectors_of(version + 2 * t)[:100] for t in range(3)])


# Writers


def _finalfusion(path: Path, version: int) -> None:
    embmap.finalfusion.write(path, words_of(version), vectors_of(version), metadata="a = 1\n")


def _subwords(path: Path, version: int) -> None:
    indexer = BucketIndexer(3, 4, 4)
    rows = np.concatenate([vectors_of(version), vectors_of(version)[: indexer.n_buckets]])
    embmap.finalfusion.write(path, words_of(version), rows, subwords=indexer)


def _floret(path: Path, version: int) -> None:
    embmap.finalfusion.write(path, [], vectors_of(version), subwords=FloretIndexer(2, 4, N))


def _quantized(path: Path, version: int) -> None:
    embmap.finalfusion.write(path, words_of(version), None, quantized=quantized(version))


def _quantize(path: Path, version: int) -> None:
    """The whole way of quantizing, with what it keeps in files meanwhile."""
    blocks = iter(np.array_split(vectors_of(version), 5))
    parts = embmap.finalfusion.quantize(blocks, 4, 4, iterations=2, sample=64)
    embmap.finalfusion.write(path, words_of(version), None, quantized=parts)


def _embd(path: Path, version: int, **options: Any) -> None:
    tensors = {"embeddings.word_embeddings.weight": vectors_of(version)}
    embmap.embd.write(path, tensors, vocab=words_of(version), **options)


def _cvc(path: Path, version: int, compression: str) -> None:
    of = "1.0" if compression == "lossless" else "0.1"
    embmap.cvc.write(path, vectors_of(version), compression=compression, layout=of, chunk_rows=90)


def _columns(path: Path, version: int) -> None:
    columns = {"a": vectors_of(version), "b": vectors_of(version + 4)[:, :3]}
    embmap.cvc.write_columns(path, columns, chunk_rows=150)


def _edit(path: Path, version: int) -> None:
    """Replace the columns of the file that is there."""
    if path.exists():
        columns = {"a": vectors_of(version), "b": vectors_of(version + 4)[:, :3]}
        embmap.cvc.edit_columns(path, replace=columns)
    else:
        _columns(path, version)


def _append(path: Path, version: int, *, with_words: bool) -> None:
    """Write the rows of version 0, or append rows of version 1 to them.

    A kill may leave words that do not match: then there is nothing to append to.
    """
    more = [f"v{i}" for i in range(N)] if with_words else None
    with contextlib.suppress(embmap.ChecksumError, FileNotFoundError):
        with embmap.open(path) as file:
            is_old = len(file) == N
        if version and is_old:
            embmap.cvc.append(path, vectors_of(1), words=more)
            return
    rows = np.concatenate([vectors_of(each) for each in range(version + 1)])
    words = [*words_of(0), *(more or ())][: len(rows)]
    with with_words_beside(path, words if with_words else None) as part:
        embmap.cvc.write(part, rows, layout="1.0", chunk_rows=150)


def _dwe(path: Path, version: int, layout: str) -> None:
    values, scale = steps(version)
    embmap.dwe.write(path, iter(values), scale=scale, layout=layout)


def _index(path: Path, version: int, sources: Path) -> None:
    with embmap.open(_indexed(path.parent, version, sources), index="memory") as file:
        file.build_index(path)


def _graph(path: Path, version: int, sources: Path) -> None:
    with embmap.open(_indexed(path.parent, version, sources)) as file:
        file.build_ann(path)


def _indexed(folder: Path, version: int, sources: Path) -> Path:
    """The data of an index. The old index belongs to another file, so it is stale."""
    return folder / DATA if version else sources / "0" / DATA


def _conversion(path: Path, version: int, sources: Path, given: str, options: Any) -> None:
    folder = sources / str(version)
    source: Any = folder / given
    if path.suffix == ".dwe":  # the steps of time are several inputs
        source = [source, folder / "input.vec"]
        options = {**options, "bits": 6}
    (format,) = (name for name, each in EXTENSIONS.items() if path.suffix == f".{each}")
    embmap.convert(source, path, output_format=format, **options)


Writer = Callable[[Path, int, Path], object]


def _plain(writer: Callable[..., None], *rest: Any) -> Writer:
    return lambda path, version, sources: writer(path, version, *rest)


def _of_sources(writer: Callable[..., None], *rest: Any) -> Writer:
    return lambda path, version, sources: writer(path, version, sources, *rest)


OPERATIONS: dict[str, tuple[str, Writer]] = {  # name of the target, and what writes it
    "finalfusion": ("out.fifu", _plain(_finalfusion)),
    "finalfusion with subwords": ("out.fifu", _plain(_subwords)),
    "finalfusion, quantized": ("out.fifu", _plain(_quantized)),
    "finalfusion.quantize": ("out.fifu", _plain(_quantize)),
    "embd": ("out.weights", _plain(_embd)),
    "cvc fp16": ("out.cvc", _plain(_cvc, "fp16")),
    "cvc int8": ("out.cvc", _plain(_cvc, "int8")),
    "cvc lossless": ("out.cvc", _plain(_cvc, "lossless")),
    "cvc columns": ("out.cvc", _plain(_columns)),
    "cvc, columns edited": ("out.cvc", _plain(_edit)),
    "cvc, rows appended": ("out.cvc", _plain(functools.partial(_append, with_words=False))),
    "cvc, rows and words appended": (
        "out.cvc",
        _plain(functools.partial(_append, with_words=True)),
    ),
    "dwe blocks": ("out.dwe", _plain(_dwe, "blocks")),
    "dwe stream": ("out.dwe", _plain(_dwe, "stream")),
    "index": (f"{DATA}.embx", _of_sources(_index)),
    "approximate index": (f"{DATA}.usearch", _of_sources(_graph)),
}
_INPUTS = {
    DATA: {},
    "subwords.fifu": {},
    "quantized.fifu": {},
    "input.weights": {},
    "input.cvc": {},
    "input.dwe": {"timestep": 1},
    "input.bin": {},
    "input.vec": {},
    "input.txt": {},
    "input.npy": {},
    "input.npz": {"vocab": True},
    "input.safetensors": {},
    "input.kv": {},
    "input.fasttext": {},
    "floret.fifu": {},
    "input.floret": {},
}
_TABLES = ("floret.fifu", "input.floret")  # of n-grams; they have no words
# Names of operations that write vectors and the words beside them.
PAIRS = ["cvc, rows and words appended"]

for _given, _options in _INPUTS.items():
    for _format, _extension in EXTENSIONS.items():
        if _options and _format == "dwe":  # what is read with it takes no such options
            continue
        if _given in _TABLES and _format not in ("floret", "finalfusion"):
            continue
        if _given not in _TABLES and _format == "floret":
            continue
        _name = f"{_given} to {_format}"
        OPERATIONS[_name] = (
            f"out.{_extension}",
            lambda path, version, sources, given=_given, options=_options: _conversion(
                path,
                version,
                sources,
                given,
                {**options, "vocab": sources / str(version) / "input.npy.words.txt"}
                if "vocab" in options
                else options,
            ),
        )
        if _format in _BESIDE:
            PAIRS.append(_name)


def make_sources(folder: Path) -> Path:
    """Write the inputs of all operations, in both versions, and return their folder."""
    sources = folder / "sources"
    for version in (0, 1):
        inputs = sources / str(version)
        inputs.mkdir(parents=True)
        _finalfusion(inputs / DATA, version)
        _subwords(inputs / "subwords.fifu", version)
        _quantized(inputs / "quantized.fifu", version)
        _floret(inputs / "floret.fifu", version)
        for extension in sorted(EXTENSIONS.values(), key="dwe".__eq__):  # made of another
            if extension != "fifu":
                given = "floret.fifu" if extension == "floret" else DATA
                _conversion(inputs / f"input.{extension}", version, sources, given, {})
        with open(inputs / "input.npz", "wb") as out:
            np.savez_compressed(out, vectors_of(version))
    return sources


def perform(name: str, folder: str, sources: str, version: int) -> None:
    """Write a version of the target of an operation into a folder."""
    target, writer = OPERATIONS[name]
    writer(Path(folder) / target, version, Path(sources))


def lay_data(name: str, folder: Path, sources: Path) -> None:
    """Put the data beside which an index is written into the folder."""
    if OPERATIONS[name][0].startswith(DATA):
        shutil.copy2(sources / "1" / DATA, folder / DATA)


def read_back(name: str, folder: Path) -> bytes:
    """Words and vectors of the target as a reader finds them; raises what a reader raises."""
    target = folder / OPERATIONS[name][0]
    if target.suffix == ".embx":
        with embmap.open(folder / DATA, index="require") as file:
            return file.find(words_of(1)).tobytes()
    if target.suffix == ".usearch":
        with embmap.open(folder / DATA) as file:
            near = file.most_similar(words_of(1)[:20], 1, exclude=[], approximate=True)
        n_found = sum(found[0].word == word for found, word in zip(near, words_of(1), strict=False))
        assert n_found == 20, f"the index proposes {n_found} of 20 words for themselves"
        return b"usable"
    if name not in PAIRS and target.suffix in (".cvc", ".dwe"):
        with embmap.open(target) as file:
            columns = file.columns.values() if target.suffix == ".cvc" else [file.vectors]
            found = b"".join(np.ascontiguousarray(column).tobytes() for column in columns)
    else:
        back = folder / "read-back.fifu"
        try:
            step = {"timestep": -1} if target.suffix == ".dwe" else {}
            embmap.convert(target, back, **step)
            with embmap.open(back) as file:
                found = "\n".join(file).encode() + np.asarray(file.vectors).tobytes()
        finally:
            back.unlink(missing_ok=True)
    if target.suffix in (".fifu", ".weights", ".cvc", ".dwe"):
        with embmap.open(target) as file:
            report = file.verify()
        assert report.ok, f"{name}: what was read is not right: {report.problems}"
    return found
