"""The EMBD format (``.weights``): named tensors, a WordPiece vocabulary, metadata, checksums."""
