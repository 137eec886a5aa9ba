"""Drawing Pathfinder images: `rules.py` the numbers, `stamps.py` the shapes, `growth.py` the snakes. See README.md."""
