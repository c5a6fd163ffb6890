"""One measurement in a process of its own, where nothing has been opened or compiled before.

:func:`benchmarks.replay.in_fresh_process` runs it: it reads a task as JSON from standard input and
prints the outcome as JSON. Libraries are imported before the clock starts.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil

Lookup = Callable[[str], np.ndarray]


_WARMING = 3  # seconds in which compiled loops are loaded


def main() -> None:
    tasks = {
        "open": measure_open,
        "compose": measure_compose,
        "steps": measure_steps,
        "tensor": measure_tensor,
        "dlpack": measure_dlpack,
        "text": measure_text,
        "parquet": measure_parquet,
        "worker": measure_worker,
    }
    task = json.load(sys.stdin)
    json.dump(tasks[task.pop("what")](**task), sys.stdout)


def opener(library: str) -> Callable[..., Any]:
    """Import a library and return its function that opens a file."""
    if library == "embmap":
        return _import_embmap().open
    if library == "finalfusion":
        import finalfusion

        return lambda path: finalfusion.load_finalfusion(path, mmap=True)
    from gensim.models import KeyedVectors

    return lambda path: KeyedVectors.load(path, mmap="r")


def _import_embmap() -> Any:
    """Import embmap and its formats, which it otherwise imports when a file asks for them."""
    import embmap
    from embmap.formats.registry import get_file_formats

    get_file_formats()
    return embmap


def measure_open(
    library: str, path: str, options: dict[str, Any], word: str | None = None
) -> dict[str, Any]:
    """Open a file and look one word up, if one is given."""
    open_file = opener(library)
    private_nbytes(), peak_nbytes(reset=True)
    gc.collect()
    private, peak = private_nbytes(), peak_nbytes(reset=True)
    start = time.perf_counter()
    file = open_file(path, **options)
    vector = None if word is None else file[word]
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "private_nbytes": private_nbytes() - private,
        "peak_nbytes": None if peak is None else peak_nbytes() - peak,
        "vector": None if vector is None else vector.tolist(),
        "n_words": len(file if library != "finalfusion" else file.vocab),
    }


def tensor_opener(library: str) -> Callable[[str, str], np.ndarray]:
    """Import a library and return a function that opens a file and takes one of its tensors."""
    if library == "embmap":
        embmap = _import_embmap()
        return lambda path, name: embmap.open(path).tensors[name]
    from safetensors import safe_open

    return lambda path, name: safe_open(path, framework="numpy").get_tensor(name)


def measure_tensor(library: str, path: str, name: str) -> dict[str, Any]:
    """Open a file and take one of its tensors."""
    open_tensor = tensor_opener(library)
    start = time.perf_counter()
    tensor = open_tensor(path, name)
    return {"seconds": time.perf_counter() - start, "first_row": tensor[0].tolist()}


def measure_dlpack(path: str) -> dict[str, Any]:
    """Hand the vectors of a file to torch, and read a row of the tensor."""
    import torch

    import embmap

    file = embmap.open(path)
    torch.from_dlpack(file.vectors)  # torch loads a part of itself
    gc.collect()
    private = private_nbytes()
    tensor = torch.from_dlpack(file.vectors)
    return {"private_nbytes": private_nbytes() - private, "row": tensor[1].tolist()}


def measure_text(library: str, path: str, out: str) -> dict[str, Any]:
    """Convert a text file, or load it."""
    if library == "embmap":
        import embmap

        _ = embmap.convert  # loaded when it is first asked for

        def work():
            return embmap.convert(path, out).n_words
    else:
        from gensim.models import KeyedVectors

        def work():
            return len(KeyedVectors.load_word2vec_format(path))

    gc.collect()
    before = peak_nbytes(reset=True)
    start = time.perf_counter()
    n_words = work()
    seconds = time.perf_counter() - start
    peak = None if before is None else peak_nbytes() - before
    return {"seconds": seconds, "peak_nbytes": peak, "n_words": n_words}


def measure_compose(
    library: str, path: str, words: list[str], rounds: int, batch: bool, out: str
) -> dict[str, Any]:
    """Compose the vectors of unknown words, and save the vectors of the last round."""
    file = opener(library)(path)
    look_up = file.__getitem__ if library == "embmap" else file.embedding
    if batch:
        compose = file.batch if library == "embmap" else partial(_stacked, look_up)
    else:
        compose = partial(_in_turn, look_up)
    end = time.monotonic() + (_WARMING if rounds > 1 else 0)
    compose(words)
    while time.monotonic() < end:
        compose(words)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        composed = compose(words)
        seconds.append(time.perf_counter() - start)
    np.save(out, _stacked(look_up, words) if composed is None else composed)
    return {"seconds": seconds}


def measure_steps(path: str, n_rows: int, rounds: int) -> dict[str, Any]:
    """Decode some rows of a time step, again and again."""
    seconds = []
    with opener("embmap")(path) as file:
        file.cache_nbytes = 0
        for _ in range(rounds):
            start = time.perf_counter()
            decoded = file.at(0).vectors.quantized[:n_rows]
            seconds.append(time.perf_counter() - start)
    return {"seconds": seconds, "total": int(decoded.sum(dtype=np.int64))}


def _in_turn(look_up: Lookup, words: list[str]) -> None:
    for word in words:
        look_up(word)


def _stacked(look_up: Lookup, words: list[str]) -> np.ndarray:
    return np.stack([look_up(word) for word in words])


def measure_parquet(library: str, path: str, out: str) -> dict[str, Any]:
    """Write a file as Parquet, or copy the vectors of Parquet to a file of numpy or raw numbers."""
    import pyarrow as pa
    from pyarrow import parquet

    import embmap
    import embmap.arrow

    _ = embmap.convert
    is_written = out.endswith(".parquet")
    file = embmap.open(path) if is_written else None
    column = embmap.arrow.array(file.vectors) if is_written else None
    table = pa.table({"word": file.vocab[:], "vector": column}) if is_written else None

    def copy_numbers() -> None:
        batches = parquet.ParquetFile(path).iter_batches(columns=["vector"])
        with open(out, "wb") as raw:
            raw.writelines(batch.column(0).flatten().to_numpy() for batch in batches)

    if library == "embmap":
        table = None

        def work() -> object:
            convert = embmap.convert
            return embmap.arrow.write_parquet(out, file) if is_written else convert(path, out)
    elif is_written:
        work = partial(parquet.write_table, table, out)
    else:
        work = copy_numbers
    gc.collect()
    before = peak = anonymous_nbytes()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, anonymous_nbytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return {"seconds": seconds, "private_nbytes": peak - before}


def note_memory(doc: Any) -> Any:
    """Look the vectors of a document up, and note what the worker keeps to itself."""
    doc.user_data["sum"] = float(doc.vector.sum())
    doc.user_data["private_nbytes"] = private_dirty_nbytes()
    return doc


def measure_worker(method: str, path: str, words: list[str]) -> dict[str, Any]:
    """Let worker processes of spaCy look words up: the time, and the private memory of the last."""
    multiprocessing.set_start_method(method)
    import spacy

    import embmap.spacy

    spacy.Language.component("note_memory", func=note_memory)
    nlp = spacy.blank("en")
    embmap.spacy.set_vectors(nlp, path)
    nlp.add_pipe("note_memory")
    start = time.perf_counter()
    docs = list(nlp.pipe([" ".join(words)] * 20, n_process=2, batch_size=5))
    seconds = time.perf_counter() - start
    notes = docs[-1].user_data
    return {"seconds": seconds, **notes}


def anonymous_nbytes() -> int:
    """Return the resident memory that is not of a file; 0 if the system does not report it."""
    return _read_kilobytes("/proc/self/status", "RssAnon")


def private_dirty_nbytes() -> int:
    """Return the memory that this process wrote and shares with no other."""
    return _read_kilobytes("/proc/self/smaps_rollup", "Private_Dirty")


def _read_kilobytes(path: str, field: str) -> int:
    try:
        with open(path) as lines:
            found = [int(line.split()[1]) for line in lines if line.startswith(f"{field}:")]
    except OSError:
        found = []
    return found[0] * 1024 if found else 0


def private_nbytes() -> int:
    """Return the memory that only this process uses, with the file pages that only it maps."""
    return int(psutil.Process().memory_full_info().uss)


def peak_nbytes(reset: bool = False) -> int | None:
    """Return the highest resident size since the last reset; None if the system does not report it.

    ru_maxrss survives exec, so a child of a large process would never appear small.
    """
    try:
        if reset:
            with open("/proc/self/clear_refs", "w") as control:
                control.write("5")
        with open("/proc/self/status") as status:
            fields = dict(line.split(":", 1) for line in status)
    except OSError:
        return None
    return int(fields["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
