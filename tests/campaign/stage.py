"""Where an operation is disturbed: an old file, what may be there afterwards, and what is there."""

from __future__ import annotations

import functools
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from embmap.errors import EmbmapError
from tests.campaign.operations import (
    PAIRS,
    lay_data,
    make_sources,
    perform,
    read_back,
)

__all__ = ["Stage"]

_TEMPORARY = re.compile(r"\.embmap-.*")


@dataclass(frozen=True)
class _Version:
    """The files of a version, and what a reader finds in them."""

    files: Mapping[str, bytes]
    read: bytes


class Stage:
    """A folder in which operations are tried, and the inputs that they have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = make_sources(folder)
        self.target = folder / "target"
        self.versions = functools.cache(self._versions)

    def arguments(self, name: str) -> tuple[str, str, str, int]:
        """What :func:`perform` is called with for the new version."""
        return name, str(self.target), str(self.sources), 1

    def lay(self, name: str, *, old: bool) -> None:
        """Empty the folder, and put the old files there or none."""
        self._empty()
        lay_data(name, self.target, self.sources)
        for file, data in (self.versions(name)[0].files if old else {}).items():
            (self.target / file).write_bytes(data)

    def _empty(self) -> None:
        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()

    def _versions(self, name: str) -> tuple[_Version, _Version]:
        """Write both versions undisturbed."""
        found = []
        for version in (0, 1):
            self._empty()
            lay_data(name, self.target, self.sources)
            before = set(os.listdir(self.target))
            perform(name, str(self.target), str(self.sources), version)
            files = {each: (self.target / each).read_bytes() for each in self._files() - before}
            try:
                read = read_back(name, self.target)
            except EmbmapError:  # an index of other data
                assert name in ("index", "approximate index")
                assert version == 0
                read = b""
            found.append(_Version(files, read))
        assert found[0].read != found[1].read
        return found[0], found[1]

    def _files(self) -> set[str]:
        return set(os.listdir(self.target))

    def temporaries(self) -> list[str]:
        """Names of temporary files that were left."""
        return sorted(each for each in self._files() if _TEMPORARY.fullmatch(each))

    def state(self, name: str) -> str:
        """Say which version is there: "old file", "new file", "no file" or, of pairs, "refused".

        Anything else, half of a file or parts of both versions, is an AssertionError.
        """
        old, new = self.versions(name)
        names = {*old.files, *new.files}
        strange = self._files() - names - set(self.temporaries()) - {"data.fifu"}
        assert not strange, f"{name} left {sorted(strange)}"
        there = {each: (self.target / each).read_bytes() for each in self._files() & names}
        if not there:
            return "no file"
        if there == old.files:
            return "old file"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                read = read_back(name, self.target)
            except (EmbmapError, OSError, ValueError) as error:
                if name in PAIRS:
                    return "refused"
                raise AssertionError(f"{name} left what cannot be read: {error}") from error
        if there == new.files or read == new.read:
            assert read == new.read
            return "new file"
        whole = {each: _which(data, each, old, new) for each, data in sorted(there.items())}
        raise AssertionError(f"{name} left what is neither the old nor the new: {whole}")

    def run_again(self, name: str) -> None:
        """Write the new version where something disturbed that; it has to succeed."""
        perform(*self.arguments(name))
        state = self.state(name)
        assert state == "new file", f"after the next run: {state}"


def _which(data: bytes, name: str, old: _Version, new: _Version) -> str:
    if data == old.files.get(name):
        return "old"
    return "new" if data == new.files.get(name) else f"{len(data)} other bytes"
