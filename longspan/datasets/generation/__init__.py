"""How a dataset is written to disk: compiled generators, resumable shards, atomically written arrays."""
