"""What the workloads of ``embmap bench`` draw."""

import numpy as np

import embmap
from embmap.bench.workloads import Settings, draw_sample


def test_a_row_of_a_dwe_file_is_a_whole_trajectory(tmp_path):
    steps = np.arange(5 * 4 * 6, dtype=np.int16).reshape(5, 4, 6)
    path = embmap.dwe.write(tmp_path / "a.dwe", steps, scale=0.5, group=2)
    drawn = draw_sample(Settings(path=path))
    assert (drawn.n_rows, drawn.row_nbytes) == (4, 5 * 6 * 4)
