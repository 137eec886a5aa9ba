"""What every other package uses; nothing here imports torch at module level."""
