"""``embmap.torch.Rows``: a data set of rows, its items, batches and loaders."""

import pickle

import numpy as np
import pytest

import embmap
from tests.required import require

torch = require("torch")
from torch.utils.data import DataLoader  # noqa: E402

from embmap.torch import Rows  # noqa: E402


@pytest.fixture
def data(path):
    with embmap.open(path) as file:
        yield Rows(file)


def test_items_are_copies_of_rows(data, rows):
    assert len(data) == len(rows)
    for i in (0, 7, -1):
        item = data[i]
        assert np.array_equal(item, rows[i])
        item.zero_()
        assert np.array_equal(data[i], rows[i])
        assert item.untyped_storage().nbytes() == rows[i].nbytes
    several = data.__getitems__([5, 1, 5])
    assert [each.tolist() for each in several] == rows[[5, 1, 5]].tolist()
    assert np.array_equal(data.batch(torch.tensor([5, 1])), rows[[5, 1]])
    for wrong in (60, -61):
        with pytest.raises(IndexError, match="row must be"):
            data[wrong]
        with pytest.raises(IndexError, match="row must be"):
            data.__getitems__([0, wrong])


@pytest.mark.parametrize("chosen", [[9, 2, 2, -1], torch.tensor([9, 2, 2, -1])])
def test_items_may_be_some_of_the_rows(path, rows, chosen):
    with embmap.open(path) as file:
        data = Rows(file.vectors, chosen)
        assert len(data) == 4
        assert np.array_equal(torch.stack([data[i] for i in range(4)]), rows[[9, 2, 2, -1]])
        assert np.array_equal(data.batch([3, 0]), rows[[-1, 9]])
        assert np.array_equal(next(iter(data.loader(3))), rows[[9, 2, 2]])
        with pytest.raises(IndexError):
            data[4]
        with pytest.raises(IndexError, match="row must be"):
            Rows(file, [60])


@pytest.mark.parametrize("batch_size", [1, 7, 30, 60, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_loader_gives_every_row_once_in_order(data, rows, batch_size, drop_last):
    loader = data.loader(batch_size, drop_last=drop_last)
    expected = list(DataLoader(data, batch_size=batch_size, drop_last=drop_last))
    found = list(loader)
    assert len(loader) == len(found) == len(expected)
    for batch, known in zip(found, expected, strict=True):
        assert torch.equal(batch, known)
    assert sum(map(len, found)) == (60 // batch_size * batch_size if drop_last else 60)


def test_a_shuffled_loader_has_another_order_in_each_pass(data, rows):
    loader = data.loader(16, shuffle=True, generator=torch.Generator().manual_seed(4))
    first, second = (torch.cat(list(loader)) for _ in range(2))
    assert not torch.equal(first, second)
    for each in (first, second):
        assert sorted(each.tolist()) == sorted(rows.tolist())
    again = data.loader(16, shuffle=True, generator=torch.Generator().manual_seed(4))
    assert torch.equal(torch.cat(list(again)), first)


def test_numbers_are_converted(data, path, rows):
    with embmap.open(path) as file:
        halves = Rows(file, dtype=torch.float16)
        assert halves[3].dtype == torch.float16
        assert np.array_equal(halves.batch([3, 1]), rows[[3, 1]].astype(np.float16))
        assert next(iter(halves.loader(4))).dtype == torch.float16
        with pytest.raises(TypeError, match="dtype must be"):
            Rows(file, dtype="float16")


def test_a_data_set_pickles_by_path(path, rows, chunked):
    with embmap.open(path) as file, chunked("fp16") as halves:
        of_rows = pickle.dumps(Rows(file))
        for data in (Rows(file), Rows(halves, [3, 1], dtype=torch.float16)):
            pickled = pickle.dumps(data)
            assert len(pickled) < 3000
            again = pickle.loads(pickled)
            assert torch.equal(torch.stack(list(again.batch(range(2)))), data.batch(range(2)))
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(of_rows)


def test_arguments_that_do_not_fit_are_refused(data):
    with pytest.raises(ValueError, match="batch_size must be positive"):
        data.loader(0)
    with pytest.raises(TypeError):
        data.loader(4, unknown=True)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_the_same_batches(data, rows, start):
    loader = data.loader(16, num_workers=2, multiprocessing_context=start)
    assert np.array_equal(torch.cat(list(loader)), rows)
