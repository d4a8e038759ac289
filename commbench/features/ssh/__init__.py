"""Ranks on hosts that one can log in to."""
