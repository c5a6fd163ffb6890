"""The layout of finalfusion files: from bytes to frozen offsets, everything validated.

Every known writer emits the dialect "reference"; "v0" and "draft" follow the two published texts
to the letter; "bare" is a single chunk without a file header. docs/formats/finalfusion.md describes
how they differ and how they are distinguished. This module walks from chunk to chunk;
:mod:`~embmap.formats.finalfusion.vocabulary_chunk` and
:mod:`~embmap.formats.finalfusion.storage_chunk` parse the data of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.formats.finalfusion.chunks import CHUNK_HEAD, FORMAT, Chunk, ChunkType
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


@dataclass(frozen=True, kw_only=True)
class FinalfusionLayout:
    """The offsets and sizes of a file, all inside it.

    Attributes
    ----------
    listed : tuple of int
        The chunk identifiers that the header lists; only a hint.
    chunks : tuple of Chunk
        The chunks that are in the file, in order.
    """

    dialect: Dialect
    listed: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    vocabulary: VocabularyLayout | None = None
    storage: Dense | Product | None = None
    norms: Norms | None = None
    metadata: Chunk | None = None


def parse(file: ByteSource, dialect: str | None = None) -> FinalfusionLayout:
    """Parse a finalfusion file, as `dialect` if one is given; by default the bytes decide."""
    head = file.read(0, min(4, file.nbytes))
    if dialect == "bare" or (dialect is None and head != MAGIC):
        return _parse_bare(file)
    reader = FieldReader(file, FORMAT)
    if reader.raw(4, "magic") != MAGIC:
        raise FormatError("not a finalfusion file", **reader.where("magic", 0), found=head)
    version = reader.u32("version")
    if version != 0:
        raise UnsupportedError(
            "this embmap reads version 0 of finalfusion files",
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
            f"the file lists more than {_MOST_CHUNKS} chunks",
            **reader.where("number of chunks", 8),
            found=n_chunks,
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
    """Whether a file consists of one chunk of a known type."""
    if file.nbytes < CHUNK_HEAD:
        return False
    head = file.read(0, CHUNK_HEAD)
    if int.from_bytes(head[4:], "little") != file.nbytes - CHUNK_HEAD:
        return False
    return ChunkType.of(int.from_bytes(head[:4], "little")) is not None


def _parse_bare(file: ByteSource) -> FinalfusionLayout:
    layout = _Walk(file, (), "reference").run(0)
    if len(layout.chunks) != 1 or layout.chunks[0].type is None:
        raise FormatError(
            "neither a finalfusion file nor a single chunk of one", path=file.path, format=FORMAT
        )
    return replace(layout, dialect="bare")


class _Walk:
    """Walks from chunk to chunk and parses each, as the dialect `forced` or as its bytes decide."""

    def __init__(
        self,
        file: ByteSource,
        listed: tuple[int, ...],
        forced: str | None,
        corrected: Chunk | None = None,
    ) -> None:
        self.file = file
        self.listed = listed
        self.forced = forced
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
                    f"the file has more than {_MOST_CHUNKS} chunks", **self._where("chunks", offset)
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
            dialect=self.forced if self.forced in ("v0", "draft") else self.dialect,  # type: ignore[arg-type]
            listed=self.listed,
            chunks=tuple(self.chunks),
            vocabulary=self.vocabulary,
            storage=self.storage,
            norms=self.norms,
            metadata=self.metadata,
        )

    def _where(self, field: str, offset: int) -> dict[str, Any]:
        return {"path": self.file.path, "format": FORMAT, "offset": offset, "field": field}

    def _chunk(self, offset: int) -> Chunk:
        if self.corrected is not None and self.corrected.offset == offset:
            return self.corrected
        chunk = _read_head(self.file, offset)
        left = self.file.nbytes - chunk.data_offset
        if chunk.nbytes > left:
            raise TruncatedError(
                f"the chunk needs {chunk.nbytes} bytes, but {left} are left",
                **self._where("chunk length", offset + 4),
            )
        return chunk

    def _parse(self, chunk: Chunk) -> Chunk:
        """Parse a chunk and return it with the type that its dialect gives it."""
        draft = chunk.id == 0 or (chunk.id == 1 and self.vocabulary is not None)
        if draft and self.forced in (None, "draft"):
            # The identifiers of the draft differ: 0 is the vocabulary, 1 a matrix of either kind.
            self.dialect = "draft"
            if chunk.id == 1:
                storage = parse_draft_storage(self.file, chunk)
                is_dense = isinstance(storage, Dense)
                chunk = replace(chunk, type=ChunkType.NDARRAY if is_dense else ChunkType.QUANTIZED)
                self._set_storage(chunk, storage)
                return chunk
            chunk = replace(chunk, type=ChunkType.SIMPLE)
        if chunk.type is ChunkType.NDARRAY:
            self._set_storage(chunk, parse_dense(self.file, chunk))
        elif chunk.type is ChunkType.QUANTIZED:
            self._set_storage(chunk, parse_product(self.file, chunk))
        elif chunk.type is ChunkType.METADATA:
            self._only_one(self.metadata, chunk)
            self.metadata = chunk
        elif chunk.type is ChunkType.NORMS:
            self._only_one(self.norms, chunk)
            self.norms = parse_norms(self.file, chunk)
        elif chunk.type is not None:
            self._set_vocabulary(chunk)
        return chunk

    def _only_one(self, present: object, chunk: Chunk) -> None:
        if present is not None:
            raise FormatError(
                f"the file has two chunks for the {chunk.name}",
                **self._where(chunk.name, chunk.offset),
            )

    def _set_vocabulary(self, chunk: Chunk) -> None:
        self._only_one(self.vocabulary, chunk)
        # Set first, so that a chunk with a wrong length can be corrected after an error.
        self.vocabulary_chunk = chunk
        self.vocabulary, by_text = parse_vocabulary(self.file, chunk, self.forced)
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
                "the file must have as many norms as words",
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
        """Return the vocabulary's chunk with the length of its content; None if nothing is wrong.

        Some writers state a wrong length. It is corrected only if the content is followed by a
        whole chunk of a known type or by the end of the file.
        """
        stated = self.vocabulary_chunk or self._failed_chunk()
        if stated is None:
            return None
        type = ChunkType.SIMPLE if stated.id == 0 else stated.type
        if type is None or type.vocabulary is None:
            return None
        widened = replace(stated, type=type, nbytes=self.file.nbytes - stated.data_offset)
        try:
            vocabulary, _ = parse_vocabulary(self.file, widened, self.forced)
            end = content_end(self.file, vocabulary)
            if end == stated.data_offset + stated.stated_nbytes:
                return None  # the length is right, so something else is wrong
            if end < self.file.nbytes:
                following = _Walk(self.file, (), self.forced)._chunk(end)
                if following.type is None:
                    return None
        except FormatError:
            return None
        return replace(stated, nbytes=end - stated.data_offset)

    def _failed_chunk(self) -> Chunk | None:
        """Return the head of the chunk after the last parsed one, whatever length it states."""
        offset = self.chunks[-1].end if self.chunks else 12 + 4 * len(self.listed)
        return _read_head(self.file, offset) if offset + CHUNK_HEAD <= self.file.nbytes else None


def _read_head(file: ByteSource, offset: int) -> Chunk:
    """Return the chunk at an offset with the length that it states."""
    reader = FieldReader(file, FORMAT, offset)
    id, nbytes = reader.u32("chunk identifier"), reader.u64("chunk length")
    return Chunk(id=id, type=ChunkType.of(id), offset=offset, nbytes=nbytes, stated_nbytes=nbytes)
