"""Errors keep what they know."""

import pickle

import embmap


def test_errors_survive_pickling():
    errors = [
        embmap.FormatError("bad", path="p", format="f", offset=3, field="x", found=1, expected=2),
        embmap.TruncatedError("short", path="p"),
        embmap.UnknownWordError("word", path="p", n_unknown=3),
        embmap.ClosedError("closed"),
        embmap.StaleIndexError("stale"),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__
