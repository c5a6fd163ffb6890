"""Codecs as operations of torch, for any device: the same bits as the codecs of numpy.

Each operation runs as a kernel of its own, so that no compiler fuses a multiplication and an
addition, which would round once instead of twice.
"""

from __future__ import annotations

import torch

from embmap.codecs.planes import Planes

__all__ = ["decode_affine", "decode_half", "decode_planes"]


def decode_half(raw: torch.Tensor) -> torch.Tensor:
    """Return half-precision numbers as float32; `raw` is their bytes, and NaN keeps its payload."""
    values = raw.view(torch.float16).to(torch.float32)
    is_nan = values.isnan()
    if bool(is_nan.any()):  # the conversion sets a bit of some of them
        bits = raw.view(torch.int16)[is_nan].to(torch.int32)
        patterns = ((bits & 0x7FFF) << 13) | 0x7F800000 | ((bits & 0x8000) << 16)
        values.view(torch.int32)[is_nan] = patterns
    return values


def decode_affine(codes: torch.Tensor, scale: float, minimum: float) -> torch.Tensor:
    """Return ``codes * scale + minimum``, rounded to float32 after each operation."""
    return codes.to(torch.float32).mul_(scale).add_(minimum)


def decode_planes(payload: torch.Tensor, planes: Planes) -> torch.Tensor:
    """Return the values of a payload of byte planes: (n,) float32.

    ValueError is raised for a code that is not in its dictionary.
    """
    values = torch.empty((planes.n, 4), dtype=torch.uint8, device=payload.device)
    is_wrong = torch.zeros(4, dtype=torch.bool, device=payload.device)
    for plane, width in enumerate(planes.bits):
        start = planes.codes[plane]
        packed = payload[start : start + -(-planes.n * width // 8)]
        codes = _unpack(packed, width)[: planes.n]
        offset, entries = planes.dictionaries[plane]
        # A code of a byte is in the table, whatever the file holds.
        table = torch.zeros(256, dtype=torch.uint8, device=payload.device)
        table[:entries] = payload[offset : offset + entries]
        values[:, plane] = table[codes.to(torch.int32)]
        if planes.n and entries < 1 << width:
            is_wrong[plane] = (codes >= entries).any()
    for plane, wrong in enumerate(is_wrong.tolist()):
        if wrong:
            raise ValueError(f"a code of plane {plane} is not in its dictionary")
    return values.view(torch.float32).reshape(-1)


def _unpack(packed: torch.Tensor, width: int) -> torch.Tensor:
    """Return codes of `width` bits, packed from the most significant bit on, as bytes."""
    if width == 8:
        return packed
    # Eight codes fill `width` bytes, so that every eighth code lies at the same bits.
    groups = torch.nn.functional.pad(packed, (0, -packed.numel() % width)).view(-1, width)
    codes = torch.empty((groups.shape[0], 8), dtype=torch.uint8, device=packed.device)
    for i in range(8):
        byte, bit = divmod(i * width, 8)
        end = bit + width
        if end <= 8:
            code = groups[:, byte] >> (8 - end)
        else:
            code = (groups[:, byte] << (end - 8)) | (groups[:, byte + 1] >> (16 - end))
        codes[:, i] = code & ((1 << width) - 1)
    return codes.view(-1)
