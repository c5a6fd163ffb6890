"""A room imports only from rooms below it: the order of the wings, read off the imports."""

import ast
from pathlib import Path

import pytest

import embmap

ROOT = Path(embmap.__file__).parent
# From the ground up. Rooms of one line do not know each other.
ORDER = [
    ["errors", "progress", "forking"],
    ["report"],
    ["threads"],
    ["io"],
    ["codecs"],
    ["words", "vectors"],
    ["search"],
    ["absent", "embeddings", "indexing", "columns"],
    ["exchange"],
    ["embedding_file"],
    ["formats.exchange"],
    ["formats.format"],
    ["formats.tensors", "formats.composed"],
    [
        *("formats.finalfusion", "formats.dwe", "formats.embd", "formats.cvc", "formats.word2vec"),
        *("formats.text", "formats.fasttext", "formats.npy", "formats.safetensors"),
        *("formats.gensim", "formats.parquet"),
    ],
    ["formats.registry", "devices"],
    ["opening", "finalfusion", "dwe", "embd", "cvc", "subwords"],
    ["conversion", "arrow", "spacy"],
    ["client", "torch"],
    [""],  # embmap itself: the public face
    ["serve", "bench", "demo"],
    ["cli"],
    ["__main__"],
]
FLOORS = {wing: floor for floor, wings in enumerate(ORDER) for wing in wings}


def wing_of(module):
    """The wing that a module is in: the first part of its name, or the first two of a format."""
    name = module.removeprefix("embmap").removeprefix(".")
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "formats" and len(parts) > 1 else parts[0]


def modules():
    """Each module of the package with its path."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imported(source, known):
    """The modules of embmap that some source imports, lazily or for types only as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "embmap")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "embmap":
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                yield inner if inner in known else node.module


def upward(module, source, known):
    """Why imports of a module run against the order, a sentence each."""
    own = wing_of(module)
    for target in imported(source, known):
        wing = wing_of(target)
        if wing == own:
            continue
        if FLOORS[wing] >= FLOORS[own]:
            yield f"{module} imports {target}, which is not below it"


def test_every_module_is_in_a_wing():
    assert {wing_of(name) for name, _ in modules()} - {"formats"} == set(FLOORS)


@pytest.mark.parametrize(("name", "path"), [pytest.param(*each, id=each[0]) for each in modules()])
def test_a_room_imports_only_from_rooms_below_it(name, path):
    known = {each for each, _ in modules()}
    assert not list(upward(name, path.read_text("utf-8"), known))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("embmap.words.records", "from embmap.vectors.matrix import Matrix"),
        ("embmap.vectors.matrix", "from embmap.words import records"),
        ("embmap.io.mapping", "import embmap.codecs.half"),
        ("embmap.formats.cvc.file", "from embmap.formats.dwe.file import DweFile"),
        ("embmap.search.similarity", "from embmap import embedding_file"),
        ("embmap.conversion.inputs", "def f():\n    from embmap import convert"),
    ],
)
def test_an_import_that_is_turned_round_is_noticed(module, source):
    known = {each for each, _ in modules()}
    (told,) = upward(module, source, known)
    assert told.startswith(f"{module} imports embmap")


def circles(graph):
    """Modules that import each other in a ring."""
    done, found = set(), []

    def walk(node, path):
        if node in path:
            found.append([*path[path.index(node) :], node])
        elif node not in done:
            for following in sorted(graph[node]):
                walk(following, [*path, node])
            done.add(node)

    for node in sorted(graph):
        walk(node, [])
    return found


def test_no_modules_import_each_other_in_a_circle():
    known = {each for each, _ in modules()}
    graph = {
        name: {each for each in imported(path.read_text("utf-8"), known) if each in known} - {name}
        for name, path in modules()
    }
    assert not circles(graph)
