"""What conformance tests share."""

import pytest

for _format in ("cvc", "dwe", "finalfusion"):
    pytest.register_assert_rewrite(f"tests.conformance.generated_{_format}")


@pytest.fixture
def path(tmp_path):
    """Where a test writes its file."""
    return tmp_path / "file"
