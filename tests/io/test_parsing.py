"""Metadata that were made to do harm: TOML, JSON, sizes. ``info`` and ``verify`` always answer."""

import json
import struct
import tracemalloc

import numpy as np
import pytest

import embmap

pytestmark = pytest.mark.slow

EYE = np.eye(2, dtype=np.float32)
WORDS = ["a", "b"]
MIB = 1 << 20
# What each is refused for.
HOSTILE = {
    "dotted key": (".".join(["a"] * 20_000) + " = 1", "32 levels"),
    "dotted key with spaces": (" . ".join(["a"] * 20_000) + " = 1", "32 levels"),
    "dotted key in quotes": (".".join(['"a"'] * 20_000) + " = 1", "32 levels"),
    "dotted key behind a string": (
        'a = {b = """"x"""" , ' + ".".join(["c"] * 20_000) + " = 1}",
        "32 levels",
    ),
    "dotted key behind quotes": ("a = {b = '\"' , " + ".".join("c" * 9_000) + " = 1}", "32 levels"),
    "dotted table": ("[" + ".".join(["a"] * 20_000) + "]", "32 levels"),
    "levels that keys make": (
        "a = " + "{" + ".".join("a" * 20) + " = {" + ".".join("a" * 20) + " = 1}}",
        "32 levels",
    ),
    "nested arrays": ("a = " + "[" * 10_000 + "]" * 10_000, "32 levels"),
    "nested arrays without end": ("a = " + "[" * 100_000, "32 levels"),
    "nested tables": ("a = " + "{a = " * 10_000 + "1" + "}" * 10_000, "32 levels"),
    "many tables": ("".join(f"[t{i}]\n" for i in range(70_000)), "65536"),
    "many values": ("a = [" + "1," * 70_000 + "]", "65536"),
    "5000 digits": ("a = " + "9" * 5_000, "digits"),
    "5000 digits of 16": ("a = 0x" + "f" * 5_000, "64 bits"),
    "65 bits": (f"a = {2**63}", "64 bits"),
    "not a number": ("a = nan", "nan is not a finite number"),
    "infinite": ("a = [1.0, -inf]", "-inf is not a finite number"),
    "too large": ("a = 1e999", "1e999 is not a finite number"),
    "too long": ("#" * (MIB + 1), str(MIB + 1)),
    "escaped quotes without end": ('a = """' + '\\"""' * 25_000, "not TOML"),
    "not TOML": ("a =", "not TOML"),
}
SOUND = {
    "strings that look like keys": (
        'a = \'{0}\'\nb = "{0}"\nc = \'\'\'{0}\'\'\'\'\'\nd = """\\"""\\"{0}""""" # {0}\n'.format(
            "x." * 100 + "[" * 100
        ),
        ["x." * 100 + "[" * 100] * 2
        + ["x." * 100 + "[" * 100 + "''", '"""' + '"' + "x." * 100 + "[" * 100 + '""'],
    ),
    "32 levels": ("a = " + "[" * 31 + "]" * 31, None),
    "64 bits": (f"a = {2**63 - 1}\nb = {-(2**63)}", [2**63 - 1, -(2**63)]),
    "1 MiB": ("a = '" + "x" * (MIB - 6) + "'", ["x" * (MIB - 6)]),
}


def finalfusion(path, toml):
    """Write a file with metadata that no writer lets pass."""
    embmap.finalfusion.write(path, WORDS, EYE, metadata="x = 1")
    data = path.read_bytes().replace(struct.pack("<Q", 5) + b"x = 1", b"")
    start = 12 + 4 * 3
    assert data[start : start + 4] == b"\5\0\0\0"
    text = toml.encode()
    length = struct.pack("<Q", len(text))
    path.write_bytes(data[: start + 4] + length + text + data[start + 4 :])
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_are_refused_and_the_rest_is_read(tmp_path, name):
    toml, message = HOSTILE[name]
    path = finalfusion(tmp_path / "a.fifu", toml)
    tracemalloc.start()
    with embmap.open(path) as file:
        assert file["a"].tolist() == [1, 0]
        with pytest.raises(embmap.FormatError, match=message) as caught:
            _ = file.metadata
        assert (caught.value.field, caught.value.path) == ("metadata", str(path))
        assert message in json.loads(json.dumps(file.info(), allow_nan=False))["metadata"]["error"]
        report = file.verify()
        assert not report.ok
        assert message in report.problems[0].message
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * MIB
    with pytest.raises(ValueError, match=message):
        embmap.finalfusion.write(tmp_path / "b.fifu", WORDS, EYE, metadata=toml)
    (tmp_path / "m.toml").write_text(toml, "utf-8")
    for target in ("b.cvc", "b.fifu"):
        with pytest.raises(ValueError, match=message):
            embmap.convert(path, tmp_path / target, metadata=tmp_path / "m.toml")
        assert not (tmp_path / target).exists()


@pytest.mark.parametrize("name", ["dotted key", "not a number", "5000 digits", "nested arrays"])
def test_info_and_verify_answer_on_the_command_line(command, tmp_path, name):
    toml, message = HOSTILE[name]
    path = finalfusion(tmp_path / "a.fifu", toml)
    status, out, _ = command("info", path)
    assert status == 0
    assert message in out
    status, out, _ = command("info", path, "--json")
    assert status == 0
    assert message in json.loads(out)["metadata"]["error"]
    status, out, err = command("verify", path)
    assert status == 1
    assert message in out
    assert "Traceback" not in err


@pytest.mark.parametrize("name", SOUND)
def test_sound_metadata_are_read(tmp_path, name):
    toml, values = SOUND[name]
    embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, EYE, metadata=toml)
    with embmap.open(tmp_path / "a.fifu") as file:
        assert file.metadata_toml == toml
        if values is not None:
            assert list(file.metadata.values()) == values
        json.dumps(file.info())
        assert file.verify().ok


def test_gigabytes_of_metadata_are_named_and_not_read(tmp_path):
    path, nbytes = tmp_path / "a.fifu", 4 << 30
    with path.open("wb") as out:
        out.write(b"FiFu" + struct.pack("<III", 0, 1, 5) + struct.pack("<IQ", 5, nbytes))
        start = out.tell()
        out.truncate(start + nbytes)  # holes, which take no room
    tracemalloc.start()
    with embmap.open(path) as file:
        for name in ("metadata", "metadata_toml"):
            with pytest.raises(embmap.FormatError, match=f"at most {MIB} bytes, not {nbytes}"):
                getattr(file, name)
        assert f"at most {MIB}" in file.info()["metadata"]["error"]
        assert f"at most {MIB}" in file.verify().problems[0].message
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()


def test_values_that_nest_without_end_are_no_metadata(tmp_path):
    pytest.importorskip("tomli_w", reason="tomli-w is not installed")
    deep: dict = {}
    for _ in range(10_000):
        deep = {"a": deep}
    for metadata in (deep, {"a": float("nan")}, {"a": 2**64}, {"a": "x" * MIB}):
        with pytest.raises(ValueError, match="metadata"):
            embmap.finalfusion.write(tmp_path / "a.fifu", WORDS, EYE, metadata=metadata)
    with pytest.raises(ValueError, match="metadata"):
        embmap.cvc.write(tmp_path / "a.cvc", EYE, metadata=deep)
    assert not any(tmp_path.iterdir())


def cvc(path, values):
    embmap.cvc.write(path, EYE, metadata={"x": "here"}, layout="0.1")
    data = path.read_bytes()
    (nbytes,) = struct.unpack("<I", data[4:8])
    header = data[8 : 8 + nbytes].replace(b'"here"', values)
    path.write_bytes(data[:4] + struct.pack("<I", len(header)) + header + data[8 + nbytes :])
    return path


CVC = {
    "deep": b"[" * 240 + b"]" * 240,
    "not a number": b"[NaN, Infinity]",
    "surrogate": b'"\\ud800"',
}


@pytest.mark.parametrize("name", CVC)
def test_info_about_cvc_files_is_json(command, tmp_path, name):
    path = cvc(tmp_path / "a.cvc", CVC[name])
    with embmap.open(path) as file:
        json.dumps(file.info(), allow_nan=False).encode()
        assert file.verify().ok
    for more in ([], ["--json"]):
        status, _, err = command("info", path, *more)
        assert (status, err) == (0, "")


@pytest.mark.parametrize("depth", [260, 600, 100_000])
def test_headers_that_nest_without_end_are_refused(tmp_path, depth):
    with pytest.raises(embmap.FormatError, match="256 levels"):
        embmap.open(cvc(tmp_path / "a.cvc", b"[" * depth + b"]" * depth))
    text = b'{"__metadata__": ' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    with pytest.raises(embmap.FormatError, match="256 levels"):
        embmap.convert(tmp_path / "a.safetensors", tmp_path / "b.npy", input_format="safetensors")


def test_a_condition_that_nests_without_end_finds_no_section(command, tmp_path):
    embmap.cvc.write(tmp_path / "a.cvc", EYE)
    status, _, err = command("get", tmp_path / "a.cvc", "--section", "x=" + "[" * 50_000)
    assert status == 2
    assert "no section" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("config", [b"[" * 100_000, b"[1]", b"{", b"\xff"])
def test_a_damaged_configuration_is_named(tmp_path, config):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    numpy.save_file({"x": EYE}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(config)
    with pytest.raises(ValueError, match=r"config\.json"):
        embmap.embd.from_safetensors(tmp_path / "model.safetensors")
