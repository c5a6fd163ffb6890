"""embmap: embedding files, memory-mapped.

``embmap.open`` parses a header and hands out lazy views: a vector costs one page of the file.
"""

from embmap import cvc, dwe, embd, finalfusion, subwords
from embmap.embedding_file import EmbeddingFile
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
from embmap.matrix import Matrix
from embmap.opening import open
from embmap.progress_bar import progress_bar
from embmap.report import Problem, Report
from embmap.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "ChecksumError",
    "ClosedError",
    "EmbeddingFile",
    "EmbmapError",
    "FormatError",
    "Matrix",
    "Problem",
    "Report",
    "StaleIndexError",
    "StaleIndexWarning",
    "TruncatedError",
    "UnknownWordError",
    "UnsupportedError",
    "Vocabulary",
    "__version__",
    "cvc",
    "dwe",
    "embd",
    "finalfusion",
    "open",
    "progress_bar",
    "subwords",
]
