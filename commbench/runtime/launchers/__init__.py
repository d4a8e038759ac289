"""Programs that start ranks, one file each.

A new launcher is a class in launchers/NAME.py that fulfils core.protocols.Launcher, and a file
conf/launcher/NAME.yaml with its `_target_`: core/launchers.py finds it there, and nothing else has
to know of it.
"""
