"""What conformance tests share."""

import shutil

import pytest

import embmap

for _format in ("cvc", "dwe", "finalfusion"):
    pytest.register_assert_rewrite(f"tests.conformance.generated_{_format}")


@pytest.fixture
def path(tmp_path):
    """Where a test writes its file."""
    return tmp_path / "file"


@pytest.fixture(params=["no index", "index file"])
def opened(request, conformance_file, backend, tmp_path):
    """The conformance file, opened with or without an index file beside it."""
    if request.param == "no index":
        with embmap.open(conformance_file, backend=backend) as f:
            yield f
        return
    copy = tmp_path / conformance_file.name
    shutil.copyfile(conformance_file, copy)
    with embmap.open(copy) as f:
        if f.vocab:
            f.build_index()
        else:
            with pytest.raises(ValueError, match="no words"):
                f.build_index()
            yield f
            return
    with embmap.open(copy, backend=backend, index="require") as f:
        assert f.info()["index"] == "file"
        yield f
