"""The server over real sockets: every route on every format, limits and tokens."""

import contextlib
import io
import json
import os
import re
import socket
import threading
from urllib.parse import quote

import numpy as np
import pytest

import embmap
from tests.served import Served, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()

WORDS = [f"w{i}" for i in range(40)] + ["zwölf", "a/b", "what?", "ab", "abc"]
TOKEN = "a-token-of-enough-letters"
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((len(WORDS), 6), np.float32)
NAMES = ["fifu", "embd", "cvc", "dwe"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    integers = RNG.integers(-9, 9, (3, len(WORDS), 6)).astype(np.int16)
    tensors = {"embeddings.word_embeddings.weight": VECTORS}
    return {
        "fifu": embmap.finalfusion.write(folder / "a.fifu", WORDS, VECTORS),
        "embd": embmap.embd.write(folder / "b.embd", tensors, vocab=WORDS),
        "cvc": embmap.cvc.write(folder / "c.cvc", VECTORS),
        "dwe": embmap.dwe.write(folder / "d.dwe", integers, scale=0.5),
        "words": folder / "words.txt",
    }


def model_arguments(paths):
    files = [f"{name}={paths[name]}" for name in NAMES]
    return [*files, "--vocab", f"cvc={paths['words']}", "--vocab", f"dwe={paths['words']}"]


@pytest.fixture(scope="module")
def served(paths):
    server = Served(*model_arguments(paths))
    yield server
    status, out, err = server.stop()
    assert (status, out, err) == (0, "", "")  # nothing of any request was logged


def local(paths, name):
    return embmap.open(paths[name], vocab=paths["words"] if name in ("cvc", "dwe") else None)


def test_models_say_what_they_are(served):
    status, answer = served.json("/v1/models")
    assert status == 200
    assert [each["name"] for each in answer["models"]] == NAMES
    for each in answer["models"]:
        assert (each["dim"], each["count"], each["words"]) == (6, len(WORDS), True)
    assert answer["models"][3]["timesteps"] == 3
    assert served.json("/healthz") == (200, {"status": "ok"})


@pytest.mark.parametrize("name", NAMES)
def test_every_format_answers_every_route_like_the_local_file(served, paths, name):
    base = f"/v1/{name}/"
    with local(paths, name) as whole:
        file = whole.at()
        for word in ("w3", "zwölf", "a/b", "what?"):
            status, answer = served.json(base + "vectors/" + quote(word, safe=""))
            assert (status, answer["row"]) == (200, WORDS.index(word))
            assert np.array_equal(np.float32(answer["vector"]), file.batch([word])[0])
        answer = served.json(base + "lookup", {"words": ["w1", "none"], "missing": "null"})[1]
        assert answer["rows"] == [1, None]
        assert np.array_equal(np.float32(answer["vectors"][0]), file.batch(["w1"])[0])
        assert answer["vectors"][1:] == [None]
        answer = served.json(base + "lookup", {"rows": [2, 0]})[1]
        assert np.array_equal(np.float32(answer["vectors"]), file.vectors[[2, 0]])
        for metric in ("cosine", "dot", "euclidean"):
            answer = served.json(base + "similar", {"word": "w1", "n": 5, "metric": metric})[1]
            expected = file.most_similar("w1", 5, metric)
            assert [tuple(each.values()) for each in answer["neighbors"]] == expected
        mask = np.arange(len(WORDS)) % 3 == 0
        for among, sent in ((["w1", "w9"], ["w1", "w9"]), (mask, np.flatnonzero(mask).tolist())):
            body = {"word": "w1", "n": 5, "among": sent, "dim": 4, "exclude": ["w9", 3]}
            answer = served.json(base + "similar", body)[1]
            expected = file.most_similar("w1", 5, among=among, dim=4, exclude=["w9", 3])
            assert [tuple(each.values()) for each in answer["neighbors"]] == expected
        vector = file.batch(["w2"])[0].tolist()
        body = {"positive": ["w1", ["w3", 0.5], vector], "negative": [[vector, 0.25]], "n": 4}
        answer = served.json(base + "similar", body)[1]
        expected = file.most_similar(
            positive=["w1", ("w3", 0.5), vector], negative=[(vector, 0.25)], n=4
        )
        assert [tuple(each.values()) for each in answer["neighbors"]] == expected
        answer = served.json(base + "similar", {"vector": vector, "n": 1})[1]
        assert answer["neighbors"][0]["row"] == 2
        body = {"word": "w1", "other": "w2"}
        assert served.json(base + "rank", body) == (200, {"rank": file.rank("w1", "w2")})
        assert served.code(base + "rank", {**body, "other": "none"}) == (404, "unknown_word")
        answer = served.json(base + "analogy", {"a": "w1", "b": "w2", "c": "w3", "n": 4})[1]
        assert [each["row"] for each in answer["neighbors"]] == [
            each.row for each in file.analogy("w1", "w2", "w3", 4)
        ]
    assert served.json(base + "complete?prefix=ab")[1] == {"words": ["ab", "abc"], "whole": True}
    assert served.json(base + "complete?n=2")[1]["words"] == ["w0", "w1"]
    assert served.json(base + "complete?prefix=w1&n=3")[1]["words"] == ["w1", "w10", "w11"]
    assert served.code(base + "vectors/none") == (404, "unknown_word")
    assert served.code(base + "lookup", {"words": ["none"]}) == (404, "unknown_word")
    assert served.code(base + "lookup", {"rows": [45]}) == (404, "unknown_row")


def test_a_fork_and_threads_have_connections_of_their_own(served):
    remote = embmap.connect(served.url)["fifu"]
    assert np.array_equal(remote["w1"], VECTORS[1])
    rows = list(range(40)) * 5

    def same():
        return all(np.array_equal(remote[row], VECTORS[row]) for row in rows)

    if hasattr(os, "fork"):
        child = os.fork()
        if not child:
            status = 1
            with contextlib.suppress(BaseException):
                status = 0 if same() else 1
            os._exit(status)
        assert same()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for _ in range(5):
        threads = [threading.Thread(target=same) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    del thread, threads
    assert len(remote._connections._all) == 1  # the connections of threads that ended are gone


def test_words_that_cannot_stand_in_a_path_stand_in_the_query(tmp_path):
    words = [".", "..", "", "a", "a\r", "b c\t", "\u2028"]
    path = embmap.dwe.write(
        tmp_path / "d.dwe", np.arange(42, dtype=np.int16).reshape(2, 7, 3), scale=1
    )
    (tmp_path / "words.txt").write_text("\n".join(words) + "\n")
    server = Served(path, "--vocab", tmp_path / "words.txt")
    try:
        for row, word in enumerate(words):
            asked = f"?word={quote(word, safe='')}"
            status, answer = server.json(f"/v1/d/vectors{asked}&t=0")
            assert (status, answer["row"], answer["vector"][0]) == (200, row, 3 * row)
            assert server.json(f"/v1/d/trajectory{asked}")[1]["row"] == row
            assert server.json(f"/v1/d/related{asked}&n=1&t=1")[1]["word"] == word
            if word not in (".", "..", ""):
                found = server.json(f"/v1/d/vectors/{quote(word, safe='')}?t=0")[1]
                assert found["row"] == row
        for path in ("/a%0A", "/a%0D%0A", "/%0A", "?word=a%0A"):
            assert server.code("/v1/d/vectors" + path) == (404, "unknown_word")
        for path in ("/%FF", "?word=%FF", "/a%C3"):
            assert server.code("/v1/d/vectors" + path) == (400, "bad_request")
        assert server.code("/v1/d/vectors/%EF%BF%BD") == (404, "unknown_word")
        assert server.code("/v1/d/vectors") == (400, "bad_request")
        assert server.code("/v1/d/vectors?word=none") == (404, "unknown_word")
    finally:
        assert server.stop()[0] == 0


def test_vectors_at_a_time_step(served, paths):
    with local(paths, "dwe") as file:
        for t in (0, 1, 2, -1, -3):
            expected = file.at(t).vectors[[3, 1]]
            status, answer = served.json("/v1/dwe/lookup", {"words": ["w3", "w1"], "t": t})
            assert status == 200
            assert np.array_equal(np.float32(answer["vectors"]), expected)
            answer = served.json("/v1/dwe/lookup", {"rows": [3, 1], "t": t})[1]
            assert np.array_equal(np.float32(answer["vectors"]), expected)
            answer = served.json(f"/v1/dwe/vectors/w3?t={t}")[1]
            assert np.array_equal(np.float32(answer["vector"]), expected[0])
    for t in (3, -4, 1.5, "x", None):
        assert served.json("/v1/dwe/lookup", {"rows": [0], "t": t})[0] == 400
    body = {"words": ["w1", "none"], "t": 0, "missing": "subwords"}
    with local(paths, "dwe") as file:
        found = served.json("/v1/dwe/lookup", body)[1]["vectors"]
        assert np.array_equal(np.float32(found[0]), file.at(0).vectors[1])
        assert found[1] is None
    both = {"rows": [0], "t": 0, "trajectories": True}
    assert served.code("/v1/dwe/lookup", both) == (400, "bad_request")
    assert served.code("/v1/fifu/lookup", {"rows": [0], "t": 0}) == (422, "no_timesteps")


def test_words_over_time(served, paths):
    with local(paths, "dwe") as file:
        status, answer = served.json("/v1/dwe/trajectory/w1?to=w2&vectors=true")
        assert status == 200
        assert np.array_equal(np.float32(answer["vectors"]), file["w1"])
        a, b = file["w1"], file["w2"]
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        assert answer["values"] == pytest.approx((np.vecdot(a, b) / lengths).tolist(), 1e-5)
        assert served.json("/v1/dwe/trajectory/w1")[1]["values"][0] == pytest.approx(1)
        answer = served.json("/v1/dwe/related/w1?t=1&n=3")[1]
        assert [tuple(e.values()) for e in answer["neighbors"]] == file.most_related("w1", 1, 3)
    assert served.code("/v1/dwe/related/w1?t=3") == (400, "bad_request")
    assert served.code("/v1/fifu/trajectory/w1") == (422, "no_timesteps")


def test_vectors_come_as_json_npy_or_arrow(served):
    body = {"words": ["w1", "none"], "missing": "null"}
    status, headers, content = served.ask("/v1/fifu/lookup", body, Accept="application/x-npy")
    assert (status, headers["content-type"]) == (200, "application/x-npy")
    assert headers["embmap-missing"] == "1"
    assert headers["vary"].lower() == "accept"
    assert np.array_equal(np.load(io.BytesIO(content)), [VECTORS[1], np.zeros(6)])
    _, _, content = served.ask("/v1/fifu/vectors/w4", Accept="application/x-npy")
    assert np.array_equal(np.load(io.BytesIO(content)), VECTORS[4])
    for accept in ("", "*/*", "application/*;q=0.2", "text/html, */*;q=0.1"):
        assert served.ask("/v1/fifu/vectors/w4", Accept=accept)[1]["content-type"].endswith("json")
    preferring = "application/json;q=0.1, application/x-npy"
    assert served.ask("/v1/fifu/vectors/w4", Accept=preferring)[2][:6] == b"\x93NUMPY"
    for accept in ("text/html", "application/json;q=0", "application/x-npy;q=nan"):
        assert served.code("/v1/fifu/vectors/w4", Accept=accept) == (406, "not_acceptable")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import ipc

    accept = "application/vnd.apache.arrow.stream"
    _, headers, content = served.ask("/v1/fifu/lookup", body, Accept=accept)
    assert headers["content-type"] == accept
    table = ipc.open_stream(content).read_all()
    assert table.column("row").to_pylist() == [1, None]
    assert table.column("vector").to_pylist() == [VECTORS[1].tolist(), None]


def test_what_is_too_much_or_makes_no_sense_is_refused(served):
    url = "/v1/fifu/lookup"
    assert served.code(url, {"words": ["a"] * 1025}) == (400, "too_many")
    assert served.code(url, {"words": ["a" * 1025]}) == (404, "unknown_word")
    assert served.code(url, b"[" * (1 << 20) + b"]") == (413, "too_large")
    assert served.code(url, b"[" * 100_000) == (400, "bad_json")
    assert served.code(url, b'{"words": ["a"], "x": NaN}') == (400, "bad_json")
    assert served.code(url, b"\xff") == (400, "bad_json")
    assert served.code(url, b'{"words": ["\\ud800"]}') == (400, "bad_json")
    for body in (
        [],
        {},
        {"words": 1},
        {"words": ["a"], "rows": [1]},
        {"rows": [-1]},
        {"rows": [True]},
        {"words": ["w1"], "missing": 1},
        {"words": [1]},
    ):
        assert served.json(url, body)[0] == 400
    for n in (0, 1001, 1.5, "x", None, True):
        assert served.json("/v1/fifu/similar", {"word": "w1", "n": n})[0] == 400
    for options in (
        {"among": []},
        {"among": ["w1", 2]},
        {"among": [-1]},
        {"among": "w1"},
        {"among": [0] * ((1 << 17) + 1)},
        {"dim": 0},
        {"dim": 7},
        {"exclude": ["w1"] * 1025},
        {"exclude": [0.5]},
        {"approximate": 1},
        {"positive": ["w1"]},
    ):
        assert served.json("/v1/fifu/similar", {"word": "w1", **options})[0] == 400, options
    for terms in (
        [],
        "w1",
        [3],
        [[1, 2]],
        [["w1", "w2"]],
        [["w1", None]],
        [[[1], 2]],
        ["w1"] * 1025,
    ):
        assert served.json("/v1/fifu/similar", {"positive": terms})[0] == 400, terms
    url = "/v1/fifu/similar"
    for options, code in (
        ({"among": ["none"]}, (404, "unknown_word")),
        ({"among": [9999]}, (404, "unknown_row")),
        ({"exclude": [9999]}, (404, "unknown_row")),
        ({"among": {"source": "wiki"}}, (404, "unknown_section")),
        ({"among": {}}, (404, "unknown_section")),
        ({"approximate": True}, (422, "stale_index")),
        ({"approximate": True, "metric": "dot"}, (400, "bad_request")),
    ):
        assert served.code(url, {"word": "w1", **options}) == code, options
    for vector in ([1], [1e400] * 6, ["a"] * 6, [10**400] * 6, {}):
        assert served.json("/v1/fifu/similar", {"vector": vector})[0] == 400
    assert served.code(url, {}, **{"Content-Type": "text/plain"}) == (415, "not_json")
    assert served.code("/v1/none/vectors/a") == (404, "unknown_model")
    assert served.code("/v1/fifu/vectors/w1?x=1") == (400, "bad_request")
    assert served.code("/v1/%2e%2e%2fetc/vectors/a")[0] == 404
    assert served.code("/nothing") == (404, "not_found")
    assert served.code("/v1/models", method="DELETE") == (405, "bad_method")
    assert served.code("/v1/models", Host="evil.example") == (421, "wrong_host")


def test_headers_keep_browsers_strict_and_static_files_are_only_those(served):
    for path in ("/", "/v1/models", "/none"):
        headers = served.ask(path)[1]
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert headers["x-content-type-options"] == "nosniff"
    for path in (
        "/static/../pages.py",
        "/static/%2e%2e/pages.py",
        "/static//etc/passwd",
        "/static/",
    ):
        assert served.code(path) == (404, "not_found")


def test_counts_are_told_to_prometheus(served):
    served.json("/v1/fifu/lookup", {"words": ["w1", "w2"]})
    text = served.ask("/metrics")[2].decode()
    assert re.search(r'embmap_requests_total\{route="/v1/\{name\}/lookup",status="200"\} \d+', text)
    assert 'embmap_request_seconds_bucket{route="/v1/{name}/lookup",le="+Inf"}' in text
    assert "embmap_vectors_total" in text
    assert "w1" not in text


def test_the_client_is_equal_to_the_local_file(served, paths):
    server = embmap.connect(served.url)
    assert list(server) == NAMES
    for name in NAMES:
        remote = server[name]
        with local(paths, name) as file:
            assert (len(remote), remote.dim, remote.dtype) == (len(file), file.dim, file.dtype)
            for key in ("w3", "a/b", 5, -1, slice(2, 9, 3), ["w1", "zwölf"], [1, 2], []):
                assert np.array_equal(remote[key], file[key]), key
            times = [None] if name != "dwe" else [None, -2]
            for local_file, remote_file in [
                (file, remote),
                *((file.at(t), remote.at(t)) for t in times),
            ]:
                here, there = local_file.vectors, remote_file.vectors
                assert np.array_equal(remote_file["w3"], local_file["w3"])
                assert remote_file.most_similar("w3", 4) == local_file.most_similar("w3", 4)
                assert (there.shape, there.dtype) == (here.shape, here.dtype)
                for key in (3, -2, slice(1, 30, 4), [5, 0], np.array([2, -1]), [], slice(9, 2)):
                    assert np.array_equal(there[key], here[key]), key
                assert np.array_equal(there.take([4, 4]), here.take([4, 4]))
                mask = np.arange(len(here)) % 7 == 0
                assert np.array_equal(there[mask], here[mask])
                for key in ((1, 2), (slice(3), 1), (2, slice(1, 4)), ([3, 1], [0, 1]), ()):
                    assert np.array_equal(there[key], here[key]), key
                for wrong in (len(here), -len(here) - 1, mask[1:], True, 1.0, [1.5], [[1]], None):
                    for asked in (here, there):
                        with pytest.raises((IndexError, TypeError)):
                            asked[wrong]
            assert remote.shape == file.shape
            assert remote.find(["w1", "none", "zwölf"]).tolist() == [1, -1, 40]
            assert remote.find([]).tolist() == []
            odd = ["w1", "\ud800", "none", "w2"]
            assert remote.find(odd).tolist() == file.find(odd).tolist()
            assert np.array_equal(
                remote.batch(odd, missing="zero"), file.batch(odd, missing="zero")
            )
            assert "\ud800" not in remote
            for wrong in (b"w1", None, {"w1"}, [0, "w1"], ["w1", 1]):
                for asked in (remote, file):
                    with pytest.raises(TypeError):
                        asked[wrong]
            assert np.array_equal(remote[np.array(["w3", "w1"])], file[np.array(["w3", "w1"])])
            assert remote.most_similar("w1", 0) == []
            assert remote.most_similar(["w1", "w2"], 2) == file.most_similar(["w1", "w2"], 2)
            assert "w1" in remote
            assert "none" not in remote
            assert remote.get("none", 3) == 3
            many = [WORDS[i % 40] for i in range(2500)]
            assert np.array_equal(remote.batch(many), file.batch(many))
            assert np.array_equal(
                remote.batch(["w1", "none"], missing="nan"),
                file.batch(["w1", "none"], missing="nan"),
                equal_nan=True,
            )
            assert remote.most_similar("w1", 3) == file.most_similar("w1", 3)
            for error, options in (
                (IndexError, {"among": [9999]}),
                (embmap.UnknownWordError, {"among": ["none", "\ud800"]}),
                (ValueError, {"among": []}),
                (ValueError, {"among": {"source": "wiki"}}),
                (ValueError, {"dim": 7}),
                (embmap.StaleIndexError, {"approximate": True}),
            ):
                for asked in (remote, file):
                    with pytest.raises(error):
                        asked.most_similar("w1", **options)
            query = file.at().batch(["w5"])[0]
            assert remote.most_similar(query, 3) == file.most_similar(query, 3)
            assert remote.analogy("w1", "w2", "w3", 3) == file.analogy("w1", "w2", "w3", 3)
            for wrong in ("none", ["w1", "none"]):
                with pytest.raises(embmap.UnknownWordError):
                    remote[wrong]
            with pytest.raises(IndexError):
                remote[len(file)]
    assert np.array_equal(server["dwe"]["w1"], local(paths, "dwe")["w1"])
    with pytest.raises(KeyError):
        server["none"]
    server.close()


def test_two_workers_share_their_counts_and_a_token_is_asked_for(paths, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    arguments = ("--workers", 2, "--token-file", tmp_path / "token")
    server = Served(f"fifu={paths['fifu']}", *arguments)
    try:
        assert server.ask("/healthz")[0] == 200
        for path in ("/v1/models", "/metrics", "/v1/fifu/vectors/w1"):
            assert server.code(path) == (401, "unauthorized")
            assert server.code(path, token="wrong") == (401, "unauthorized")
        for _ in range(10):
            assert server.ask("/v1/fifu/vectors/w1", token=TOKEN)[0] == 200
        text = server.ask("/metrics", token=TOKEN)[2].decode()
        assert 'route="/v1/{name}/vectors/{word}",status="200"} 10\n' in text
        assert embmap.connect(server.url, TOKEN)["fifu"]["w1"].tolist() == VECTORS[1].tolist()
        with (
            embmap.connect(server.url, "wrong") as refused,
            pytest.raises(embmap.EmbmapError, match="token"),
        ):
            list(refused)
    finally:
        assert server.stop()[0] == 0


def test_other_hosts_need_a_token_and_bad_files_do_not_start(paths, tmp_path):
    from embmap.cli import run

    (tmp_path / "short").write_text("x")
    (tmp_path / "bad.fifu").write_bytes(b"FiFu")
    for arguments in (
        [paths["fifu"], "--host", "0.0.0.0"],
        [paths["fifu"], "--token-file", tmp_path / "short"],
        [tmp_path / "bad.fifu"],
        [tmp_path / "absent.fifu"],
        [f"a={paths['fifu']}", f"a={paths['embd']}"],
        [paths["fifu"], "--vocab", f"b={paths['words']}"],
        [paths["cvc"], "--vocab", tmp_path / "short"],  # one word for many rows
        [paths["cvc"], "--vocab", paths["words"], "--vocab", paths["words"]],
        [paths["fifu"], "--host", ""],
    ):
        assert run(["serve", "--port", "0", *map(str, arguments)]) == 2


def test_a_host_that_nobody_knows_is_named(paths, tmp_path, monkeypatch, capsys):
    from embmap.cli import run

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    (tmp_path / "token").write_text(TOKEN)
    token = ["--token-file", str(tmp_path / "token")]
    assert run(["serve", str(paths["fifu"]), "--host", "nowhere.invalid", *token]) == 2
    told = capsys.readouterr().err
    assert told == "embmap: nowhere.invalid: Name or service not known\n"


def test_the_description_is_true(served):
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    description = json.loads(served.ask("/openapi.json")[2])
    assert description["openapi"].startswith("3.1")
    # These depend on the file, so the description of all files cannot contain them.
    paths = description["paths"]
    body = paths["/v1/{name}/similar"]["post"]["requestBody"]["content"]["application/json"]
    of_word, of_vector, of_sum = (choice["properties"] for choice in body["schema"]["oneOf"])
    of_vector["vector"] |= {"minItems": 6, "maxItems": 6}
    for terms in (of_sum["positive"], of_sum["negative"]):
        _, vector, pair = terms["items"]["anyOf"]
        for each in (vector, pair["prefixItems"][0]["anyOf"][1]):
            each |= {"minItems": 6, "maxItems": 6}
    for properties in (of_word, of_vector, of_sum):
        properties["dim"] |= {"maximum": 6}
        properties["approximate"] = {"const": False}
    step = {"type": "integer", "minimum": -3, "maximum": 2}
    for path in paths.values():
        for parameter in path.get("get", {}).get("parameters", []):
            if parameter["name"] == "t":
                parameter["schema"] = step
    for route in ("lookup", "similar", "analogy", "rank"):
        post = paths[f"/v1/{{name}}/{route}"]["post"]
        schema = post["requestBody"]["content"]["application/json"]["schema"]
        for choice in schema.get("oneOf", [schema]):
            choice["properties"]["t"] = step
    from hypothesis import HealthCheck, given, settings

    schema = schemathesis.openapi.from_dict(description)
    schema.config.base_url = served.url
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(
            max_examples=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        )
        def check(case):
            if case.path_parameters and "name" in case.path_parameters:
                case.path_parameters["name"] = "dwe"
            response = case.call(base_url=served.url)
            assert response.status_code != 500
            case.validate_response(response)

        check()


def test_settings_survive_the_way_to_a_worker_and_names_are_checked(tmp_path):
    from embmap.serve.settings import ModelSource, Settings, is_loopback, model_sources

    settings = Settings(models=(ModelSource("a", "/a"), ModelSource("b", "/b", "/w")), workers=3)
    assert Settings.from_json(settings.to_json()) == settings
    (tmp_path / "x=y.fifu").touch()
    (source,) = model_sources([str(tmp_path / "x=y.fifu")])
    assert source.name == "x=y"
    assert [is_loopback(host) for host in ("127.0.0.9", "::1", "[::1]", "localhost")] == [True] * 4
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "localhost.evil.example", "")))
    for files in (["..=x"], ["a\n=x"], ["=x"]):
        with pytest.raises(ValueError, match="="):
            model_sources(files)


def test_words_composed_from_subwords_are_served_but_in_no_vocabulary(tmp_path):
    indexer = embmap.subwords.FloretIndexer(1, 2, 16)
    vectors = RNG.standard_normal((indexer.n_buckets, 4), np.float32)
    path = embmap.finalfusion.write(tmp_path / "s.fifu", None, vectors, subwords=indexer)
    server = Served(path)
    try:
        with embmap.open(path) as file, embmap.connect(server.url) as remote:
            status, answer = server.json("/v1/s/vectors/unseen")
            assert (status, answer["row"]) == (200, None)
            assert np.array_equal(np.float32(answer["vector"]), file["unseen"])
            assert np.array_equal(remote["s"]["unseen"], file["unseen"])
            assert np.array_equal(
                remote["s"].batch(["unseen", "too"]), file.batch(["unseen", "too"])
            )
            body = {"words": ["unseen"], "missing": "null"}
            assert server.json("/v1/s/lookup", body)[1]["vectors"] == [None]
            assert server.code("/v1/s/lookup", {"words": ["unseen"]}) == (404, "unknown_word")
    finally:
        assert server.stop()[0] == 0


def test_a_served_file_is_searched_by_its_approximate_index(tmp_path):
    pytest.importorskip("usearch", reason="usearch is not installed")
    rows = RNG.standard_normal((500, 8), np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", [f"w{i}" for i in range(500)], rows)
    with embmap.open(path) as file:
        file.build_ann()
        server = Served(path)
        try:
            with embmap.connect(server.url) as connected:
                remote = connected["a"]
                for options in ({}, {"among": range(0, 500, 2)}, {"exclude": ["w3"]}):
                    found = remote.most_similar("w1", 5, approximate=True, **options)
                    assert found == file.most_similar("w1", 5, approximate=True, **options)
                for wrong in ({"metric": "dot"}, {"dim": 3}):
                    with pytest.raises(ValueError, match="for an approximate search"):
                        remote.most_similar("w1", approximate=True, **wrong)
        finally:
            server.stop()
