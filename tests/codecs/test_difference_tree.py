"""The tree of differences between time steps, against the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embmap.codecs.difference_tree import ancestry, differences, preorder, restore, restore_all
from tests.codecs.models import EXTREMES
from tests.reference import dwe as reference

# ------------------------------------------------------------------------------------------- tree


@pytest.mark.parametrize("n", [*range(2, 40), 209, 1025])
def test_the_tree_is_that_of_the_reference(n):
    tree = reference.tree(n)
    assert preorder(n) == tree


@pytest.mark.parametrize("n", [*range(2, 40), 209, 1025])
@pytest.mark.parametrize("width", [0, 1, 3, 700])
def test_all_steps_are_restored_as_the_reference_does(n, width):
    rng = np.random.default_rng(n)
    stored = rng.integers(-32768, 32768, (n, width + 2)).astype(np.int16)
    expected = reference.undo_tree(stored[:, 1:-1, np.newaxis])[:, :, 0]
    before = stored[:, [0, -1]]
    restore_all(stored[:, 1:-1])  # a part of a larger array
    np.testing.assert_array_equal(stored[:, 1:-1], expected)
    np.testing.assert_array_equal(stored[:, [0, -1]], before)


@pytest.mark.parametrize("n", [*range(2, 40), 209])
def test_a_step_has_its_ancestors_and_no_others(n):
    tree = reference.tree(n)
    around = {step: (left, right) for left, step, right in tree}
    for t in range(n):
        needed, waiting = set(), [t]
        while waiting:
            step = waiting.pop()
            if step in around and step not in needed:
                needed.add(step)
                waiting += around[step]
        nodes = ancestry(n, t)
        assert {step for _, step, _ in nodes} == needed
        known = {0, n - 1}
        for left, step, right in nodes:
            assert around[step] == (left, right)
            assert {left, right} <= known
            known.add(step)
        assert t in known


def every_pair(*values):
    """All combinations of some 16-bit values, one row each."""
    grid = np.array(np.meshgrid(*values, indexing="ij"), np.int16)
    return grid.reshape(len(values), -1)


def test_steps_are_restored_as_the_reference_does():
    left, difference, right = every_pair(EXTREMES, EXTREMES, EXTREMES)
    residuals = np.stack([left, difference, right])[:, :, np.newaxis]
    values = reference.undo_tree(residuals)
    before = left.copy(), difference.copy(), right.copy()
    found = restore(left, difference, right)
    assert found.dtype == np.int16
    np.testing.assert_array_equal(found, values[1, :, 0])
    for array, copy in zip((left, difference, right), before, strict=True):
        np.testing.assert_array_equal(array, copy)


@given(values=st.lists(st.integers(-32768, 32767), min_size=3, max_size=3))
def test_differences_are_those_of_the_reference_or_do_not_fit(values):
    steps = np.array(values, np.int16).reshape(3, 1, 1)
    left, step, right = steps.reshape(3, 1)
    try:
        expected = reference.apply_tree(steps)[1, 0]
    except ValueError:
        with pytest.raises(ValueError, match="does not fit into 16 bits"):
            differences(left, step, right)
        return
    found = differences(left, step, right)
    assert found.dtype == np.int16
    assert found.tolist() == expected.tolist()
    assert restore(left, found, right).tolist() == step.tolist()


def test_one_difference_that_does_not_fit_is_enough_and_is_named():
    left = right = np.array([0, 30000, -30000], np.int16)
    step = np.array([0, 30000, 2768], np.int16)
    with pytest.raises(ValueError, match="a difference of 32768 does not fit"):
        differences(left, step, right)
    step[2] = 2767
    assert differences(left, step, right).tolist() == [0, 0, 32767]
    nothing = np.empty((0, 3), np.int16)
    assert differences(nothing, nothing, nothing).shape == (0, 3)
    assert restore(nothing, nothing, nothing).shape == (0, 3)


def test_every_mean_is_truncated_toward_zero():
    near = np.arange(-300, 300)
    far = np.concatenate((np.arange(-32768, -32700), near, np.arange(32700, 32768)))
    left, right = every_pair(near, far)
    found = restore(left, np.zeros_like(left), right)
    np.testing.assert_array_equal(found, reference.predict(left, right))
