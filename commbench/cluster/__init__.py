"""Is this cluster good, and which node is bad: acceptance, baselines, the gate, search, watch."""
