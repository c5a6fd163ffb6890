"""Product quantizers: no worse than others', the same every time, and files that read back."""

from itertools import pairwise

import numpy as np
import pytest

import embmap
from embmap.codecs.product import reconstruct
from embmap.finalfusion import quantize
from embmap.vectors import quantizer

pytestmark = pytest.mark.slow


def correlated(n, d, seed=0):
    """Unit vectors whose dimensions vary together, as in embeddings."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d)) @ (rng.standard_normal((d, d)) * np.linspace(1, 0.05, d))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype("f4")


def error(quantized, rows):
    decoded = reconstruct(
        quantized.codes, quantized.codebooks, quantized.projection, quantized.norms
    )
    return float(((decoded - rows).astype("f8") ** 2).sum(axis=1).mean())


def objective(rows, centroids):
    """The k-means objective, one row after the other."""
    wide = centroids.astype("f8")
    return sum(((wide - row) ** 2).sum(axis=1).min() for row in rows.astype("f8"))


def slow_kmeans(rows, centroids, iterations):
    centroids = centroids.astype("f8")
    for _ in range(iterations):
        nearest = [int(((centroids - row) ** 2).sum(axis=1).argmin()) for row in rows]
        for j in range(len(centroids)):
            own = rows[[i for i, code in enumerate(nearest) if code == j]]
            if len(own):
                centroids[j] = own.mean(axis=0, dtype="f8")
    return centroids


def test_kmeans_gets_where_a_slow_one_gets():
    rows = correlated(300, 3)
    begin = rows[:12]
    for iterations in (1, 5):
        ours = objective(rows, quantizer.kmeans(rows, begin, iterations))
        assert ours == pytest.approx(
            objective(rows, slow_kmeans(rows, begin, iterations)), rel=1e-4
        )
    chosen = quantizer.first_centroids(rows, 12, np.random.default_rng(1))
    assert len(np.unique(chosen, axis=0)) == 12
    assert {row.tobytes() for row in chosen} <= {row.tobytes() for row in rows}


def test_no_round_of_kmeans_makes_it_worse():
    rows = correlated(500, 4)
    begin = rows[:20]
    steps = [objective(rows, quantizer.kmeans(rows, begin, i)) for i in range(8)]
    assert all(b <= a * (1 + 1e-6) for a, b in pairwise(steps))


def test_centroids_that_nothing_is_near_to_are_put_to_use():
    rows = np.repeat(np.arange(8, dtype="f4"), 40)[:, np.newaxis]
    begin = np.full((8, 1), 100, "f4")  # all the same: seven have nothing
    centroids = quantizer.kmeans(rows, begin, 20)
    assert sorted(centroids[:, 0].tolist()) == list(range(8))
    few = quantizer.kmeans(rows, np.zeros((12, 1), "f4"), 30)  # more centroids than rows differ
    assert objective(rows, few) == 0


def test_codes_name_the_nearest_centroids():
    rows = correlated(700, 12)
    books = np.random.default_rng(2).standard_normal((4, 9, 3)).astype("f4")
    codes = quantizer.encode(rows, books)
    for row, code in zip(rows[:100], codes[:100], strict=True):
        for j, part in enumerate(row.reshape(4, 3)):
            distances = ((books[j].astype("f8") - part) ** 2).sum(axis=1)
            assert distances[code[j]] == pytest.approx(distances.min(), abs=1e-6)


@pytest.mark.parametrize("projection", [None, "opq"])
def test_the_same_seed_gives_the_same_and_whatever_holds_the_rows(tmp_path, projection):
    rows = correlated(900, 12) * np.linspace(0.5, 2, 900, dtype="f4")[:, np.newaxis]
    path = embmap.finalfusion.write(tmp_path / "a", map(str, range(900)), rows)
    settings = {"iterations": 4, "projection": projection, "seed": 3, "sample": 600}
    first = quantize(rows, 4, 16, **settings)
    with embmap.open(path) as file, embmap.open(path, backend="read") as read:
        blocks = (rows[i : i + 77] for i in range(0, 900, 77))
        for vectors in (rows, file.vectors, read.vectors, blocks, rows.tolist()):
            again = quantize(vectors, 4, 16, **settings)
            assert np.array_equal(first.codes, again.codes)
            assert np.array_equal(first.codebooks, again.codebooks)
            assert np.array_equal(first.norms, again.norms)
    other = quantize(rows, 4, 16, **settings | {"seed": 4})
    assert not np.array_equal(first.codebooks, other.codebooks)


@pytest.mark.parametrize("projection", [None, "opq"])
@pytest.mark.parametrize("unit", [False, True])
def test_files_hold_what_was_quantized(tmp_path, projection, unit):
    rows = correlated(1000, 16)
    lengths = np.linspace(0.5, 2, 1000, dtype="f4")
    rows *= lengths[:, np.newaxis]
    quantized = quantize(rows, 8, 32, projection=projection, normalize=unit, iterations=6)
    assert quantized.codes.dtype == np.uint8
    assert quantized.codes.shape == (1000, 8)
    assert (quantized.projection is None) == (projection is None)
    if unit:
        np.testing.assert_allclose(quantized.norms, lengths, rtol=1e-5)
    else:
        assert quantized.norms is None
    if projection:
        turn = quantized.projection.astype("f8")
        np.testing.assert_allclose(turn.T @ turn, np.eye(16), atol=1e-5)
    path = embmap.finalfusion.write(
        tmp_path / "a.fifu", map(str, range(1000)), None, quantized=quantized
    )
    with embmap.open(path) as file:
        assert file.verify().ok
        lost = ((file.vectors[:] - rows) ** 2).sum(axis=1).mean()
        assert lost == pytest.approx(error(quantized, rows), rel=1e-4)
        assert lost < 0.3 * (rows**2).sum(axis=1).mean()
        rank = [neighbor.word for neighbor in file.most_similar(rows[5], 3)]
        assert "5" in rank
    finalfusion = pytest.importorskip("finalfusion", reason="finalfusion is not installed")
    theirs = finalfusion.load_finalfusion(path)
    with embmap.open(path) as file:
        np.testing.assert_allclose(theirs["7"], file["7"], atol=1e-6)


def test_a_rotation_loses_less():
    rows = correlated(2000, 16)
    plain = quantize(rows, 4, 16, normalize=False)
    turned = quantize(rows, 4, 16, normalize=False, projection="opq")
    assert error(turned, rows) < 0.9 * error(plain, rows)


@pytest.mark.parametrize(
    ("n", "d", "q", "bits", "projection"),
    [(3000, 32, 8, 4, None), (3000, 24, 12, 6, None), (1500, 32, 8, 4, "opq")],
)
def test_faiss_loses_no_less(n, d, q, bits, projection):
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    rows = correlated(n, d)
    ours = error(quantize(rows, q, 1 << bits, normalize=False, projection=projection), rows)
    turned, matrix = rows, None
    if projection is not None:
        matrix = faiss.OPQMatrix(d, q)
        matrix.pq = faiss.ProductQuantizer(d, q, bits)
        matrix.niter = 25
        matrix.train(rows)
        turned = matrix.apply_py(rows)
    theirs = faiss.ProductQuantizer(d, q, bits)
    theirs.train(turned)
    decoded = theirs.decode(theirs.compute_codes(turned))
    lost = float(((decoded - turned).astype("f8") ** 2).sum(axis=1).mean())
    assert ours <= 1.01 * lost


def test_rows_that_are_few_equal_or_zero_are_quantized():
    for rows in (np.zeros((5, 4), "f4"), np.ones((300, 4), "f4"), correlated(3, 4)):
        for projection in (None, "opq"):
            quantized = quantize(rows, 2, 256, projection=projection, iterations=3)
            assert error(quantized, rows) < 1e-6
            assert np.isfinite(quantized.codebooks).all()


def test_what_cannot_be_quantized_is_refused():
    rows = correlated(50, 6)
    for arguments in (
        (rows, 4),
        (rows, 0),
        (rows, 2, 257),
        (rows, 2, 0),
        (rows[:0], 2),
        (rows[0], 2),
        (iter([]), 2),
        (iter([rows, rows[:, :3]]), 2),
        (np.where(rows > 0.5, np.nan, rows), 2),
        (np.full((9, 6), "a"), 2),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            quantize(*arguments)
    for wrong in ({"iterations": 0}, {"projection": "pca"}, {"sample": 0}):
        with pytest.raises(ValueError):  # noqa: PT011
            quantize(rows, 2, 4, **wrong)


def test_progress_is_told():
    told = []
    quantize(
        correlated(100, 4), 2, 4, projection="opq", iterations=2, progress=lambda *a: told.append(a)
    )
    assert told[-1] == ("encoding rows", 100, 100)
    assert ("updating the projection", 2, 2) in told
