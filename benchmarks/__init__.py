"""Benchmarks of embmap and its peers, which produce every figure in docs/benchmarks.md.

``python -m benchmarks`` measures and prints a table. Plain pytest runs the same code once over
small files, to test that embmap and the peers give the same answers.
"""
