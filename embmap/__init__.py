"""embmap: embedding files, memory-mapped.

``embmap.open`` parses a header and returns lazy views: a vector costs one page of the file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embmap import cvc, dwe, embd, finalfusion, subwords
    from embmap.client import connect
    from embmap.conversion import ConversionReport, convert
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

# The modules that define the names above, other than errors; a name without one is a module.
_HOMES = {
    "ConversionReport": "conversion",
    "Correlation": "search.word_pairs",
    "EmbeddingFile": "embedding_file",
    "Embeddings": "embeddings",
    "Matrix": "vectors.matrix",
    "Neighbor": "search.queries",
    "Problem": "report",
    "Report": "report",
    "Vocabulary": "words.vocabulary",
    "connect": "client",
    "convert": "conversion",
    "open": "opening",
    "progress_bar": "progress",
}


def __getattr__(name: str) -> Any:
    """Import what a name needs when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'embmap' has no attribute {name!r}")
    home = "errors" if name.endswith(("Error", "Warning")) else _HOMES.get(name)
    if home is None:
        return import_module(f"embmap.{name}")
    value = globals()[name] = getattr(import_module(f"embmap.{home}"), name)
    return value


def __dir__() -> list[str]:
    """Return all names, those not imported yet included."""
    return sorted({*globals(), *__all__})
