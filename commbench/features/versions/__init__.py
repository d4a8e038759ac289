"""Where times change over the versions of a library, or over another variable that is ordered."""
