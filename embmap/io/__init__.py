"""The bytes of a file: reading them, the fields in them, replacing the file."""
