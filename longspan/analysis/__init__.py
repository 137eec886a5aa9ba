"""One question per file, answered from cards and published tables alone."""
