"""One output format a file. Only rank 0 writes."""
