"""Pickles, read without calling anything.

Python's own unpickler calls the functions that a file names, hashes any object and allocates any
size. The machine here only records names, what they would have made, and the offsets of bytes. It
hashes only text, so no nesting can exhaust the C stack. Its memory is bounded by a multiple of the
size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from embmap.errors import FormatError, TruncatedError, UnsupportedError
from embmap.io.mapping import ByteSource

__all__ = ["Made", "Named", "Stored", "read_pickle"]

_NEWEST = 5  # the newest protocol
_MOST_CONTAINERS = 1 << 24  # lists, dicts, tuples and objects: five for each of three million words
_DEEPEST = 10_000  # marks at once; Python's own pickler gives up at a tenth
_LONGEST_NUMBER = 1024  # bytes
_LONGEST_NAME = 256  # characters of a module or of a name in it
# Modules by their names in Python 2. Python 3 itself writes UserString for collections at times.
_MODULES = {"__builtin__": "builtins", "copy_reg": "copyreg", "UserString": "collections"}
_U16 = struct.Struct("<H").unpack_from
_I32 = struct.Struct("<i").unpack_from
_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from
_F64 = struct.Struct(">d").unpack_from
_UNSET = object()


@dataclass(frozen=True, eq=False, slots=True)
class Named:
    """A class or function that a pickle names."""

    name: str


@dataclass(eq=False, slots=True)
class Made:
    """An object that a pickle describes: its class or function, the arguments and the state."""

    by: Named
    arguments: tuple[Any, ...]
    state: Any = None


@dataclass(frozen=True, eq=False, slots=True)
class Stored:
    """Bytes that stay in the file."""

    offset: int
    nbytes: int


def read_pickle(source: ByteSource, format: str, allows: Callable[[str], bool]) -> Any:
    """Return the content of a pickle as inert records; `allows` accepts the full names in it."""
    source.check_whole()
    machine = _Machine(source, format, allows)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise machine.error("the pickle ends early, or uses what it did not make") from None
    except FormatError:
        raise
    except ValueError as error:  # text that is not UTF-8, or not a number
        raise machine.error(f"the pickle is damaged: {error}") from None


class _Machine:
    """The stack, the memo and the position while a pickle is read."""

    def __init__(self, source: ByteSource, format: str, allows: Callable[[str], bool]) -> None:
        self._where: dict[str, Any] = {"path": source.path, "format": format}
        self._allows = allows
        self._data = source.array(0, np.uint8, source.nbytes).data
        self._fetch = source.fetch
        self._at = 0
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under each mark
        self._memo: list[Any] = []
        self._names: dict[tuple[str, str], Named] = {}
        self._n_containers = 0

    def error(self, message: str, kind: type[FormatError] = FormatError) -> FormatError:
        """Return an error at the present position."""
        return kind(message, offset=self._at, **self._where)

    def run(self) -> Any:
        """Execute the opcodes up to STOP and return the top of the stack."""
        data, fetch, memo, stack, at = self._data, self._fetch, self._memo, self._stack, 0
        while True:
            opcode = data[at]
            at += 1
            # The opcodes of saved words, which are most of a file, come first.
            if opcode == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                stack.append(_text(fetch[at + 1 : end]))
                at = end
            elif opcode == 0x94:  # MEMOIZE
                memo.append(stack[-1])
            elif opcode == 0x6A:  # LONG_BINGET
                stack.append(memo[_U32(data, at)[0]])
                at += 4
            elif opcode == 0x68:  # BINGET
                stack.append(memo[data[at]])
                at += 1
            elif opcode == 0x4A:  # BININT
                stack.append(_I32(data, at)[0])
                at += 4
            elif opcode == 0x4D:  # BININT2
                stack.append(_U16(data, at)[0])
                at += 2
            elif opcode == 0x4B:  # BININT1
                stack.append(data[at])
                at += 1
            elif opcode == 0x2E:  # STOP
                return stack.pop()
            else:
                self._at = at
                act = _OPCODES.get(opcode)
                if act is None:
                    raise self.error(
                        f"the pickle uses opcode {opcode:#04x}, which saved vectors do not need",
                        UnsupportedError,
                    )
                act(self)
                stack, at = self._stack, self._at

    # Bytes of the file

    def _take(self, nbytes: int) -> int:
        """Step over some bytes and return where they start."""
        start = self._at
        if nbytes > len(self._data) - start:
            raise self.error(
                f"{nbytes} bytes are needed, but {len(self._data) - start} are left", TruncatedError
            )
        self._at = start + nbytes
        return start

    def _line(self) -> bytes:
        """Step over a line and return it without its end."""
        start = at = self._at
        step = 1 << 8
        while at < len(self._data):
            found = self._fetch[at : at + step].find(b"\n")
            if found >= 0:
                return self._bytes(at + found + 1 - start)[:-1]
            at += step
            step *= 2
        raise self.error("a line does not end", TruncatedError)

    def _u8(self) -> int:
        return self._data[self._take(1)]

    def _u32(self) -> int:
        value: int = _U32(self._data, self._take(4))[0]
        return value

    def _u64(self) -> int:
        value: int = _U64(self._data, self._take(8))[0]
        return value

    def _bytes(self, nbytes: int) -> bytes:
        start = self._take(nbytes)
        return self._fetch[start : start + nbytes]

    # The stack

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _push_container(self, value: Any) -> None:
        self._n_containers += 1
        if self._n_containers > _MOST_CONTAINERS:
            raise self.error(f"the pickle holds more than {_MOST_CONTAINERS} containers")
        self._stack.append(value)

    def mark(self) -> None:
        if len(self._below) >= _DEEPEST:
            raise self.error(f"the pickle is nested deeper than {_DEEPEST} levels")
        self._below.append(self._stack)
        self._stack = []

    def _since_mark(self) -> list[Any]:
        """Return what was pushed since the last mark and forget that mark."""
        items = self._stack
        self._stack = self._below.pop()
        return items

    def pop(self) -> None:
        if self._stack:
            self._stack.pop()
        else:
            self._since_mark()

    # The memo

    def put(self, place: int) -> None:
        # A pickler counts what it keeps, so no number exceeds the number of bytes before it.
        if not 0 <= place <= self._at:
            raise self.error(f"place {place} of the memo is out of bounds")
        if place >= len(self._memo):
            self._memo += [_UNSET] * (place + 1 - len(self._memo))
        self._memo[place] = self._stack[-1]

    def get(self, place: int) -> None:
        if not 0 <= place < len(self._memo):
            raise self.error(f"place {place} of the memo is empty")
        self._push(self._memo[place])

    # Numbers, text and bytes

    def _number(self) -> bytes:
        line = self._line()
        if len(line) > _LONGEST_NUMBER:
            raise self.error(f"a number has {len(line)} characters, more than {_LONGEST_NUMBER}")
        return line

    def integer(self) -> None:
        line = self._number()
        self._push(line == b"01" if line in (b"00", b"01") else int(line.removesuffix(b"L")))

    def long(self, nbytes: int) -> None:
        if not 0 <= nbytes <= _LONGEST_NUMBER:
            raise self.error(f"a number has {nbytes} bytes, more than {_LONGEST_NUMBER}")
        self._push(int.from_bytes(self._bytes(nbytes), "little", signed=True))

    def text(self, nbytes: int) -> None:
        self._push(_text(self._bytes(nbytes)))

    def stored(self, nbytes: int) -> None:
        self._push(Stored(self._take(nbytes), nbytes))

    # Containers

    def push_tuple(self, n: int) -> None:
        items = tuple(self._stack[-n:])
        if len(items) != n:
            raise IndexError(n)
        del self._stack[-n:]
        self._push_container(items)

    def push_dict(self) -> None:
        items = self._since_mark()
        self._push_container({})
        self.set_items(items)

    def extend(self, items: Collection[Any]) -> None:
        target = self._stack[-1]
        if isinstance(target, list):
            target += items
        elif not isinstance(target, Made):  # the items of other classes are not needed
            raise self.error(f"items cannot be added to {type(target).__name__}")

    def set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if len(items) % 2:
            raise self.error("a key has no value")
        if isinstance(target, dict):
            pairs = zip(items[::2], items[1::2], strict=True)
            # Hashing anything but text could take forever, or all of the C stack.
            target.update(pair for pair in pairs if type(pair[0]) is str)
        elif not isinstance(target, Made):
            raise self.error(f"items cannot be added to {type(target).__name__}")

    # Names, and what is made

    def name(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.error("a name is not text")
        if max(len(module), len(name)) > _LONGEST_NAME:
            raise self.error(f"a name is longer than {_LONGEST_NAME} characters")
        named = self._names.get((module, name))
        if named is None:
            full = f"{_MODULES.get(module, module)}.{name}"
            if not self._allows(full):
                raise self.error(
                    f"the pickle names {full}, which saved vectors do not need", UnsupportedError
                )
            named = self._names[module, name] = Named(full)
        self._push(named)

    def make(self) -> None:
        arguments, by = self._stack.pop(), self._stack.pop()
        if not isinstance(by, Named) or not isinstance(arguments, tuple):
            raise self.error(f"{type(by).__name__} cannot be called")
        self._push_container(Made(by, arguments))

    def make_of_keywords(self) -> None:
        self._stack.pop()  # the keywords, which are not needed
        self.make()

    def build(self) -> None:
        state, made = self._stack.pop(), self._stack[-1]
        if not isinstance(made, Made):
            raise self.error(f"{type(made).__name__} has no state")
        made.state = state

    # Framing

    def protocol(self) -> None:
        number = self._u8()
        if number > _NEWEST:
            raise self.error(f"protocol {number} is newer than {_NEWEST}", UnsupportedError)

    def frame(self) -> None:
        nbytes = self._u64()
        start = self._take(nbytes)  # which the file must hold
        self._at = start


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "surrogatepass")


_OPCODES: dict[int, Callable[[_Machine], object]] = {
    ord("("): _Machine.mark,
    ord("0"): _Machine.pop,
    ord("1"): _Machine._since_mark,
    ord("2"): lambda m: m._push(m._stack[-1]),
    ord("F"): lambda m: m._push(float(m._number())),
    ord("G"): lambda m: m._push(_F64(m._data, m._take(8))[0]),
    ord("I"): _Machine.integer,
    ord("L"): _Machine.integer,
    0x8A: lambda m: m.long(m._u8()),
    0x8B: lambda m: m.long(m._u32()),
    ord("N"): lambda m: m._push(None),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("V"): lambda m: m._push(m._line().decode("raw-unicode-escape")),
    ord("X"): lambda m: m.text(m._u32()),
    0x8D: lambda m: m.text(m._u64()),
    # The str of Python 2, in which arrays of that time hold their bytes.
    ord("T"): lambda m: m._push(m._bytes(m._u32()).decode("latin-1")),
    ord("U"): lambda m: m._push(m._bytes(m._u8()).decode("latin-1")),
    ord("C"): lambda m: m.stored(m._u8()),
    ord("B"): lambda m: m.stored(m._u32()),
    0x8E: lambda m: m.stored(m._u64()),
    0x96: lambda m: m.stored(m._u64()),
    ord("]"): lambda m: m._push_container([]),
    ord("}"): lambda m: m._push_container({}),
    0x8F: lambda m: m._push_container([]),
    ord(")"): lambda m: m._push(()),
    0x85: lambda m: m.push_tuple(1),
    0x86: lambda m: m.push_tuple(2),
    0x87: lambda m: m.push_tuple(3),
    ord("t"): lambda m: m._push_container(tuple(m._since_mark())),
    ord("l"): lambda m: m._push_container(m._since_mark()),
    0x91: lambda m: m._push_container(tuple(m._since_mark())),
    ord("a"): lambda m: m.extend([m._stack.pop()]),
    ord("e"): lambda m: m.extend(m._since_mark()),
    0x90: lambda m: m.extend(m._since_mark()),
    ord("s"): lambda m: m.set_items([m._stack.pop(-2), m._stack.pop()]),
    ord("u"): lambda m: m.set_items(m._since_mark()),
    ord("d"): _Machine.push_dict,
    ord("p"): lambda m: m.put(int(m._number())),
    ord("q"): lambda m: m.put(m._u8()),
    ord("r"): lambda m: m.put(m._u32()),
    ord("g"): lambda m: m.get(int(m._number())),
    ord("c"): lambda m: m.name(_text(m._line()), _text(m._line())),
    0x93: lambda m: m.name(m._stack.pop(-2), m._stack.pop()),
    ord("R"): _Machine.make,
    0x81: _Machine.make,
    0x92: _Machine.make_of_keywords,
    ord("b"): _Machine.build,
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
}
