"""Shapes as points: files of clouds and meshes, points on a surface, and what a camera sees of them."""
