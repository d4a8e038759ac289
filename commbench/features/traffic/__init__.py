"""How much each rank sends to each: patterns, mixtures of experts, and matrices from files."""
