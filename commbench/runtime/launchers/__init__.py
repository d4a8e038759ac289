"""Programs that start ranks, one file each.

A new launcher NAME is a class `Name` in launchers/NAME.py that fulfils core.protocols.Launcher, and
a file conf/launcher/NAME.yaml: `registry` finds it by these names. docs/design.md lists what else
has to know of it.
"""
