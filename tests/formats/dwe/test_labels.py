"""Time steps by the labels that a word list in JSON gives them."""

import json
import pickle

import numpy as np
import pytest

import embmap
from tests.reference import dwe as reference

WORDS = ["car", "train", 'a "quoted" word', "zwölf", "{"]
YEARS = [1900, 1920, 1940, 1960]
STEPS = np.random.default_rng(4).integers(-50, 50, (4, 5, 3)).astype(np.int16)


def write(folder, years=YEARS, words=WORDS, **others):
    embmap.dwe.write(folder / "a.dwe", STEPS, scale=0.5, group=5)
    listed = {"freqs": [1, 2], "vocab": words, **others}
    if years is not None:
        listed["years"] = years
    (folder / "words.json").write_text(json.dumps(listed), "utf-8")
    return {"path": folder / "a.dwe", "vocab": folder / "words.json"}


@pytest.mark.parametrize("backend", ["mmap", "read"])
def test_the_words_and_years_of_a_word_list_name_rows_and_steps(tmp_path, backend):
    with embmap.open(**write(tmp_path), backend=backend) as f:
        assert list(f.vocab) == WORDS
        assert f.timestep_labels == tuple(YEARS)
        np.testing.assert_array_equal(f["zwölf"], STEPS[:, 3] * np.float32(0.5))
        for t, year in enumerate(YEARS):
            for way in (year, str(year), t, t - 4):
                step = f.at(way)
                assert (step.t, step.label) == (t, year)
                assert f.most_related("car", way, 2) == f.most_related("car", t, 2)
            assert f"time step {t} ({year})" in repr(step)
            assert (step.info()["timestep"], step.info()["label"]) == (t, year)
        assert [part["label"] for part in f.info()["chunks"]] == YEARS
        assert f.at().t == 3
        for t in (4, 1910, "1900s"):
            with pytest.raises(IndexError, match="1900 to 1960"):
                f.at(t)
        copy = pickle.loads(pickle.dumps(f.at(1920)))
        assert (copy.t, copy.label) == (1, 1920)


def test_labels_that_look_like_numbers_of_steps(tmp_path):
    with embmap.open(**write(tmp_path, [1, 2, 3, "late"])) as f:
        for t in (1, 2, 3, "2"):
            with pytest.raises(ValueError, match="number of one time step and the label"):
                f.at(t)
            with pytest.raises(ValueError, match="number of one time step and the label"):
                f.most_related("car", t, 1)
        assert [f.at(t).t for t in (0, -1, -2, "late")] == [0, 3, 2, 3]
        copies = [pickle.loads(pickle.dumps(f.at(t - 4))).t for t in range(4)]
        assert copies == [0, 1, 2, 3]
    with embmap.open(**write(tmp_path, [-2, -1, 0, 1])) as f:
        assert f.at().t == 3  # also where -1 is a label


def test_a_word_list_without_years_has_words_only(tmp_path):
    with embmap.open(**write(tmp_path, None)) as f:
        assert (list(f.vocab), f.timestep_labels, f.at(1).label) == (WORDS, (), None)
    with embmap.open(tmp_path / "a.dwe", vocab=WORDS) as f:
        assert f.timestep_labels == ()
    vectors = embmap.cvc.write(tmp_path / "a.cvc", STEPS[0].astype("f4"))
    write(tmp_path)
    with embmap.open(vectors, vocab=tmp_path / "words.json") as f:  # years are for time steps
        assert (list(f), f.timestep_labels) == (WORDS, ())


def test_text_that_begins_with_a_brace_is_text(tmp_path):
    options = write(tmp_path)
    for words in (
        ["{", '"', "}", "a", "b"],
        ["{}x", "b", "c", "d", "e"],
        ["{", "a", "b", "c", ":"],
    ):
        options["vocab"].write_text("\n".join(words) + "\n", "utf-8")
        with embmap.open(**options) as f:
            assert list(f.vocab) == words


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"vocab": ["a"', "not JSON"),
        ('{"vocab": ' + "[" * 100_000, "not JSON"),
        ('{"words": []}', "vocab must be a list"),
        ('{"vocab": {}}', "vocab must be a list"),
        ('{"vocab": ["a"], "years": 3}', "years a list"),
        ('{"vocab": [1]}', "word 0 must be text, not '1'"),
        ('{"vocab": ["a", "\\ud800"]}', "word 1 must be text"),
        ('{"vocab": ["a"], "years": [1, 1]}', "years: labels must differ"),
        ('{"vocab": ["a"], "years": [1.5]}', "years: a label must be an integer or text"),
        ('\ufeff{"vocab": ["a"], "years": [' + "9" * 5000 + "]}", "not JSON"),
    ],
)
def test_damaged_word_lists_are_refused(tmp_path, text, message):
    options = write(tmp_path)
    options["vocab"].write_text(text, "utf-8")
    with pytest.raises(embmap.FormatError, match=message) as caught:
        embmap.open(**options)
    assert caught.value.path == str(options["vocab"])


def test_words_and_years_must_be_as_many_as_rows_and_steps(tmp_path):
    with pytest.raises(ValueError, match="4 words were given for 5 rows"):
        embmap.open(**write(tmp_path, words=WORDS[:4]))
    with pytest.raises(ValueError, match="3 labels were given for 4 time steps"):
        embmap.open(**write(tmp_path, YEARS[:3]))


def test_a_word_list_may_have_an_index(tmp_path):
    options = write(tmp_path)
    with embmap.open(**options) as f:
        assert f.build_index() == tmp_path / "words.json.embx"
    with embmap.open(**options, index="require") as f:
        assert f.find(WORDS).tolist() == [0, 1, 2, 3, 4]
        assert "nobody" not in f
        f.check_index()
    write(tmp_path, words=WORDS[::-1])
    with pytest.raises(embmap.StaleIndexError):
        embmap.open(**options, index="require").find(WORDS)


@pytest.mark.parametrize("group", [1, 5])
@pytest.mark.parametrize("at_once", [1, 64 << 20])
def test_several_words_are_decoded_once(tmp_path, monkeypatch, group, at_once):
    monkeypatch.setattr("embmap.formats.dwe.groups._AT_ONCE", at_once)
    embmap.dwe.write(tmp_path / "a.dwe", STEPS, scale=0.5, group=group)
    with embmap.open(tmp_path / "a.dwe", vocab=WORDS) as f:
        for asked in (["train", 0, "train"], [4], (), tuple(range(5))):
            found = f.most_related(asked, 1, 3)
            rows = [WORDS.index(word) if isinstance(word, str) else word for word in asked]
            assert [[each.row for each in one] for one in found] == [
                reference.most_related(STEPS, 1, row, 3) for row in rows
            ]
            assert found == [f.most_related(word, 1, 3) for word in asked]
        if at_once > 1:
            f.cache_nbytes = 0
            decoded = []
            symbols = f._groups.symbols
            monkeypatch.setattr(f._groups, "symbols", lambda *a: decoded.append(a) or symbols(*a))
            f.most_related(WORDS, 1, 3)
            assert len(decoded) == 1
        with pytest.raises(embmap.UnknownWordError, match="nobody"):
            f.most_related(["car", "nobody"], 1)
