"""CVC files written byte by byte."""

import json
import struct
import zlib


def cvc(header, payloads, version="0.1"):
    """Return the bytes of a file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    data = b"CVCF"
    if version != "0.1":
        data += struct.pack("<HH", int(version[0]), 0)
    data += struct.pack("<I", len(text)) + text
    for payload in payloads:
        data += struct.pack("<I", len(payload))
        if version != "0.1":
            data += struct.pack("<I", zlib.crc32(payload))
        data += payload
    return data
