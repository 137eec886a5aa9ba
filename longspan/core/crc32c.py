"""CRC-32C (Castagnoli), the checksum that Google's storage announces for every file, in plain NumPy.

A block is cut into lanes that advance one byte at a time, all together; neighbouring lanes are then joined two by two:
crc(AB) = crc(A) moved over the length of B, xor crc(B), where moving over zeros is linear in the 32 bits.
"""

import functools
from pathlib import Path

import numpy as np

LANES, WIDTH = 1 << 14, 1 << 10  # a block of 16 MiB


def crc32c_file(path: Path) -> str:
    """The checksum of a file in hexadecimal, eight digits.

    >>> import tempfile; handle = tempfile.NamedTemporaryFile(); handle.write(b"123456789"); handle.flush()
    9
    >>> crc32c_file(Path(handle.name))
    'e3069283'
    """
    state = np.uint32(0xFFFFFFFF)
    with path.open("rb") as handle:
        while block := handle.read(LANES * WIDTH):
            state = _advance(state, np.frombuffer(block, np.uint8))
    return f"{int(state) ^ 0xFFFFFFFF:08x}"


def _advance(state: np.uint32, content: np.ndarray) -> np.uint32:
    """The register after these bytes, without the inversions at both ends."""
    lanes = 1
    while lanes < LANES and 2 * lanes * WIDTH <= len(content):
        lanes *= 2
    width = len(content) // lanes
    columns = np.ascontiguousarray(content[: lanes * width].reshape(lanes, width).T)
    registers = np.zeros(lanes, np.uint32)
    registers[0] = state
    table = _table()
    for column in columns:
        registers = table[(registers ^ column) & 0xFF] ^ (registers >> np.uint32(8))
    length = width
    while len(registers) > 1:
        registers = _moved(registers[0::2], length) ^ registers[1::2]
        length *= 2
    rest = content[lanes * width :]  # fewer bytes than lanes
    state = np.uint32(registers[0])
    for byte in rest.tolist():
        state = np.uint32(table[(int(state) ^ byte) & 0xFF] ^ (int(state) >> 8))
    return state


@functools.cache
def _table() -> np.ndarray:
    """What one byte does to an empty register."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


def _moved(registers: np.ndarray, zeros: int) -> np.ndarray:
    """Every register after `zeros` further bytes of zero."""
    result = np.zeros_like(registers)
    for bit, column in enumerate(_columns(zeros)):
        result ^= np.where((registers >> np.uint32(bit)) & np.uint32(1), column, np.uint32(0))
    return result


@functools.lru_cache(maxsize=256)
def _columns(zeros: int) -> np.ndarray:
    """Where each single bit goes under `zeros` bytes of zero: the columns of a 32 x 32 matrix over GF(2)."""
    if zeros == 1:
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        return _table()[bits & np.uint32(0xFF)] ^ (bits >> np.uint32(8))
    half = _moved(_columns(zeros // 2), zeros // 2)
    return _moved(half, 1) if zeros % 2 else half
