"""The one training loop, its optimiser and its checkpoints."""
