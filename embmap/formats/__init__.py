"""The file formats: each a layout (bytes to offsets), a file (offsets to views) and a writer."""
