"""Raw sockets against a server: all that clients do that no HTTP library lets them do."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter
from pathlib import Path

from tests.campaign.malformed import ambiguous_lengths, odd_heads
from tests.campaign.part import Part
from tests.campaign.wire import Answer, Target, Wire, get, lookups, post

_SHORT = 0.3  # seconds of silence after which no more answers are expected
_FLOOD = 600  # connections at once: more than a worker takes
_SLOW = 45.0  # seconds after which a server has let go of a client that does nothing
_GROWTH = 1.5  # memory, as a multiple of that before
_SPARE = 48 << 20  # bytes beyond that: one answer and one request of the largest kind


class RawSockets(Part):
    name = "raw sockets against the server"
    promise = (
        "Pipelines, requests whose length is ambiguous, trailers, slow and silent clients, floods, "
        "garbage and resets: each request is answered once and with its own answer or refused, "
        "what is ambiguous ends the connection, and others are answered rightly meanwhile."
    )
    weight = 2.0
    patience = 120.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.target = Target(folder)
        self.kinds = {
            name.removeprefix("_try_"): getattr(self, name)
            for name in sorted(dir(self))
            if name.startswith("_try_")
        }
        self.slow: list[tuple[float, Wire]] = []
        for row in range(100):
            self.target.is_well(row)
        self.nbytes = self.target.nbytes()
        self.n_files = self.target.n_files()

    def trial(self, rng: random.Random) -> str:
        kind = rng.choice(sorted(self.kinds))
        rows = iter(lambda: rng_beside.randrange(len(self.target.words)), None)
        rng_beside = random.Random(rng.random())
        with lookups(self.target, rows):
            outcome = self.kinds[kind](rng)
        self.target.is_well(rng.randrange(len(self.target.words)))
        now = self.target.nbytes()
        assert now < _GROWTH * self.nbytes + _SPARE, f"{self.nbytes} bytes became {now}: {kind}"
        self._let_go()
        return f"{kind.replace('_', ' ')}: {outcome}"

    def row(self, rng: random.Random) -> int:
        return rng.randrange(len(self.target.words))

    # Many requests on one connection

    def _try_pipelines(self, rng: random.Random) -> str:
        """Requests of several kinds in one stream, cut anywhere; each answer is its own."""
        n = rng.choice((2, 5, 40, 300))
        asked: list[int | None] = []
        stream = b""
        for _ in range(n):
            row = self.row(rng)
            kind = rng.randrange(5)
            asked.append(row)
            if kind == 0:
                body = json.dumps({"words": [f"w{row}"]}).encode()
                stream += post("/v1/a/lookup", body)
            elif kind == 1:
                body = json.dumps({"words": [f"w{row}"]}).encode()
                stream += post("/v1/a/lookup", _chunks(body, rng), "Transfer-Encoding: chunked")
            elif kind == 2:
                stream += b"\r\n" * rng.randrange(3) + self.target.ask(row)
            elif kind == 3:
                stream += get("/v1/a/vectors/unknown")
                asked[-1] = None
            else:
                stream += self.target.ask(row)
        with Wire(self.target.port) as wire:
            taken = wire.send(*_pieces(stream, rng))
            half = rng.random() < 0.3
            if half:  # what was not answered before may be lost
                wire.half_close()
            found = wire.receive(30.0, enough=n)
        assert half or taken, f"{n} requests were not taken: {len(found)} answers"
        assert half or len(found) == n, f"{n} requests, {len(found)} answers"
        assert len(found) <= n
        for answer, row in zip(found, asked, strict=False):
            self._compare(answer, row)
        return "each its own answer" if len(found) == n else "half closed, not all answered"

    def _compare(self, answer: Answer, row: int | None) -> None:
        if row is None:
            assert answer.status == 404, answer
        elif b'"vectors"' in answer.body:
            vector = json.loads(answer.body)["vectors"][0]
            assert vector == [float(str(x)) for x in self.target.vectors[row]], row
        else:
            self.target.check(answer, row)

    def _try_abandoned_pipelines(self, rng: random.Random) -> str:
        """Hundreds of searches on a connection that is reset or never read."""
        body = json.dumps({"word": f"w{self.row(rng)}", "n": 1000}).encode()
        wire = Wire(self.target.port)
        wire.socket.settimeout(0.5)
        wire.send(*[post("/v1/a/similar", body)] * rng.choice((3, 50, 400)))
        if rng.random() < 0.5:
            wire.reset()
            return "reset"
        self._keep(wire)
        return "unread"

    # Requests whose end is ambiguous

    def _try_ambiguous_lengths(self, rng: random.Random) -> str:
        """A second request may hide in the body of the first: it is never answered as well."""
        hidden = self.target.ask(self.row(rng))
        body = b'{"words": ["w1"]}'
        lines, sent = rng.choice(ambiguous_lengths(body))
        stream = post("/v1/a/lookup", sent, *lines) + hidden
        with Wire(self.target.port) as wire:
            wire.send(*_pieces(stream, rng))
            found = wire.receive(15.0, enough=2)
            told = f"{lines}, {sent!r}: {[each.status for each in found]}"
            assert len(found) < 2, told
            assert wire.ended or (found and found[0].closes), f"{told}: the connection stays"
            wire.half_close()
            assert len(wire.receive(15.0)) == len(found), told
            assert wire.ended, f"{told}: the connection stays"
        return f"{found[0].status}" if found else "closed"

    def _try_odd_heads(self, rng: random.Random) -> str:
        """Folded and repeated headers, odd versions and methods; one answer at most to each."""
        row = self.row(rng)
        odd = rng.choice(odd_heads(f"GET /v1/a/vectors/w{row}"))
        with Wire(self.target.port) as wire:
            wire.send(*_pieces(odd, rng))
            wire.half_close()
            found = wire.receive(15.0)
            assert wire.ended, f"{odd!r}: the connection stays"
        assert len(found) <= (2 if odd.startswith(b"PRI") else 1), f"{odd!r}: {found}"
        if found and found[0].status == 200 and odd.startswith(b"GET"):
            self.target.check(found[0], row)
        return f"{found[0].status}" if found else "closed"

    def _try_trailers(self, rng: random.Random) -> str:
        """Trailers change nothing; too many are refused."""
        body = b'{"words": ["w1"]}'
        lines = [b"X-%d: y\r\n" % i for i in range(rng.choice((1, 20, 20_000)))]
        lines.insert(rng.randrange(len(lines)), b"Accept: application/x-npy\r\nHost: evil\r\n")
        sent = b"%x\r\n%s\r\n0\r\n" % (len(body), body) + b"".join(lines) + b"\r\n"
        stream = post("/v1/a/lookup", sent, "Transfer-Encoding: chunked") + self.target.ask(7)
        with Wire(self.target.port) as wire:
            wire.send(*_pieces(stream, rng))
            found = wire.receive(15.0, enough=2)
        if len(lines) > 1000:
            assert len(found) < 2 or found[1].status != 200, "trailers without a bound"
            return "refused"
        assert len(found) == 2, f"{len(found)} answers"
        self._compare(found[0], 1)
        self._compare(found[1], 7)
        return "ignored"

    # Too much, too slow, nonsense

    def _try_large(self, rng: random.Random) -> str:
        """Heads, paths and bodies beyond the bounds."""
        big = rng.choice((1 << 15, 1 << 16, 1 << 20))
        stream = rng.choice(
            [
                get("/v1/a/vectors/w1", f"X: {'y' * big}"),
                get(f"/v1/a/vectors/{'w' * big}"),
                get("/v1/a/vectors/w1", *[f"X{i}: y" for i in range(big >> 2)]),
                post("/v1/a/lookup", b" " * (1 << 20) + b'{"words": ["w1"]}'),
                post("/v1/a/lookup", b"[" * big),
                post("/v1/a/lookup", json.dumps({"words": ["w1"] * (big >> 4)}).encode()),
                post("/v1/a/similar", b'{"word": "w1", "n": 1e400}'),
                post("/v1/a/lookup", b"", f"Content-Length: {1 << 40}"),
            ]
        )
        with Wire(self.target.port) as wire:
            wire.send(*_pieces(stream, rng))
            found = wire.receive(20.0, enough=1)
            assert len(found) == 1 or wire.ended, "neither answered nor closed"
        assert not found or 400 <= found[0].status < 500, found
        return f"{found[0].status}" if found else "closed"

    def _try_garbage(self, rng: random.Random) -> str:
        outcomes: Counter[str] = Counter()
        for _ in range(20):
            data = bytearray(self.target.ask(self.row(rng)) if rng.random() < 0.7 else b"")
            for _ in range(rng.randrange(1, 9)):
                at = rng.randrange(len(data) + 1)
                data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(4))
            with Wire(self.target.port) as wire:
                wire.send(bytes(data))
                wire.half_close()
                found = wire.receive(15.0)
                assert wire.ended, f"{bytes(data)!r}: the connection stays"
            outcomes[str(found[0].status) if found else "closed"] += 1
        return "answered or closed"

    def _try_slow_clients(self, rng: random.Random) -> str:
        """Clients who begin something and stop; others are served, and in the end they are left."""
        started = [
            b"",
            b"GET /v1/a/vec",
            get("/healthz")[:-2],
            post("/v1/a/lookup", b'{"wo', "Content-Length: 100"),
            post("/v1/a/lookup", b"5\r\n{", "Transfer-Encoding: chunked"),
            get("/healthz", "Content-Length: 10"),
        ]
        for _ in range(rng.randrange(1, 12)):
            wire = Wire(self.target.port)
            wire.send(rng.choice(started))
            self._keep(wire)
        return "waiting"

    def _try_trickles(self, rng: random.Random) -> str:
        """A request that comes byte by byte is answered all the same."""
        row = self.row(rng)
        with Wire(self.target.port) as wire:
            data = self.target.ask(row)
            wire.send(*(data[i : i + 1] for i in range(len(data))), pause=0.001)
            found = wire.receive(15.0, enough=1)
        assert len(found) == 1
        self.target.check(found[0], row)
        return "answered"

    def _try_slow_readers(self, rng: random.Random) -> str:
        """An answer of megabytes that is read in small pieces comes whole."""
        rows = [self.row(rng) for _ in range(1000)]
        body = json.dumps({"rows": rows}).encode()
        with Wire(self.target.port) as wire:
            wire.send(*[post("/v1/a/lookup", body)] * 4)
            for _ in range(rng.randrange(20)):
                wire.data += wire.socket.recv(rng.randrange(1, 4096))
                time.sleep(0.01)
            found = wire.receive(30.0, enough=4)
        assert len(found) == 4, f"{len(found)} answers"
        for answer in found:
            self._compare(Answer(200, {}, answer.body), rows[0])
        return "whole"

    def _try_floods(self, rng: random.Random) -> str:
        """More connections than are taken; some ask, some are reset, then all go."""
        wires: list[Wire] = []
        row = self.row(rng)
        outcomes: Counter[int] = Counter()
        try:
            for number in range(_FLOOD):
                try:
                    wires.append(Wire(self.target.port, seconds=5.0))
                except OSError:
                    break
                if number % 3 == 0:
                    wires[-1].send(self.target.ask(row))
            for wire in rng.sample(wires, 60):
                for answer in wire.receive(0.05):
                    outcomes[answer.status] += 1
                    if answer.status == 200:
                        self.target.check(answer, row)
            assert set(outcomes) <= {200, 429, 503}, outcomes
        finally:
            for wire in wires:
                if rng.random() < 0.5:
                    wire.reset()
                wire.socket.close()
        return "over"

    def _try_resets(self, rng: random.Random) -> str:
        body = json.dumps({"rows": list(range(1000))}).encode()
        stream = post("/v1/a/lookup", body)
        for _ in range(30):
            wire = Wire(self.target.port)
            wire.send(stream[: rng.choice((len(stream), rng.randrange(len(stream))))])
            if rng.random() < 0.5:
                time.sleep(rng.random() / 200)
            if rng.random() < 0.5:
                wire.reset()
            else:
                wire.socket.close()
        return "over"

    # Clients who are still there

    def _keep(self, wire: Wire) -> None:
        self.slow.append((time.monotonic() + _SLOW, wire))
        while len(self.slow) > 100:
            self.slow.pop(0)[1].socket.close()

    def _let_go(self) -> None:
        """Check that the server has let go of those who have done nothing for long."""
        while self.slow and time.monotonic() > self.slow[0][0]:
            _, wire = self.slow.pop(0)
            with wire:
                # A busy machine may still be working on what an abandoned pipeline asked for.
                wire.receive(_SLOW)
                assert wire.ended, "a client that does nothing keeps its connection"

    def close(self) -> None:
        for _, wire in self.slow:
            wire.socket.close()
        until = time.monotonic() + 20
        while self.target.n_files() > self.n_files + 5 and time.monotonic() < until:
            time.sleep(0.1)
        left = self.target.n_files()
        self.target.close()
        assert left <= self.n_files + 5, f"{self.n_files} open files became {left}"


def _pieces(stream: bytes, rng: random.Random) -> list[bytes]:
    """Cut bytes into up to six pieces."""
    cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(6)))
    return [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]


def _chunks(body: bytes, rng: random.Random) -> bytes:
    """Encode a body in chunks of any size."""
    parts = [part for part in _pieces(body, rng) if part]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
