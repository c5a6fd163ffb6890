"""Files that are held open, so that a change to them is noticed wherever their paths lead later."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from embmap.embedding_file import EmbeddingFile

__all__ = ["Signature", "Watched", "label_of", "signature_of"]

Signature = tuple[tuple[int, int, int, int, int], ...]
"""Device, inode, size, mtime and ctime of each file."""


class Watched:
    """Open descriptors of files, read-only, and their signature when they were opened."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.descriptors: list[int] = []
        for path in paths:
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            self.descriptors.append(os.open(path, flags))
        self._found = [os.fstat(each) for each in self.descriptors]
        self.signature = signature_of(self._found)

    def __del__(self) -> None:
        """Close the descriptors."""
        for each in self.descriptors:
            os.close(each)

    def is_unchanged(self) -> bool:
        """Return whether nothing was written to the files since."""
        for descriptor, before in zip(self.descriptors, self._found, strict=True):
            now = os.fstat(descriptor)
            if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                return False
            # mtime can be reset; ctime cannot. A new link count changes ctime, but no content.
            if now.st_ctime_ns != before.st_ctime_ns and now.st_nlink == before.st_nlink:
                return False
        return True

    def is_of(self, file: EmbeddingFile) -> bool:
        """Return whether an open embedding file reads these files."""
        found = [(each.st_dev, each.st_ino) for each in self._found]
        return found == [each.identity for each in file.mapped_files]


def signature_of(found: Sequence[os.stat_result]) -> Signature:
    """Return the signature of files."""
    return tuple((s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in found)


def label_of(signature: Signature) -> str:
    """Return a signature as 16 letters that can be part of a file's name."""
    return hashlib.sha256(repr(signature).encode()).hexdigest()[:16]
