"""``embmap similar``, ``analogy`` and ``accuracy``: the nearest words, and analogies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import typer

import embmap
from embmap.cli.get_vectors import find_section_rows
from embmap.cli.options import (
    BackendOption,
    CountOption,
    FileArgument,
    JsonOption,
    LayoutOption,
    SectionOption,
    TimeOption,
    VocabOption,
    choose,
)
from embmap.cli.printing import complain, print_json, print_neighbors, print_rows
from embmap.cli.trajectory_related_changes import choose_time_step
from embmap.search.queries import Metric
from embmap.words.given import read_words

__all__ = ["accuracy", "analogy", "check_words", "similar"]

_AT_ONCE = 4096  # questions answered together
_COUNTS = ("questions", "skipped", "correct")


def similar(
    file: FileArgument,
    word: Annotated[str | None, typer.Argument(metavar="WORD", help="A word.")] = None,
    n: CountOption = 10,
    metric: Annotated[
        Metric, choose(get_args(Metric), "What to order words by; euclidean is the distance.")
    ] = "cosine",
    positive: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A word to add to WORD; may be repeated."),
    ] = None,
    negative: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A word to subtract from WORD; may be repeated."),
    ] = None,
    among: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A text file with the words to compare, one per line."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="START:STOP", help="The rows to compare, from START to STOP - 1."),
    ] = None,
    section: SectionOption = None,
    dim: Annotated[
        int | None,
        typer.Option(metavar="K", help="Compare only the first K numbers of the vectors."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A word not to list, besides WORD; may be repeated."),
    ] = None,
    approximate: Annotated[
        bool,
        typer.Option(
            "--approximate", help="Use the index FILE.usearch, which f.build_ann() writes."
        ),
    ] = False,
    time: TimeOption = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """List the words nearest to a word, or to a sum of words.

    Of a sum, each word is first scaled to unit length. All words are compared, or those that one of
    --among, --rows and --section chooses.
    """
    words = [each for each in (word, *(positive or ()), *(negative or ())) if each is not None]
    if not words:
        raise ValueError("give a WORD, --positive or --negative")
    if sum(each is not None for each in (among, rows, section)) > 1:
        raise ValueError("give one of --among, --rows and --section")
    summed: dict[str, Any] = {"query": word}
    if positive or negative:
        added = [each for each in (word, *(positive or ())) if each is not None]
        summed = {"positive": added, "negative": negative}
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        check_words(opened, words)
        chosen: Any = None
        if among is not None:
            chosen = [each for each in read_words(among) if each]
            check_words(opened, chosen, composed=False)
        elif rows is not None:
            chosen = np.arange(len(opened))[_parse_range(rows)]
        elif section is not None:
            chosen = find_section_rows(opened, section)
        found = choose_time_step(opened, time).most_similar(
            **summed,
            n=n,
            metric=metric,
            among=chosen,
            dim=dim,
            exclude=[*words, *exclude] if exclude else None,
            approximate=approximate,
        )
    if metric == "euclidean":  # the score is minus the distance
        print_neighbors(found, as_json, "distance", sign=-1)
    else:
        print_neighbors(found, as_json, metric)


def analogy(
    file: FileArgument,
    a: Annotated[str, typer.Argument(metavar="A", help="As this word")],
    b: Annotated[str, typer.Argument(metavar="B", help="is to this word,")],
    c: Annotated[str, typer.Argument(metavar="C", help="so is this word to the words listed.")],
    n: CountOption = 10,
    time: TimeOption = None,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """List the words that are to C as B is to A."""
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        check_words(opened, [a, b, c])
        found = choose_time_step(opened, time).analogy(a, b, c, n)
    print_neighbors(found, as_json, "cosine")


def accuracy(
    file: FileArgument,
    questions: Annotated[
        Path,
        typer.Argument(
            metavar="QUESTIONS",
            help="A text file of analogies like word2vec's questions-words.txt: four words a line; "
            "a line ': NAME' starts a section.",
        ),
    ],
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Convert the questions to lower case.")
    ] = False,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Count the analogies that hold.

    An analogy holds if the fourth word is the nearest answer to the first three. Analogies with
    unknown words are skipped.
    """
    asked = list(_read_questions(questions, lowercase))
    sections: dict[str, dict[str, Any]] = {}
    with (
        embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened,
        embmap.progress_bar() as step,
    ):
        if opened.vocab is None:
            raise ValueError(f"{file} contains no words; give --vocab")
        for first in range(0, len(asked), _AT_ONCE):
            _answer(opened, asked[first : first + _AT_ONCE], sections)
            if step is not None:
                step("answering questions", min(first + _AT_ONCE, len(asked)), len(asked))
    total = {key: sum(counts[key] for counts in sections.values()) for key in _COUNTS}
    results = [{"section": name, **counts} for name, counts in sections.items()]
    for counts in (*results, total):
        n_asked = counts["questions"] - counts["skipped"]
        counts["accuracy"] = counts["correct"] / n_asked if n_asked else None
    if as_json:
        print_json({"sections": results, "total": total})
        return
    rows = [_format_counts(str(counts["section"]), counts) for counts in results]
    print_rows(
        ("section", "accuracy", "correct", "asked", "skipped"),
        [*rows, _format_counts("total", total)],
    )


def _read_questions(path: Path, lowercase: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of the section and the four words of each question."""
    section = ""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}, byte {error.start}: not UTF-8") from None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(":"):
            section = line[1:].strip()
            continue
        words = line.lower().split() if lowercase else line.split()
        if words and len(words) != 4:
            raise ValueError(f"{path}, line {number}: a question has 4 words, not {len(words)}")
        if words:
            yield section, words


def _answer(
    opened: embmap.EmbeddingFile,
    asked: list[tuple[str, list[str]]],
    sections: dict[str, dict[str, Any]],
) -> None:
    """Ask questions and count the answers, section by section."""
    rows = opened.find([word for _, words in asked for word in words]).reshape(-1, 4)
    known = [min(found) >= 0 for found in rows.tolist()]
    a, b, c = (
        [words[i] for (_, words), ok in zip(asked, known, strict=True) if ok] for i in (0, 1, 2)
    )
    answers = iter(opened.analogy(a, b, c, n=1))
    for (section, _), ok, expected in zip(asked, known, rows[:, 3].tolist(), strict=True):
        counts = sections.setdefault(section, dict.fromkeys(_COUNTS, 0))
        counts["questions"] += 1
        if not ok:
            counts["skipped"] += 1
            continue
        answer = next(answers)
        counts["correct"] += bool(answer) and answer[0].row == expected


def _format_counts(name: str, counts: dict[str, Any]) -> tuple[str, ...]:
    share = "" if counts["accuracy"] is None else f"{100 * counts['accuracy']:.2f} %"
    n_asked = counts["questions"] - counts["skipped"]
    return (name, share, *(str(value) for value in (counts["correct"], n_asked, counts["skipped"])))


def _parse_range(text: str) -> slice:
    start, colon, stop = text.partition(":")
    try:
        if colon:
            return slice(int(start) if start else None, int(stop) if stop else None)
    except ValueError:
        pass
    raise ValueError(f"--rows must be START:STOP, not {text!r}")


def check_words(opened: embmap.EmbeddingFile, words: list[str], *, composed: bool = True) -> None:
    """Exit with status 1 and a message if some words have no vector, or no row of their own."""
    if opened.vocab is None and opened.vectors is not None:
        raise ValueError(f"{opened.format} files contain no words; give --vocab")
    absent = np.flatnonzero(opened.find(words) < 0).tolist()
    unknown = [words[i] for i in absent if not composed or opened.get(words[i]) is None]
    for word in unknown:
        complain(f"{opened.path}: no vector for {word!r}")
    if unknown:
        raise typer.Exit(1)
