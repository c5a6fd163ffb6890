"""The client and servers that are not as they should be, and words that are."""

import json
import socket
import threading
from contextlib import contextmanager, suppress

import numpy as np
import pytest

import embmap
from embmap.client import RemoteError
from embmap.client.exchange import Connection
from tests.served import in_process, settings_of, skip_without_server

FACTS = {
    "name": "a",
    "available": True,
    "format": "finalfusion",
    "dim": 2,
    "dtype": "float32",
    "count": 3,
    "rows": 3,
    "words": True,
    "vectors": True,
}
LIMITS = {"words": 1024, "body_nbytes": 1 << 20, "answer_nbytes": 1 << 24, "neighbors": 1000}
MODELS = {"models": [FACTS], "limits": LIMITS}
DEEP = b"[" * 200_000
JSON, NPY = "application/json", "application/x-npy"


def answer(content, kind=JSON, *lines, status=200):
    """Return a whole response."""
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    head = [f"HTTP/1.1 {status} X", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
    return "\r\n".join([*head, *lines, "", ""]).encode() + content


def npy(descr="<f4", shape="(1, 2)", data=bytes(8), header=None):
    if header is None:
        header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def until_closed(*lines, content=b""):
    """Return a response that ends with its connection."""
    head = ["HTTP/1.1 200 OK", f"Content-Type: {JSON}", "Connection: close", *lines, "", ""]
    return "\r\n".join(head).encode() + content


@contextmanager
def saying(*answers, then=b""):
    """Serve on a loopback address: the n-th request is answered so, and later ones by `then`.

    Yields the server's URL and a list with the number of requests of each connection.
    """
    connections = []
    waiting = iter(answers)

    def serve(connection, number):
        gone = suppress(ConnectionError)  # the client has seen enough
        with gone, connection, connection.makefile("rb") as lines:
            while (line := lines.readline()).strip():
                nbytes = 0
                while (line := lines.readline()).strip():
                    name, _, value = line.partition(b":")
                    nbytes = int(value) if name.lower() == b"content-length" else nbytes
                lines.read(nbytes)
                connections[number] += 1
                reply = next(waiting, then)
                connection.sendall(reply)
                if b"Connection: close" in reply or not reply:
                    return

    def accept():
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            connections.append(0)
            each = threading.Thread(target=serve, args=(connection, len(connections) - 1))
            threads.append(each)
            each.start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", connections
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


@pytest.mark.parametrize(
    "reply",
    [
        answer([]),
        answer({}),
        answer({"models": {}}),
        answer({"models": [3]}),
        answer({"models": [{}], "limits": LIMITS}),
        answer({"models": [{"name": "a"}], "limits": LIMITS}),
        answer({"models": [{"name": 3, "available": True}], "limits": LIMITS}),
        answer({"models": [{"name": "\ud800", "available": True}], "limits": LIMITS}),
        *(
            answer({**MODELS, "models": [{**FACTS, name: value}]})
            for name, value in [
                ("dim", -1),
                ("dim", True),
                ("dim", 10**30),
                ("rows", 1 << 62),
                ("rows", "3"),
                ("count", None),
                ("dtype", "O"),
                ("dtype", "V999999999"),
                ("dtype", "f4,f4"),
                ("dtype", 4),
                ("format", []),
                ("words", "yes"),
                ("timesteps", -1),
                ("timesteps", 1 << 62),
                ("labels", 3),
                ("labels", ["a", "b"]),
                ("labels", [[1]]),
                ("labels", [1.5]),
            ]
        ),
        answer({"models": [FACTS]}),
        answer({"models": [FACTS], "limits": []}),
        answer({"models": [FACTS], "limits": {**LIMITS, "words": "many"}}),
        answer(DEEP),
        answer(b'{"models": ' + b"9" * 5000 + b"}"),
        answer(b"\xff\xfe"),
        answer(MODELS, "text/html"),
        answer(b"", "text/html", "Location: /v1/elsewhere", status=302),
        answer(b"", status=204),
        answer(DEEP, status=500),
        answer({"error": 3}, status=404),
        answer({"error": {"code": [], "message": {}}}, status=404),
        answer({"error": {"code": "unknown_word", "message": "m", "word": {}}}, status=404),
        answer({"error": {"code": "unknown_word", "message": "m", "n_unknown": []}}, status=404),
        until_closed(f"Content-Length: 9{'0' * 15}"),
        until_closed("Content-Length: 99", content=b"{}"),
        until_closed(content=b" " * (1 << 25)),
        until_closed("Transfer-Encoding: chunked", content=b"-1\r\n" + b" " * (1 << 25)),
        until_closed("Transfer-Encoding: chunked", content=b"zz\r\n"),
        until_closed("X: " + "y" * 70_000),
        b"HTTP/1.1 nonsense\r\n\r\n",
        b"Connection: close",
        b"",
    ],
    ids=lambda reply: f"{len(reply)} bytes",
)
def test_a_server_that_is_none_is_told_about(reply):
    with saying(then=reply) as (url, _), embmap.connect(url) as server:
        with pytest.raises(RemoteError) as error:
            _ = server["a"]
        assert str(error.value)
        assert len(str(error.value)) < 1000


LOOKED_UP = [
    answer({"rows": []}),
    answer({"rows": [None, None]}),
    answer({"rows": ["0"]}),
    answer({"rows": [True]}),
    answer({"rows": [-2]}),
    answer({"rows": [3]}),
    answer({"rows": [10**30]}),
    answer({"rows": [[]]}),
    answer([[]]),
    answer({}),
]
RANKED = [
    answer({"neighbors": value})
    for value in (
        None,
        [3],
        [{}],
        [{"row": 1, "word": "b"}],
        [{"row": "1", "word": "b", "score": 1}],
        [{"row": 1, "word": 2, "score": 1}],
        [{"row": 1, "word": "b", "score": "1"}],
        [{"row": 1, "word": "b", "score": 10**400}],
        [{"row": -1, "word": "b", "score": 1}],
    )
]
VECTORS = [
    answer(b"", NPY),
    answer(npy()[:-1], NPY),
    answer(npy() + b"x", NPY),
    answer(npy(shape="(2, 2)", data=bytes(16)), NPY),
    answer(npy(shape="(999999999999999, 2)"), NPY),
    answer(npy(shape=f"({'9' * 180}, 2)"), NPY),
    answer(npy("|O"), NPY),
    answer(npy("<f4x"), NPY),
    answer(npy("|V9"), NPY),
    answer(npy(header=b"(" * 60_000), NPY),
    answer(npy(header=b"{'descr': __import__('os')}"), NPY),
    answer(npy(), JSON),
    answer(npy(), NPY, "Embmap-Missing: x"),
    answer(npy(), NPY, "Embmap-Missing: -1"),
    answer(npy(), NPY, "Embmap-Missing: 1"),
    answer(npy(), NPY, "Embmap-Missing: " + "9" * 5000),
    answer(npy(data=bytes(1 << 20)), NPY),
]


@pytest.mark.parametrize(
    ("ask", "replies"),
    [
        (lambda file: file.find(["a"]), LOOKED_UP),
        (lambda file: "a" in file, LOOKED_UP),
        (lambda file: file.most_similar("a"), RANKED),
        (lambda file: file.most_similar([1, 2]), RANKED),
        (lambda file: file.analogy("a", "b", "c"), RANKED),
        (lambda file: file.rank("a", "b"), [*RANKED, answer({"rank": -1}), answer({"rank": 1.5})]),
        (lambda file: file["a"], VECTORS),
        (lambda file: file.get("a"), VECTORS),
        (lambda file: file.batch(["a"], missing="zero"), VECTORS),
        (lambda file: file[0], VECTORS),
        (lambda file: file[0], [answer(npy(), NPY, "Embmap-Missing: 0")]),
        (lambda file: file.vectors[:1], VECTORS),
    ],
)
def test_answers_that_no_file_gives_are_told_about(ask, replies):
    for reply in replies:
        with saying(answer(MODELS), then=reply) as (url, _), embmap.connect(url) as server:
            file = server["a"]
            with pytest.raises(RemoteError):
                ask(file)


def test_a_server_that_claims_to_hold_more_than_fits_into_memory(tmp_path):
    facts = {**FACTS, "rows": 1 << 55, "count": 1 << 55}
    models = answer({"models": [facts], "limits": LIMITS})
    with saying(models, then=answer(npy(), NPY)) as (url, _), embmap.connect(url) as server:
        file = server["a"]
        assert len(file) == 1 << 55
        with pytest.raises(RemoteError):
            file.vectors[:]


def test_what_a_good_server_sends_is_read():
    vector = np.float32([1, 2])
    replies = [
        answer(MODELS),
        answer(npy(data=vector.tobytes()), NPY),
        answer({"rows": [2]}, "Application/JSON; charset=utf-8"),
        answer({"neighbors": [{"row": 1, "word": None, "score": None}]}),
    ]
    with saying(*replies) as (url, connections), embmap.connect(url) as server:
        file = server["a"]
        assert np.array_equal(file["a"], vector)
        assert file.find(["a"]).tolist() == [2]
        ((row, word, score),) = file.most_similar("a")
        assert (row, word, np.isnan(score)) == (1, None, True)
        assert connections == [4]


ROW = json.dumps({"rows": [2]}).encode()
AS_JSON = f"HTTP/1.1 200 OK\r\nContent-Type: {JSON}\r\n".encode()


@pytest.mark.parametrize(
    ("reply", "n_connections"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + answer({"rows": [2]}), 1),
        (AS_JSON + b"content-LENGTH: %d\n\n%b" % (len(ROW), ROW), 1),
        (AS_JSON + b"Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n%b\r\n" % ROW[:5]
         + b"%X\r\n%b\r\n0\r\nTrailer: x\r\n\r\n" % (len(ROW) - 5, ROW[5:]), 1),
        (until_closed(content=ROW), 2),
        (until_closed(f"Content-Length: {len(ROW)}", content=ROW), 2),
        (answer({"rows": [2]}).replace(b"1.1", b"1.0"), 2),
    ],
)  # fmt: skip
def test_every_form_of_an_answer_is_read(reply, n_connections):
    with saying(answer(MODELS), reply, then=reply) as (url, connections):
        with embmap.connect(url) as server:
            file = server["a"]
            for _ in range(2):
                assert file.find(["a"]).tolist() == [2]
        assert sum(connections) == 3
        assert len(connections) == n_connections


@pytest.mark.parametrize("url", ["http://h/a b", "http://h/ü", "ftp://h", "http://", "http://h:x"])
def test_a_url_that_names_no_server_is_refused(url):
    with pytest.raises(ValueError, match=r"url|[Pp]ort"):
        embmap.connect(url)


@pytest.mark.parametrize("token", ["a b", "a\r\nX: y", "ü", "a\n"])
def test_a_token_that_is_not_one_line_is_refused(token):
    with pytest.raises(ValueError, match="token"):
        embmap.connect("http://localhost", token)


class Interrupted(BaseException):
    """As KeyboardInterrupt, which would end the tests."""


@pytest.mark.parametrize("where", ["send", "receive_head"])
def test_a_connection_is_used_again_only_after_a_whole_exchange(monkeypatch, where):
    real = getattr(Connection, where)

    def interrupted(self, *arguments):
        real(self, *arguments)  # what is sent is sent, and will be answered
        raise Interrupted

    row = answer({"rows": [2]})
    replies = [answer(MODELS), answer({"rows": [1]}), row, row]
    with saying(*replies) as (url, connections), embmap.connect(url) as server:
        file = server["a"]
        with monkeypatch.context() as patched:
            patched.setattr(Connection, where, interrupted)
            with pytest.raises(Interrupted):
                file.find(["a"])
        held = server._connections._connection()
        assert not held.is_open  # closed at once, and not when somebody asks again
        assert file.find(["b"]).tolist() == [2]
        assert file.find(["b"]).tolist() == [2]
        assert len(connections) == 2


def test_an_answer_that_is_too_long_is_not_left_on_the_connection():
    long = answer(npy(data=bytes(1 << 20)), NPY)
    replies = [answer(MODELS), long, answer({"rows": [2]})]
    with saying(*replies) as (url, connections), embmap.connect(url) as server:
        file = server["a"]
        with pytest.raises(RemoteError):
            _ = file["a"]
        assert file.find(["b"]).tolist() == [2]
        assert len(connections) == 2


def test_words_of_any_length_are_answered_as_by_the_local_file(tmp_path):
    skip_without_server()
    words = ["a", "b" * 1025, "ü" * 5000, "c" * 700_000, "d"]
    odd = ["e" * 1025, "ü" * 4999, "f" * 700_000, "g" * 1_000_000, "\ud800" * 2000, "\0" * 5000]
    rows = np.eye(len(words), dtype=np.float32)
    path = embmap.finalfusion.write(tmp_path / "a.fifu", words, rows)
    asked = [word for pair in zip(words, odd, strict=False) for word in pair]
    with (
        embmap.open(path) as file,
        in_process(settings_of(path)) as port,
        embmap.connect(f"http://127.0.0.1:{port}") as server,
    ):
        remote = server["a"]
        assert remote.find(asked).tolist() == file.find(asked).tolist()
        expected = file.batch(asked, missing="zero")
        assert np.array_equal(remote.batch(asked, missing="zero"), expected)
        for word in (*words, *odd):
            assert (word in remote) == (word in file)
            assert np.array_equal(remote.get(word, 3), file.get(word, 3))
        for word in odd:
            for each in (remote, file):
                with pytest.raises(embmap.UnknownWordError) as error:
                    _ = each[word]
                assert error.value.word == word
                with pytest.raises(embmap.UnknownWordError):
                    each.batch(["a", word])
                with pytest.raises(embmap.UnknownWordError):
                    each.most_similar(word)
                with pytest.raises(embmap.UnknownWordError):
                    each.analogy("a", word, "d")
        assert remote.most_similar(words[1], 2) == file.most_similar(words[1], 2)
        with pytest.raises(RemoteError, match="2000002 bytes"):  # whether it is there is not known
            remote.find(["a", "h" * 2_000_000])
