"""A static site from cards and the catalogue, readable from a folder without any network."""
