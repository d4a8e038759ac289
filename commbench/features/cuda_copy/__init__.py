"""`backend=cuda_copy`: copies between host and GPU memory."""
