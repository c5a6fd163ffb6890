"""Time steps over HTTP by their labels, and through the client."""

import json
from urllib.parse import quote

import numpy as np
import pytest

import embmap
from tests.served import serving, skip_without_server

skip_without_server()

WORDS = ["car", "train", "ship", "{", "zwölf"]
STEPS = np.random.default_rng(4).integers(-50, 50, (4, 5, 3)).astype(np.int16)
LABELS = {
    "years": [1900, 1920, 1940, 1960],
    "close": [1, 2, 3, 4],
    "text": ["late 1890s", 1, "x", 0],
}


def attempt(file, way):
    """The time step of a file, or the error of asking for it."""
    try:
        return file.at(way), None
    except (ValueError, IndexError) as error:
        return None, error


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    found = {}
    for name, labels in LABELS.items():
        words = folder / f"{name}.json"
        words.write_text(json.dumps({"vocab": WORDS, "years": labels}), "utf-8")
        found[name] = embmap.dwe.write(folder / f"{name}.dwe", STEPS, scale=0.5, group=5), words
    return found


@pytest.fixture(scope="module")
def served(paths):
    options = [f"{name}={path}" for name, (path, _) in paths.items()]
    for name, (_, words) in paths.items():
        options += ["--vocab", f"{name}={words}"]
    with serving(*options) as server:
        yield server


def test_labels_are_in_the_facts_and_in_answers(served):
    models = served.json("/v1/models")[1]["models"]
    assert {one["name"]: one["labels"] for one in models} == LABELS
    assert served.json("/v1/years/trajectory/car")[1]["labels"] == LABELS["years"]
    answer = served.json("/v1/years/related/car?n=1")[1]
    assert (answer["t"], answer["label"]) == (3, 1960)


@pytest.mark.parametrize("name", LABELS)
def test_a_time_step_may_be_asked_for_by_its_label(served, paths, name):
    path, words = paths[name]
    with embmap.open(path, vocab=words) as file:
        for t, label in enumerate(LABELS[name]):
            expected = STEPS[t, [2, 0]] * np.float32(0.5)
            for way in (label, str(label), t, t - 4):
                body = {"words": ["ship", "car"], "t": way}
                status, answer = served.json(f"/v1/{name}/lookup", body)
                query = f"t={quote(str(way))}&n=2"
                step, error = attempt(file, way)
                if error is not None:
                    assert (status, answer["error"]["message"]) == (400, f"'t': {error}")
                    assert served.code(f"/v1/{name}/related/car?{query}")[0] == 400
                    continue
                assert status == 200
                if step.t == t:
                    assert np.array_equal(np.float32(answer["vectors"]), expected)
                answer = served.json(f"/v1/{name}/related/car?{query}")[1]
                assert (answer["t"], answer["label"]) == (step.t, step.label)
                found = [tuple(each.values()) for each in answer["neighbors"]]
                assert found == file.most_related("car", way, 2)
                body = {"word": "car", "n": 2, "t": way}
                answer = served.json(f"/v1/{name}/similar", body)[1]
                found = [each["row"] for each in answer["neighbors"]]
                assert found == [each.row for each in step.most_similar("car", 2)]
    for t in (7, -5, "1910", "x ", 1.5, None, [1900]):
        assert served.json(f"/v1/{name}/lookup", {"rows": [0], "t": t})[0] == 400


@pytest.mark.parametrize("name", LABELS)
def test_the_client_takes_labels_as_the_file_does(served, paths, name):
    path, words = paths[name]
    with embmap.open(path, vocab=words) as file, embmap.connect(served.url) as server:
        remote = server[name]
        assert remote.timestep_labels == file.timestep_labels
        for way in (*LABELS[name], *map(str, LABELS[name]), *range(-4, 4), 17, "none"):
            step, error = attempt(file, way)
            if error is not None:
                for ask in (remote.at, lambda t: remote.most_related("car", t, 1)):
                    with pytest.raises(type(error)) as caught:
                        ask(way)
                    assert str(caught.value) == str(error)
                continue
            there = remote.at(way)
            assert there.timestep_labels == ()
            assert np.array_equal(there["ship"], step["ship"])
            assert there.most_similar("car", 2) == step.most_similar("car", 2)
            for asked in ("car", ["car", "zwölf"], ()):
                found = remote.most_related(asked, way, 2)
                assert found == file.most_related(asked, way, 2)


def test_a_word_list_that_is_replaced_is_read_again(tmp_path):
    path = embmap.dwe.write(tmp_path / "a.dwe", STEPS, scale=0.5)
    words = tmp_path / "words.json"
    words.write_text(json.dumps({"vocab": WORDS, "years": [1, 2, 3, 4]}), "utf-8")
    with serving(f"a={path}", "--vocab", f"a={words}") as server:
        assert server.json("/v1/a/related/car?n=1")[1]["label"] == 4
        new = tmp_path / "new.json"
        new.write_text(json.dumps({"vocab": WORDS[::-1], "years": [5, 6, 7, 8]}), "utf-8")
        new.replace(words)
        answer = server.json("/v1/a/related/zw%C3%B6lf?n=1")[1]
        assert answer["label"] == 8
        assert server.json("/v1/a/vectors/zw%C3%B6lf")[1]["row"] == 0
        words.write_text('{"vocab": 3}', "utf-8")
        assert server.code("/v1/a/related/car")[0] == 503
