"""``python -m benchmarks.breakdown``: where the time goes, piece by piece.

Prints medians for the pieces of work behind rows of docs/benchmarks.md, and the cost of a batch
whose pages must come from the disk.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest

import embmap
from benchmarks import files
from embmap.codecs import kernels
from embmap.codecs.ans import DecodeTables, decode
from embmap.codecs.difference_tree import levels, restore
from embmap.codecs.ngram_hashes import Text, bucket_hashes
from embmap.formats.dwe.layout import entries_of, model_of
from embmap.formats.dwe.queries import dot_products, greatest, scaled
from embmap.vectors.segments import normalize, segment_sums
from embmap.words.records import scan
from embmap.words.word_index import hash_words

_BATCH = 10_000
_PAGE = 4096


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.breakdown", description=__doc__)
    parser.add_argument("--words", type=int, default=1_000_000, metavar="N")
    n_words = parser.parse_args().words
    made = files.Files(files.cache_folder(n_words), n_words)
    print(f"a batch of {_BATCH} words out of {n_words}")
    batch(made.indexed)
    print(f"one word out of {n_words}, index file")
    one(made.indexed)
    print(f"an index over {n_words} words")
    build(made.dense)
    print("an unknown word, dense rows")
    unknown(made.bucket)
    print(f"the bytes of {made.n_chunk_rows} rows of {files.CHUNK_DIM} numbers")
    memory(made.n_chunk_rows * files.CHUNK_DIM * 4)
    for compression in ("fp16", "int8"):
        path = made.chunks(compression)
        print(f"{made.n_chunk_rows} rows in chunks of {compression}")
        chunks(path)
        print(f"a few rows in chunks of {compression}")
        chunk_rows(path)
    walks = made.walks("stream")
    n_steps, n_walks, dim = made.walk_shape
    print(f"one of {n_walks} words at {n_steps} time steps")
    trajectory(walks)
    print(f"one time step of {n_walks} words of {dim} dimensions")
    time_step(walks)
    print(f"a batch of {_BATCH} rows whose pages are not in memory")
    cold(made.dense)


def batch(path: Path) -> None:
    with embmap.open(path, index="require") as file:
        words = random.Random(0).sample(list(file.vocab), _BATCH)
        encoded = [word.encode() for word in words]
        found = file.find(words)
        out = file.vectors.take(found)
        measure("  f.batch(words)", lambda: file.batch(words))
        measure("    f.find(words)", lambda: file.find(words))
        measure("      encode", lambda: "\0".join(words).encode().split(b"\0"))
        measure("      xxh3_64", lambda: np.fromiter(map(xxh3_64_intdigest, encoded), np.uint64))
        measure("    take the rows into a new array", lambda: file.vectors.take(found))
        measure("    take the rows into a used array", lambda: file.vectors.take(found, out))
        measure("    copy as many bytes in a row", lambda: np.copyto(out, file.vectors[:_BATCH]))


def one(path: Path) -> None:
    with embmap.open(path, index="require") as file:
        words = random.Random(1).sample(list(file.vocab), _BATCH)
        rows = file.find(words).tolist()
        find_row, array = file.vocab.finder.find_row, np.asarray(file.vectors)
        measure("  f[word], words at random", lambda: [file[word] for word in words], _BATCH)
        measure("    find the row", lambda: [find_row(word) for word in words], _BATCH)
        measure("    make the view", lambda: [array[row] for row in rows], _BATCH)
        few = words[:50] * (_BATCH // 50)
        measure("  f[word], fifty words: all in the caches", lambda: [file[w] for w in few], _BATCH)


def build(path: Path) -> None:
    with embmap.open(path) as file:
        words = file.vocab
        starts = scan(words.file, words.records)
        measure("  build it", words.finder.build)
        measure("    find where words start", lambda: scan(words.file, words.records))
        measure("    hash them", lambda: list(hash_words(words.file, words.records, starts)))


def unknown(path: Path) -> None:
    with embmap.open(path) as file:
        words = files.unknown(1000)
        indexer, matrix = file.subwords, file.vectors
        for choice in each_kernels(lambda: file[words[0]]):
            text = [Text.of([f"<{word}>"]) for word in words]
            parts = [file._subword_rows([word]) for word in words]
            sums = [segment_sums(matrix, *part) for part in parts]
            measure(f"  f[word], {choice}", lambda: [file[word] for word in words], 1000)
            measure("    code points", lambda: [Text.of([f"<{word}>"]) for word in words], 1000)
            sizes = indexer.min_n, indexer.max_n
            measure(
                "    hashes", lambda text=text, s=sizes: [bucket_hashes(t, *s) for t in text], 1000
            )
            measure("    sums", lambda parts=parts: [segment_sums(matrix, *p) for p in parts], 1000)
            measure("    unit length", lambda sums=sums: [normalize(s.copy()) for s in sums], 1000)


def each_kernels(work: Callable[[], Any]) -> Iterator[str]:
    """Choose numpy and then numba, if they can do some work."""
    for choice in ("numpy", "numba"):
        kernels.CHOICE = choice
        try:
            work()
        except ImportError as error:
            print(f"  {choice}: {error}")
        else:
            yield choice


def memory(nbytes: int) -> None:
    used, source = np.ones((2, nbytes), np.uint8)
    halves = [slice(0, nbytes // 2), slice(nbytes // 2, nbytes)]
    measure("  copy them into a used array", lambda: np.copyto(used, source))
    with ThreadPoolExecutor(2) as pool:
        copy = partial(pool.map, lambda half: np.copyto(used[half], source[half]), halves)
        measure("  copy them into a used array, two threads", lambda: [*copy()])
    measure("  copy them into a new array", lambda: source.copy())
    measure("  have new memory provided", lambda: np.empty(nbytes, np.uint8)[::_PAGE].fill(0))


def chunks(path: Path) -> None:
    with embmap.open(path) as file, ThreadPoolExecutor(2) as pool:
        matrix, used = file.vectors, np.ones(file.shape, np.float32)
        starts = np.cumsum([0, *(chunk.rows for chunk in file.chunks)]).tolist()

        def check(number: int) -> None:
            file.chunks[number].check()

        def decode(out: np.ndarray, number: int) -> None:
            first, last = starts[number : number + 2]
            matrix.decode_rows(number, 0, last - first, out[first:last])

        def in_one(work: Callable[[int], None]) -> list[None]:
            return [work(number) for number in range(len(file.chunks))]

        def in_two(work: Callable[[int], None]) -> list[None]:
            return list(pool.map(work, range(len(file.chunks))))

        measure("  checksums, one thread", lambda: in_one(check))
        measure("  checksums, two threads", lambda: in_two(check))
        for choice in each_kernels(lambda: decode(used, 0)):
            measure(f"  np.asarray(f.vectors), {choice}", lambda: np.asarray(matrix))
            measure(
                "    decode into a new array, two threads",
                lambda: in_two(partial(decode, np.empty(file.shape, np.float32))),
            )
            measure(
                "    decode into a used array, two threads", lambda: in_two(partial(decode, used))
            )
            measure(
                "    decode into a used array, one thread", lambda: in_one(partial(decode, used))
            )


def chunk_rows(path: Path) -> None:
    with embmap.open(path) as file:
        matrix, starts = file.vectors, file.vectors._starts
        rows = np.random.default_rng(0).integers(0, len(file), 1000)
        numbers = rows.tolist()
        places = [(bisect_right(starts, i) - 1, i) for i in numbers]
        places = [(chunk, i - starts[chunk], i - starts[chunk] + 1) for chunk, i in places]
        out = np.empty((1, file.dim), np.float32)
        measure("  f[i]", lambda: [file[i] for i in numbers], 1000)
        measure("    f.vectors.row(i)", lambda: [matrix.row(i) for i in numbers], 1000)
        measure("      find the chunk", lambda: [bisect_right(starts, i) for i in numbers], 1000)
        measure(
            "      a new array", lambda: [np.empty(out.shape, out.dtype) for _ in numbers], 1000
        )
        measure("      decode it", lambda: [matrix.decode_rows(*at, out) for at in places], 1000)
        measure("        the view", lambda: [matrix._stored_rows(*at) for at in places], 1000)
        for choice in each_kernels(lambda: file[rows]):
            measure(f"  f[1000 rows], {choice}", lambda: file[rows])


def trajectory(path: Path) -> None:
    with embmap.open(path) as file:
        file.cache_nbytes = 0
        groups, layout = file._groups, file._offsets
        row = 5 * layout.group // 2
        number, within = np.array([row // layout.group]), row % layout.group
        steps = np.arange(layout.n_steps)
        read_entries = partial(entries_of, file._file, layout, steps[:, np.newaxis], number)
        measure("  models and their tables, once for a file", lambda: read_models(file))
        measure("  where the groups begin and end", read_entries)
        entries = read_entries()
        for choice in each_decoding(groups, entries):
            measure(f"  f[row], {choice}", lambda: file[row])
        decoded = groups._decode(entries, np.empty((steps.size, layout.group * layout.dim), "i2"))
        measure("  all ended where they have to?", lambda: list(decoded.problems(file._file, 0)))
        symbols = groups.symbols(steps, number)
        measure("  take the word out of its groups", lambda: symbols[:, 0, within].copy())
        values = symbols[:, 0, within].copy()
        measure("  undo the differences", lambda: undo(values))
        measure("  scale", lambda: scaled(values, np.float32(file.scale)))


def read_models(file: Any) -> None:
    layout = file._offsets
    tables = DecodeTables.empty(layout.n_steps, max(layout.model_sizes))
    for t in range(layout.n_steps):
        tables.fill(t, model_of(file._file, layout, t))


def undo(values: np.ndarray) -> None:
    for nodes in levels(len(values)):
        left, middle, right = nodes.T
        values[middle] = restore(values[left], values[middle], values[right])


def each_decoding(groups: Any, entries: Any) -> Iterator[str]:
    """Choose kernels and threads, and measure with each how long groups take to decode."""
    n = groups.layout.group * groups.layout.dim
    tables, which = groups._tables_of(entries.steps)
    words, positions, _ = groups._words_of(entries)

    def work(n: int, lanes: slice = slice(None)) -> None:
        out = np.empty((which[lanes].size, n), np.int16)
        decode(words, positions[lanes], entries.states[lanes], tables, which[lanes], out)

    def one_by_one() -> None:
        for i in range(which.size):
            work(n, slice(i, i + 1))

    for choice in each_kernels(lambda: work(1)):
        for threads in ("1", "2") if choice == "numba" else ("1",):
            os.environ["EMBMAP_THREADS"] = threads
            yield f"{choice}, {threads} thread{'s' * (threads != '1')}"
            measure("    decode the groups to their ends", partial(work, n))
            measure("    decode them to their middles", partial(work, n // 2))
        if choice == "numba":
            measure("    decode them one after the other", one_by_one)
        del os.environ["EMBMAP_THREADS"]


def time_step(path: Path) -> None:
    with embmap.open(path) as file:
        file.cache_nbytes = 0
        groups, layout = file._groups, file._offsets
        first, every = np.array([[0]]), np.arange(layout.n_groups)
        middle = layout.n_steps // 2
        read_entries = partial(entries_of, file._file, layout, first, every)
        measure("  where the groups begin and end", read_entries)
        for choice in each_decoding(groups, read_entries()):
            measure(
                f"  np.asarray(step.quantized), {choice}", lambda: file.at(0).vectors.quantized[:]
            )
            measure("    most_related, first step", lambda: file.most_related(0, 0))
            measure("    most_related, middle step", lambda: file.most_related(0, middle))
        step = file.at(0).vectors.quantized
        whole = step[:]
        measure("  copy a step into a new array", whole.copy)
        measure("  undo the differences", lambda: restore(whole, whole, whole))
        measure("  dot products with a word", lambda: dot_products(whole, whole[0]))
        products = dot_products(whole, whole[0])
        measure("  the ten greatest", lambda: greatest(products, 10, 0))


def cold(path: Path) -> None:
    if not hasattr(os, "posix_fadvise"):
        print("  this system cannot drop a file's pages")
        return
    found: dict[str, list[float]] = {}
    for seed in range(6):
        with open(path, "rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        plain = seed % 2 == 1
        with embmap.open(path, access="normal" if plain else "auto") as file:
            rows = np.random.default_rng(seed).integers(0, len(file), _BATCH)
            start = time.perf_counter()
            if not plain:
                file.prefetch(rows)
            asked = time.perf_counter()
            file.vectors.take(rows)
            end = time.perf_counter()
        parts = {'access="normal"': end - start} if plain else {}
        parts = parts or {"asking for the pages": asked - start, "gathering them": end - asked}
        for name, seconds in parts.items():
            found.setdefault(name, []).append(seconds)
    for name, seconds in found.items():
        show(f"  {name}", median(seconds))


def measure(what: str, work: Callable[[], Any], per: int = 1) -> None:
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    show(what, median(seconds) / per)


def show(what: str, seconds: float) -> None:
    value = f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"
    print(f"{what:45} {value:>10}")


if __name__ == "__main__":
    sys.exit(main())
