"""CUDA IPC: one process maps another's GPU memory and copies into it."""
