"""Saved vectors of gensim's: those that harm end in errors, those that are sound are read whole.

A pickle that kills the process would end pytest, too, so that a child process reads them. It says
what became of each; where it dies, another goes on behind the one that killed it.
"""

import json
import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import embmap
from tests.judges.pickles import CORPUS, array, assembled, mutated, saved

pytestmark = pytest.mark.slow

N_RANDOM = 400
MEMORY = 1 << 30  # what reading one may take
ROOT = Path(embmap.__file__).resolve().parent.parent
TESTS = Path(__file__).resolve().parents[2]


def outcome(folder, data):
    """Read a pickle and say how that ended."""
    (folder / "a.kv").write_bytes(data)
    try:
        embmap.convert(folder / "a.kv", folder / "b.npy", input_format="gensim")
    except (embmap.EmbmapError, OSError) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:500]}
    except Exception as error:  # the parent fails with it
        return {"leaked": f"{type(error).__name__}: {error}"[:500]}
    array = np.load(folder / "b.npy")
    return {"read": [str(array.dtype), array.shape, array.tobytes().hex()]}


def random_pickle(number):
    draw = random.Random(number)
    whole = saved() if number % 4 == 1 else CORPUS[draw.choice(SMALL)]
    return mutated(whole, draw) if number % 2 else assembled(draw)


SMALL = [name for name, data in CORPUS.items() if len(data) < 2000]


def child(folder, names):
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name in names:
        data = CORPUS[name] if name in CORPUS else random_pickle(int(name))
        sys.stdout.write(json.dumps([name, outcome(folder, data)]) + "\n")
        sys.stdout.flush()


def outcomes(folder, names):
    """Return what became of each, whatever that did to the process."""
    found = {}
    while len(found) < len(names):
        left = [name for name in names if name not in found]
        code = (
            f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(TESTS)!r}]\n"
            "from pathlib import Path; from tests.conversion.test_hostile_pickles import child\n"
            f"child(Path({str(folder)!r}), {left!r})"
        )
        environment = {**os.environ, "PYTHONFAULTHANDLER": "0"}
        command = [sys.executable, "-W", "error", "-c", code]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=600
            )
            output, end = done.stdout, f"ended with {done.returncode}: {done.stderr[-500:]}"
        except subprocess.TimeoutExpired as error:
            output, end = (error.stdout or b"").decode(), "never ended"
        lines = [json.loads(line) for line in output.splitlines(keepends=True) if line[-1:] == "\n"]
        found.update(lines)
        if len(lines) < len(left):
            found[left[len(lines)]] = {"died": end}
    return found


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return outcomes(tmp_path_factory.mktemp("corpus"), list(CORPUS))


def is_sound(found):
    """Whether a pickle was refused, or read as the zeros that the corpus stores."""
    return "refused" in found or found.get("read") == ["float32", [2, 2], "00" * 16]


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_pickle_is_refused_or_harms_nothing(corpus, name):
    assert is_sound(corpus[name]), corpus[name]


def test_random_opcodes_end_in_errors(tmp_path):
    found = outcomes(tmp_path, [str(number) for number in range(N_RANDOM)])
    wrong = {
        number: ending for number, ending in found.items() if "leaked" in ending or "died" in ending
    }
    assert not wrong
    assert len(found) == N_RANDOM
    assert any("read" in ending for ending in found.values())


def test_a_pickle_holds_no_more_containers_than_the_largest_vocabulary(tmp_path, monkeypatch):
    from embmap.formats.gensim import pickled

    path = tmp_path / "a.kv"
    path.write_bytes(saved(more=pickle.dumps("x")[2:-1] + b"](" + b"}" * 100 + b"e"))
    assert embmap.convert(path, tmp_path / "a.npy").n_words == 2
    monkeypatch.setattr(pickled, "_MOST_CONTAINERS", 100)
    with pytest.raises(embmap.FormatError, match="more than 100 containers") as caught:
        embmap.convert(path, tmp_path / "a.npy")
    assert caught.value.offset is not None


@pytest.fixture(scope="module")
def models():
    return pytest.importorskip("gensim.models", reason="gensim is not installed")


WORDS = ["berlin", "zürich", "東京", "a\udc80b"]
VALUES = np.random.default_rng(1).standard_normal((4, 3))
LAYOUTS = {
    "plain": VALUES.astype("f4"),
    "half": VALUES.astype("f2"),
    "double": VALUES,
    "big-endian": VALUES.astype(">f4"),
    "fortran": np.asfortranarray(VALUES.astype("f4")),
    "fortran-big-endian": np.asfortranarray(VALUES.astype(">f8")),
    "sliced": VALUES.astype("f4")[::-1],
    "empty": VALUES.astype("f4")[:0],
}


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_what_gensim_saves_comes_back_bit_for_bit(tmp_path, models, protocol, layout, beside):
    values = LAYOUTS[layout]
    words = WORDS[: len(values)]
    vectors = models.KeyedVectors(3, dtype=values.dtype)
    vectors.add_vectors(words, values)
    for i, word in enumerate(words):
        vectors.set_vecattr(word, "count", i)
    vectors.vectors = values  # in the order and byte order that it has
    path = tmp_path / "a.kv"
    vectors.save(str(path), sep_limit=1 if beside else 1 << 30, pickle_protocol=protocol)
    report = embmap.convert(path, tmp_path / "a.npy", dtype=values.dtype.newbyteorder("="))
    assert report.input_format == "gensim"
    read = np.load(tmp_path / "a.npy")
    assert read.tolist() == values.tolist()
    assert report.words_path.read_text("utf-8").split() == [
        word.encode(errors="replace").decode() for word in words
    ]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_whole_models_hold_their_vectors(tmp_path, models, protocol):
    model = models.Word2Vec([["a", "b", "a", "b"]], vector_size=3, min_count=1, workers=1)
    model.save(str(tmp_path / "m.model"), pickle_protocol=protocol)
    embmap.convert(tmp_path / "m.model", tmp_path / "m.npy", input_format="gensim")
    assert np.load(tmp_path / "m.npy").tobytes() == model.wv.vectors.tobytes()


def test_text_of_python_2_holds_the_bytes_of_arrays(tmp_path):
    rows = np.arange(4, dtype="f4") - 2
    data = b"U" + bytes([rows.nbytes]) + rows.tobytes()
    (tmp_path / "a.kv").write_bytes(saved(array(data=data, core="numpy.core")))
    embmap.convert(tmp_path / "a.kv", tmp_path / "a.npy")
    assert np.load(tmp_path / "a.npy").tobytes() == rows.tobytes()
