"""The pictures of growth, at tiny sizes."""

import pytest

from benchmarks import growth


def test_every_curve_has_a_value_for_every_size(tmp_path):
    curves = growth.by_words(tmp_path, (20, 40))
    curves += growth.by_dimensions(tmp_path, (2, 4), 30) + growth.by_groups(tmp_path, (1, 3), 30)
    assert list(tmp_path.iterdir()) == []
    assert len(curves) == 3 * len(growth.FORMATS) + 6 + 3
    for curve in curves:
        assert len(curve.values) == len(curve.sizes) == 2
        assert all(value > 0 for value in curve.values)
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    growth.draw(curves, tmp_path / "out.svg")
    assert "<svg" in (tmp_path / "out.svg").read_text("utf-8")
