"""Files that ``embmap serve`` serves, with the interface of local files: ``embmap.connect(url)``.

The client needs only the standard library and numpy. Vectors travel as .npy, so that their bits are
the same as in the file. Errors are the same as a local file would raise.
"""

from embmap.client.connections import RemoteError
from embmap.client.files import RemoteFile
from embmap.client.interface import ModelFacts
from embmap.client.matrix import RemoteMatrix
from embmap.client.server import Server, connect

__all__ = ["ModelFacts", "RemoteError", "RemoteFile", "RemoteMatrix", "Server", "connect"]
