"""The face that every file shares, as a user meets it."""

import contextlib
import copy
import multiprocessing
import os
import pickle
import sys
import threading
import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.words.row_finder import BUILD_AT_ONCE, SCANS
from tests.forked import forked

WORDS = ["one", "two", "three", "", "vier und fünf", "六"]


@pytest.fixture
def vectors():
    return np.random.default_rng(0).standard_normal((len(WORDS), 4), np.float32)


@pytest.fixture
def path(tmp_path, vectors):
    return embmap.finalfusion.write(tmp_path / "plain.fifu", WORDS, vectors)


@pytest.fixture
def with_subwords(tmp_path):
    indexer = embmap.subwords.BucketIndexer(3, 6, 6)
    rows = np.random.default_rng(1).standard_normal((len(WORDS) + 64, 4), np.float32)
    return embmap.finalfusion.write(tmp_path / "sub.fifu", WORDS, rows, subwords=indexer)


@pytest.fixture(params=["mmap", "read"])
def opened(request, path):
    with embmap.open(path, backend=request.param) as file:
        yield file


def test_words_and_rows_find_their_vectors(opened, vectors):
    for row, word in enumerate(WORDS):
        assert np.array_equal(opened[word], vectors[row])
        assert np.array_equal(opened[row], vectors[row])
        assert word in opened
    assert np.array_equal(opened[np.str_("two")], vectors[1])
    assert np.array_equal(opened[1:3], vectors[1:3])
    assert np.array_equal(opened[[2, 0]], vectors[[2, 0]])
    assert np.array_equal(opened[np.array([2, -1])], vectors[[2, -1]])
    assert np.array_equal(opened[["two", "one"]], vectors[[1, 0]])
    assert np.array_equal(opened[("two", "one")], vectors[[1, 0]])
    assert np.array_equal(opened[np.array(["two", "one"])], vectors[[1, 0]])
    assert opened[[]].shape == (0, 4)


def test_sizes_and_words_in_order(opened, vectors):
    assert (len(opened), opened.shape, opened.dim) == (6, (6, 4), 4)
    assert opened.dtype == np.float32
    assert list(opened) == list(opened.vocab) == WORDS
    assert opened.vocab[1:4] == WORDS[1:4]
    assert opened.vocab[::-2] == WORDS[::-2]
    assert opened.vocab[-1] == "六"
    assert opened.vocab.index("three") == 2
    assert (opened.vocab.count("three"), opened.vocab.count("x")) == (1, 0)
    assert 3 not in opened
    assert 3 not in opened.vocab
    for wrong in ("x", 3):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            opened.vocab.index(wrong)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        opened.vocab.index("three", 3)
    with pytest.raises(IndexError):
        opened.vocab[6]


def test_an_unknown_word_is_a_key_error_that_says_so(opened, path):
    with pytest.raises(embmap.UnknownWordError, match="no vector for 'zehn'") as caught:
        opened["zehn"]
    assert isinstance(caught.value, KeyError)
    assert str(path) in str(caught.value)
    assert opened.get("zehn") is None
    assert opened.get("zehn", 5) == 5
    assert np.array_equal(opened.get("one"), opened["one"])
    assert "zehn" not in opened
    with pytest.raises(IndexError):
        opened[6]


@pytest.mark.parametrize("n", [1, 3, 40])
def test_find_numbers_words(opened, n):
    words = (["two", "zehn", "", "六"] * n)[:n]
    rows = opened.find(iter(words))
    assert rows.dtype == np.int64
    assert rows.tolist() == ([1, -1, 3, 5] * n)[:n]
    with pytest.raises(TypeError, match="list of words"):
        opened.vocab.find("two")


def test_a_batch_stacks_vectors(opened, vectors):
    words = ["two", "one", "two"]
    assert np.array_equal(opened.batch(words), vectors[[1, 0, 1]])
    out = np.empty((3, 4), np.float32)
    assert opened.batch(iter(words), out=out) is out
    assert np.array_equal(out, vectors[[1, 0, 1]])
    assert opened.batch([]).shape == (0, 4)
    with pytest.raises(ValueError, match="out must be"):
        opened.batch(words, out=np.empty((3, 5), np.float32))


def test_missing_words_of_a_batch_raise_or_become_zero_or_nan(opened, vectors):
    words = ["two", "zehn", "elf"]
    with pytest.raises(embmap.UnknownWordError, match="'zehn' and 1 more"):
        opened.batch(words)
    zero = opened.batch(words, missing="zero")
    assert np.array_equal(zero[0], vectors[1])
    assert not zero[1:].any()
    out = np.ones((3, 4), np.float32)
    assert np.isnan(opened.batch(words, missing="nan", out=out)[1:]).all()
    with pytest.raises(ValueError, match="missing must be"):
        opened.batch(words, missing="skip")


def test_integers_have_no_nan(tmp_path):
    path = embmap.finalfusion.write(tmp_path / "int.fifu", ["a"], np.ones((1, 2), np.int8))
    with embmap.open(path) as file:
        assert file.batch(["a", "b"], missing="zero").tolist() == [[1, 1], [0, 0]]
        with pytest.raises(ValueError, match="no nan"):
            file.batch(["b"], missing="nan")


def test_unknown_words_are_composed_alone_and_in_batches(with_subwords):
    with embmap.open(with_subwords) as file:
        alone = file["onetwo"]
        assert np.isclose(np.linalg.norm(alone), 1)
        batch = file.batch(["one", "onetwo", "two"])
        assert np.array_equal(batch[1], alone)
        assert np.array_equal(batch[0], file["one"])
        assert "onetwo" not in file
        assert file.find(["onetwo"]).tolist() == [-1]
        assert np.array_equal(file.get("onetwo"), alone)


def test_a_word_too_short_for_ngrams_has_no_vector(tmp_path):
    indexer = embmap.subwords.BucketIndexer(4, 6, 2)
    rows = np.ones((5, 2), np.float32)
    path = embmap.finalfusion.write(tmp_path / "sub.fifu", ["one"], rows, subwords=indexer)
    with embmap.open(path) as file:
        with pytest.raises(embmap.UnknownWordError):
            file["x"]
        assert np.isnan(file.batch(["x", "abc"], missing="nan")[0]).all()


def test_words_composed_over_integer_rows_stay_fractions(tmp_path):
    indexer = embmap.subwords.BucketIndexer(3, 3, 0)
    rows = np.array([[5, 5], [3, 4]], np.int8)
    path = embmap.finalfusion.write(tmp_path / "int.fifu", ["a"], rows, subwords=indexer)
    with embmap.open(path) as file:
        batch = file.batch(["a", "bcd"])
        assert batch.dtype == np.float32
        assert np.allclose(batch, [[5, 5], [0.6, 0.8]])


def test_arrays_are_read_only_and_zero_copy_says_what_they_are(opened):
    vector = opened["one"]
    assert not vector.flags.writeable
    assert opened.vectors.zero_copy == np.shares_memory(vector, np.asarray(opened.vectors))


def test_repr_and_info_read_no_data(opened):
    assert "6 words, 6 x 4 float32, not read" in repr(opened)
    info = opened.info()
    assert info["format"] == "finalfusion"
    assert info["shape"] == [6, 4]
    assert info["n_words"] == 6
    assert info["index"] == "none"
    assert [chunk["name"] for chunk in info["chunks"]] == ["simple vocabulary", "ndarray"]


def test_a_closed_file_raises_but_its_arrays_live(path, vectors):
    for backend in ("mmap", "read"):
        file = embmap.open(path, backend=backend)
        vector, matrix, vocabulary = file["one"], file.vectors, file.vocab
        file.close()
        file.close()
        assert np.array_equal(vector, vectors[0])
        assert np.array_equal(matrix[1], vectors[1])
        assert vocabulary.find_row("two") == 1
        assert "closed" in repr(file)
        assert file.path == path
        calls = [
            lambda file: file["one"],
            lambda file: file[0],
            lambda file: file[0:1],
            lambda file: "one" in file,
            lambda file: file.get("one"),
            lambda file: file.find(["one"]),
            lambda file: file.batch(["one"]),
            len,
            list,
            lambda file: file.vectors,
            lambda file: file.vocab,
            lambda file: file.norms,
            lambda file: file.metadata,
            lambda file: file.subwords,
            lambda file: file.shape,
            lambda file: file.info(),
            lambda file: file.verify(),
            lambda file: file.build_index(),
            lambda file: file.prefetch(),
            lambda file: file.unnormalized("one"),
            lambda file: file.embedding_with_norm("one"),
            lambda file: file.subword_rows("one"),
            pickle.dumps,
            lambda file: file.__enter__(),
        ]
        for call in calls:
            with pytest.raises(embmap.ClosedError, match="is closed"):
                call(file)


def test_a_pickled_file_opens_again(path, opened, vectors):
    again = pickle.loads(pickle.dumps(opened))
    assert np.array_equal(again["two"], vectors[1])
    assert again.info()["backend"] == opened.info()["backend"]
    data = pickle.dumps(opened)
    os.utime(path, ns=(1, 1))
    with pytest.raises(embmap.FormatError, match="changed since it was pickled"):
        pickle.loads(data)


def test_threads_may_share_a_file(tmp_path):
    words = [f"word{i}" for i in range(BUILD_AT_ONCE + 1000)]
    rows = np.arange(len(words), dtype=np.float32)[:, np.newaxis]
    path = embmap.finalfusion.write(tmp_path / "many.fifu", words, rows)
    for backend in ("mmap", "read"):
        file = embmap.open(path, backend=backend)
        wrong = []

        def look_up(first, file=file, wrong=wrong):
            for i in range(first, len(words), 997):
                if file[words[i]][0] != i:
                    wrong.append(i)

        threads = [threading.Thread(target=look_up, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_may_use_its_parents_file(opened, vectors):
    assert forked(lambda: opened["two"].tolist()) == vectors[1].tolist()


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_large_vocabularies_are_scanned_before_they_are_indexed(tmp_path, backend):
    words = [f"word{i}" for i in range(BUILD_AT_ONCE + 1)]
    words[17] = words[12_345] = "twice"
    # The writer refuses repeated words, so one is put in afterwards.
    words[12_345] = "twicf"
    rows = np.arange(len(words), dtype=np.float32)[:, np.newaxis]
    path = embmap.finalfusion.write(tmp_path / "many.fifu", words, rows)
    path.write_bytes(path.read_bytes().replace(b"twicf", b"twice"))
    with embmap.open(path, backend=backend) as file:
        for i in range(SCANS):
            assert file.info()["index"] == "none"
            assert file.get(["twice", "absent", "\ud800"][i], -1) == [17, -1, -1][i]
        assert file["twice"] == 17
        assert file.info()["index"] == "memory"
        assert file[words[-1]] == len(words) - 1
        report = file.verify()
        assert not report.ok
        assert "word 12345, 'twice', repeats word 17" in report.problems[0].message


def test_parts_that_are_missing_are_none_or_said_to_be_missing(tmp_path):
    whole = embmap.finalfusion.write(tmp_path / "whole", ["a"], np.eye(1, dtype="f4"))
    chunk = embmap.open(whole).chunks[0]
    (tmp_path / "bare").write_bytes(whole.read_bytes()[chunk.offset : chunk.end])
    with embmap.open(tmp_path / "bare") as file:
        assert (file.vectors, file.norms, file.subwords) == (None, None, None)
        assert (file.shape, file.metadata, file.metadata_toml) == ((0, 0), {}, None)
        assert list(file) == ["a"]
        for call in (lambda: file["a"], lambda: file[0], lambda: file.batch(["a"])):
            with pytest.raises(embmap.FormatError, match="holds no vectors"):
                call()


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "word2vec-text"},
        {"backend": "mapp"},
        {"access": "fast"},
        {"layout": "v7"},
    ],
)
def test_unknown_choices_are_refused(path, wrong):
    with pytest.raises(ValueError, match="must be one of"):
        embmap.open(path, **wrong)


def test_every_access_and_backend_gives_the_same(path, vectors):
    for backend in ("mmap", "read"):
        for access in ("auto", "normal", "sequential"):
            with embmap.open(path, backend=backend, access=access, format="finalfusion") as file:
                file.prefetch()
                file.prefetch([0, -1])
                assert np.array_equal(np.asarray(file.vectors), vectors)


def test_verify_reports_progress(opened):
    steps = []
    report = opened.verify(lambda what, done, total: steps.append((what, done, total)))
    assert report.ok
    assert ("checking words", 6, 6) in steps
    assert ("checking vectors", 6, 6) in steps


@pytest.mark.parametrize("format", ["finalfusion", "embd", "cvc", "dwe"])
def test_a_file_that_is_closed_while_it_is_checked_is_not_called_damaged(tmp_path, vectors, format):
    path = tmp_path / format
    if format == "finalfusion":
        embmap.finalfusion.write(path, WORDS, vectors)
    elif format == "embd":
        embmap.embd.write(path, {"a": vectors, "b": vectors}, vocab=WORDS)
    elif format == "cvc":
        embmap.cvc.write(path, vectors, chunk_rows=2)
    else:
        embmap.dwe.write(path, embmap.dwe.quantize([vectors, vectors])[0], scale=1.0)
    file = embmap.open(path)
    with contextlib.suppress(embmap.ClosedError):
        assert file.verify(lambda *_: file.close()).ok
    file.close()
    with pytest.raises(embmap.ClosedError):
        file.verify()


def test_one_word_is_no_list_of_letters(opened, tmp_path):
    for call in (opened.batch, opened.find):
        with pytest.raises(TypeError, match="list of words"):
            call("one")
    assert np.array_equal(opened[np.array("two")], opened["two"])
    with pytest.raises(TypeError, match="iterable of str"):
        embmap.finalfusion.write(tmp_path / "x", "abc", np.eye(3, dtype="f4"))


def test_what_is_no_word_is_a_type_error_however_many_there_are(opened):
    for n in (1, 20):
        with pytest.raises(TypeError, match="str"):
            opened.find([b"one"] * n)
        with pytest.raises(TypeError, match="str"):
            opened.batch(["one", None] * n)
    for key in (None, b"one", {"one"}, {"one": 1}):
        with pytest.raises(TypeError, match="look up a word"):
            opened[key]
    for call in (opened.get, opened.unnormalized, opened.embedding_with_norm):
        with pytest.raises(TypeError, match="a word is a str"):
            call(5)
    assert opened[np.array(["two", "one"], object)].shape == (2, 4)


def test_an_out_that_cannot_hold_fractions_is_refused(tmp_path):
    indexer = embmap.subwords.BucketIndexer(3, 3, 0)
    rows = np.array([[5, 5], [3, 4]], np.int8)
    path = embmap.finalfusion.write(tmp_path / "int.fifu", ["a"], rows, subwords=indexer)
    with embmap.open(path) as file:
        with pytest.raises(ValueError, match="float32"):
            file.batch(["a", "bcd"], out=np.empty((2, 2), np.int8))
        out = np.empty((2, 2), np.float32)
        assert np.allclose(file.batch(["a", "bcd"], out=out), [[5, 5], [0.6, 0.8]])


def test_the_bytes_of_a_file_are_not_pickled(opened):
    with pytest.raises(TypeError, match="pickle the file"):
        pickle.dumps(opened.mapped_files)
    with pytest.raises(TypeError):
        copy.deepcopy(opened.vocab)


def test_paths_mean_what_they_meant_when_the_file_was_opened(path, monkeypatch, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    with embmap.open("plain.fifu") as file:
        monkeypatch.chdir(elsewhere)
        assert file.build_index() == tmp_path / "plain.fifu.embx"
        assert pickle.loads(pickle.dumps(file)).path == path


def test_a_long_unknown_word_takes_bounded_memory(tmp_path):
    indexer = embmap.subwords.BucketIndexer(3, 6, 4)
    rows = np.ones((17, 300), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a", ["a"], rows, subwords=indexer)
    with embmap.open(path, backend="read") as file:
        tracemalloc.start()
        vector = file["ab" * 5000]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 10_000_000
        assert np.isclose(np.linalg.norm(vector), 1)


def test_a_word_with_absurdly_many_ngrams_is_a_clear_error(tmp_path):
    indexer = embmap.subwords.BucketIndexer(1, 2**32 - 1, 0)
    path = embmap.finalfusion.write(tmp_path / "a", ["a"], np.ones((2, 1), "f4"), subwords=indexer)
    with embmap.open(path) as file, pytest.raises(embmap.UnsupportedError, match="too many"):
        file["x" * 100_000]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_an_index_is_built_does_not_wait_for_it(path):
    file = embmap.open(path)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    taken, release = threading.Event(), threading.Event()

    def hold():
        with file.vocab.finder._lock:
            taken.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(20)
    child = context.Process(target=lambda: sender.send(file["two"].tolist()))
    child.start()
    answered = receiver.poll(20)
    release.set()
    thread.join()
    if not answered:
        child.kill()
    child.join()
    assert answered


def test_a_file_whose_metadata_are_not_toml_is_described_all_the_same(tmp_path):
    rows = np.eye(1, dtype="f4")
    path = embmap.finalfusion.write(tmp_path / "a", ["a"], rows, metadata="a = 1")
    path.write_bytes(path.read_bytes().replace(b"a = 1", b"a = ="))
    with embmap.open(path) as file:
        assert "not TOML" in file.info()["metadata"]["error"]
        assert file.metadata_toml == "a = ="
        assert not file.verify().ok
        with pytest.raises(embmap.FormatError, match="not TOML"):
            _ = file.metadata


def test_a_name_too_long_for_an_index_beside_it_is_no_matter(tmp_path, vectors):
    path = embmap.finalfusion.write(tmp_path / ("x" * 252), WORDS, vectors)
    with embmap.open(path) as file:
        assert np.array_equal(file["two"], vectors[1])
        assert file.info()["index_file"] is None
