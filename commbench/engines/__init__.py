"""Rooms that run a lowered program n times and stamp it. None of them knows a backend."""
