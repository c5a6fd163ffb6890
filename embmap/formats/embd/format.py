"""The EMBD format in the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from embmap.embedding_file import EmbeddingFile
from embmap.formats.embd.fields import DIALECTS, FORMAT, MAGIC, REQUIRED_METADATA
from embmap.formats.embd.file import EmbdFile
from embmap.formats.format import Writer
from embmap.formats.tensors import TensorFormat
from embmap.io.mapping import ByteSource
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from embmap.formats.exchange import Input, Original, Output, Request
    from embmap.io.atomic_write import Part

__all__ = ["EmbdFormat"]


class EmbdWriter(Writer):
    """Writes the vectors as the word embedding of a model, its tokens and its metadata."""

    dtypes = ("float32", "float16", "bfloat16")
    dialects = DIALECTS
    holds = frozenset({"metadata"})
    needs_words = False
    needs_vectors = False
    keeps_repeats = True

    def find_kept(self, output: Output) -> frozenset[str]:
        from embmap.formats.embd.copying import plan_copy

        kept = self.holds if _choose_dialect(output) == "spec" else frozenset()
        return kept if output.original is None else kept | plan_copy(output).parts

    def write(self, output: Output) -> None:
        from contextlib import ExitStack

        from embmap.formats.embd.copying import plan_copy
        from embmap.formats.embd.writer import write, write_copy
        from embmap.words.beside_writer import with_words_beside

        dialect = _choose_dialect(output)
        copy = None if output.original is None else plan_copy(output)
        own = {output.tensor: output.vectors} if output.vectors.shape[1] else {}
        tensors = own if copy is None else copy.tensors
        with ExitStack() as stack:
            path: Path | Part = output.path
            if output.words is None:
                # A file without words takes those beside it; an older file must not leave any.
                path = stack.enter_context(with_words_beside(output.path, None))
            original = output.original
            if original is not None and original.source.format != FORMAT:
                has_vectors = cast(EmbeddingFile, original.source.file).vectors is not None
                metadata = _complete(output, has_vectors=has_vectors) if dialect == "spec" else None
                write(path, tensors, vocab=output.words, metadata=metadata, layout=dialect)
            elif copy is None or "flat" in (dialect, copy.dialect):
                metadata = _complete(output) if dialect == "spec" else None
                write(path, tensors, vocab=output.words, metadata=metadata, layout=dialect)
            else:
                is_new = output.metadata is not cast("Original", output.original).source.metadata
                write_copy(
                    path,
                    tensors,
                    vocab=output.words,
                    special=copy.special,
                    metadata=(_complete(output) or {}).items() if is_new else copy.metadata,
                    align=copy.align,
                    checksums=copy.checksums,
                )


def _choose_dialect(output: Output) -> str:
    """Return the dialect to write: as asked for, else as in a file that is written again."""
    from embmap.formats.embd.copying import plan_copy

    stored = None if output.original is None else plan_copy(output).dialect
    return output.dialect or stored or "spec"


def _complete(output: Output, *, has_vectors: bool = True) -> dict[str, str] | None:
    """Return the given metadata with the required keys; None if none are given."""
    from datetime import UTC, datetime

    given = output.texts()
    if not given:
        return None
    n, dim = output.vectors.shape
    return {
        **dict.fromkeys(REQUIRED_METADATA, "unknown"),
        **({"embedding_dim": str(dim), "vocab_size": str(n)} if has_vectors else {}),
        "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **given,
    }


class EmbdFormat(TensorFormat):
    """Named tensors of a model, its tokens, metadata."""

    name = FORMAT
    title = "EMBD"
    extensions = (".weights", ".embd")
    dialects = DIALECTS
    magic = MAGIC
    file_class = EmbdFile
    writer = EmbdWriter()

    def read(self, data: ByteSource, request: Request, stack: ExitStack) -> Input:
        from dataclasses import replace

        from embmap.formats.embd.copying import list_parts

        source = super().read(data, request, stack)
        file, is_whole = cast(EmbdFile, source.file), request.keeps_whole(self.name)
        has_vectors = not is_whole or file.vectors is not None
        parts = list_parts(file, has_vectors=has_vectors)
        return replace(source, parts=parts, is_whole=is_whole)

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        if file.vectors is None and request.keeps_whole(self.name):
            import numpy as np

            from embmap.vectors.streamed import ArrayMatrix

            # The tensors are kept, and none of them is the vectors of the tokens.
            return ArrayMatrix(np.empty((len(file.vocab or ()), 0), np.float32))
        return super().choose_matrix(file, request)
