"""The types that a user's type checker sees: mypy runs over the lines of a program."""

import pytest

import embmap
from embmap.client import RemoteFile

PROGRAM = """
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import embmap
from embmap.client import RemoteFile
from embmap.dwe import DweFile, TimestepFile

Ranking = list[embmap.Neighbor]
Array = npt.NDArray[Any]


def use(f: embmap.Embeddings, rows: npt.NDArray[np.int64], vector: npt.NDArray[np.float32]) -> None:
    assert_type(f["king"], Array)
    assert_type(f[["king", "queen"]], Array)
    assert_type(f[3], Array)
    assert_type(f[3:9], Array)
    assert_type(f[rows], Array)
    assert_type(f[rows, :2], Array)
    assert_type(f.get("king"), Array | None)
    assert_type(f.get("king", 0), Array | int)
    assert_type(f.batch(word for word in ("king", "queen")), Array)
    assert_type(f.most_similar("king"), Ranking)
    assert_type(f.most_similar(["king", "queen"], 5, "dot"), list[Ranking])
    assert_type(f.most_similar([0.5, 0.25]), Ranking)
    assert_type(f.most_similar([[0.5, 0.25]]), list[Ranking])
    assert_type(f.most_similar(np.zeros(4)), Ranking)
    several = np.zeros((2, 4))
    assert_type(f.most_similar(several), list[Ranking])
    for neighbor in f.most_similar(vector):  # the type does not show whether it is one or several
        print(neighbor.word)
    assert_type(f.most_similar(positive=["a", ("b", 0.5), vector], negative="c"), Ranking)
    assert_type(f.most_similar("a", among=rows, dim=3), Ranking)
    assert_type(f.most_similar(["a", "b"], among={"source": "wiki"}), list[Ranking])
    assert_type(f.analogy("a", "b", "c"), Ranking)
    assert_type(f.analogy(["a"], ["b"], ["c"]), list[Ranking])
    assert_type(f.similarity("a", "b"), float)
    assert_type(f.doesnt_match(["a", "b"]), str)
    assert_type(f.rank("a", "b"), int)
    assert_type(f.evaluate_word_pairs([("a", "b", 1.5)]), embmap.Correlation)


def open_all(local: embmap.EmbeddingFile, dwe: DweFile, remote: RemoteFile) -> None:
    for each in (local, dwe, remote):
        use(each, np.arange(3), np.zeros(4, np.float32))
    assert_type(local.at(), embmap.EmbeddingFile)
    assert_type(dwe.at(-1), TimestepFile)
    assert_type(remote.at(), RemoteFile)
    assert_type(dwe.num_timesteps, int)
    if (vectors := local.vectors) is not None:
        assert_type(vectors[0], Array)
        assert_type(vectors[[0, 1]], Array)
        assert_type(vectors[:2, 1], Array)


def ask_wrongly(f: embmap.Embeddings) -> None:
"""
WRONG = [
    'f.most_similar("king", metric="manhattan")',
    "f.most_similar({1, 2})",
    'f.batch(["king"], missing="ignore")',
    'f.most_similar("king")[0][0].row',
    "f.find([1])",
    'f[{"king"}]',
]


def test_answers_have_the_types_that_the_questions_imply(tmp_path):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "".join(f"    {line}\n" for line in WRONG))
    report, errors, _ = api.run(
        ["--strict", "--python-version=3.11", f"--cache-dir={tmp_path / 'cache'}", str(path)]
    )
    assert not errors
    refused = {int(line.split(":")[-3]) for line in report.splitlines() if ": error:" in line}
    first = PROGRAM.count("\n") + 1
    assert refused == set(range(first, first + len(WRONG))), report


def test_local_and_served_files_share_one_face():
    for each in (embmap.EmbeddingFile, RemoteFile):
        assert issubclass(each, embmap.Embeddings)
        searches = ("most_similar", "analogy", "similarity", "doesnt_match", "rank")
        for name in ("get", "find", "batch", *searches, "evaluate_word_pairs"):
            assert getattr(each, name) is getattr(embmap.Embeddings, name)
