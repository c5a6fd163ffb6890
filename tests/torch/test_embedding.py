"""``embmap.torch.Embedding``: a layer whose vectors stay in their file."""

import io
import pickle

import numpy as np
import pytest

import embmap
from tests.required import require

torch = require("torch")
from embmap.torch import Embedding  # noqa: E402

IDS = torch.tensor([[3, 1, 3], [59, 0, 3]])


@pytest.mark.parametrize("compression", ["fp16", "int8", "lossless"])
def test_it_gives_what_an_embedding_in_memory_gives(chunked, compression):
    with chunked(compression) as file:
        layer = Embedding(file)
        known = torch.nn.Embedding.from_pretrained(torch.from_numpy(np.asarray(file.vectors)))
        for ids in (IDS, IDS.to(torch.int32), IDS[0, 0], IDS[:0], torch.empty(2, 0, dtype=int)):
            assert torch.equal(layer(ids), known(ids))
        assert (layer.num_embeddings, layer.embedding_dim) == (60, 8)
        assert repr(layer) == "Embedding(60, 8, dtype=torch.float32)"


def test_mapped_rows_and_stored_halves(path, rows, chunked):
    with embmap.open(path) as file:
        found = Embedding(file)(IDS)
        assert np.array_equal(found, rows[IDS])
        found.zero_()
        assert np.array_equal(file["w3"], rows[3])
    with chunked("fp16") as file:
        halves = Embedding(file, dtype=torch.float16)(IDS)
        assert np.array_equal(halves, rows.astype(np.float16)[IDS])


def test_rows_that_do_not_exist_are_refused(chunked):
    with chunked("int8") as file:
        layer = Embedding(file)
        for wrong in (60, -1, -100):
            with pytest.raises(IndexError, match="row must be"):
                layer(torch.tensor([0, wrong]))
        for wrong in (torch.tensor([0.5]), torch.tensor([True])):
            with pytest.raises(TypeError, match="rows must be int64 or int32"):
                layer(wrong)


def test_it_trains_in_a_model_without_parameters_of_its_own(chunked):
    with chunked("fp16") as file:
        layer = Embedding(file)
        model = torch.nn.Sequential(layer, torch.nn.Linear(8, 2))
        assert len(list(layer.parameters())) == 0
        model(IDS).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert model(IDS).shape == (2, 3, 2)


def test_its_state_is_small_and_is_compared_with_the_file(chunked, rows):
    with chunked("int8") as file:
        layer = Embedding(file)
        saved = io.BytesIO()
        torch.save(layer.state_dict(), saved)
        assert saved.tell() < 2000
        state = torch.load(io.BytesIO(saved.getvalue()), weights_only=True)
        Embedding(file).load_state_dict(state)
    with chunked("fp16", rows[:50]) as other:
        layer = Embedding(other)
        with pytest.raises(ValueError, match="the vectors must have the shape"):
            layer.load_state_dict(state)


def test_it_pickles_by_path(chunked):
    with chunked("int8") as file:
        layer = Embedding(file)
        pickled = pickle.dumps(layer)
        assert len(pickled) < 5000
        assert torch.equal(pickle.loads(pickled)(IDS), layer(IDS))


def test_a_compiler_leaves_the_look_up_alone(chunked):
    with chunked("int8") as file:
        model = torch.nn.Sequential(Embedding(file), torch.nn.Linear(8, 2))
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(compiled(IDS), model(IDS))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_it_answers_on_the_device_of_the_rows(chunked):
    with chunked("int8") as file:
        layer = Embedding(file)
        found = layer(IDS.cuda())
        assert found.device.type == "cuda"
        assert torch.equal(found.cpu(), layer(IDS))
