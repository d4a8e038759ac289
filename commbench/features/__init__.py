"""Features: a folder each, which can be deleted; see core/features.py."""
