"""Loops that run a lowered program n times and time each repetition."""
