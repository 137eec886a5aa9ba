"""Operations that several mechanisms share. In each folder `reference.py` is the definition, the rest only faster."""
