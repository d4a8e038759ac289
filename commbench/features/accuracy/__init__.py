"""What a reduction computes: how far its results are from the exact sum, and whether their bits
stay the same."""
