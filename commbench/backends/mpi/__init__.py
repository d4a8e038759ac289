"""MPI through mpi4py and its C calls."""
