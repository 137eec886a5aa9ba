"""Many cells: each runs in a worker process, so that none can harm another or the command that was given."""
