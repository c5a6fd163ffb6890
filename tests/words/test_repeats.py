"""Words that repeat an earlier one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embmap
from embmap.words import repeats
from embmap.words.repeats import find_repeats


@pytest.mark.parametrize("at_once", [1, 3, 1 << 20])
@given(st.lists(st.sampled_from([b"", b"a", b"b", b"c", b"dd"])), st.integers(1, 6))
def test_repeats_are_found_whatever_hashes_meet(at_once, words, n_hashes):
    kept = list(dict.fromkeys(words))
    hashes = np.array([kept.index(word) % n_hashes for word in words], np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeats, "_AT_ONCE", at_once)
        rows, firsts = find_repeats(hashes, lambda rows: [words[row] for row in rows])
    expected = [row for row, word in enumerate(words) if words.index(word) != row]
    assert rows.tolist() == expected
    assert firsts.tolist() == [words.index(words[row]) for row in expected]


def test_verify_names_each_of_a_few_repeats_and_counts_many(tmp_path):
    words = [f"w{i:04}" for i in range(100)]
    path = embmap.finalfusion.write(tmp_path / "a", words, np.zeros((100, 1), "f4"))
    data = path.read_bytes()
    for n in (2, 30):
        changed = data
        for i in range(50, 50 + n):
            changed = changed.replace(f"w{i:04}".encode(), f"w{i - 50:04}".encode())
        path.write_bytes(
            changed.replace(b"w0099", b"w\xff\xff99").replace(b"w0098", b"w\xff\xff99")
        )
        with embmap.open(path) as file:
            messages = [problem.message for problem in file.verify().problems]
        assert sum("not UTF-8" in message for message in messages) == 2
        named = [message for message in messages if "repeats" in message]
        assert named == [
            f"word {i}, 'w{i - 50:04}', repeats word {i - 50}" for i in range(50, 50 + min(n, 20))
        ]
        assert ("30 words repeat an earlier word; look-ups find the first" in messages) == (n > 20)
