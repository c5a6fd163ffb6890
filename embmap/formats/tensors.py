"""Files of named tensors: one of them holds the vectors, and each is an array by its name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from embmap.codecs.bfloat import as_float32, dtype_of
from embmap.embedding_file import EmbeddingFile
from embmap.errors import UnsupportedError
from embmap.formats.format import FileFormat
from embmap.io.mapping import ByteSource
from embmap.vectors.bfloat import BFloat16Matrix
from embmap.vectors.dense import dense_matrix
from embmap.vectors.matrix import Matrix

if TYPE_CHECKING:
    from embmap.formats.exchange import Request

__all__ = [
    "NamedTensors",
    "StoredTensor",
    "TensorFile",
    "TensorFormat",
    "TensorTable",
    "choose_by_name",
    "is_matrix",
    "tensor_matrix",
]

# The names of the word embedding in published models, the most common name first.
_WORD_EMBEDDINGS = (
    "embeddings.word_embeddings.weight",
    "word_embeddings.weight",
    "embed_tokens.weight",
    "wte.weight",
    "token_embedding.weight",
    "shared.weight",
)
_LINES = [f"{name}\n" for name in _WORD_EMBEDDINGS]
# Bits of a number of each type that numpy lacks, by its name in ml_dtypes.
_BITS = {
    "bfloat16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e4m3fnuz": 8,
    "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
    "float4_e2m1fn": 4,
}


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor: its dtype as numpy or ml_dtypes spells it, and its place in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bits(self) -> int:
        """Size of a number in bits; numbers of less than 8 are packed."""
        return _BITS.get(self.dtype) or 8 * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Size of the data in bytes."""
        return math.prod(self.shape) * self.bits // 8


T = TypeVar("T", bound=StoredTensor)


class TensorTable(Mapping[str, T]):
    """Tensors by name in the order of the file, each described when it is asked for.

    `names` are the names; if two are equal, the table has fewer items.
    """

    def __init__(self, names: list[str], numbers: dict[str, int] | None = None) -> None:
        self.names = names
        self._numbers = numbers or dict(zip(names, range(len(names)), strict=True))

    @abstractmethod
    def describe(self, number: int) -> T:
        """Return the dtype, shape and place of a tensor by its number."""

    @abstractmethod
    def find_matrix(self, n_rows: int | None = None) -> T | None:
        """Return the only tensor of two dimensions, and of `n_rows` rows if given; None if none."""

    def __getitem__(self, name: str) -> T:
        """Return the dtype, shape and place of a tensor."""
        return self.describe(self._numbers[name])

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return name in self._numbers

    def __iter__(self) -> Iterator[str]:
        """Return the names in order."""
        return iter(self._numbers)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._numbers)


class NamedTensors(Mapping[str, npt.NDArray[Any]]):
    """The tensors of a file by name: read-only arrays, which are views if the file is mapped."""

    def __init__(self, file: ByteSource, format: str, tensors: Mapping[str, StoredTensor]) -> None:
        self.data = file
        self.format = format
        self._tensors = tensors

    def layout(self, name: str) -> StoredTensor:
        """Return the dtype, shape and place of a tensor without reading it."""
        return self._tensors[name]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a tensor.

        Types that numpy lacks need ml_dtypes, without which their bits are returned as unsigned
        integers.
        """
        tensor = self._tensors[name]
        if tensor.bits % 8:
            raise UnsupportedError(
                f"numbers of {tensor.bits} bits, which are packed, cannot be read",
                path=self.data.path,
                format=self.format,
                offset=tensor.offset,
                field=f"tensor {name[:100]!r}",
            )
        return self.data.array(tensor.offset, dtype_of(tensor.dtype), tensor.shape)

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of that name."""
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        """Return the names in the order of the file."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._tensors)

    def __repr__(self) -> str:
        """List the names of the tensors; reads nothing."""
        return f"<Tensors of {self.data.path}: {', '.join(self)}, not read>"


class TensorFile(EmbeddingFile):
    """A file of named tensors; the vectors are the rows of one of them."""

    _parts = ("_tensors",)
    _tensors: NamedTensors
    vectors_name: str | None = None  # the tensor of the vectors

    @property
    def tensors(self) -> NamedTensors:
        """The tensors by name: read-only arrays, which are views if the file is mapped."""
        self._check_open()
        return self._tensors

    def tensor(self, name: str, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """Return a tensor, with its values converted to a dtype if one is given.

        Parameters
        ----------
        name : str
            The name of the tensor.
        dtype : dtype-like, optional
            The dtype of the result; by default the stored dtype.

        Returns
        -------
        numpy.ndarray
            The tensor, in its shape; a view if the file is mapped and no value is converted.

        Raises
        ------
        KeyError
            If there is no tensor of that name.
        UnsupportedError
            If its numbers have less than 8 bits.
        ImportError
            If numbers of 8 bits are converted and ml_dtypes is not installed.
        """
        array = self.tensors[name]
        if dtype is None:
            return array
        stored = self._tensors.layout(name).dtype
        if stored == "bfloat16":
            array = as_float32(array)
        elif stored in _BITS and array.dtype == np.uint8:
            raise ImportError(f"{stored} needs ml_dtypes: pip install 'embmap[bf16]'")
        with np.errstate(over="ignore", invalid="ignore"):  # of values that the dtype lacks
            return array.astype(dtype, copy=False)

    def _list_tensors(self) -> list[dict[str, Any]]:
        """Return the chunks of info(): the tensors in the order of the file."""
        layouts = map(self._tensors.layout, self._tensors)
        return [
            {
                "name": tensor.name,
                "dtype": tensor.dtype.lstrip("<|"),
                "shape": list(tensor.shape),
                "offset": tensor.offset,
                # The largest power of two that divides the offset, up to a page.
                "alignment": min(tensor.offset & -tensor.offset, 4096),
                "nbytes": tensor.nbytes,
            }
            for tensor in layouts
        ]


class TensorFormat(FileFormat):
    """A format whose files hold named tensors."""

    has_tensors = True

    def choose_matrix(self, file: EmbeddingFile, request: Request) -> Matrix:
        """Return the tensor that is asked for, or the one that holds the vectors."""
        tensors = cast(TensorFile, file).tensors
        name = request.tensor
        if name is None:
            if file.vectors is not None:
                return file.vectors
            matrices = [each for each in tensors if len(tensors.layout(each).shape) == 2]
            if len(matrices) > 1:
                names = ", ".join(matrices)
                raise ValueError(
                    f"{file.path} has several tensors; choose one with tensor: {names}"
                )
            if not matrices:
                raise ValueError(f"{file.path} has no tensor of numbers in two dimensions")
            name = matrices[0]
        if name not in tensors:
            raise ValueError(f"{file.path} has no tensor {name!r}, but {', '.join(tensors)}")
        tensor = tensors.layout(name)
        if len(tensor.shape) != 2:
            n = len(tensor.shape)
            raise ValueError(f"{file.path}: tensor {name!r} has {n} dimensions, not 2")
        if not is_matrix(tensor):
            raise UnsupportedError(
                "numbers of this dtype cannot be vectors",
                path=file.path,
                format=self.name,
                field=f"tensor {name[:100]!r}",
                found=tensor.dtype,
            )
        return tensor_matrix(tensors.data, tensor)


def is_matrix(tensor: StoredTensor) -> bool:
    """Whether the rows of a tensor may be vectors."""
    is_number = tensor.dtype == "bfloat16" or tensor.dtype.lstrip("<|")[0] in "iu"
    is_float = tensor.dtype in ("<f2", "<f4", "<f8")
    return len(tensor.shape) == 2 and (is_number or is_float)


def choose_by_name(tensors: TensorTable[T], n_rows: int = 0) -> T | None:
    """Return the matrix with the best known name of a word embedding, if it has enough rows."""
    names = "\n".join((*tensors.names, ""))
    if not any(line in names for line in _LINES):
        return None
    listed = [tensors[name] for name in tensors.names if name.endswith(_WORD_EMBEDDINGS)]
    matrices = [each for each in listed if len(each.shape) == 2 and each.shape[0] >= n_rows]
    for ending in _WORD_EMBEDDINGS:
        for tensor in matrices:
            if tensor.name == ending or tensor.name.endswith(f".{ending}"):
                return tensor
    return None


def tensor_matrix(file: ByteSource, tensor: StoredTensor) -> Matrix:
    """Return the matrix over a tensor of two dimensions."""
    shape = cast("tuple[int, int]", tensor.shape)
    if tensor.dtype == "bfloat16":
        return BFloat16Matrix(dense_matrix(file, tensor.offset, shape, "<u2"))
    return dense_matrix(file, tensor.offset, shape, tensor.dtype)
