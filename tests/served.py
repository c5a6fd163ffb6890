"""A server process and a way to ask it, for the tests of `embmap serve`."""

import http.client
import json
import signal
import subprocess
import sys


class Served:
    """A server process and a way to ask it."""

    def __init__(self, *arguments):
        command = [sys.executable, "-m", "embmap", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        if not line.startswith("http://"):
            self.process.kill()
            raise AssertionError(line + self.process.communicate()[1])
        self.url = line.strip()
        self.port = int(self.url.rpartition(":")[2])

    def ask(self, path, body=None, *, method=None, token=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
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
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err
