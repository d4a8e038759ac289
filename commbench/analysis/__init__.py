"""Frames in, frozen answers out: best, comparisons, slow links."""
