"""`commbench export`: results as CSV, and JSON lines as parquet files."""
