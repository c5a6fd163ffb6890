"""A head must arrive in time, wherever on a connection it begins."""

import socket

import numpy as np
import pytest

import embmap
from tests.served import answer_to, in_process, settings_of

for module in ("starlette", "uvicorn", "httptools", "orjson"):
    pytest.importorskip(module, reason="the extra serve is not installed")

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    return embmap.finalfusion.write(folder / "a.fifu", ["w"], np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([b"GET /hea"], id="first on a connection"),
        pytest.param([GET + b"GET /hea"], id="behind a whole request"),
        pytest.param([GET + GET + GET + b"GET /hea"], id="behind several"),
        pytest.param([GET, b"\r\n\r\n", b"GET /hea"], id="behind empty lines"),
    ],
)
def test_a_head_that_never_ends_is_refused(path, parts):
    with in_process(settings_of(path), HEAD_SECONDS=0.1) as port:
        found = answer_to(port, *parts)
    n_whole = b"".join(parts).count(GET)
    assert found.count(b"HTTP/1.1 200 ") == n_whole
    assert found.count(b"HTTP/1.1 408 ") == 1


def test_each_piece_of_a_head_does_not_begin_its_time_again(path):
    with (
        in_process(settings_of(path), HEAD_SECONDS=0.2) as port,
        socket.create_connection(("127.0.0.1", port), timeout=20) as client,
    ):
        client.sendall(GET)
        while not client.recv(1 << 16).endswith(b'"ok"}'):
            pass
        client.settimeout(0.01)
        client.sendall(b"GET /")
        n_sent, ended = 0, False
        while not ended and n_sent < 500:
            try:
                ended = b" 408 " in client.recv(1 << 16)
            except TimeoutError:
                client.sendall(b"a")
                n_sent += 1
            except ConnectionError:  # the refusal was lost, as a piece came after it
                ended = True
    assert ended
