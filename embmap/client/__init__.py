"""Files that another process serves, with the face of local ones: ``embmap.connect(url)``.

Needs nothing but the standard library and numpy. Vectors travel as .npy, so what arrives are the
numbers of the file; errors are those that the local file would raise.
"""

from embmap.client.connections import RemoteError
from embmap.client.files import RemoteFile
from embmap.client.matrix import RemoteMatrix
from embmap.client.server import Server, connect

__all__ = ["RemoteError", "RemoteFile", "RemoteMatrix", "Server", "connect"]
