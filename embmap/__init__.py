"""embmap: embedding files, memory-mapped.

``embmap.open`` parses a header and returns lazy views: a vector costs one page of the file.
"""

from typing import TYPE_CHECKING, Any

from embmap import cvc, dwe, embd, finalfusion, subwords
from embmap.embedding_file import EmbeddingFile
from embmap.embeddings import Embeddings
from embmap.errors import (
    ChecksumError,
    ClosedError,
    EmbmapError,
    FormatError,
    StaleIndexError,
    StaleIndexWarning,
    TruncatedError,
    UnknownWordError,
    UnsupportedError,
)
from embmap.opening import open
from embmap.progress import progress_bar
from embmap.report import Problem, Report
from embmap.search.queries import Neighbor
from embmap.search.word_pairs import Correlation
from embmap.vectors.matrix import Matrix
from embmap.words.vocabulary import Vocabulary

if TYPE_CHECKING:
    from embmap.client import connect
    from embmap.conversion import ConversionReport, convert

__version__ = "0.1.0"

__all__ = [
    "ChecksumError",
    "ClosedError",
    "ConversionReport",
    "Correlation",
    "EmbeddingFile",
    "Embeddings",
    "EmbmapError",
    "FormatError",
    "Matrix",
    "Neighbor",
    "Problem",
    "Report",
    "StaleIndexError",
    "StaleIndexWarning",
    "TruncatedError",
    "UnknownWordError",
    "UnsupportedError",
    "Vocabulary",
    "__version__",
    "connect",
    "convert",
    "cvc",
    "dwe",
    "embd",
    "finalfusion",
    "open",
    "progress_bar",
    "subwords",
]


def __getattr__(name: str) -> Any:
    """Import conversion and client, which opening does not need, when they are first used."""
    if name in ("ConversionReport", "convert"):
        from embmap import conversion

        return getattr(conversion, name)
    if name == "connect":
        from embmap.client import connect

        return connect
    raise AttributeError(f"module 'embmap' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, lazy imports included."""
    return sorted({*globals(), *__all__})
