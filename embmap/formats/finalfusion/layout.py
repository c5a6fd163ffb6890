"""The layout of finalfusion files: from bytes to frozen offsets, everything validated.

Three dialects are read. "reference" is what every known writer emits; "v0" and "draft" are the two
published texts to the letter. A chunk without a file header is "bare". docs/formats/finalfusion.md
tells how they differ and how they are told apart. What stands inside a chunk is parsed by
:mod:`~embmap.formats.finalfusion.vocabulary_chunk` and
:mod:`~embmap.formats.finalfusion.storage_chunk`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.formats.finalfusion.chunks import (
    CHUNK_HEAD,
    CHUNK_NAMES,
    FORMAT,
    VOCABULARIES,
    Chunk,
)
from embmap.formats.finalfusion.storage_chunk import (
    Dense,
    Norms,
    Product,
    parse_dense,
    parse_draft_storage,
    parse_norms,
    parse_product,
)
from embmap.formats.finalfusion.vocabulary_chunk import (
    VocabularyLayout,
    content_end,
    parse_vocabulary,
)
from embmap.io.fields import FieldReader
from embmap.io.mapping import ByteSource

__all__ = ["DIALECTS", "MAGIC", "FinalfusionLayout", "looks_bare", "parse"]

MAGIC = b"FiFu"
_MOST_CHUNKS = 1000
Dialect = Literal["reference", "v0", "draft", "bare"]
DIALECTS: tuple[Dialect, ...] = ("reference", "v0", "draft", "bare")


@dataclass(frozen=True)
class FinalfusionLayout:
    """Everything an open file needs to know.

    Attributes
    ----------
    dialect : str
        "reference", "v0", "draft" or "bare".
    listed : tuple of int
        The chunk identifiers of the header, which is only a hint.
    chunks : tuple of Chunk
        What is there, in order.
    vocabulary, storage, norms : optional
        Where they are.
    metadata : Chunk or None
        The metadata chunk.
    """

    dialect: Dialect
    listed: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    vocabulary: VocabularyLayout | None = None
    storage: Dense | Product | None = None
    norms: Norms | None = None
    metadata: Chunk | None = None


def parse(file: ByteSource, dialect: str | None = None) -> FinalfusionLayout:
    """Parse a finalfusion file."""
    if dialect is not None and dialect not in DIALECTS:
        raise ValueError(f"layout must be one of {', '.join(DIALECTS)}, not {dialect!r}")
    head = file.read(0, min(4, file.nbytes))
    if dialect == "bare" or (dialect is None and head != MAGIC):
        return _parse_bare(file)
    reader = FieldReader(file, FORMAT)
    if reader.raw(4, "magic") != MAGIC:
        raise FormatError("not a finalfusion file", **reader.where("magic", 0), found=head)
    version = reader.u32("version")
    if version != 0:
        raise UnsupportedError(
            "this version of finalfusion files is not known",
            **reader.where("version", 4),
            found=version,
            expected=0,
        )
    n_chunks = reader.u32("number of chunks")
    if n_chunks == 0:
        raise reader.error("the file lists no chunks", "number of chunks", back=4)
    if (4 + CHUNK_HEAD) * n_chunks > reader.remaining:
        raise TruncatedError(
            "the file is too short for the chunks that it lists",
            **reader.where("number of chunks", 8),
            found=n_chunks,
        )
    if n_chunks > _MOST_CHUNKS:
        raise UnsupportedError(
            f"more than {_MOST_CHUNKS} chunks", **reader.where("number of chunks", 8)
        )
    listed = tuple(reader.u32("chunk identifier") for _ in range(n_chunks))
    walk = _Walk(file, listed, dialect)
    try:
        return walk.run(reader.offset)
    except FormatError:
        corrected = walk.corrected_vocabulary()
        if corrected is None:
            raise
    return _Walk(file, listed, dialect, corrected).run(reader.offset)


def looks_bare(file: ByteSource) -> bool:
    """Whether a file without the magic could be a single chunk."""
    if file.nbytes < CHUNK_HEAD:
        return False
    head = file.read(0, CHUNK_HEAD)
    known = int.from_bytes(head[:4], "little") in CHUNK_NAMES
    return known and int.from_bytes(head[4:], "little") == file.nbytes - CHUNK_HEAD


def _parse_bare(file: ByteSource) -> FinalfusionLayout:
    layout = _Walk(file, (), "reference").run(0)
    if len(layout.chunks) != 1 or layout.chunks[0].id not in CHUNK_NAMES:
        raise FormatError(
            "neither a finalfusion file nor one of its chunks", path=file.path, format=FORMAT
        )
    return replace(layout, dialect="bare")


class _Walk:
    """Walks over the chunks of a file and parses each."""

    def __init__(
        self,
        file: ByteSource,
        listed: tuple[int, ...],
        dialect: str | None,
        corrected: Chunk | None = None,
    ) -> None:
        self.file = file
        self.listed = listed
        self.forced = dialect
        self.dialect: Dialect = "reference"
        self.corrected = corrected  # a vocabulary chunk whose length field is wrong
        self.chunks: list[Chunk] = []
        self.vocabulary: VocabularyLayout | None = None
        self.vocabulary_chunk: Chunk | None = None
        self.storage: Dense | Product | None = None
        self.norms: Norms | None = None
        self.metadata: Chunk | None = None

    def run(self, offset: int) -> FinalfusionLayout:
        """Parse every chunk from `offset` to the end of the file."""
        while offset < self.file.nbytes:
            chunk = self._chunk(offset)
            self.chunks.append(self._parse(chunk))
            if len(self.chunks) > _MOST_CHUNKS:
                raise UnsupportedError(
                    f"more than {_MOST_CHUNKS} chunks", **self._where("chunks", offset)
                )
            offset = chunk.end
        if len(self.chunks) < len(self.listed):
            raise TruncatedError(
                "the file ends before all the chunks that its header lists",
                **self._where("chunks", offset),
                found=len(self.chunks),
                expected=len(self.listed),
            )
        self._check_rows()
        return FinalfusionLayout(
            self.forced if self.forced in ("v0", "draft") else self.dialect,  # type: ignore[arg-type]
            self.listed,
            tuple(self.chunks),
            self.vocabulary,
            self.storage,
            self.norms,
            self.metadata,
        )

    def _where(self, field: str, offset: int) -> dict[str, Any]:
        return {"path": self.file.path, "format": FORMAT, "offset": offset, "field": field}

    def _chunk(self, offset: int) -> Chunk:
        reader = FieldReader(self.file, FORMAT, offset)
        id = reader.u32("chunk identifier")
        stated = reader.u64("chunk length")
        if self.corrected is not None and self.corrected.offset == offset:
            return self.corrected
        if stated > reader.remaining:
            raise TruncatedError(
                f"the chunk needs {stated} bytes, but {reader.remaining} are left",
                **reader.where("chunk length", offset + 4),
            )
        return Chunk(id, CHUNK_NAMES.get(id, "unknown"), offset, stated, stated)

    def _parse(self, chunk: Chunk) -> Chunk:
        """Parse a chunk and return it, with the name that it has in its dialect."""
        id = chunk.id
        draft_id = id in (0, 1) and (id == 0 or self.vocabulary is not None)
        if draft_id and self.forced in (None, "draft"):
            # The draft numbers differ: 0 is the vocabulary, 1 a matrix of either kind.
            self.dialect = "draft"
            if id == 0:
                chunk = replace(chunk, name=CHUNK_NAMES[1])
                self._set_vocabulary(chunk, 1)
            else:
                storage = parse_draft_storage(self.file, chunk)
                chunk = replace(chunk, name=CHUNK_NAMES[2 if isinstance(storage, Dense) else 4])
                self._set_storage(chunk, storage)
        elif id in VOCABULARIES:
            self._set_vocabulary(chunk, id)
        elif id == 2:
            self._set_storage(chunk, parse_dense(self.file, chunk))
        elif id == 4:
            self._set_storage(chunk, parse_product(self.file, chunk))
        elif id == 5:
            self._only_one(self.metadata, chunk)
            self.metadata = chunk
        elif id == 6:
            self._only_one(self.norms, chunk)
            self.norms = parse_norms(self.file, chunk)
        return chunk

    def _only_one(self, present: object, chunk: Chunk) -> None:
        if present is not None:
            raise FormatError(
                "the file holds two chunks of this kind",
                **self._where(chunk.name, chunk.offset),
            )

    def _set_vocabulary(self, chunk: Chunk, id: int) -> None:
        self._only_one(self.vocabulary, chunk)
        self.vocabulary_chunk = chunk
        # The length field of a vocabulary may be wrong, its content is what counts.
        self.vocabulary, by_text = parse_vocabulary(self.file, chunk, id, self.forced)
        if by_text and self.dialect == "reference":
            self.dialect = "v0"

    def _set_storage(self, chunk: Chunk, storage: Dense | Product) -> None:
        self._only_one(self.storage, chunk)
        self.storage = storage

    def _check_rows(self) -> None:
        """Compare the sizes of the chunks with each other."""
        vocabulary, storage, norms = self.vocabulary, self.storage, self.norms
        if vocabulary is not None and norms is not None and norms.n != vocabulary.words.n:
            raise FormatError(
                "there must be one norm for each word",
                **self._where("norms", norms.offset),
                found=norms.n,
                expected=vocabulary.words.n,
            )
        if vocabulary is None or storage is None:
            return
        n_buckets = storage.rows - vocabulary.words.n
        if vocabulary.kind == "explicit":
            self.vocabulary = replace(vocabulary, n_buckets=n_buckets)
            fits = 0 <= n_buckets <= vocabulary.n_ngrams
        else:
            fits = n_buckets == vocabulary.n_buckets
        if not fits:
            raise FormatError(
                f"the storage has {storage.rows} rows, which do not fit {vocabulary.words.n} words "
                f"and {max(vocabulary.n_buckets, vocabulary.n_ngrams)} subwords",
                **self._where("rows", self.chunks[0].offset),
            )

    def corrected_vocabulary(self) -> Chunk | None:
        """Return the vocabulary's chunk with the length its content has; None where it is right.

        Some writers state a wrong length. It is corrected only where a whole known chunk, or the
        end of the file, follows the content.
        """
        stated = self.vocabulary_chunk or self._next_chunk()
        if stated is None or (stated.id not in VOCABULARIES and stated.id != 0):
            return None
        widened = replace(stated, nbytes=self.file.nbytes - stated.data_offset)
        try:
            vocabulary, _ = parse_vocabulary(self.file, widened, stated.id or 1, self.forced)
            end = content_end(self.file, vocabulary)
            if end == stated.data_offset + stated.stated_nbytes:
                return None  # something else is wrong
            if end < self.file.nbytes:
                following = _Walk(self.file, (), self.forced)._chunk(end)
                if following.id not in CHUNK_NAMES:
                    return None
        except FormatError:
            return None
        return replace(stated, nbytes=end - stated.data_offset)

    def _next_chunk(self) -> Chunk | None:
        """Return the head of the chunk that could not be parsed, whatever length it states."""
        offset = self.chunks[-1].end if self.chunks else 12 + 4 * len(self.listed)
        reader = FieldReader(self.file, FORMAT, offset)
        if reader.remaining < CHUNK_HEAD:
            return None
        id, nbytes = reader.u32("chunk identifier"), reader.u64("chunk length")
        return Chunk(id, CHUNK_NAMES.get(id, "unknown"), offset, reader.remaining, nbytes)
