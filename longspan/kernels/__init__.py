"""Operations that several mechanisms share. In each folder: `reference.py` is the law, the others are only faster."""
