"""Search for the rows nearest to a vector: exact, approximate, and by words."""
