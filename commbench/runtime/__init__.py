"""Ranks: identity, rendezvous, control plane, heartbeats, supervision of the processes."""
