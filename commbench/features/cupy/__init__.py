"""NCCL through CuPy, without torch."""
