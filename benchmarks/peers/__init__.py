"""What a user might pick instead: other packages next to this one, in one process, on the same tensors.

    python -m benchmarks.peers --lengths 1024 4096 16384 --json peers.json

Nothing here is installed with Longspan. A package that cannot be imported is skipped with a message; nearly all are
pure Python, so a folder with their unpacked wheels on PYTHONPATH is enough.
"""
