"""Files that are small and damaged, and what embmap must make of them, by the slow decoders."""
