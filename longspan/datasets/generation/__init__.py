"""How a corpus comes to lie on disk: compiled loops, shards that survive a kill, one lock, arrays written whole."""
