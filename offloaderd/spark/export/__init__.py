"""Export of segments as Parquet or Iceberg."""
