"""Writes that follow one another over TCP, without an answer."""
