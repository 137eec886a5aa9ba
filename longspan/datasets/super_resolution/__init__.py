"""Pictures for super-resolution: how files are found, and how a pair of resolutions is made from one picture."""
