"""Every pair of ranks beside the others: matrices, slow and asymmetric pairs, slow ranks."""
