"""Small DWE files, and what embmap must make of them however they are damaged.

The rule, for any bytes at all (`judge` holds embmap to it):

- Opening or reading raises an :class:`embmap.EmbmapError` or gives an answer; no other exception,
  no warning, and no more memory than the sizes in the header justify, if the data could hold them.
- Where the reference reads the bytes, embmap opens them, every answer is the reference's, and
  ``verify()`` finds an error exactly where the reference found a problem.
- Where the reference finds some groups damaged, embmap refuses to open the file, or refuses what
  needs these groups, answers all the rest as the reference does, and ``verify()`` finds an error.
- Where the reference refuses a file before it decodes anything, embmap refuses to open it, or some
  time step, all trajectories together, and ``verify()`` finds an error.

Not all damage can be told from other data: another symbol in a model, another word of the last
group of a time step in a stream. Then the reference reads it, and so does embmap.
"""

import importlib.util
import itertools
import json
import struct
import tracemalloc

import numpy as np
import pytest

import embmap
from embmap.codecs import kernels
from tests.judges.damage import (
    NOT_OPENED,
    REFUSED,
    Damages,
    Verdict,
    attempt,
    bits,
    compared,
    crash,
    loaded,
    outcome_of,
)
from tests.reference import dwe as reference

KERNELS = ["numpy", "numba"] if importlib.util.find_spec("numba") else ["numpy"]


def steps(*shape, spread=3, seed=1):
    """Steps that differ little from each other."""
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.integers(-spread, spread + 1, shape), axis=0).astype(np.int16)


SMALL = {
    "blocks": reference.encode(steps(4, 4, 1), 0.5, 2, "blocks"),
    "blocks with gaps": reference.encode(
        steps(3, 2, 2, spread=900), -0.5, 1, "blocks", gap=1, order=[1, 0, 2], minor=7
    ),
    "stream": reference.encode(steps(3, 3, 2), 0.5, 2, "stream"),
    "stream of a group": reference.encode(steps(3, 2, 3, spread=900), 0.5, 2, "stream"),
    "stream of states": reference.encode(np.full((2, 5, 1), 7, np.int16), 0.5, 2, "stream"),
}


def parse(data):
    """What the reference makes of all but the symbols; None where it refuses."""
    try:
        return reference.parse(data)
    except reference.InvalidFile:
        return None


def groups_of(parsed):
    """The values of each group at each time step; None where a symbol they need is damaged."""
    residuals = {}
    for t, starts in enumerate(parsed.starts):
        for group in range(len(starts)):
            try:
                symbols, _ = reference.decode_group(parsed, t, group)
            except reference.InvalidFile:
                residuals[t, group] = None
            else:
                residuals[t, group] = np.array(symbols, np.int16).reshape(-1, parsed.dim)
    values = dict(residuals)
    for left, t, right in reference.tree(parsed.n_timesteps):
        for group in range(len(parsed.starts[t])):
            parts = [values[left, group], residuals[t, group], values[right, group]]
            values[t, group] = None
            if not any(part is None for part in parts):
                mean = reference.predict(parts[0], parts[2])
                values[t, group] = reference.wrap_i16(parts[1] + mean).astype(np.int16)
    return values


def numbers(integers, scale):
    """What embmap makes of integers."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bits(integers.astype(np.float32) * scale)


def answers(f):
    """Everything that can be asked of an open file, by part: values, or REFUSED."""
    n_words, n_steps, dim = f.shape
    few = range(n_words if n_words < 20 else 0)
    found = {
        "layout": f.layout,
        "shape": (n_steps, n_words, dim),
        "scale": bits(np.array([f.scale], np.float32)),
        "info": (f.info()["version"], f.info()["group"]),
        "last": attempt(lambda: bits(np.asarray(f.at().vectors))),
        "trajectories": attempt(lambda: bits(np.asarray(f.vectors))),
    }
    for t in range(n_steps):
        step = f.at(t).vectors.quantized
        found["step", t] = attempt(lambda step=step: bits(np.asarray(step)))
        for row in few:
            found["row", t, row] = attempt(lambda step=step, row=row: bits(step[row]))
    for row in few:
        found["word", row] = attempt(lambda row=row: bits(f[row]))
    for row in few[1:2]:
        found["similar"] = attempt(lambda row=row: bits(f.similarity_over_time([0], [row])))
        found["related"] = attempt(lambda: [each.row for each in f.most_related(0, 1, 1)])
        found["changed"] = attempt(lambda: [each.row for each in f.largest_changes(0, 1)])
    found["sound"] = attempt(lambda: f.verify().ok)
    json.dumps(f.info(), allow_nan=False)
    repr(f)
    return found


def expected_answers(parsed, values):
    """The same from what the reference decodes."""
    scale, shape = parsed.scale, (parsed.n_timesteps, parsed.vocab_size, parsed.dim)
    few = range(parsed.vocab_size if parsed.vocab_size < 20 else 0)
    n_groups = len(parsed.starts[0])
    whole = [[values[t, group] for group in range(n_groups)] for t in range(parsed.n_timesteps)]
    whole = [None if any(g is None for g in step) else np.concatenate(step) for step in whole]
    damaged = any(step is None for step in whole)
    everything = None if damaged else np.stack(whole)
    found = {
        "layout": parsed.layout,
        "shape": shape,
        "scale": bits(scale.reshape(1)),
        "info": (f"1.{parsed.minor}", parsed.group),
        "last": REFUSED if whole[-1] is None else numbers(whole[-1], scale),
        "trajectories": REFUSED if damaged else numbers(everything.swapaxes(0, 1), scale),
        "sound": not damaged and bool(np.isfinite(scale)) and scale != 0,
    }
    for row in few:
        group, place = divmod(row, parsed.group)
        parts = [values[t, group] for t in range(parsed.n_timesteps)]
        for t, part in enumerate(parts):
            found["row", t, row] = REFUSED if part is None else bits(part[place])
        refused = any(part is None for part in parts)
        trajectory = None if refused else np.stack([part[place] for part in parts])
        found["word", row] = REFUSED if refused else numbers(trajectory, scale)
    for t, step in enumerate(whole):
        found["step", t] = REFUSED if step is None else bits(step)
    if few[1:] and not damaged:
        with np.errstate(over="ignore", invalid="ignore"):
            found["similar"] = bits(reference.similarity(everything, scale, [0], [1]))
        found["related"] = reference.most_related(everything, 1, 0, 1)
        found["changed"] = reference.largest_changes(everything, 0, 1)
    return found


def judge(path, backend, parsed, values):
    """Judge what embmap makes of a file."""
    damaged = parsed is None or any(part is None for part in values.values())
    try:
        try:
            f = loaded(lambda: embmap.open(path, format="dwe", backend=backend))
        except embmap.EmbmapError as error:
            problem = "" if damaged else f"refused, though it is sound: {error}"
            return Verdict(NOT_OPENED, problem)
        with f:
            found = answers(f)
    except Exception as error:  # the point of all this
        return crash(error)
    outcome = outcome_of(found)
    if parsed is None:
        problem = ""
        if found["sound"] is True:
            problem = "verify finds nothing wrong, but the reference refuses the bytes"
        elif found["trajectories"] is not REFUSED:
            problem = "trajectories are read, but the reference refuses the bytes"
        elif all(found["step", t] is not REFUSED for t in range(found["shape"][0])):
            problem = "all time steps are read, but the reference refuses the bytes"
        return Verdict(outcome, problem)
    return compared(found, expected_answers(parsed, values))


def with_u32(data, place, value):
    """Bytes with another u32 in one place."""
    return data[:place] + struct.pack("<I", value) + data[place + 4 :]


def with_right_size(data):
    """The bytes with their right size in the header, if they are whole words."""
    return data if len(data) < 16 else with_u32(data, 12, len(data) // 4)


class Damaged(Damages):
    """A DWE file that is damaged again and again.

    Each damage is judged by one back end and one kind of kernel, taking turns.
    """

    def __init__(self, path):
        super().__init__(path)
        self.n_read = 0
        self.ways = itertools.cycle(itertools.product(("mmap", "read"), KERNELS))

    def judge(self, what, data, *, memory=None, every_way=False):
        """Judge bytes, and where a limit is given the memory it takes."""
        parsed = parse(data)
        values = {} if parsed is None else groups_of(parsed)
        self.n += 1
        self.n_read += parsed is not None and not any(v is None for v in values.values())
        self.path.write_bytes(data)
        for _ in range(2 * len(KERNELS) if every_way else 1):
            backend, kernel = next(self.ways)
            if len(data) >= 36 and np.prod(struct.unpack_from("<2I", data, 24), dtype=float) > 1e4:
                kernel = KERNELS[-1]  # numpy would decode position after position
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kernels, "CHOICE", kernel)
                if memory is not None:
                    kernels.find("decode_ans")
                    tracemalloc.start()
                verdict = judge(self.path, backend, parsed, values)
                if memory is not None:
                    used = tracemalloc.get_traced_memory()[1]
                    tracemalloc.stop()
                    if used > memory:
                        self.note(f"{what}, {backend}", f"{used} bytes of memory")
            self.note(f"{what}, {backend}, {kernel}", verdict.problem)
