"""What everything else stands on; nothing here imports torch at module level."""
