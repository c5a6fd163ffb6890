"""Parquet: tables of columns, which pyarrow reads and writes."""

FORMAT = "parquet"
