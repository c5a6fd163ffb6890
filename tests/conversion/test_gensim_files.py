"""Every file in gensim's own test data gives the vectors that gensim reads, or a true refusal."""

import contextlib
import gzip
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

# Files with vectors that are refused, and why; other files that are refused hold none.
REFUSED = {
    "cp852_fasttext.bin": "word 1: not UTF-8",
    "pang_lee_polarity_fasttext.bin": "word 148: not UTF-8",
    "pang_lee_polarity_fasttext.vec": "word 148: not UTF-8",
    "pretrained.vec": "states 3 words, the file has 1",
    "w2v_keyedvectors_load_test.modeldata": "word 0: not UTF-8",
}
OTHERS = (
    "not a file of a known format",
    "holds no words with vectors",  # models of topics and phrases, dictionaries
    "vectors must be numbers in two or three dimensions, not",
    "is not a number",  # sparse matrices and lists, which only look like vectors
    "a line must have a word and",
    "saved vectors do not need",
    "not UTF-8",
    "the file is empty",
)
# Texts of numbers that are not vectors; embmap reads them as the formats that they look like.
NUMBERS = {"sstats_test.txt", "similarities0-1.txt"}


@pytest.fixture(scope="module")
def folder():
    gensim = pytest.importorskip("gensim", reason="gensim is not installed")
    folder = Path(gensim.__file__).parent / "test" / "test_data"
    if not folder.is_dir():
        pytest.skip("gensim is installed without its test data")
    return folder


class Unpickler(pickle.Unpickler):
    """Reads models of which this version of gensim lacks some classes."""

    def find_class(self, module, name):
        try:
            return super().find_class(module, name)
        except (AttributeError, ImportError):
            return type(name, (), {})


def load_with_gensim(path, format):
    """The words and the vectors that gensim reads."""
    from gensim import models
    from gensim.models.fasttext import load_facebook_vectors
    from gensim.models.poincare import PoincareModel

    if format == "fasttext":
        loaded = load_facebook_vectors(str(path))
        return loaded.index_to_key, loaded.vectors
    if format in ("word2vec", "word2vec-text", "glove"):
        options = {"binary": format == "word2vec", "no_header": format == "glove"}
        loaded = models.KeyedVectors.load_word2vec_format(str(path), **options)
        return loaded.index_to_key, loaded.vectors
    classes = (models.Word2Vec, models.Doc2Vec, models.FastText, models.KeyedVectors, PoincareModel)
    for kind in classes:
        with contextlib.suppress(Exception):
            loaded = kind.load(str(path))
            inner = getattr(loaded, "wv", getattr(loaded, "kv", loaded))
            if len(inner.vectors) == len(inner.index_to_key):
                return inner.index_to_key, inner.vectors
    # Only the version that saved the model loads it; its attributes are in the pickle or beside it.
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as handle:
        held, beside = vars(Unpickler(handle, encoding="latin1").load()), str(path)
    if "wv" in held:
        held, beside = vars(held["wv"]), f"{path}.wv"
    for name in ("vectors", "syn0"):
        if held.get(name) is not None:
            return held["index2word"], held[name]
        if Path(f"{beside}.{name}.npy").exists():
            return held["index2word"], np.load(f"{beside}.{name}.npy")
    raise AssertionError(f"{path} has no vectors")


def test_every_file_gives_the_vectors_that_gensim_reads(folder, tmp_path):
    n_equal = 0
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or path.name in NUMBERS:
            continue
        try:
            report = embmap.convert(path, tmp_path / "out.npy")
        except (embmap.EmbmapError, ValueError) as error:
            reasons = OTHERS if path.name not in REFUSED else (REFUSED[path.name],)
            message = str(error)
            assert any(reason in message for reason in reasons), message
            continue
        assert path.name not in REFUSED
        vectors = np.load(tmp_path / "out.npy")
        if report.input_format == "npy":
            assert vectors.tobytes() == np.load(path).tobytes()
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected_words, expected = load_with_gensim(path, report.input_format)
        words = report.words_path.read_text("utf-8").removesuffix("\n").split("\n")
        assert words == expected_words, path
        np.testing.assert_allclose(vectors, expected, atol=1e-6, err_msg=str(path))
        n_equal += 1
    assert n_equal >= 60
