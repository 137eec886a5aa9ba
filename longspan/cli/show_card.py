"""`show CARD`: what was run, its score, and the samples beside it, as words, as a drawing, or as sound."""

from pathlib import Path

from longspan.cli import tables
from longspan.cli.app import say
from longspan.cli.entry_tables import print_facts
from longspan.core.errors import UsageError
from longspan.core.printable import printable, shown
from longspan.results import card as cards
from longspan.results import examples, render
from longspan.results.card import Card
from longspan.results.examples import CloudSample, Examples, PictureSample, SpeechSample
from longspan.results.heat_map import heat_map


def show_card(path: Path, output: Path | None, audio: Path | None) -> None:
    """Print the card at `path`; draw its samples to `output` and write its speech into the folder `audio`."""
    card = cards.read(path, "run")
    found = examples.read(path.parent, card)
    if (output or audio) and not found:
        raise UsageError(
            f"{path.name} has no samples beside it; runs of speech, point clouds and super-resolution keep some."
        )
    clips = [sample for sample in found if isinstance(sample, SpeechSample)]
    if audio and not clips:
        raise UsageError(f"The samples of {path.name} are not speech; leave --audio out, -o draws them.")
    print_facts(f"{card['task']} · {card['title']}", "card", _facts(card, found))
    if (grid := heat_map(card)) is not None:
        heading, *lines = grid.lines()
        say("Right answers by length and depth:")
        tables.console().print(tables.table(heading, lines, right=heading))
    if output:
        from longspan.report.sample_sheet import draw

        draw(found, output, title=f"{card['title']} · {card['task']} · {card['protocol']} · {card['tier']}")
        say(f"The samples of {path.name} are in {output}.")
    if audio:
        say(f"{_write_speech(clips, audio)} WAV files are in {audio}.")


def _facts(card: Card, found: Examples) -> list[tuple[str, str]]:
    score = card["score"]
    facts = [(name, str(card[name])) for name in ("mechanism", "pattern", "protocol", "tier", "seed")]
    facts.append(("data", f"{card['dataset']['name']}, {card['dataset']['variant']}"))
    if score is None:
        facts.append(("failed", card["reason"] or ""))
    else:
        text = render.percent if score.get("unit", "percent") == "percent" else render.plain
        facts.append((score["name"], f"{text(score['value'])} on {score['count']:,} of {score['split']}"))
    facts.append(("made", card["created"]))
    for number, sample in enumerate(found, start=1):
        facts.append((f"sample {number}", _words(sample)))
    return [(name, shown(printable(text))) for name, text in facts]


def _words(sample: SpeechSample | CloudSample | PictureSample) -> str:
    if isinstance(sample, SpeechSample):
        return (
            f"{sample.text} ({len(sample.made) / sample.rate:.1f} s made, {len(sample.true) / sample.rate:.1f} s true)"
        )
    if isinstance(sample, CloudSample):
        return f"{sample.category}: {len(sample.partial):,} points completed to {len(sample.completed):,}"
    return "{} x {} enlarged to {} x {}".format(*sample.low.shape[:2], *sample.restored.shape[:2])


def _write_speech(clips: list[SpeechSample], folder: Path) -> int:
    """Write a file for the made and one for the true speech of each clip; returns how many."""
    from longspan.core.atomic import storage_errors, write_bytes
    from longspan.report.sample_media import wav

    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for number, clip in enumerate(clips, start=1):
        write_bytes(folder / f"clip{number}-made.wav", wav(clip.made, clip.rate))
        write_bytes(folder / f"clip{number}-true.wav", wav(clip.true, clip.rate))
    return 2 * len(clips)
