"""Reading results. Imports no torch and nothing that measures."""
