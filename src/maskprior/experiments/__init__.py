"""Runs: configuration, named generators, training, records and sweeps."""
