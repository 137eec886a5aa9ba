"""Cards, the folder that holds them, and the boards made from them. Nothing here imports torch."""
