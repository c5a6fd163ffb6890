"""``embmap outlier``, ``rank`` and ``correlation``: words compared with few others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import embmap
from embmap.cli.options import BackendOption, FileArgument, JsonOption, LayoutOption, VocabOption
from embmap.cli.printing import print_json, print_rows, replace_non_finite
from embmap.cli.similar_analogy_accuracy import check_words

__all__ = ["correlation", "outlier", "rank"]


def outlier(
    file: FileArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORD...", help="Words.")],
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Print the word that goes least with the others: the farthest from the mean of all."""
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        check_words(opened, words)
        typer.echo(opened.doesnt_match(words))


def rank(
    file: FileArgument,
    word: Annotated[str, typer.Argument(metavar="WORD", help="A word.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The word to rank.")],
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Print the rank of OTHER among the neighbors of WORD, from 1."""
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        check_words(opened, [word, other])
        typer.echo(opened.rank(word, other))


def correlation(
    file: FileArgument,
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS",
            help="A text file like wordsim353: two words and their similarity on each line, "
            "separated by tabs or commas.",
        ),
    ],
    dim: Annotated[
        int | None,
        typer.Option(metavar="K", help="Compare only the first K numbers of the vectors."),
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Convert the words of PAIRS to lower case.")
    ] = False,
    as_json: JsonOption = False,
    vocab: VocabOption = None,
    layout: LayoutOption = None,
    backend: BackendOption = "mmap",
) -> None:
    """Correlate the cosines of word pairs with the similarities that people gave them.

    Pairs with words that are not in the vocabulary are skipped.
    """
    with embmap.open(file, layout=layout, backend=backend, vocab=vocab) as opened:
        check_words(opened, [])
        found = opened.evaluate_word_pairs(pairs, dim=dim, lowercase=lowercase)
    if as_json:
        pearson, spearman = replace_non_finite([found.pearson, found.spearman])
        print_json({**found._asdict(), "pearson": pearson, "spearman": spearman})
        return
    rows = [("Pearson", f"{found.pearson:.4f}"), ("Spearman", f"{found.spearman:.4f}")]
    rows += [("pairs", str(found.n_pairs)), ("skipped", f"{100 * found.oov_ratio:.2f} %")]
    print_rows((), rows)
