"""An open DWE file through the public face: words, choices, threads and forked children."""

import concurrent.futures
import json
import pickle
import sys

import numpy as np
import pytest

import embmap
from tests.conformance.generated_dwe import each_layout, same, scaled, steps, written
from tests.forked import forked
from tests.reference import dwe as reference

# ------------------------------------------------------------------------------------ an open file

WORDS = ["the", "café", "✓", "x" * 300, "The", "naïve"]


@pytest.fixture(params=reference.LAYOUTS)
def integers(request, path):
    """The integers of a file at `path`, of six words and five time steps."""
    values = steps(5, 6, 3)
    written(path, values, 0.25, 3 if request.param == "blocks" else 4, request.param)
    return values


def test_words_are_given_in_a_list_or_a_file(path, backend, integers, tmp_path):
    lines = tmp_path / "words.txt"
    lines.write_bytes("\n".join([*WORDS, ""]).encode())
    numbers = scaled(integers, 0.25)
    for vocab in (WORDS, tuple(WORDS), lines, str(lines)):
        with embmap.open(path, backend=backend, vocab=vocab) as f:
            assert list(f) == list(f.vocab) == WORDS
            assert len(f) == 6
            assert "✓" in f
            assert "✗" not in f
            assert 0 not in f
            for row, word in enumerate(WORDS):
                same(f[word], numbers[:, row])
                same(f[np.str_(word)], numbers[:, row])
                same(f.get(word), numbers[:, row])
                same(f.at(-1)[word], numbers[-1, row])
                same(f.at()[word], numbers[-1, row])
                same(f.at(1).batch([word])[0], numbers[1, row])
            assert f.get("✗") is None
            assert f.get("✗", 5) == 5
            assert f.find(["naïve", "✗", "the"]).tolist() == [5, -1, 0]
            same(f[["naïve", "the"]], numbers[:, [5, 0]].swapaxes(0, 1))
            same(f[np.array(["naïve", "the"])], numbers[:, [5, 0]].swapaxes(0, 1))
            same(f.batch(["naïve", "the"]), numbers[:, [5, 0]].swapaxes(0, 1))
            same(f.batch(["✗", "the"], missing="zero")[1], numbers[:, 0])
            assert np.isnan(f.batch(["✗", "the"], missing="nan")[0]).all()
            same(
                f.similarity_over_time(["the", 1], [5, "✓"]), f.similarity_over_time([0, 1], [5, 2])
            )
            for found in (f.most_related("the", 2, 5), f.largest_changes("the", 5, 1, 1)):
                assert [each.word for each in found] == [WORDS[each.row] for each in found]
            assert [tuple(each) for each in f.most_related("✓", 0, 1)] == [
                (found.row, WORDS[found.row], found.score) for found in f.most_related(2, 0, 1)
            ]
            assert f.verify().ok


def test_booleans_choose_words(path, backend, integers):
    over_time = scaled(integers, 0.25).swapaxes(0, 1)
    with embmap.open(path, backend=backend) as f:
        for chosen in ([0, 2, 4], [5], [0], [], range(6), [1, 2, 5]):
            mask = np.isin(np.arange(6), chosen)
            same(f[mask], over_time[mask])
            same(f[mask.tolist()], over_time[mask])
            same(f.vectors[mask], over_time[mask])


def test_words_that_are_not_there_are_named(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        for read in (
            lambda: f["✗"],
            lambda: f[["the", "✗"]],
            lambda: f.at(0)["✗"],
            lambda: f.similarity_over_time(["the"], ["✗"]),
            lambda: f.most_related("✗", 0, 1),
            lambda: f.largest_changes("✗", 1),
            lambda: f.batch(["✗"]),
        ):
            with pytest.raises(embmap.UnknownWordError, match="✗"):
                read()
        with pytest.raises(embmap.UnknownWordError, match="'✗' and 1 more"):
            f[["✗", "the", "?"]]


def test_a_file_has_no_words_of_its_own(path, backend, integers):
    with embmap.open(path, backend=backend) as f:
        assert f.vocab is None
        assert len(f) == 6
        assert "the" not in f
        assert f.metadata == {}
        with pytest.raises(TypeError, match="no words"):
            iter(f)
        for read in (lambda: f["the"], lambda: f[["the"]]):
            with pytest.raises(embmap.UnknownWordError):
                read()
        assert f.get("the", "none") == "none"
    for n in (5, 7):
        with pytest.raises(ValueError, match=f"{n} words were given for 6 rows"):
            embmap.open(path, backend=backend, vocab=(WORDS * 2)[:n])


def test_what_is_asked_for_has_to_exist(path, backend, integers):
    with embmap.open(path, backend=backend) as f:
        for t in (5, -6, 2**40):
            for read in (f.at, lambda t: f.most_related(0, t, 1)):
                with pytest.raises(IndexError, match=f"timestep must .* below 5, not {t}"):
                    read(t)
        for row in (6, -7, 2**70):
            for read in (
                lambda row: f[row],
                lambda row: f.at(0)[row],
                lambda row: f.similarity_over_time([0], [row]),
                lambda row: f.most_related(row, 0, 1),
                lambda row: f.largest_changes(row, 1),
            ):
                with pytest.raises(IndexError, match=f"row must .* below 6, not {row}"):
                    read(row)
        for n in (6, 7, 2**32, -1):
            for read in (lambda n: f.most_related(0, 0, n), lambda n: f.largest_changes(0, n)):
                with pytest.raises(ValueError, match=f"n must be 0 to 5, .*, not {n}"):
                    read(n)
        for least in ((2, 2), (4, 0), (0, 4), (-1, 0), (0, -1)):
            with pytest.raises(ValueError, match="together at most n = 3"):
                f.largest_changes(0, 3, *least)
        with pytest.raises(ValueError, match="must have 2 words, not 1"):
            f.similarity_over_time([0, 1], [0])
        with pytest.raises(ValueError, match="cache_nbytes"):
            f.cache_nbytes = -1
        for wrong in (None, b"the", {}):
            with pytest.raises(TypeError):
                f[wrong]
        for wrong in (None, 1.5, b"the", {}, object()):
            with pytest.raises(IndexError, match="rows must be"):
                f[[wrong]]
        for read in (f.batch, lambda words: f.similarity_over_time(words, words)):
            with pytest.raises(TypeError, match="list of words"):
                read("the")
        with pytest.raises(IndexError, match="6 booleans"):
            f[[True] * 5]
        assert f.similarity_over_time([], []).shape == (0, 5)


@each_layout
def test_a_file_of_one_word_has_no_neighbors(path, backend, layout):
    written(path, steps(3, 1, 4), 0.5, 1, layout)
    with embmap.open(path, backend=backend) as f:
        assert f.most_related(0, 0, 0) == f.largest_changes(0, 0) == []
        with pytest.raises(ValueError, match=r"n must be 0 to 0, .* not 10"):
            f.most_related(0, 0)


def test_a_file_says_what_is_known_unread(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        layout = f.layout
        shown = repr(f)
        for part in (path.name, "6 x 5 x 3", layout, "6 words", "not read"):
            assert part in shown
        assert "6 x 3" in repr(f.at(1).vectors)
        info = json.loads(json.dumps(f.info()))
        assert info["shape"] == [6, 5, 3]
        assert (info["format"], info["layout"], info["scale"]) == ("dwe", layout, 0.25)
        assert (info["version"], info["n_words"], info["nbytes"]) == (
            "1.0",
            6,
            path.stat().st_size,
        )
        assert [part["name"] for part in info["chunks"]] == [f"timestep {t}" for t in range(5)]
        models = reference.parse(path.read_bytes()).models
        assert [part["symbols"] for part in info["chunks"]] == [len(model) for model in models]
        for part in info["chunks"]:
            assert 0 < part["offset"] <= info["nbytes"] - part["nbytes"]
        f.prefetch()
        f.prefetch([0, -1])


def test_a_closed_file_is_not_read(path, backend, integers):
    f = embmap.open(path, backend=backend, vocab=WORDS)
    step, trajectory = f.at(1).vectors, f[2]
    before = trajectory.copy()
    f.close()
    same(trajectory, before)
    for read in (
        lambda: f["the"],
        lambda: f[0],
        lambda: f[[0]],
        lambda: f[0:1],
        lambda: f[0],
        lambda: f[[0]],
        lambda: f.at(0).vectors,
        lambda: f.similarity_over_time([0], [0]),
        lambda: f.most_related(0, 0, 1),
        lambda: f.largest_changes(0, 1),
        lambda: len(f),
        lambda: f.vectors,
        lambda: f.info(),
        lambda: f.verify(),
        lambda: pickle.dumps(f),
        lambda: f.prefetch(),
        lambda: iter(f),
        lambda: "the" in f,
    ):
        with pytest.raises(embmap.ClosedError):
            read()
    assert "closed" in repr(f)
    same(np.asarray(step.quantized), integers[1])  # what was handed out stays valid


def test_a_pickled_file_opens_again(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        data = pickle.dumps(f)
        again = pickle.loads(data)
    assert (again.path, again.layout, again.info()["backend"]) == (path, f.layout, backend)
    same(again["✓"], scaled(integers[:, 2], 0.25))
    first = pickle.loads(pickle.dumps(again.at(0).vectors))
    same(np.asarray(first), scaled(integers[0], 0.25))
    path.write_bytes(reference.encode(steps(5, 6, 4), 0.25, 2))
    with pytest.raises(embmap.FormatError, match="changed since it was pickled"):
        pickle.loads(data)


def test_answers_may_be_written_to_and_change_nothing(path, backend, integers):
    with embmap.open(path, backend=backend, vocab=WORDS) as f:
        for _ in range(2):
            for read in (
                lambda: f["the"],
                lambda: f[[0, 1]],
                lambda: f.at(0).vectors[0],
                lambda: f.at(0).vectors.quantized[0],
                lambda: f.at(0).vectors.quantized[0:6],
                lambda: f.at(2).vectors.quantized[0:6],
                lambda: f.at(4).vectors.quantized[[0, 5]],
                lambda: f.batch(["the"]),
            ):
                read()[...] = 77
        for t in range(5):
            same(np.asarray(f.at(t).vectors.quantized), integers[t])
        same(f[:], np.ascontiguousarray(scaled(integers, 0.25).swapaxes(0, 1)))


@pytest.mark.parametrize("cache_nbytes", [0, 2000, 1 << 20])
def test_threads_share_a_file(path, backend, kernel, cache_nbytes):
    values = steps(9, 40, 4)
    written(path, values, 0.5, 4, "stream")
    numbers = scaled(values, 0.5)
    with embmap.open(path, backend=backend) as f:
        f.cache_nbytes = cache_nbytes

        def read(seed):
            rng = np.random.default_rng(seed)
            for _ in range(12):
                row, t = int(rng.integers(40)), int(rng.integers(9))
                same(f[row], numbers[:, row])
                same(f.at(t).vectors.quantized[row], values[t, row])
                rows = rng.integers(0, 40, 3)
                same(f.at(t).vectors[rows], numbers[t, rows])
            return seed

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            assert list(pool.map(read, range(6))) == list(range(6))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_may_use_its_parents_file(path, backend, integers):
    numbers = scaled(integers, 0.25)
    with embmap.open(path, backend=backend) as f:
        assert forked(lambda: f[1].tolist()) == numbers[:, 1].tolist()
        same(f[1], numbers[:, 1])
        assert forked(lambda: f[[0, 1]].tolist()) == numbers[:, :2].swapaxes(0, 1).tolist()
        with f.at(0).vectors.groups._lock:  # as another thread might, when the child is forked
            assert forked(lambda: f.at(2).vectors[4].tolist()) == numbers[2, 4].tolist()
