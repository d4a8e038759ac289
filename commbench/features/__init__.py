"""A folder for each feature: deleting it takes the feature away, and nothing else changes."""
