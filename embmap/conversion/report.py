"""The report of a conversion."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ConversionReport"]


@dataclass(frozen=True, kw_only=True)
class ConversionReport:
    """What a conversion did.

    Attributes
    ----------
    path : pathlib.Path
        The file written.
    input_format, output_format : str
        The formats read and written.
    n_words : int
        Number of words in the output, or of rows if it has no words.
    dim : int
        Length of a vector.
    dtype : str
        Dtype of the numbers in the output; if it is quantized, the dtype of decoded vectors.
    n_duplicates : int
        Number of words left out because they repeat an earlier word.
    n_dropped : int
        Number of words left out because the output cannot hold them, or because not every one of
        several inputs has them.
    n_missing : int
        Number of words that were asked for and are not in the input.
    lengths : str
        "stored": the rows are as in the input. "unit": they are scaled to unit length, and their
        lengths are stored if the format has norms. "original": they are multiplied by the norms of
        the input.
    left_out : tuple of str
        Parts of the input that the output lacks: "repeated words", "norms", "subwords",
        "quantization", "metadata", and parts that only its own format holds, such as "other
        tensors", "special tokens", "other time steps", "word counts" and "output matrix".
    words_path : pathlib.Path or None
        The text file with the words, if the format does not contain words.
    """

    path: Path
    input_format: str
    output_format: str
    n_words: int
    dim: int
    dtype: str
    n_duplicates: int = 0
    n_dropped: int = 0
    n_missing: int = 0
    lengths: str = "stored"
    left_out: tuple[str, ...] = ()
    words_path: Path | None = None
