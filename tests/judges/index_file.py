"""A data file beside an index that is damaged: the look-ups are right, or the index is refused."""

import itertools
import struct
import warnings

import embmap
from tests.judges.damage import Damages, crash, loaded
from tests.judges.finalfusion import content
from tests.reference import finalfusion as reference

# Each a part of others, so that a start that is off by one finds another word.
INDEXED_WORDS = ["", "a", "b", "ab", "ba", "aab", "abb", "aba", "bab", "aaab", "baba", "ababa", "ü"]
INDEXED = {
    "words": content(words=INDEXED_WORDS),
    "n-grams": content("explicit", words=INDEXED_WORDS),
}


def words_nearby(words):
    """Every word that starts that are off by one could make of a vocabulary."""
    data = b"".join(struct.pack("<I", len(word.encode())) + word.encode() for word in words)
    found = dict.fromkeys([*words, "absent", "c", "abab"])
    end = 0
    for word in words:
        start = end + 4
        end = start + len(word.encode())
        for first, last in itertools.product(range(start - 1, start + 2), range(end - 1, end + 2)):
            try:
                found[data[max(first, 0) : max(last, 0)].decode()] = None
            except UnicodeDecodeError:
                continue
    return list(found)


NEARBY = words_nearby(INDEXED_WORDS)
ROW_OF = {word: row for row, word in reversed(list(enumerate(INDEXED_WORDS)))}


class Index(Damages):
    """A data file and its index, which is damaged again and again."""

    def __init__(self, path, name="words"):
        super().__init__(path)
        self.made = INDEXED[name]
        path.write_bytes(reference.encode(self.made))
        with embmap.open(path) as f:
            self.index = f.build_index()
        self.good = self.index.read_bytes()
        self.subwords = {word: reference.subword_rows(self.made, word) for word in ["ab", "üb>"]}
        self.refused = 0

    def judge(self, what, backend, words=NEARBY):
        """Look everything up with the index as it is now."""
        for index in ("auto", "require"):
            self.n += 1
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    problem = loaded(lambda index=index: self.problem(backend, index, words))
                except embmap.StaleIndexError:
                    self.refused += 1
                    problem = "" if index == "require" else "StaleIndexError"
                except Exception as error:
                    problem = crash(error).problem
            strange = [each for each in caught if each.category is not embmap.StaleIndexWarning]
            if strange or (caught and index == "require"):
                problem = problem or f"warned {caught[0].category.__name__}: {caught[0].message}"
            self.note(f"{what}, {backend}, {index}", problem)

    def problem(self, backend, index, words):
        with embmap.open(self.path, backend=backend, index=index) as f:
            rows = f.find(words).tolist()
            for word, row in zip(words, rows, strict=True):
                expected = ROW_OF.get(word, -1)
                if row != expected:
                    return f"find: {word!r} is in row {row} and not {expected}"
            for word in words:
                row = int(f.find([word])[0])
                if row != ROW_OF.get(word, -1):
                    return f"{word!r} is in row {row} and not {ROW_OF.get(word, -1)}"
            if list(f.vocab) != INDEXED_WORDS:
                return f"the words are {list(f.vocab)}"
            if f["ababa"].tobytes() != self.made.matrix[ROW_OF["ababa"]].tobytes():
                return "a vector is wrong"
            for word, expected in self.subwords.items():
                if f.subword_rows(word).tolist() != expected:
                    return f"rows of {word!r} are {f.subword_rows(word)} and not {expected}"
        return ""

    def check(self):
        super().check()
        assert self.refused
