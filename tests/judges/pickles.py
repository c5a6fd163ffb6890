"""Pickles that were made to harm who reads them, and a generator of random ones.

``CORPUS`` gives each a name; :func:`assembled` puts opcodes together that mostly fit each other,
and :func:`mutated` damages a pickle that was whole. All begin like files of gensim's.
"""

import pickle
import random
import struct

__all__ = ["CORPUS", "assembled", "mutated", "saved"]

HEAD = b"\x80\x04cgensim.models.keyedvectors\nKeyedVectors\n"
STOP = b"."


def text(value):
    """SHORT_BINUNICODE or BINUNICODE."""
    data = value.encode()
    if len(data) < 256:
        return b"\x8c" + bytes([len(data)]) + data
    return b"X" + struct.pack("<I", len(data)) + data


def blob(data):
    """BINBYTES."""
    return b"B" + struct.pack("<I", len(data)) + data


def number(value):
    """BININT1, BININT or LONG1."""
    if 0 <= value < 256:
        return b"K" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


def name(module, what):
    """GLOBAL."""
    return f"c{module}\n{what}\n".encode()


def call(module, what, *arguments):
    """A function and its arguments, called."""
    return name(module, what) + b"(" + b"".join(arguments) + b"tR"


LITTLE = b"(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def dtype(kind="f4", state=LITTLE):
    return call("numpy", "dtype", text(kind), b"\x89", b"\x88") + state


def shape(*sizes):
    return b"(" + b"".join(map(number, sizes)) + b"t"


NDARRAY = name("numpy", "ndarray")


def array(sizes=(2, 2), kind=None, data=None, fortran=b"\x89", core="numpy._core"):
    """A numpy array as numpy pickles it."""
    begin = call(f"{core}.multiarray", "_reconstruct", NDARRAY, shape(0), blob(b"b"))
    data = blob(bytes(16)) if data is None else data
    return (
        begin
        + b"(K\x01"
        + shape(*sizes)
        + (dtype() if kind is None else kind)
        + fortran
        + data
        + b"tb"
    )


def saved(vectors=None, words=("a", "b"), more=b"", head=HEAD):
    """A file of gensim's with these vectors and, before them, any opcodes that leave a pair."""
    listed = b"](" + b"".join(map(text, words)) + b"e"
    vectors = array() if vectors is None else vectors
    pairs = text("index_to_key") + listed + text("vectors") + vectors
    return head + b")\x81}(" + more + pairs + b"ub" + STOP


def pair(value):
    """An attribute whose value harms; nothing reads it."""
    return text("x") + value


def buckets(bucket, *, min_n=b"K\x02", max_n=b"K\x04", ngrams=None, composed=False):
    """A fastText model of gensim's; each argument is opcodes that leave one value."""
    rows = text("vectors" if composed else "vectors_vocab") + array()
    ngrams = array() if ngrams is None else ngrams
    pairs = {"bucket": bucket, "min_n": min_n, "max_n": max_n, "vectors_ngrams": ngrams}
    more = b"".join(text(name) + value for name, value in pairs.items())
    more += text("compatible_hash") + b"\x88" + rows
    listed = b"](" + text("a") + text("b") + b"e"
    return HEAD + b")\x81}(" + more + text("index_to_key") + listed + b"ub" + STOP


DEEP = 600_000
HUGE = 1 << 40
CORPUS = {
    # numpy called by the file
    "object-array-of-bytes": saved(
        call("numpy", "ndarray", shape(1), text("O"), blob(b"A" * 8)), words=("a",)
    ),
    "object-array-listed": saved(
        more=pair(
            call("builtins", "list", call("numpy", "ndarray", shape(1), text("O"), blob(b"A" * 8)))
        )
    ),
    "uninitialised-memory": saved(call("numpy", "ndarray", shape(2, 16), text("f4"))),
    "reconstruct-without-state": saved(
        call("numpy._core.multiarray", "_reconstruct", NDARRAY, shape(2, 2), blob(b"f"))
    ),
    "reconstruct-huge": saved(
        call("numpy._core.multiarray", "_reconstruct", NDARRAY, shape(HUGE, 16), blob(b"d"))
    ),
    "object-dtype-state": saved(array(kind=dtype("O8"))),
    "strides-beyond": saved(
        call(
            "numpy",
            "ndarray",
            shape(2, 2),
            text("f4"),
            blob(bytes(16)),
            number(8),
            shape(-4096, HUGE),
        )
    ),
    "dtype-setstate-bounds": saved(
        array(kind=dtype(state=b"(K\x04\x8c\x01<N(t}J\xff\xff\xff\x7fJ\xff\xff\xff\x7fK\xfftb"))
    ),
    "dtype-fields-outside": saved(
        array(
            kind=dtype(
                "V8",
                b"(K\x03"
                + text("|")
                + b"N("
                + text("a")
                + b"t}"
                + text("a")
                + b"("
                + dtype("O8")
                + number(HUGE)
                + b"tsK\x08K\x01K\x10tb",
            )
        )
    ),
    "dtype-of-nothing": saved(array(kind=call("numpy", "dtype"))),
    "dtype-of-itself": saved(array(kind=name("numpy", "dtype"))),
    "scalar-of-objects": saved(
        more=pair(call("numpy._core.multiarray", "scalar", dtype("O8"), blob(b"A" * 8)))
    ),
    "frombuffer-of-objects": saved(
        call(
            "numpy._core.numeric",
            "_frombuffer",
            blob(b"A" * 8),
            dtype("O8"),
            shape(1, 1),
            text("C"),
        ),
        words=("a",),
    ),
    "frombuffer-too-short": saved(
        call("numpy._core.numeric", "_frombuffer", blob(bytes(8)), dtype(), shape(2, 2), text("C"))
    ),
    "too-few-bytes": saved(array(data=blob(bytes(15)))),
    "too-many-rows": saved(array(sizes=(HUGE, HUGE))),
    "negative-rows": saved(array(sizes=(-2, -2))),
    "endless-columns": saved(array(sizes=(0, 1 << 1000), data=blob(b"")), words=()),
    "shape-of-text": saved(array(sizes=()).replace(b"(t", text("ab"))),
    "bytes-of-text": saved(array(data=text("\u0100" * 16))),
    "bytes-of-a-codec": saved(array(data=call("_codecs", "encode", text("AAAA"), text("zip")))),
    # what Python's own unpickler hashes
    "deep-tuple-as-key": saved(more=b"}" + b")" + b"\x85" * DEEP + b"Ns0" + pair(b"N")),
    "deep-tuple-in-set": saved(more=pair(b"\x8f()" + b"\x85" * DEEP + b"\x90")),
    "deep-tuple-frozen": saved(more=pair(b"()" + b"\x85" * DEEP + b"\x91")),
    "deep-tuple-hashed": saved(
        more=pair(name("builtins", "hash") + b")" + b"\x85" * DEEP + b"\x85R")
    ),
    "wide-tuple-as-key": saved(more=b"}" + b")" + b"2\x86" * 200 + b"Ns0" + pair(b"N")),
    "key-of-itself": saved(more=pair(b"]q\x00h\x00a}h\x00Ns")),
    # depth
    "deep-list": saved(more=pair(b"]" * DEEP + b"a" * (DEEP - 1))),
    "deep-dict": saved(more=pair((b"}" + text("k")) * 200_000 + b"N" + b"s" * 200_000)),
    "deep-calls": saved(
        more=pair(b"N" + (b"\x85q\x00" + name("builtins", "int") + b"h\x00R") * 100_000)
    ),
    "deep-marks": saved(more=b"(" * DEEP),
    "deep-words": saved(words=()).replace(b"](e", b"]" * DEEP + b"a" * (DEEP - 1)),
    # sizes that the file states
    "memo-place": saved(more=pair(b"Nr\xff\xff\xff\xff")),
    "memo-place-of-text": saved(more=pair(b"Np99999999999999999999\n")),
    "memo-never-set": saved(more=pair(b"j\xff\xff\xff\x7f")),
    "memo-below-zero": saved(more=pair(b"g-1\n")),
    "bytes8-beyond": saved(more=pair(b"\x8e" + struct.pack("<Q", HUGE))),
    "bytes8-wrapping": saved(more=pair(b"\x8e" + b"\xff" * 8)),
    "bytearray8-beyond": saved(more=pair(b"\x96" + struct.pack("<Q", HUGE))),
    "unicode8-beyond": saved(more=pair(b"\x8d" + struct.pack("<Q", HUGE))),
    "frame-beyond": b"\x80\x04\x95" + struct.pack("<Q", HUGE) + saved()[2:],
    "long4-beyond": saved(more=pair(b"\x8b\xff\xff\xff\x7f")),
    "long4-below-zero": saved(more=pair(b"\x8b\xff\xff\xff\xff")),
    "long4-long": saved(more=pair(b"\x8b" + struct.pack("<I", 1 << 20) + b"\x7f" * (1 << 20))),
    "int-of-many-digits": saved(more=pair(b"I" + b"9" * 1_000_000 + b"\n")),
    "long-of-many-digits": saved(more=pair(b"L" + b"9" * 4_000 + b"L\n")),
    "float-of-many-digits": saved(more=pair(b"F" + b"9" * 1_000_000 + b"\n")),
    "float-of-nothing": saved(more=pair(b"F\n")),
    "names-multiplied": saved(
        more=text("gensim." + "m" * 100_000) + text("n") + (b"q\x012h\x01\x930") * 10
    ),
    "line-without-end": saved(more=b"V" + b"x" * 100_000),
    # attributes that saved vectors do not have
    "function": saved(more=pair(call("os", "system", text("true")))),
    "function-stacked": saved(more=pair(text("os") + text("system") + b"\x93")),
    "function-below-gensim": saved(more=pair(call("gensim.utils.os", "system", text("true")))),
    "instance": saved(more=pair(b"(ios\nsystem\n")),
    "object": saved(more=pair(b"(" + name("builtins", "int") + b"o")),
    "persistent": saved(more=pair(b"Pid\n")),
    "persistent-binary": saved(more=pair(b"NQ")),
    "extension": saved(more=pair(b"\x82\x01")),
    "extension-4": saved(more=pair(b"\x84\xff\xff\xff\x7f")),
    "next-buffer": saved(more=pair(b"\x97")),
    "readonly-buffer": saved(more=pair(b"\x8e" + bytes(8) + b"\x98")),
    "protocol-255": b"\x80\xff" + saved()[2:],
    "unknown-opcode": saved(more=b"\xff"),
    "call-of-text": saved(more=pair(text("a") + b")R")),
    "call-with-a-list": saved(more=pair(name("builtins", "int") + b"]R")),
    "state-of-text": saved(more=pair(text("a") + b"}b")),
    "items-of-text": saved(more=pair(text("a") + b"Na")),
    "pairs-of-a-list": saved(more=pair(b"]K\x00Ns")),
    "odd-pairs": saved(more=pair(b"}(Nu")),
    "surrogate": saved(more=pair(b"\x8c\x01\xff")),
    "empty-stack": HEAD + b"0" * 10 + STOP,
    "mark-that-is-not": HEAD + b"tttt" + STOP,
    "nothing": HEAD,
    "stop": b"\x80\x04." + b"gensim",
    # the objects of gensim's, with other things where words and vectors would be
    "words-of-numbers": saved(words=()).replace(b"](e", b"](K\x00K\x01e"),
    "words-of-itself": saved(words=()).replace(b"](e", b"]q\x00h\x00a"),
    "vectors-of-itself": HEAD + b")\x81q\x00}" + text("vectors") + b"h\x00sb" + STOP,
    "model-of-itself": HEAD + b")\x81q\x00}" + text("wv") + b"h\x00sb" + STOP,
    "no-state": HEAD + b")\x81" + STOP,
    "state-of-pairs": HEAD + b")\x81}}\x86b" + STOP,
    "apart-by-path": HEAD
    + b")\x81}("
    + text("__numpys")
    + b"]("
    + text("vectors")
    + b"e"
    + text("index_to_key")
    + b"]ub"
    + STOP,
    # sizes of buckets and n-grams
    "buckets-sound": buckets(number(2)),
    "buckets-huge": buckets(number(HUGE)),
    "buckets-negative": buckets(b"J\xff\xff\xff\xff"),
    "buckets-more-than-rows": buckets(number(2**31 - 1)),
    "buckets-more-than-rows-composed": buckets(number(2**31 - 1), composed=True),
    "buckets-of-text": buckets(text("2")),
    "buckets-of-truth": buckets(b"\x88"),
    "buckets-of-other-length": buckets(number(2), ngrams=array((1, 4))),
    "buckets-wider": buckets(number(1), ngrams=array((1, 4))),
    "buckets-none": buckets(number(2), ngrams=b"N"),
    "ngrams-of-any-length": buckets(number(2), min_n=number(0), max_n=number(2**31 - 1)),
    "ngrams-huge": buckets(number(2), max_n=number(HUGE)),
    "ngrams-reversed": buckets(number(2), min_n=number(5)),
}


def assembled(draw: random.Random) -> bytes:
    """Return random opcodes with fitting arguments."""
    parts = [draw.choice(_PIECES)(draw) for _ in range(draw.randrange(1, 200))]
    return HEAD + b"".join(parts) + draw.choice([b"", STOP])


def mutated(whole: bytes, draw: random.Random) -> bytes:
    """Return a pickle with a few bytes changed, taken away, doubled or replaced by opcodes."""
    data = bytearray(whole)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(data)) if data else 0
        end = at + draw.choice([0, 1, 1, 4, 20])
        data[at:end] = draw.choice(
            [
                b"",
                bytes([draw.randrange(256)]),
                data[at:end] * 2,
                draw.choice(_PIECES)(draw),
                draw.choice([b"\xff" * 4, b"\x00" * 4, b"\x7f" * 4]),
            ]
        )
    return bytes(data)


_OPCODES = [opcode.to_bytes(1, "little") for opcode in range(256)]
_SIMPLE = [*b"(.0012NaabdeeltssuuR]})\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94b"]
_NAMES = [
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("builtins", "hash"),
    ("builtins", "int"),
    ("builtins", "object"),
    ("__builtin__", "set"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("_codecs", "encode"),
    ("copyreg", "_reconstructor"),
    ("gensim.models.keyedvectors", "KeyedVectors"),
    ("os", "system"),
]
_TEXTS = ["vectors", "index_to_key", "wv", "__numpys", "f4", "O", "<", ">", "C", "F", "", "latin1"]
_PIECES = [
    *[lambda draw: bytes([draw.choice(_SIMPLE)])] * 12,
    *[lambda draw: text(draw.choice(_TEXTS))] * 4,
    *[lambda draw: name(*draw.choice(_NAMES))] * 3,
    lambda draw: number(draw.choice([0, 1, 2, 16, -1, HUGE])),
    lambda draw: blob(draw.randbytes(draw.randrange(40))),
    lambda draw: b"q" + bytes([draw.randrange(8)]),
    lambda draw: b"h" + bytes([draw.randrange(8)]),
    lambda draw: b"r" + struct.pack("<I", draw.choice([3, 40, 2**31, 2**32 - 1])),
    lambda draw: draw.choice(_OPCODES),
    lambda draw: shape(*(draw.randrange(4) for _ in range(draw.randrange(4)))),
    lambda draw: dtype(draw.choice(["f4", "O8", "V8", "f2"])),
    lambda draw: array(
        (draw.randrange(3), draw.randrange(3)), fortran=draw.choice([b"\x88", b"\x89"])
    ),
    lambda draw: pickle.dumps((draw.random(), {"a": [draw.randrange(9)]}), draw.randrange(6))[:-1],
]
