"""An open EMBD file: tensors by name, tokens as words, metadata."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from embmap.errors import FormatError
from embmap.formats.embd.fields import (
    FOOTER,
    FORMAT,
    REQUIRED_METADATA,
    TENSORS_ALIGNED,
    TensorLayout,
    fnv1a,
)
from embmap.formats.embd.layout import EmbdLayout, parse
from embmap.formats.tensors import NamedTensors, TensorFile, choose_by_name, tensor_matrix
from embmap.io.mapping import ByteSource
from embmap.progress import Progress
from embmap.words.given import Words, words_of
from embmap.words.index_source import IndexChoice
from embmap.words.records import scan

if TYPE_CHECKING:
    from embmap.report import Report

__all__ = ["EmbdFile", "Tensors", "find_word_embedding"]

_READ = 1 << 22
_ALIGN = 64


class Tensors(NamedTensors):
    """The tensors of an EMBD file by name, and the layout of the file."""

    def __init__(self, file: ByteSource, layout: EmbdLayout) -> None:
        super().__init__(file, FORMAT, layout.tensors)
        self.offsets = layout


class EmbdFile(TensorFile):
    """An EMBD file: tensors by name, a WordPiece vocabulary and metadata.

    The words of the file are its tokens. The vector of a token is its row in the tensor of the word
    embedding.

    Parameters
    ----------
    file : ByteSource
        The bytes of the file.
    dialect : {"spec", "flat"}, optional
        How to read it; by default the bytes decide.
    index : str or path-like
        Which index over the tokens to use; see :func:`embmap.open`.
    vocab : path-like or sequence of str, optional
        Tokens for a file without a vocabulary.

    Raises
    ------
    FormatError
        If it is not a valid EMBD file.
    StaleIndexError
        If an index is required and does not match.
    ValueError
        If `vocab` is given for a file that has tokens, or its length differs from the word
        embedding.
    """

    format: ClassVar[str] = FORMAT

    def __init__(
        self,
        file: ByteSource,
        dialect: str | None = None,
        index: IndexChoice = "auto",
        vocab: Words | None = None,
    ) -> None:
        layout = self._offsets = parse(file, dialect)
        records = layout.vocabulary
        chosen = find_word_embedding(layout)
        matrix = None if chosen is None else tensor_matrix(file, chosen)
        n_rows = 0 if matrix is None else len(matrix)
        words = words_of(file, records, vocab, n_rows, FORMAT, index)
        super().__init__(file, layout.dialect, words, matrix)
        self._tensors = Tensors(file, layout)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Rows of the tokens "pad", "unk", "cls", "sep" and "mask"; empty if the file has none."""
        self._check_open()
        return dict(self._offsets.special_tokens)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata: keys and values, all str. Of repeated keys the last one counts."""
        self._check_open()
        return dict(self._offsets.metadata)

    def info(self) -> dict[str, Any]:
        """Return what is known about the file without reading its data.

        Returns
        -------
        dict
            The keys of :meth:`EmbeddingFile.info`, and special_tokens, checksums, aligned, and a
            chunk for each tensor: name, dtype, shape, offset, alignment and nbytes.
        """
        info = super().info()
        info["special_tokens"] = self.special_tokens
        info["checksums"] = self._offsets.has_checksums
        info["aligned"] = bool(self._offsets.flags & TENSORS_ALIGNED)
        info["chunks"] = self._list_tensors()
        return info

    def _verify_data(self, report: Report, progress: Progress | None) -> None:
        from embmap.formats.embd.model import compare_metadata

        layout = self._offsets
        report.checked += ["tensor names", "metadata"]
        for message, offset in layout.warnings:
            report.warning(message, offset)
        for tensor in layout.tensors.values():
            if tensor.name_hash is not None and tensor.name_hash != fnv1a(tensor.name.encode()):
                report.error(f"the stored hash does not match the name {tensor.name!r}")
            if layout.flags & TENSORS_ALIGNED and tensor.offset % _ALIGN:
                report.warning(
                    f"tensor {tensor.name!r} is not aligned to {_ALIGN} bytes as the flags promise",
                    tensor.offset,
                )
        self._verify_total(report)
        for name, number in layout.special_tokens.items():
            if layout.vocabulary is not None and number >= layout.vocabulary.n:
                bound = layout.vocabulary.n
                report.warning(f"the special token {name!r} must be below {bound}, not {number}")
        if layout.dialect == "flat":
            report.skipped("checksums: flat files have none")
            return
        keys = dict(layout.metadata)
        for key in REQUIRED_METADATA:
            if key not in keys:
                report.warning(f"the metadata lack the key {key!r}")
        for message in compare_metadata(layout, find_word_embedding(layout)):
            report.warning(message)
        self._verify_padding(report)
        if layout.has_checksums:
            self._verify_checksums(report, progress)
        else:
            report.warning("the file has no checksums, so its data cannot be verified")

    def _verify_total(self, report: Report) -> None:
        """Compare the size of the tokens with the size in the vocabulary section."""
        stated, records = self._offsets.stated_nbytes, self._offsets.vocabulary
        if stated is None or records is None:
            return
        try:
            nbytes = int(scan(self._file, records)[-1])
        except FormatError:  # the check of the tokens has reported it
            return
        if stated != nbytes:
            message = f"the total_size of the tokens must be {nbytes}, not {stated}"
            report.warning(message, records.offset)

    def _verify_padding(self, report: Report) -> None:
        """Look for bytes other than zero between tensors."""
        report.checked.append("padding")
        layout = self._offsets
        position, end = layout.data_offset, layout.data_offset + layout.data_nbytes
        spans = sorted((tensor.offset, tensor.nbytes) for tensor in layout.tensors.values())
        for offset, nbytes in [*spans, (end, 0)]:
            for start in range(position, offset, _READ):
                gap = self._file.array(start, np.uint8, min(_READ, offset - start))
                if gap.any():
                    report.warning("the padding is not zero", start + int(gap.argmax()))
                    break
            position = max(position, offset + nbytes)

    def _verify_checksums(self, report: Report, progress: Progress | None) -> None:
        """Compare the checksums of the file and of the tensor data in one pass."""
        report.checked.append("checksums")
        self._file.check_whole()
        layout, file = self._offsets, self._file
        footer = file.nbytes - FOOTER.size
        data_sum, file_sum, _, _ = FOOTER.unpack(file.read(footer, FOOTER.size))
        first, last = layout.data_offset, layout.data_offset + layout.data_nbytes
        of_data = of_file = 0
        bounds = sorted({0, min(first, footer), min(last, footer), footer})
        for begin, end in pairwise(bounds):
            for start in range(begin, end, _READ):
                block = file.array(start, np.uint8, min(_READ, end - start)).data
                of_file = zlib.crc32(block, of_file)
                if first <= start < last:
                    of_data = zlib.crc32(block, of_data)
                if progress is not None:
                    progress("checking checksums", start + len(block), footer)
        if of_data != data_sum:
            report.error("the checksum does not match the tensor data", first)
        if of_file != file_sum:
            report.error("the checksum does not match the file", footer + 4)


def find_word_embedding(layout: EmbdLayout) -> TensorLayout | None:
    """Return the tensor with a row for each token, None if it cannot be identified."""
    tensors = layout.tensors
    n_words = 0 if layout.vocabulary is None else layout.vocabulary.n
    named = choose_by_name(tensors, n_words)
    if named is not None or not n_words:
        return named
    # Without a known name, only a unique matrix with as many rows as tokens is certain.
    return tensors.find_matrix(n_words)
