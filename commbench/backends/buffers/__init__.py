"""Host and device memory: allocation, payload, staging copies, CUDA IPC handles."""
