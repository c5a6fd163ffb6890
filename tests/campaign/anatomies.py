"""Where each format has its numbers and sections, and how its checksums and lengths are mended.

The grammars follow the pages in docs/formats; they are walked over valid files only.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise

import xxhash

from tests.campaign.mutation import Anatomy, with_number
from tests.judges import cvc, dwe, embd, finalfusion
from tests.reference import dwe as dwe_reference

__all__ = [
    "of_cvc",
    "of_dwe",
    "of_embd",
    "of_finalfusion",
    "of_index",
    "with_cvc_checksums",
    "with_dwe_size",
    "with_embd_checksums",
    "with_finalfusion_lengths",
    "with_index_checksums",
    "with_metadata",
]


def words_in(data: bytes, words: Sequence[str], width: int) -> Iterator[tuple[int, int]]:
    """Start and end of each word; its length comes before it, in so many bytes."""
    for word in words:
        raw = word.encode()
        record = len(raw).to_bytes(width, "little") + raw
        at = data.find(record) if raw else -1
        while at >= 0:
            yield at + width, at + len(record)
            at = data.find(record, at + 1)


def with_lengths(
    fields: list[tuple[int, int]], texts: list[tuple[int, int]], width: int
) -> list[tuple[int, int]]:
    """The fields, and the lengths of the words."""
    return [*fields, *((start - width, width) for start, _ in texts)]


# ------------------------------------------------------------------------------------ finalfusion


def of_finalfusion(data: bytes) -> Anatomy:
    """Header, chunks, counts, and the lengths of words."""
    heads = [offset for _, offset in finalfusion.chunks_of(data)]
    texts = list(words_in(data, ["ab", "c", "ü🙂", "a\0", "x" * 260, "ü", "<", "b>"], 4))
    fields = with_lengths(finalfusion.count_fields(data), texts, 4)
    first = heads[0] if heads else 0
    fields += [(at, 4) for at in range(12, first, 4)]
    sections = list(pairwise([*heads, len(data)])) or [(0, len(data))]
    sections += [(start - 4, stop) for start, stop in texts]
    return Anatomy(data, fields, sections, texts)


def with_finalfusion_lengths(data: bytes) -> bytes:
    """The bytes, the length of the last chunk made to reach the end, and all chunks listed."""
    if len(data) < 24:
        return data
    ids = []
    at = 12 + 4 * struct.unpack_from("<I", data, 8)[0] if data[:4] == b"FiFu" else 0
    while at + 12 <= len(data):
        id, nbytes = struct.unpack_from("<IQ", data, at)
        ids.append(id)
        if at + 12 + nbytes > len(data):
            data = with_number(data, at + 4, 8, len(data) - at - 12)
            break
        at += 12 + nbytes
    n_listed = struct.unpack_from("<I", data, 8)[0]
    if data[:4] == b"FiFu" and n_listed == len(ids):
        data = data[:12] + struct.pack(f"<{len(ids)}I", *ids) + data[12 + 4 * len(ids) :]
    return data


def with_metadata(data: bytes, new: bytes) -> bytes:
    """The bytes of a file that has metadata, with others."""
    old = finalfusion.METADATA.encode()
    at = data.index(old)
    return data[: at - 8] + struct.pack("<Q", len(new)) + new + data[at + len(old) :]


# -------------------------------------------------------------------------------------------- EMBD


def of_embd(data: bytes) -> Anatomy:
    """Header, sections, descriptors and footer of a spec file, or the run of a flat one."""
    spec = data[-8:-4] == b"DBME"
    names = [embd.WORDS, "b", "e", "model_name", "m", "ü"]
    texts = list(words_in(data, [*embd.TOKENS, *names], 2 if spec else 4))
    if not spec:
        fields = [(4, 2), (6, 2), (8, 4), *((at, 4) for at in range(12, len(data) - 3, 4))]
        sections = [(start - 4, stop) for start, stop in texts]
        return Anatomy(data, with_lengths(fields, texts, 4), [*sections, (12, len(data))], texts)
    places = struct.unpack_from("<8I", data, 8)
    _, metadata, metadata_size, vocab, vocab_size, index, n_tensors, start = places
    (size,) = struct.unpack_from("<Q", data, 40)
    fields = [(4, 2), (6, 2), *((at, 4) for at in range(8, 40, 4)), (40, 8), (48, 8), (56, 4)]
    descriptor = ((0, 4), (4, 1), (5, 1), (6, 2), (8, 4), (12, 4), (16, 4), (20, 4), (24, 8))
    for number in range(n_tensors):
        fields += [(index + 32 * number + at, nbytes) for at, nbytes in descriptor]
    fields += [(metadata, 4), (metadata + 4, 4), *((vocab + at, 4) for at in (0, 4, 8))]
    fields += [(metadata + vocab_size, 2), *((len(data) - at, 4) for at in (16, 12, 8, 4))]
    sections = [(metadata, metadata + metadata_size), (vocab, vocab + vocab_size)]
    sections += [(index + 32 * i, index + 32 * i + 32) for i in range(n_tensors)]
    sections += [(start, start + size), (len(data) - 16, len(data)), (0, 64)]
    sections += [(start - 2, stop) for start, stop in texts]
    return Anatomy(data, with_lengths(fields, texts, 2), sections, texts)


def with_embd_checksums(data: bytes) -> bytes:
    """The bytes, size, end magic and checksums of a spec file made to hold."""
    if len(data) < 80:
        return data
    data = with_number(data, 48, 8, len(data))
    data = data[:-8] + b"DBME" + data[-4:]
    return embd.with_new_checksums(data)


# --------------------------------------------------------------------------------------------- CVC


def cvc_records(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Start of each chunk's record, of its payload, and its end, as far as header and bytes say."""
    try:
        at, text = cvc.header_of(data)
        header = json.loads(text)
        chunks = header["chunks"]
        place = at + len(text)
        for chunk in chunks[:100]:
            if header.get("mmap_optimized"):
                place = chunk["file_offset"]
            (nbytes,) = struct.unpack_from("<I", data, place)
            payload = place + (4 if at == 8 else 8)
            yield place, payload, payload + nbytes
            place = payload + nbytes
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, struct.error):
        return


def of_cvc(data: bytes) -> Anatomy:
    """Versions, length of the header, heads of the chunks and their payloads' first numbers."""
    at, text = cvc.header_of(data)
    fields = [(4, 4), (4, 2), (6, 2), (at - 4, 4)]
    sections = [(at, at + len(text))]
    for start, payload, end in cvc_records(data):
        fields += [(start, 4), *([(start + 4, 4)] if payload - start == 8 else [])]
        fields += [(place, 4) for place in range(payload, min(end - 3, payload + 16), 4)]
        fields += [(place, 2) for place in range(payload, min(end - 1, payload + 32), 2)]
        sections += [(start, end), (payload, end)]
    return Anatomy(data, fields, sections, [(at, at + len(text))])


def with_cvc_checksums(data: bytes) -> bytes:
    """The bytes, the checksums of the chunks made to hold, and the header's length if it can."""
    if len(data) < 16:
        return data
    mended = bytearray(data)
    for start, payload, end in cvc_records(data):
        if payload - start == 8 and payload <= len(data):
            struct.pack_into("<I", mended, start + 4, zlib.crc32(data[payload:end]))
    return bytes(mended)


# --------------------------------------------------------------------------------------------- DWE


def of_dwe(data: bytes) -> Anatomy:
    """Header, models, tables and the words of the groups."""
    parsed = dwe_reference.parse(data)
    fields = [(at, 4) for at in range(4, 40, 4)]
    fields += [(at, 2) for at in range(40, min(len(data) - 1, 240), 2)]
    fields += [(at, 4) for at in range(40, min(len(data) - 3, 240), 4)]
    base = len(data) - 2 * len(parsed.halfwords)
    begins = sorted({base + 2 * start for step in parsed.starts for start, _ in step})
    sections = [(40, begins[0]), *pairwise([*begins, len(data)])]
    return Anatomy(data, fields, [(a, b) for a, b in sections if a <= b])


def with_dwe_size(data: bytes) -> bytes:
    """The bytes, padded to whole words, with the size that they have."""
    return dwe.with_right_size(data + bytes(-len(data) % 4))


# ------------------------------------------------------------------------------------- FILE.embx

_HEADER, _TABLE, _BLOCK = 64, 88, 1 << 16


def of_index(data: bytes) -> Anatomy:
    """Header, tables, slots, starts and checksums."""
    (n_tables,) = struct.unpack_from("<I", data, 12)
    body, sums = struct.unpack_from("<QQ", data, 40)
    fields = [(8, 4), (12, 4), *((at, 8) for at in range(16, 64, 8))]
    sections = [(0, 64), (body, sums), (sums, len(data))]
    table = [(0, 8), (8, 8), (16, 8), (24, 4), (28, 4), (32, 8), (40, 8), (48, 8), (56, 8), (64, 8)]
    table += [(72, 8), (80, 4), (84, 4)]
    for number in range(n_tables):
        start = _HEADER + _TABLE * number
        fields += 3 * [(start + at, nbytes) for at, nbytes in table]
        sections.append((start, start + _TABLE))
    fields += [(at, 4) for at in range(body, sums - 3, 4)]
    fields += [(at, 8) for at in range(sums, len(data), 8)]
    return Anatomy(data, fields, sections)


def with_index_checksums(data: bytes) -> bytes:
    """The bytes, the checksums of blocks and header made to hold, where they can be found."""
    if len(data) < _HEADER:
        return data
    mended = bytearray(data)
    (n_tables,) = struct.unpack_from("<I", data, 12)
    struct.pack_into("<Q", mended, 32, len(data))
    body, sums = struct.unpack_from("<QQ", data, 40)
    if body <= sums <= len(data):
        for number, start in enumerate(range(body, sums, _BLOCK)):
            if sums + 8 * number + 8 <= len(data):
                block = data[start : min(start + _BLOCK, sums)]
                struct.pack_into("<Q", mended, sums + 8 * number, xxhash.xxh3_64_intdigest(block))
    covered = bytes(mended[:56]) + bytes(mended[_HEADER : _HEADER + _TABLE * min(n_tables, 100)])
    struct.pack_into("<Q", mended, 56, xxhash.xxh3_64_intdigest(covered))
    return bytes(mended)
