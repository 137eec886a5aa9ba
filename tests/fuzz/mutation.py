"""Random damage to bytes, of the kinds that disks, networks and attackers cause."""

import random

ODD_BYTES = (b"\0", b"\xff", b"\x80", b"\x7f", b"/", b"..", b"-1", b"PK\3\4", b"PK\1\2", b"9" * 12, b"\xff" * 8, b"nan")


def damaged(content: bytes, dice: random.Random) -> bytes:
    """The content with one to four faults."""
    for _ in range(dice.choice([1, 1, 1, 2, 4])):
        content = dice.choice(FAULTS)(content, dice)
    return content


def _flip(content: bytes, dice: random.Random) -> bytes:
    if not content:
        return b"\0"
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << dice.randrange(8))]) + content[place + 1 :]


def _overwrite(content: bytes, dice: random.Random) -> bytes:
    place, new = dice.randrange(len(content) + 1), dice.choice(ODD_BYTES)
    return content[:place] + new + content[place + len(new) :]


def _insert(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content) + 1)
    return content[:place] + dice.choice([*ODD_BYTES, dice.randbytes(dice.randrange(40))]) + content[place:]


def _remove(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(len(content) + 1)
    return content[:place] + content[place + dice.choice([1, 2, 8, 100, 512]) :]


def _cut(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _repeat(content: bytes, dice: random.Random) -> bytes:
    start, stop = sorted(dice.choices(range(len(content) + 1), k=2))
    return content[:stop] + content[start:]


def _zeros(content: bytes, dice: random.Random) -> bytes:
    start, stop = sorted(dice.choices(range(len(content) + 1), k=2))
    return content[:start] + bytes(stop - start) + content[stop:]


FAULTS = (_flip, _flip, _flip, _overwrite, _overwrite, _insert, _remove, _cut, _repeat, _zeros)
