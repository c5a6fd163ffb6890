"""Which time step a number or a label means."""

import contextlib
import itertools

import numpy as np
import pytest

from embmap.words.time_labels import check_labels, find_step, name_step, parse_labels

YEARS = tuple(range(1800, 2009))


def test_numbers_count_from_either_end_and_labels_name_a_step():
    for t in (0, 7, 208):
        for way in (t, t - 209, str(t), str(t - 209), 1800 + t, str(1800 + t), np.int32(1800 + t)):
            assert find_step(way, 209, YEARS) == t
    assert find_step("1950s", 2, ("1940s", "1950s")) == 1
    assert find_step(-1, 5) == 4


@pytest.mark.parametrize("t", [209, -210, 1799, 2009, "1799", "1800.0", "", "1" * 5000, True])
def test_a_step_that_does_not_exist_is_refused(t):
    with pytest.raises(IndexError, match="timestep must be"):
        find_step(t, 209, YEARS)
    with pytest.raises(IndexError, match="at least -3 and below 3, not '1800s'"):
        find_step("1800s", 3)
    with pytest.raises(IndexError, match="or a label, 1800 to 2008, not"):
        find_step(1700, 209, YEARS)


def test_a_number_that_is_the_label_of_another_step_is_refused():
    labels = tuple(range(1, 11))
    for t in (5, "5"):
        with pytest.raises(ValueError, match="write -5 for the first and -6 for the second"):
            find_step(t, 10, labels)
    assert [find_step(t, 10, labels) for t in (-5, -6, 0, 10)] == [5, 4, 0, 9]
    for t in range(4):  # labels that are the numbers themselves leave no doubt
        assert find_step(t, 4, (0, 1, 2, 3)) == t


def test_every_step_has_a_name_that_means_no_other():
    for labels in itertools.permutations(range(-3, 4), 3):
        for step in range(3):
            name = name_step(step, 3, labels)
            ways = [*range(-3, 3), *labels]
            clear = []
            for way in ways:
                with contextlib.suppress(ValueError):
                    clear += [way] if find_step(way, 3, labels) == step else []
            assert name in clear or not clear


def test_labels_are_integers_or_text_that_differ():
    assert parse_labels([1800, "1801", "late"]) == (1800, 1801, "late")
    for labels in ([1.5], [None], [True], [""], [[1]], [1800, "1800"], ["a", "a"]):
        with pytest.raises(ValueError, match="label"):
            parse_labels(labels)
    check_labels((), 3)
    with pytest.raises(ValueError, match="2 labels were given for 3 time steps"):
        check_labels((1, 2), 3)
