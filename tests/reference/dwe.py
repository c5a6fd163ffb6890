"""A slow, obvious decoder and encoder for DWE files, written straight from the format.

It reads and writes the block layout of the published text ("blocks") and the one later writers
emit ("stream"), all at once and into memory, and answers the queries the original program answers.
It shares no code with embmap: it is the oracle embmap is compared with, so nothing here is clever
or fast.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

MAGIC = bytes([0x00]) + b"dwe"
HEADER = 10  # in u32, as all addresses are
TOTAL = 4096  # what the frequencies of a model sum to
LOWEST = 0x10000  # of the states of the coder, and the one a correct stream ends in
# A symbol takes state // 4096 from the state at least. From the highest state, this many symbols
# bring it below LOWEST: with n u16 left to read, fewer than MOST_SYMBOLS * (n + 1) can follow.
MOST_SYMBOLS = 45550
LAYOUTS = ["blocks", "stream"]

Model = dict[int, int]  # frequencies by symbol, in the order of the file
Start = tuple[int, int]  # where the coder reads its next u16, and its state


class InvalidFile(ValueError):
    """The bytes are not a DWE file."""


@dataclass
class Parsed:
    """The content of a DWE file before a symbol is decoded.

    A group is what the coder can start at: a chunk of the block layout, a row of the jump table of
    the stream layout. Both hold `group` words of the vocabulary; the last may hold fewer.
    """

    layout: str
    minor: int
    n_timesteps: int
    vocab_size: int
    dim: int
    group: int
    scale: np.float32
    meta_size: int  # of the block layout; jump_table_address in the stream layout
    models: list[Model] = field(default_factory=list)  # one per time step
    starts: list[list[Start]] = field(default_factory=list)  # one per time step and group
    halfwords: list[int] = field(default_factory=list)  # the u16 that starts count in


@dataclass
class Decoded:
    """The content of a DWE file."""

    layout: str
    minor: int
    group: int
    scale: np.float32
    quantized: np.ndarray  # (T, V, K) int16
    residuals: np.ndarray  # (T, V, K) int16: the symbols, before the tree is undone
    problems: list[str] = field(default_factory=list)  # what can be read past, but is wrong


# ----------------------------------------------------------------------------------------- parse


def parse(data: bytes, layout: str | None = None) -> Parsed:
    """Parse a file in the layout given, or in the one its bytes allow; or raise InvalidFile."""
    if data[:4] != MAGIC:
        raise InvalidFile("no magic")
    if len(data) < 4 * HEADER:
        raise InvalidFile("too short for a header")
    major, minor, size, address, n_timesteps, vocab_size, dim, group = struct.unpack_from(
        "<8I", data, 4
    )
    (scale,) = np.frombuffer(data, "<f4", count=1, offset=36)
    if major != 1:
        raise InvalidFile(f"version {major}")
    if 4 * size != len(data):
        raise InvalidFile(f"{4 * size} bytes announced, {len(data)} there")
    if n_timesteps < 2 or vocab_size == 0 or dim == 0 or group == 0:
        raise InvalidFile(f"no time steps, words, dimensions or groups: {data[20:36].hex(' ', 4)}")
    numbers = (minor, n_timesteps, vocab_size, dim, group, scale, address)

    found, reasons = [], []
    for candidate in LAYOUTS if layout is None else [layout]:
        try:
            parsed = Parsed(candidate, *numbers)
            {"blocks": _read_blocks, "stream": _read_stream}[candidate](parsed, data)
            found.append(parsed)
        except InvalidFile as error:
            reasons.append(f"not {candidate}: {error}")
    if not found:
        raise InvalidFile("; ".join(reasons))
    if len(found) == 2:
        raise InvalidFile("blocks and stream are both possible")
    return found[0]


def _read_blocks(out: Parsed, data: bytes) -> None:
    """Read models and chunk addresses; starts count u16 from the start of the file."""
    if out.vocab_size % out.group:
        raise InvalidFile(f"chunks of {out.group} words, {out.vocab_size} in all")
    out.halfwords = _u16(data)
    size, first = len(data) // 4, HEADER + out.n_timesteps
    if not first <= out.meta_size <= size:
        raise InvalidFile(f"meta data of {out.meta_size} u32")
    for address in _u32(data, HEADER, out.n_timesteps):
        if not first <= address < size:
            raise InvalidFile(f"a time step at {address}")
        model, end = read_model(out.halfwords, 2 * address, len(out.halfwords))
        chunks = _u32(data, (end + 1) // 2, out.vocab_size // out.group)
        for chunk in chunks:
            if not first <= chunk < size:
                raise InvalidFile(f"a chunk at {chunk}")
        out.models.append(model)
        out.starts.append([_start_of_chunk(out.halfwords, 2 * chunk) for chunk in chunks])


def _start_of_chunk(halfwords: list[int], at: int) -> Start:
    """Read the state a chunk starts with."""
    return at + 2, halfwords[at] << 16 | halfwords[at + 1]


def _read_stream(out: Parsed, data: bytes) -> None:
    """Read models and jump table; starts count u16 from the start of the compressed section."""
    if out.group > out.vocab_size:
        raise InvalidFile(f"a jump every {out.group} words, {out.vocab_size} in all")
    halfwords, jump_table = _u16(data), out.meta_size
    if not HEADER < jump_table <= len(data) // 4:
        raise InvalidFile(f"a jump table at {jump_table}")
    at = 2 * HEADER
    for _ in range(out.n_timesteps):
        model, at = read_model(halfwords, at, 2 * jump_table)
        out.models.append(model)
    if 2 * jump_table - at > 1:
        raise InvalidFile(f"models end at u16 {at}, the jump table starts at {2 * jump_table}")
    n_groups = -(-out.vocab_size // out.group)
    table = _u32(data, jump_table, 2 * out.n_timesteps * n_groups)
    out.halfwords = halfwords[2 * (jump_table + len(table)) :]
    rows = list(zip(table[::2], table[1::2], strict=True))
    for offset, state in rows:
        if offset > len(out.halfwords) or state < LOWEST:
            raise InvalidFile(f"the coder in state {state:#x} at {offset}")
    for t in range(out.n_timesteps):
        out.starts.append(rows[t * n_groups : (t + 1) * n_groups])


def _u16(data: bytes) -> list[int]:
    """Return the u16 of a file."""
    return list(struct.unpack(f"<{len(data) // 2}H", data))


def _u32(data: bytes, address: int, count: int) -> list[int]:
    """Return some u32 of a file."""
    if address + count > len(data) // 4:
        raise InvalidFile(f"{count} u32 at {address} do not fit")
    return list(struct.unpack_from(f"<{count}I", data, 4 * address))


# ----------------------------------------------------------------------------------------- model


def read_model(halfwords: list[int], at: int, stop: int) -> tuple[Model, int]:
    """Return the entropy model at a position, which ends before stop, and where it ends."""
    if at >= stop:
        raise InvalidFile(f"no model at u16 {at}")
    n = halfwords[at]
    if not 2 <= n <= TOTAL:
        raise InvalidFile(f"a model of {n} symbols")
    middle, end = at + 1 + n, at + 1 + n + 3 * n // 4
    if end > stop:
        raise InvalidFile(f"{n} symbols and their frequencies do not fit at u16 {at}")
    symbols = [wrap_i16(halfword) for halfword in halfwords[at + 1 : middle]]
    frequencies = unpack12(halfwords[middle:end], n - 1)
    frequencies.append(TOTAL - sum(frequencies))
    if min(frequencies) <= 0:
        raise InvalidFile(f"frequencies {frequencies}")
    model = dict(zip(symbols, frequencies, strict=True))
    if len(model) < n:
        raise InvalidFile("a symbol is there twice")
    return model, end


def write_model(model: Model) -> list[int]:
    """Return the u16 of an entropy model."""
    symbols = [symbol & 0xFFFF for symbol in model]
    return [len(model), *symbols, *pack12(list(model.values())[:-1])]


def pack12(values: list[int]) -> list[int]:
    """Pack values of 12 bits, which are three hexadecimal digits, into u16, which are four."""
    digits = "0" * (len(values) % 4) + "".join(f"{value:03x}" for value in values)
    return [int(digits[i : i + 4], 16) for i in range(0, len(digits), 4)]


def unpack12(halfwords: list[int], count: int) -> list[int]:
    """Undo pack12."""
    digits = "".join(f"{halfword:04x}" for halfword in halfwords)[count % 4 :]
    return [int(digits[i : i + 3], 16) for i in range(0, len(digits), 3)]


def best_model(symbols: list[int]) -> Model:
    """Return the model the writer chooses for the symbols of one time step, in its order."""
    counts = Counter(symbols)
    if len(counts) > TOTAL:
        raise ValueError(f"{len(counts)} different symbols in one time step")
    if len(counts) == 1:
        return {symbols[0]: TOTAL - 1, wrap_i16(symbols[0] + 1): 1}
    free = TOTAL - len(counts)
    frequency = {s: 1 + count * free // len(symbols) for s, count in counts.items()}

    def gain(s: int) -> float:
        if frequency[s] == TOTAL - 1:
            return -math.inf
        return counts[s] * math.log2((frequency[s] + 1) / frequency[s])

    def loss(s: int) -> float:
        if frequency[s] == 1:
            return math.inf
        return counts[s] * math.log2(frequency[s] / (frequency[s] - 1))

    order = sorted(counts, key=lambda s: (-gain(s), s))
    for s in order[: TOTAL - sum(frequency.values())]:
        frequency[s] += 1
    gains, losses = [gain(s) for s in order], [loss(s) for s in order]
    while True:
        buyer = len(order) - 1 - gains[::-1].index(max(gains))  # the last of the best
        seller = losses.index(min(losses))  # the first of the best
        if buyer == seller or gains[buyer] <= losses[seller]:
            break
        frequency[order[buyer]] += 1
        frequency[order[seller]] -= 1
        for i in (buyer, seller):
            gains[i], losses[i] = gain(order[i]), loss(order[i])
    return dict(sorted(frequency.items(), key=lambda item: (-item[1], item[0])))


# ----------------------------------------------------------------------------------------- coder


def decode_symbols(
    halfwords: list[int], start: Start, model: Model, n: int
) -> tuple[list[int], Start]:
    """Decode n symbols; return them and where the coder is after them."""
    at, state = start
    if state < LOWEST:
        raise InvalidFile(f"state {state:#x}")
    if n >= MOST_SYMBOLS * (len(halfwords) - at + 1):
        raise InvalidFile(f"{n} symbols cannot come from {len(halfwords) - at} u16")
    slots = []  # of each of the 4096 slots: its symbol, the frequency, the position in the symbol
    for symbol, frequency in model.items():
        slots += [(symbol, frequency, position) for position in range(frequency)]
    symbols = []
    for _ in range(n):
        symbol, frequency, position = slots[state % TOTAL]
        symbols.append(symbol)
        state = state // TOTAL * frequency + position
        if state < LOWEST:
            if at == len(halfwords):
                raise InvalidFile("the coder runs out of halfwords")
            state = state << 16 | halfwords[at]
            at += 1
    return symbols, (at, state)


class Encoder:
    """A coder that takes symbols last to first; halfwords holds the last halfword first."""

    def __init__(self) -> None:
        self.state, self.halfwords = LOWEST, []

    def push(self, symbols: list[int], model: Model) -> None:
        """Encode symbols to come before those pushed already."""
        cumulative, below = {}, 0
        for symbol, frequency in model.items():
            cumulative[symbol] = below
            below += frequency
        for symbol in reversed(symbols):
            frequency = model[symbol]
            if self.state >= frequency << 20:
                self.halfwords.append(self.state & 0xFFFF)
                self.state >>= 16
            quotient, remainder = divmod(self.state, frequency)
            self.state = quotient * TOTAL + cumulative[symbol] + remainder


# ------------------------------------------------------------------------------------------ tree


def tree(n_timesteps: int) -> list[tuple[int, int, int]]:
    """Return (l, t, r) of each step between the first and the last, parents before children."""

    def below(left: int, right: int) -> list[tuple[int, int, int]]:
        t = (left + right) // 2
        return [] if t == left else [(left, t, right), *below(left, t), *below(t, right)]

    return below(0, n_timesteps - 1)


def tree_order(n_timesteps: int) -> list[int]:
    """Return the steps in the order the writer encodes them in."""
    return [0, n_timesteps - 1, *(t for _, t, _ in tree(n_timesteps))]


def predict(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the mean of two steps in int32, truncated toward zero."""
    total = left.astype(np.int32) + right.astype(np.int32)
    return np.sign(total) * (np.abs(total) // 2)


def wrap_i16(value: int | np.ndarray) -> int | np.ndarray:
    """Return what an i16 holds of an integer, or of each in an array."""
    return (value + 0x8000) % 0x10000 - 0x8000


def undo_tree(residuals: np.ndarray) -> np.ndarray:
    """Return the values of all steps, (T, V, K) int16."""
    values = residuals.copy()
    for left, t, right in tree(len(values)):
        values[t] = wrap_i16(residuals[t] + predict(values[left], values[right]))
    return values


def apply_tree(values: np.ndarray, *, wrap: bool = False) -> np.ndarray:
    """Return what is stored of all steps, (T, V, K) int16; the original does not let it wrap."""
    residuals = values.copy()
    for left, t, right in tree(len(values)):
        exact = values[t] - predict(values[left], values[right])
        residuals[t] = wrap_i16(exact)
        if not wrap and (residuals[t] != exact).any():
            raise ValueError(f"a difference at step {t} does not fit in 16 bits")
    return residuals


# ---------------------------------------------------------------------------------------- decode


def n_words(parsed: Parsed, group: int) -> int:
    """Return how many words of the vocabulary a group holds."""
    return min(parsed.group, parsed.vocab_size - group * parsed.group)


def decode_group(parsed: Parsed, t: int, group: int) -> tuple[list[int], Start]:
    """Decode the symbols of one group and check that the coder ends where it should."""
    start, model = parsed.starts[t][group], parsed.models[t]
    n = n_words(parsed, group) * parsed.dim
    symbols, end = decode_symbols(parsed.halfwords, start, model, n)
    if parsed.layout == "blocks" and end[1] != LOWEST:
        raise InvalidFile(f"chunk {group} of step {t} ends in state {end[1]:#x}")
    if parsed.layout == "stream" and group + 1 < len(parsed.starts[t]):
        expected = parsed.starts[t][group + 1]
        if end != expected:
            raise InvalidFile(f"group {group} of step {t} ends at {end}, the next is at {expected}")
    return symbols, end


def decode_step(parsed: Parsed, t: int) -> np.ndarray:
    """Decode what is stored of one time step, (V, K) int16."""
    symbols: list[int] = []
    for group in range(len(parsed.starts[t])):
        symbols += decode_group(parsed, t, group)[0]
    return np.array(symbols, np.int16).reshape(parsed.vocab_size, parsed.dim)


def loose_ends(parsed: Parsed) -> list[int]:
    """Return the steps of a stream that end neither where a step starts nor in the lowest state.

    The format promises nothing across steps, but all known writers make one run of the coder. It
    is the only sign of damage to the last group of a step that leaves enough halfwords to decode.
    """
    steps = []
    for t, starts in enumerate(parsed.starts):
        _, end = decode_group(parsed, t, len(starts) - 1)
        if end[1] != LOWEST and end not in [others[0] for others in parsed.starts]:
            steps.append(t)
    return steps


def decode(data: bytes, layout: str | None = None) -> Decoded:
    """Decode a whole file, or raise InvalidFile."""
    parsed = parse(data, layout)
    residuals = np.stack([decode_step(parsed, t) for t in range(parsed.n_timesteps)])
    values = undo_tree(residuals)
    out = Decoded(parsed.layout, parsed.minor, parsed.group, parsed.scale, values, residuals)
    if parsed.scale == 0 or not np.isfinite(parsed.scale):
        out.problems.append(f"the scale factor is {parsed.scale}")
    return out


# ---------------------------------------------------------------------------------------- encode


def encode(
    quantized: np.ndarray,
    scale: float,
    group: int,
    layout: str = "blocks",
    *,
    minor: int = 0,
    wrap: bool = False,
    models: list[Model] | None = None,
    order: Sequence[int] | None = None,
    gap: int = 0,
) -> bytes:
    """Encode (T, V, K) int16 as the original does, or differently where a file may differ.

    `wrap` allows differences beyond 16 bits. `models` are one per step, `order` is the order
    of the steps in the compressed data, and `gap` u32 of filling precede each block of the block
    layout.
    """
    n_timesteps, vocab_size, _ = quantized.shape
    if n_timesteps < 2 or 0 in quantized.shape:
        raise ValueError(f"no file has the shape {quantized.shape}")
    if not 1 <= group <= vocab_size or (layout == "blocks" and vocab_size % group):
        raise ValueError(f"no groups of {group} words, {vocab_size} in all")
    residuals = apply_tree(quantized, wrap=wrap)
    if models is None:
        models = [best_model(step.ravel().tolist()) for step in residuals]
    if order is None:
        order = tree_order(n_timesteps)
    if layout == "blocks":
        address, halfwords = _blocks(residuals, models, group, order, gap)
    else:
        address, halfwords = _stream(residuals, models, group, order)
    size = HEADER + len(halfwords) // 2
    numbers = (minor, size, address, *quantized.shape, group)
    return struct.pack(f"<4s8If{len(halfwords)}H", MAGIC, 1, *numbers, scale, *halfwords)


def _blocks(
    residuals: np.ndarray, models: list[Model], group: int, order: Sequence[int], gap: int
) -> tuple[int, list[int]]:
    """Return meta_size and all u16 after the header."""
    n_timesteps, vocab_size, _ = residuals.shape
    filling = [0xFFFF, 0xFFFF] * gap
    heads = [_padded(write_model(model)) for model in models]
    end = HEADER + n_timesteps
    steps = []  # where each block is
    for head in heads:
        steps.append(end + gap)
        end += gap + len(head) // 2 + vocab_size // group
    meta_size = end + gap

    tables: dict[int, list[int]] = {}  # where each chunk is
    chunks: list[int] = []
    for t in order:
        tables[t] = []
        for first in range(0, vocab_size, group):
            encoder = Encoder()
            encoder.push(residuals[t, first : first + group].ravel().tolist(), models[t])
            state = [encoder.state >> 16, encoder.state & 0xFFFF]
            chunks += filling
            tables[t].append(end + len(chunks) // 2)
            chunks += _padded(state + encoder.halfwords[::-1])

    halfwords = _split(steps)
    for t, head in enumerate(heads):
        halfwords += filling + head + _split(tables[t])
    return meta_size, halfwords + chunks


def _stream(
    residuals: np.ndarray, models: list[Model], group: int, order: Sequence[int]
) -> tuple[int, list[int]]:
    """Return jump_table_address and all u16 after the header."""
    halfwords = _padded([halfword for model in models for halfword in write_model(model)])
    jump_table = HEADER + len(halfwords) // 2

    encoder = Encoder()
    rows: dict[tuple[int, int], tuple[int, int]] = {}  # how many halfwords follow, and the state
    for t in reversed(order):
        for first in reversed(range(0, residuals.shape[1], group)):
            encoder.push(residuals[t, first : first + group].ravel().tolist(), models[t])
            rows[t, first] = len(encoder.halfwords), encoder.state
    for _, (n_following, state) in sorted(rows.items()):
        halfwords += _split([len(encoder.halfwords) - n_following, state])
    return jump_table, halfwords + _padded(encoder.halfwords[::-1])


def _padded(halfwords: list[int]) -> list[int]:
    """Return an even number of u16."""
    return halfwords + [0] * (len(halfwords) % 2)


def _split(values: list[int]) -> list[int]:
    """Return u32 as u16, the low half of each first."""
    return [half for value in values for half in (value & 0xFFFF, value >> 16)]


# --------------------------------------------------------------------------------------- queries


def dot_products(quantized: np.ndarray, t: int, word: int) -> np.ndarray:
    """Return the i32 dot products of a word with all words at a step, (V,) int32.

    A sum that does not fit wraps, as in the original.
    """
    step = quantized[t].astype(np.int64)
    return (step @ step[word]).astype(np.int32)


def similarity(
    quantized: np.ndarray, scale: np.float32, words1: list[int], words2: list[int]
) -> np.ndarray:
    """Return the dot products of pairs of words at all steps, (n, T) float32."""
    square = np.float32(scale) * np.float32(scale)
    rows = []
    for word1, word2 in zip(words1, words2, strict=True):
        products = [dot_products(quantized, t, word1)[word2] for t in range(len(quantized))]
        rows.append(np.array(products).astype(np.float32) * square)
    return np.array(rows)


def most_related(quantized: np.ndarray, t: int, word: int, n: int) -> list[int]:
    """Return the words of the highest dot products with a word, the smaller id of equal ones."""
    products = dot_products(quantized, t, word).tolist()
    others = [other for other in range(len(products)) if other != word]
    return sorted(others, key=lambda other: (-products[other], other))[:n]


def largest_changes(
    quantized: np.ndarray, word: int, n: int, min_increasing: int = 0, min_decreasing: int = 0
) -> list[int]:
    """Return the words whose dot product with a word changes most from first to last step.

    The words that increase most come first to fill min_increasing, then those that decrease most
    to fill min_decreasing, then those that change most, of equal ones the increasing ones first.
    The smaller id is the first of equal ones. All that are chosen are then ordered by how much they
    change in the direction they were chosen for, equal ones staying as they were chosen.

    The original names a word twice when fewer than n words change; here it is named once.
    """
    if min_increasing + min_decreasing > n:
        raise ValueError("more increasing and decreasing words than words")
    change = [
        int(last) - int(first)
        for first, last in zip(
            dot_products(quantized, 0, word), dot_products(quantized, -1, word), strict=True
        )
    ]
    others = [other for other in range(len(change)) if other != word]
    increasing = sorted(others, key=lambda other: (-change[other], other))
    decreasing = sorted(others, key=lambda other: (change[other], other))
    up = [(change[other], other) for other in increasing]
    down = [(-change[other], other) for other in decreasing]
    rest = sorted(up[min_increasing:] + down[min_decreasing:], key=lambda item: -item[0])
    chosen: dict[int, int] = {}
    for amount, other in up[:min_increasing] + down[:min_decreasing] + rest:
        if other not in chosen and len(chosen) < n:
            chosen[other] = amount
    return sorted(chosen, key=lambda other: -chosen[other])
