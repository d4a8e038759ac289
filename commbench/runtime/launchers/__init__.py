"""Programs that start ranks, one file each.

A new launcher is a folder of features with a class that fulfils core.protocols.Launcher, and a
file launcher/NAME.yaml with its `_target_`: core/launchers.py finds it there, and nothing else has
to know of it.
"""
