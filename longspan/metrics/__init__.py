"""Pure functions on predictions and labels."""
