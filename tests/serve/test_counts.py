"""Counts of responses: none is lost, and none comes after its response."""

import asyncio
import json

import pytest

from tests.served import settings_of, skip_without_server

pytestmark = pytest.mark.slow

skip_without_server()


@pytest.mark.parametrize("n", [1, 500])
def test_a_response_is_counted_before_the_client_has_all_of_it(large, n):
    from embmap.serve.application import application

    app = application(settings_of(large))
    body = json.dumps({"rows": list(range(n))}).encode()

    async def ask(method, path, seen):
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": headers,
        }

        async def receive():
            return {"type": "http.request", "body": body if method == "POST" else b""}

        await app(scope, receive, seen)

    counts, sizes = [], []

    async def count(message):
        counts.append(bytes(message.get("body", b"")).decode())

    async def arrive(message):
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            sizes.append(int(dict(message["headers"])[b"content-length"]))
            return
        sizes[0] -= len(message["body"])
        if not sizes[0]:
            await ask("GET", "/metrics", count)

    asyncio.run(ask("POST", "/v1/a/lookup", arrive))
    assert 'route="/v1/{name}/lookup",status="200"} 1\n' in "".join(counts)
