"""Tensors of PyTorch from embedding files (extra ``torch``).

``tensor`` and ``load_file`` return tensors; :class:`Rows` feeds a training loop from a file, and
:class:`Embedding` is a layer whose rows stay in it. In-place operations on what they return reach
neither the file nor another tensor.
"""

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "embmap.torch needs torch: pip install 'embmap[torch]'", name="torch"
    ) from error

from embmap.torch.embedding import Embedding
from embmap.torch.rows import Rows
from embmap.torch.tensors import load_file, tensor

__all__ = ["Embedding", "Rows", "load_file", "tensor"]
