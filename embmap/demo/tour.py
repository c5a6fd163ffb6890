"""The demonstration itself: make an embedding, write it, open it and look words up.

Each step prints its time and how much of the file the operating system mapped in for it. The last
line gives both for reading the whole file.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from rich.console import Console
from rich.table import Table

import embmap
from embmap.demo.corpus import documents
from embmap.demo.training import Embedding, sliced, subword_rows, train

__all__ = ["SLICES", "SLICE_WORDS", "SUBWORDS", "tour"]

SUBWORDS = "docstrings-subwords.fifu"
SLICES, SLICE_WORDS = "docstrings-slices.dwe", "docstrings-slices.txt"

_DIM = 100
_EXPONENT = 14
_N_SLICES, _SLICED_WORDS = 9, 3000
_PROBES = ("list", "socket", "thread")
_UNKNOWN = "filesystems-like"


class _Step(NamedTuple):
    """One row of a table: the step, its result, seconds, and bytes mapped in (None if unknown)."""

    what: str
    result: str
    seconds: float
    touched: int | None


def tour(console: Console, folder: Path | None = None) -> None:
    """Make the files of the demonstration and show what embmap does with them."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="embmap-demo-") as temporary:
            tour(console, Path(temporary))
        return
    folder.mkdir(parents=True, exist_ok=True)
    plain, subwords = folder / "docstrings.fifu", folder / SUBWORDS
    corpus = _read(console)
    embedding = _make(console, corpus, plain, subwords)
    for path in (plain, subwords):
        path.with_name(path.name + ".embx").unlink(missing_ok=True)
        _show(console, path, embedding)
    _show_other_formats(console, folder, embedding)
    _show_slices(console, folder, corpus, embedding)
    console.print(
        "\n'touched' is the part of the file that the system newly mapped in for a step. It also "
        "maps pages around the one that is asked for."
    )


def _read(console: Console) -> list[list[str]]:
    """Return the words of each docstring."""
    console.print(f"Reading the docstrings of Python {_python()}'s standard library ...")
    start = time.perf_counter()
    corpus = list(documents())
    n_tokens = sum(map(len, corpus))
    seconds = time.perf_counter() - start
    console.print(f"  {len(corpus)} docstrings, {n_tokens} words of text in {seconds:.1f} s")
    return corpus


def _python() -> str:
    return ".".join(map(str, sys.version_info[:3]))


def _make(console: Console, corpus: list[list[str]], plain: Path, subwords: Path) -> Embedding:
    """Train on the docstrings and write both files."""
    console.print(f"Counting, PPMI and SVD to {_DIM} dimensions ...")
    read = time.perf_counter()
    embedding = train(corpus, dim=_DIM)
    trained = time.perf_counter()
    console.print(f"  {len(embedding.words)} vectors in {trained - read:.1f} s")
    metadata = f'title = "Docstrings of Python {_python()}"\nmethod = "PPMI and SVD"\n'
    embmap.finalfusion.write(
        plain, embedding.words, embedding.vectors, norms=embedding.norms, metadata=metadata
    )
    indexer = embmap.subwords.BucketIndexer(3, 6, _EXPONENT)
    buckets = subword_rows(
        embedding.words,
        embedding.vectors,
        lambda word: indexer.buckets([word])[0].tolist(),
        indexer.n_buckets,
    )
    embmap.finalfusion.write(
        subwords,
        embedding.words,
        [embedding.vectors, buckets],
        norms=embedding.norms,
        metadata=metadata,
        subwords=indexer,
    )
    console.print(
        f"  two files written, one with {indexer.n_buckets} rows for subwords, "
        f"in {time.perf_counter() - trained:.1f} s"
    )
    return embedding


def _show(console: Console, path: Path, embedding: Embedding) -> None:
    """Open a file and print what each look-up costs."""
    steps: list[_Step] = []

    def step(what: str, work: Callable[[], Any], tell: Callable[[Any], str] = str) -> Any:
        before = _mapped_in(path)
        start = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - start
        after = _mapped_in(path)
        touched = None if before is None or after is None else max(after - before, 0)
        steps.append(_Step(what, tell(result), seconds, touched))
        return result

    def numbers(vector: Any) -> str:
        return " ".join(f"{x:+.2f}" for x in vector[:4]) + " ..."

    opened = step("open", lambda: embmap.open(path), lambda f: f"{f.shape[0]} x {f.dim} {f.dtype}")
    probes = [word for word in _PROBES if word in set(embedding.words)]
    for word in probes:
        step(f"look up {word!r}", partial(opened.__getitem__, word), numbers)
    words = embedding.words[:: max(len(embedding.words) // 1000, 1)]
    step(f"a batch of {len(words)} words", lambda: opened.batch(words), lambda v: f"{v.shape}")
    if opened.subwords is None:
        tell = "no vector: this file has no subwords".format
        step(f"unknown {_UNKNOWN!r}", lambda: opened.get(_UNKNOWN), lambda _: tell())
    else:
        n_ngrams = len(opened.subwords.ngrams(_UNKNOWN))
        what = f"unknown {_UNKNOWN!r}, {n_ngrams} n-grams"
        step(what, lambda: opened[_UNKNOWN], numbers)
        step("  nearest to it", lambda: nearest(opened, _UNKNOWN), ", ".join)
    for word in probes:
        step(f"nearest to {word!r}", partial(nearest, opened, word), ", ".join)
    step("write the word index", opened.build_index, lambda index: f"{index.stat().st_size} bytes")
    opened.close()
    again = step(
        "open with it",
        partial(embmap.open, path, index="require"),
        lambda f: f"index from a {f.info()['index']}",
    )
    step(f"look up {probes[0]!r}", partial(again.__getitem__, probes[0]), numbers)
    again.close()
    opened.close()
    start = time.perf_counter()
    nbytes = len(path.read_bytes())
    read = time.perf_counter() - start
    steps.append(_Step("for comparison: read the whole file", "", read, nbytes))
    table = Table("step", "result", "time", "touched", title=f"\n{path.name}", title_justify="left")
    table.columns[2].justify = table.columns[3].justify = "right"
    for what, result, seconds, touched in steps:
        table.add_row(what, result, _duration(seconds), _size(touched))
    console.print(table)


def _show_other_formats(console: Console, folder: Path, embedding: Embedding) -> None:
    """Write the embedding as CVC and EMBD, and print the cost and the error of a look-up."""
    words, vectors = embedding.words, embedding.vectors
    probe = next((word for word in _PROBES if word in set(words)), words[0])
    expected = vectors[words.index(probe)]
    table = Table(
        "file",
        "bytes",
        f"look up {probe!r}",
        "largest error",
        title="\nother formats",
        title_justify="left",
    )
    table.columns[1].justify = table.columns[2].justify = table.columns[3].justify = "right"

    def show(path: Path, **options: Any) -> None:
        with embmap.open(path, **options) as opened:
            opened.find([probe])  # so that the look-up is measured without building an index
            start = time.perf_counter()
            vector = opened[probe]
            seconds = time.perf_counter() - start
        error = float(np.abs(vector - expected).max())
        size = _size(path.stat().st_size)
        table.add_row(path.name, size, _duration(seconds), f"{error:.1e}")

    def alternating(number: int, _: Any) -> str:
        return "int8" if number % 2 else "fp16"

    for name, compression in (("fp16", "fp16"), ("int8", "int8"), ("mixed", alternating)):
        path = folder / f"docstrings-{name}.cvc"
        embmap.cvc.write(path, vectors, compression=compression, chunk_rows=1000)
        show(path, vocab=words)
    path = folder / "docstrings.weights"
    tensors = {"embeddings.word_embeddings.weight": vectors, "norms": embedding.norms}
    embmap.embd.write(path, tensors, vocab=words)
    show(path)
    console.print(table)


def _show_slices(
    console: Console, folder: Path, corpus: list[list[str]], embedding: Embedding
) -> None:
    """Write a DWE file of how words are used across the library, and print how some words move."""
    words = embedding.words[:_SLICED_WORDS]
    probes = [word for word in _PROBES if word in set(words)]
    path, vocab = folder / SLICES, folder / SLICE_WORDS
    start = time.perf_counter()
    steps = [step[: len(words)] for step in sliced(corpus, embedding, _N_SLICES)]
    quantized, scale = embmap.dwe.quantize(steps, bits=8)
    embmap.dwe.write(path, quantized, scale=scale, layout="stream")
    vocab.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    seconds = time.perf_counter() - start
    console.print(
        f"\n{path.name}: the {len(words)} most frequent words in {_N_SLICES} overlapping slices of "
        "the docstrings, in the order of the modules' names instead of time: "
        f"{_size(4 * quantized.size)} of float32 in {_size(path.stat().st_size)}, "
        f"written in {seconds:.1f} s"
    )
    table = Table(
        "word",
        "cosine with its first slice, slice by slice",
        "time",
        "most related in the first",
        "and in the last slice",
    )
    with cast(embmap.dwe.DweFile, embmap.open(path, vocab=vocab)) as opened:
        opened.find(probes)  # the first look-up also reads the words
        for word in probes:
            start = time.perf_counter()
            moved = opened[word]
            seconds = time.perf_counter() - start
            lengths = np.linalg.norm(moved, axis=1) * np.linalg.norm(moved[0])
            cosines = moved @ moved[0] / np.where(lengths > 0, lengths, 1)
            related = [
                ", ".join(str(found.word) for found in opened.most_related(word, t, 4))
                for t in (0, -1)
            ]
            line = " ".join(f"{cosine:.2f}" for cosine in cosines)
            table.add_row(word, line, _duration(seconds), *related)
    console.print(table)


def nearest(opened: embmap.EmbeddingFile, word: str, n: int = 5) -> list[str]:
    """Return the words with the highest dot products with a word; rows have length 1."""
    query = opened[word]
    matrix, words = opened.vectors, opened.vocab
    if matrix is None or words is None:
        raise ValueError(f"{opened.path} has no words or no vectors")
    n_words = len(words)  # the rows after these belong to subwords
    scores = np.empty(n_words, np.float32)
    for start, block in matrix.blocks():
        if start >= n_words:
            break
        scores[start : start + len(block)] = block[: n_words - start] @ query
    order = np.argsort(-scores)[: n + 1]
    return [found for found in (words[int(row)] for row in order) if found != word][:n]


def _mapped_in(path: Path) -> int | None:
    """Return how many bytes of a file are mapped into this process; None if it is unknown."""
    try:
        maps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    kibibytes = 0
    inside = False
    for line in maps.splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path.resolve()))
        elif inside and line.startswith("Rss:"):
            kibibytes += int(line.split()[1])
    return 1024 * kibibytes


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms"


def _size(nbytes: int | None) -> str:
    if nbytes is None:
        return "-"
    return f"{nbytes / 1024:.0f} KiB" if nbytes < 1 << 20 else f"{nbytes / (1 << 20):.1f} MiB"
