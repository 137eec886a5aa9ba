"""Byte-level BPE, trained on texts or read from the files of a known vocabulary.

    coder = train(texts, 8_000, special=SPECIALS)     # or load(folder): vocab.json and merges.txt, tokenizer.json...
    ids = coder.encode(["one text", "another"])
    text(coder.pieces, ids[0])                        # "one text"

Every byte is a token, so that any text can be encoded and nothing is unknown; text that looks like a special token is
encoded as text. Encoding needs the library `tokenizers`; decoding (`pieces`, `Vocabulary`) needs only NumPy. `streams`
joins the lines of a text into one stream.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from longspan.core.errors import CorruptFile, DataMissing, UsageError

SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
BEGIN, PAD, END, UNKNOWN = range(len(SPECIALS))
SILENT = frozenset((*SPECIALS, "<mask>"))  # tokens that decode to nothing, and that no merge produces
FEWEST = 256 + len(SPECIALS)  # every byte, and the special ones
NAMES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
)  # files of vocabulary and merges in common libraries


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each id (empty for special tokens), and the ids of begin, padding and end."""

    pieces: tuple[bytes, ...]
    begin: int
    pad: int
    end: int

    def __len__(self) -> int:
        return len(self.pieces)

    def text(self, ids: Iterable[int]) -> str:
        return text(self.pieces, ids)


def text(pieces: Sequence[bytes], ids: Iterable[int]) -> str:
    """The text of these ids; invalid UTF-8 is shown as U+FFFD."""
    return b"".join(pieces[int(one)] for one in ids).decode(errors="replace")


class Coder:
    """A BPE vocabulary with its merges."""

    def __init__(self, entries: dict[str, int], merges: list[tuple[str, str]]):
        self.entries, self.merges = entries, merges

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes of each token; empty for tokens that no bytes encode to."""
        pieces = [b""] * len(self)
        for piece, number in self.entries.items():
            if piece not in SILENT and all(character in _BYTES for character in piece):
                pieces[number] = bytes(_BYTES[character] for character in piece)
        return tuple(pieces)

    @property
    def vocabulary(self) -> Vocabulary:
        """For a coder with special tokens."""
        return Vocabulary(self.pieces, *(self.entries[name] for name in SPECIALS[:3]))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each text, in 16 bits if the vocabulary and one more id fit."""
        dtype = np.uint16 if len(self) < 1 << 16 else np.uint32
        return [np.array(one.ids, dtype) for one in self._tokenizer.encode_batch(list(texts))]

    def save(self, folder: Path, names: tuple[str, str] = NAMES[0]) -> None:
        """Write two files that `load` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / names[0]).write_text(json.dumps(self.entries, ensure_ascii=False), encoding="utf-8")
        lines = ["#version: 0.2", *(" ".join(pair) for pair in self.merges)]
        (folder / names[1]).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def to_json(self) -> bytes:
        """The content of a tokenizer.json."""
        return self._tokenizer.to_str().encode()

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import models

        # Without added tokens: "</s>" in a text is four characters, not the end of the text.
        return _byte_level(models.BPE(vocab=self.entries, merges=self.merges))


def train(texts: Iterable[str] | Iterable[list[str]], size: int, *, special: Sequence[str] = ()) -> Coder:
    """Train BPE on texts, or on lists of them: at most `size` tokens, the special ones first."""
    if size < 256 + len(special):
        raise UsageError(
            f"A byte-level vocabulary has {256 + len(special)} entries or more, got {size:,}; ask for a larger one."
        )
    from tokenizers import models, trainers

    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=sorted(_BYTES), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return of_json(tokenizer.to_str(), "the trained vocabulary")


def load(folder: Path, *, wanted: str, remedy: str, special: Sequence[str] = ()) -> Coder:
    """A vocabulary from the user's files, two or one with known names; it must have these special tokens.

    If there are none, the error says what was wanted and what to do.
    """
    for entries, merges in ([folder / name for name in names] for names in NAMES):
        if entries.is_file() and merges.is_file():
            pairs = [line for line in _read(merges).split("\n") if line and not line.startswith("#version")]
            return _of_model({"vocab": _parse(_read(entries), str(entries)), "merges": pairs}, str(folder), special)
    if (whole := folder / "tokenizer.json").is_file():
        return of_json(_read(whole), str(whole), special)
    pairs = ", nor ".join(" and ".join(names) for names in NAMES)
    raise DataMissing(f"{wanted} was asked for, but {folder} has neither {pairs}, nor tokenizer.json; {remedy}")


def of_json(content: str | bytes, where: str, special: Sequence[str] = ()) -> Coder:
    """The coder from the content of a tokenizer.json; `where` is used in error messages."""
    whole = _parse(content, where)
    return _of_model(whole.get("model") if isinstance(whole, dict) else None, where, special)


def _of_model(model: Any, where: str, special: Sequence[str]) -> Coder:
    try:
        entries = {str(piece): int(number) for piece, number in model["vocab"].items()}
        merges = [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise CorruptFile(f"{where} does not hold a BPE vocabulary with merges ({error!r}); get it again.") from error
    if sorted(entries.values()) != list(range(len(entries))):
        raise CorruptFile(f"{where} should number its entries from 0 on without a gap; get it again.")
    missing = [name for name in special if name not in entries]
    if missing or not _BYTES.keys() <= entries.keys():
        raise CorruptFile(f"{where} lacks {', '.join(missing) or 'some bytes'}; it is not the byte-level BPE wanted.")
    if any(len(pair) != 2 or "".join(pair) not in entries or not set(pair) <= entries.keys() for pair in merges):
        raise CorruptFile(f"{where} has merges of pieces that are not in its vocabulary; get both files again.")
    return Coder(entries, [pair for pair in merges if "".join(pair) not in SILENT])  # type: ignore[arg-type]


def _parse(content: str | bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise CorruptFile(f"{where} is not readable JSON ({error}); get it again.") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFile(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); get it again.") from error


def _byte_level(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return tokenizer


def _alphabet() -> dict[str, int]:
    """The character for each byte in such files: itself if it is printable, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(0x100 + n): byte for n, byte in enumerate(unseen)}


_BYTES = _alphabet()
