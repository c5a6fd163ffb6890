"""What a conversion did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["ConversionReport"]


@dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes
    ----------
    path : pathlib.Path
        The file written.
    input_format, output_format : str
        What was read and written.
    n_words : int
        Words, or rows without words, in the output.
    dim : int
        Numbers of a vector.
    dtype : str
        Type of a number in the output; of quantized vectors that of what they decode to.
    n_duplicates : int
        Words left out because they repeat; the first of them was taken.
    n_dropped : int
        Words left out because the output cannot hold them, or of several inputs because not all of
        them have the word.
    n_missing : int
        Words that were asked for and are not in the input.
    lengths : str
        "stored": rows are what they are in the input; "unit": scaled to unit length, with norms
        where the format has them; "original": multiplied with the input's norms.
    left_out : tuple of str
        What the input has and the output does not: "norms", "subwords", "metadata", "quantization".
    words_path : pathlib.Path or None
        The file with the words, where the format carries none.
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
