"""Servers and ways to ask them, for the tests of `embmap serve`."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

SECONDS = 120  # after which a server hangs; no test waits for it otherwise


def skip_without_server():
    """Skip a module, or a test, where what the server needs is not installed."""
    for module in ("starlette", "uvicorn", "httptools", "orjson", "typer"):
        pytest.importorskip(module, reason=f"serving needs {module}")


class Served:
    """A server process and a way to ask it."""

    def __init__(self, *arguments, **options):
        command = [sys.executable, "-m", "embmap", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
        )
        line = self.process.stdout.readline()
        if not line.startswith("http://"):
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.url = line.strip()
        self.port = int(self.url.rpartition(":")[2])

    def ask(self, path, body=None, *, method=None, token=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None and "Content-Type" not in headers:
            headers["Content-Type"] = "application/json"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers)
            response = connection.getresponse()
            return (
                response.status,
                {k.lower(): v for k, v in response.getheaders()},
                response.read(),
            )
        finally:
            connection.close()

    def json(self, path, body=None, **options):
        status, _, content = self.ask(path, body, **options)
        return status, json.loads(content)

    def code(self, path, body=None, **options):
        status, answer = self.json(path, body, **options)
        assert set(answer) == {"error"}
        assert answer["error"]["message"]
        return status, answer["error"]["code"]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(*arguments, **options):
    server = Served(*arguments, **options)
    try:
        yield server
    finally:
        status, _, server.told = server.stop()
    assert status == 0


@contextlib.contextmanager
def in_process(settings, connections=None, **patched):
    """Serve in a thread of this process, where limits can be small; yields the port."""
    import uvicorn

    from embmap.serve import protocol
    from embmap.serve.application import application

    before = {name: getattr(protocol, name) for name in patched}
    for name, value in patched.items():
        setattr(protocol, name, value)
    config = uvicorn.Config(
        application(settings),
        port=0,
        log_level="critical",
        http=protocol.BoundedHttp,
        ws="none",
        limit_concurrency=connections,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
            for name, value in before.items():
                setattr(protocol, name, value)


def settings_of(path, **limits):
    from embmap.serve.settings import Limits, ModelSource, Settings

    return Settings(models=(ModelSource("a", str(path)),), limits=Limits(**limits))


def answer_to(port, *parts):
    """Send bytes piece by piece and return what comes until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        found = b""
        for part in parts:
            connection.sendall(part)
        while data := connection.recv(1 << 16):
            found += data
        return found
