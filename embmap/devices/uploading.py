"""Bytes of a file on their way to a device, and the devices themselves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from embmap.threads import in_parallel

__all__ = ["Upload", "find_device"]

CPU = torch.device("cpu")
_BUFFER_NBYTES = 1 << 26
_PIECE_NBYTES = 1 << 22  # what a thread copies at once


class Upload:
    """Copies bytes to a device through two buffers: one is filled while the other is sent.

    On CUDA devices the buffers are pinned and the device sends them by itself.
    """

    def __init__(self, device: torch.device, buffer_nbytes: int = _BUFFER_NBYTES) -> None:
        self._device = device
        self._size = buffer_nbytes
        self._sends_alone = device.type == "cuda"
        self._buffers: list[torch.Tensor] = []
        self._sent = [torch.cuda.Event() for _ in range(2)] if self._sends_alone else []
        self._n = 0

    def send(self, data: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Return bytes on the device: (n,) uint8."""
        target = torch.empty(data.size, dtype=torch.uint8, device=self._device)
        for start in range(0, data.size, self._size):
            part = data[start : start + self._size]
            turn = self._n % 2
            buffer = self._buffer(turn)[: part.size]
            if self._sends_alone:
                self._sent[turn].synchronize()
            _copy(part, buffer.numpy())
            place = target[start : start + part.size]
            place.copy_(buffer, non_blocking=self._sends_alone)
            if self._sends_alone:
                self._sent[turn].record(torch.cuda.current_stream(self._device))
            self._n += 1
        return target

    def _buffer(self, turn: int) -> torch.Tensor:
        if turn == len(self._buffers):
            made = torch.empty(self._size, dtype=torch.uint8, pin_memory=self._sends_alone)
            self._buffers.append(made)
        return self._buffers[turn]


def _copy(source: npt.NDArray[np.uint8], target: npt.NDArray[np.uint8]) -> None:
    """Copy bytes in several threads; one of them cannot feed a device."""

    def copy(start: int) -> None:
        stop = start + _PIECE_NBYTES
        target[start:stop] = source[start:stop]

    in_parallel(copy, range(0, source.size, _PIECE_NBYTES))


def find_device(device: torch.device | str | int | None) -> torch.device:
    """Return a device, the CPU by default; raise ValueError if it is not there."""
    if device is None or device == "cpu":
        return CPU
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device must be one that is there, not {device!r}: {reason}") from None
    return found
