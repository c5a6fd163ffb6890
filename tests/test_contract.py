"""What holds for one file holds for all: one body of tests over every kind of file and byte source.

A file is asked where it lies and through a server; a time step of a DWE file is a file as well.
"""

import pickle

import numpy as np
import pytest

import embmap
from tests.judges.inputs import fasttext, safetensors, word2vec
from tests.served import Served

N, DIM, STEPS = 40, 6, 3
WORDS = [f"w{i}" for i in range(N - 1)] + ["zwölf"]
RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((N, DIM)).astype(np.float32)
KINDS = [
    *("simple", "subwords", "quantized", "embd", "bfloat16", "cvc", "int8", "dwe", "stream"),
    *("npy", "columns", "safetensors", "word2vec", "plain", "fasttext"),
]
WORDLESS = (
    ".cvc",
    ".dwe",
    ".npy",
    ".safetensors",
)  # files whose words are given when they are opened
BACKENDS = ["mmap", "read"]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """A file of each kind, and the list of words for those that contain none."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in WORDS), "utf-8")
    write = embmap.finalfusion.write
    indexer = embmap.subwords.BucketIndexer(3, 4, 5)
    buckets = RNG.standard_normal((indexer.n_buckets, DIM)).astype(np.float32)
    history = np.cumsum(RNG.integers(-40, 40, (STEPS, N, DIM)), axis=0).astype(np.int16)
    made = {
        "simple": write(folder / "simple.fifu", WORDS, ROWS),
        "subwords": write(
            folder / "subwords.fifu", WORDS, np.vstack([ROWS, buckets]), subwords=indexer
        ),
        "quantized": write(
            folder / "quantized.fifu",
            WORDS,
            None,
            quantized=embmap.finalfusion.quantize(ROWS, 3, k=8, iterations=2),
        ),
        "embd": embmap.embd.write(
            folder / "a.weights", {"embeddings.word_embeddings.weight": ROWS}, vocab=WORDS
        ),
        "cvc": embmap.cvc.write(folder / "half.cvc", ROWS, chunk_rows=7),
        "int8": embmap.cvc.write(folder / "int8.cvc", ROWS, chunk_rows=7, compression="int8"),
        "dwe": embmap.dwe.write(folder / "a.dwe", history, scale=0.1, group=8),
        "stream": embmap.dwe.write(folder / "b.dwe", history, scale=0.1, group=8, layout="stream"),
    }
    for name, rows in (("npy", ROWS), ("columns", np.asfortranarray(ROWS, ">f4"))):
        made[name] = folder / f"{name}.npy"
        np.save(made[name], rows)
    made["safetensors"] = folder / "a.safetensors"
    header = {"bias": ROWS[0], "embed_tokens.weight": ROWS, "other": ROWS[:5]}
    made["safetensors"].write_bytes(safetensors(header))
    for name, newline in (("word2vec", b"\n"), ("plain", b"")):
        made[name] = folder / f"{name}.bin"
        made[name].write_bytes(word2vec(WORDS, newline, ROWS)[0])
    made["fasttext"] = folder / "fasttext.bin"
    made["fasttext"].write_bytes(fasttext(WORDS, matrix=np.vstack([ROWS, buckets[:7]]))[0])
    bfloat16 = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    made["bfloat16"] = embmap.embd.write(
        folder / "b.weights",
        {"embeddings.word_embeddings.weight": ROWS.astype(bfloat16)},
        vocab=WORDS,
    )
    return made


def opened(path, **options):
    """A file with its words, whether it contains them or not."""
    vocab = path.with_name("words.txt") if path.suffix in WORDLESS else None
    return embmap.open(path, vocab=vocab, **options)


@pytest.fixture(params=[f"{kind} {backend}" for kind in KINDS for backend in BACKENDS])
def file(request, paths):
    """Each kind of file with each byte source."""
    kind, backend = request.param.split()
    with opened(paths[kind], backend=backend) as f:
        yield f


def same(found, expected):
    """Whether two arrays have the same shape, dtype and bits."""
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


def every_way(f, word, row):
    """One vector, asked for in every way there is."""
    return [
        f[word],
        f[np.str_(word)],
        f.get(word),
        f[[word]][0],
        f[np.array([word])][0],
        f.batch([word])[0],
        f[row],
        f[row - len(f.vectors)],  # rows of subwords follow the rows of words
        f[[row]][0],
        f[row : row + 1][0],
        f[np.arange(len(f.vectors)) == row][0],
        f.vectors[row],
        f.vectors.take([row])[0],
        np.asarray(f.vectors)[row],
    ]


def agrees_with_itself(f):
    """Check what the contract says about one file."""
    assert f.shape == f.vectors.shape
    assert (f.dim, len(f)) == (f.shape[-1], N)
    row_shape = (DIM,) if f.num_timesteps is None else (f.num_timesteps, DIM)
    for row in (0, 17, N - 1):
        first, *others = every_way(f, WORDS[row], row)
        assert (first.shape, first.dtype) == (row_shape, f.dtype)
        for other in others:
            same(other, first)
    rows = [3, 0, 3, N - 1]
    words = [WORDS[row] for row in rows]
    assert f.find(words).tolist() == rows
    for many in (f[words], f[rows], f.batch(words), f.vectors.take(rows)):
        same(many, np.stack([f[row] for row in rows]))
    assert f[[]].shape == f.batch([]).shape == (0, *row_shape)
    assert "none" not in f
    assert f.find(["none"]).tolist() == [-1]


def test_a_stream_of_arrow_has_the_words_and_their_vectors(file):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(file)
    assert table.column_names == ["word", "vector"]
    assert table["word"].to_pylist() == WORDS
    flat = table["vector"].combine_chunks()
    for _ in file.shape[1:]:
        flat = flat.flatten()
    same(flat.to_numpy().reshape(N, *file.shape[1:]), np.asarray(file.vectors)[:N])


def test_every_way_to_ask_for_a_vector_gives_the_same(file):
    agrees_with_itself(file)


def test_a_time_step_keeps_the_contract_too(file):
    if file.num_timesteps is None:
        assert file.at() is file
        with pytest.raises(ValueError, match="no time steps"):
            file.at(0)
        return
    assert file.num_timesteps == STEPS
    for t in (None, 0, 1, -1):
        step = file.at(t)
        assert step.num_timesteps is None
        assert step.at() is step
        agrees_with_itself(step)
        same(step["w5"], file["w5"][-1 if t is None else t])
    for beyond in (STEPS, -STEPS - 1):
        with pytest.raises(IndexError, match=f"timestep must .* not {beyond}"):
            file.at(beyond)


def test_searches_mean_the_same_everywhere(file):
    step = file.at()
    found = file.most_similar("w4", 5)
    assert found == step.most_similar("w4", 5) == step.most_similar(step["w4"], 6)[1:]
    assert all(type(each) is embmap.Neighbor for each in found)
    units = np.asarray(step.vectors, np.float64)[:N]
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    cosines = units @ units[4]
    cosines[4] = -np.inf
    assert [each.row for each in found] == np.argsort(-cosines)[:5].tolist()
    assert [each.word for each in found] == [WORDS[each.row] for each in found]
    similarity = file.similarity("w4", "w9")
    assert type(similarity) is float
    assert similarity == pytest.approx(cosines[9], abs=1e-6)
    every = file.most_similar("w4", N)
    some = [0, 4, 7, N - 1]
    for among in (some, [WORDS[row] for row in some], np.isin(np.arange(N), some)):
        assert file.most_similar("w4", 9, among=among) == [n for n in every if n.row in some]
    assert file.most_similar("w4", 5, exclude=["w4", "none", found[0].row]) == every[1:6]
    cut = file.most_similar("w4", 9, among=some, dim=2)
    lengths = np.linalg.norm(np.asarray(step.vectors, np.float64)[:, :2], axis=1)
    leading = np.asarray(step.vectors, np.float64)[:, :2] / lengths[:, np.newaxis]
    assert [n.score for n in cut] == pytest.approx([leading[n.row] @ leading[4] for n in cut])
    assert file.similarity("w4", "w9", dim=2) == pytest.approx(leading[4] @ leading[9])
    mean = units[1] + 0.5 * units[2] - units[3]
    asked = file.most_similar(positive=["w1", ("w2", 0.5)], negative=["w3"], n=N)
    assert [n.row for n in asked] == [
        row for row in np.argsort(-(units @ mean)).tolist() if row not in (1, 2, 3)
    ]
    assert file.rank("w4", found[3].word) == 4
    odd = ["w1", "w2", "w3", "w5"]
    mean = units[[1, 2, 3, 5]].mean(axis=0)
    assert file.doesnt_match(odd) == odd[np.argmin(units[[1, 2, 3, 5]] @ mean)]
    pairs = [("w1", "w2", 1), ("w4", "w9", 2), ("w3", "none", 3), ("w3", "w8", 4)]
    expected = np.corrcoef([1, 2, 4], [units[i] @ units[j] for i, j in ((1, 2), (4, 9), (3, 8))])
    evaluated = file.evaluate_word_pairs(pairs)
    assert evaluated.pearson == pytest.approx(expected[0, 1])
    assert (evaluated.n_pairs, evaluated.oov_ratio) == (3, 0.25)
    assert type(file.analogy("w1", "w2", "w3", 4)[0]) is embmap.Neighbor
    assert file.analogy("w1", "w2", "w3", 4) == step.analogy("w1", "w2", "w3", 4)


def test_unknown_words_are_refused_or_filled_in(file):
    for ask in (lambda: file["none"], lambda: file.batch(["w1", "none"]), lambda: file[["none"]]):
        if getattr(file, "subwords", None) is None:
            with pytest.raises(embmap.UnknownWordError, match="none"):
                ask()
        else:
            assert ask().shape[-1] == DIM
    if getattr(file, "subwords", None) is None:
        assert file.get("none") is None
        filled = file.batch(["none", "w1"], missing="zero")
        assert not filled[0].any()
        same(filled[1], file["w1"])


def test_files_pickle_and_close(file):
    for each in (file, file.at()):
        with pickle.loads(pickle.dumps(each)) as again:
            same(again["w7"], each["w7"])
            assert (again.shape, again.format, again.layout) == (
                each.shape,
                each.format,
                each.layout,
            )
            vector = again["w7"]
        same(vector, each["w7"])
        for ask in (lambda f=again: f["w7"], lambda f=again: f.vectors, lambda f=again: f.at()):
            with pytest.raises(embmap.ClosedError):
                ask()


def test_info_and_verify_answer(file):
    for each in (file, file.at()):
        info = each.info()
        assert info["shape"] == list(each.shape)
        for chunk in info["chunks"]:
            assert chunk["name"]
            assert 0 <= chunk["offset"] <= chunk["offset"] + chunk["nbytes"] <= info["nbytes"]
        assert each.verify().ok


@pytest.fixture(scope="module")
def server(paths):
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    served = Served(
        *(f"{kind}={path}" for kind, path in paths.items()),
        *(
            f"--vocab={kind}={path.with_name('words.txt')}"
            for kind, path in paths.items()
            if path.suffix in WORDLESS
        ),
    )
    yield served
    served.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_served_file_is_the_local_one(server, paths, kind):
    with embmap.connect(server.url) as connected, opened(paths[kind]) as local:
        remote = connected[kind]
        agrees_with_itself(remote)
        agrees_with_itself(remote.at())
        assert (remote.shape, remote.dtype) == (local.shape, local.dtype)
        for t in [None] if local.num_timesteps is None else [None, 0, -2]:
            here, there = local.at(t), remote.at(t)
            same(np.asarray(there.vectors), np.asarray(here.vectors))
            assert there.most_similar("w4", 5) == here.most_similar("w4", 5)
            assert there.analogy("w1", "w2", "w3", 4) == here.analogy("w1", "w2", "w3", 4)
            for options in (
                {"among": ["w1", "w9", "zwölf"], "exclude": ["w9", "\ud800"]},
                {"among": np.arange(N) % 3 == 0, "dim": 3},
                {"among": [-1, 5, 5], "exclude": []},
            ):
                found = there.most_similar("w4", 5, **options)
                assert found == here.most_similar("w4", 5, **options)
            assert there.rank("w4", "w9") == here.rank("w4", "w9")
            assert there.doesnt_match(["w1", "w2", "w3"]) == here.doesnt_match(["w1", "w2", "w3"])
            pairs = [("w1", "w2", 1), ("w4", "w9", 2), ("w3", "none", 3)]
            assert there.evaluate_word_pairs(pairs) == here.evaluate_word_pairs(pairs)
            terms = ["w1", ("w2", 0.5), (here["w5"], -0.25)]
            found = there.most_similar(positive=terms, negative=["w3"], n=3, dim=4)
            assert found == here.most_similar(positive=terms, negative=["w3"], n=3, dim=4)
