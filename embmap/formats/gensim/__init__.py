"""KeyedVectors as gensim saves them, read and written without gensim."""

from embmap.formats.format import WORD_COUNTS

__all__ = ["FORMAT", "TRAINING_STATE", "name_part"]

FORMAT = "gensim"
# What reports call what only this format holds.
TRAINING_STATE = "training state"
_CODES = ("code", "point")  # of a word in the tree of a hierarchical softmax


def name_part(attribute: str, *, is_read: bool = True) -> str:
    """Return what reports call an attribute of the words, or one that embmap does not read."""
    if attribute == "count":
        return WORD_COUNTS
    if is_read:
        return "word attributes"
    return TRAINING_STATE if attribute in _CODES else "other word attributes"
