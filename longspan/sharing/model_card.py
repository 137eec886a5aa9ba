"""The page of a pushed model: what was run, how good it is, how to load it, and what it is not."""

from longspan.core.printable import printable
from longspan.results.card import Card


def model_card(card: Card, filename: str, repository: str) -> str:
    """Markdown with the header that the Hub reads; whatever came from the card is one plain line."""
    if card["kind"] != "run":
        return _other(card, filename)
    score = card["score"] or {}
    facts = {
        "Task": f"{card['task']}, version {card['task_version']}",
        "Mechanism": f"{card['mechanism']} ({card['pattern']})",
        "Rules": f"{card['protocol']}, {card['tier']}, seed {card['seed']}",
        "Network": f"{card['backbone']}, {card['parameters']['total'] or 0:,} parameters",
        "Data": f"{card['dataset']['name']} ({card['dataset']['variant']})",
        "Score": f"{score['name']} {score['value']:.6g} on {score['count']} examples" if score else "none, it failed",
        "Chance": f"{score['chance']:.6g}" if score.get("chance") is not None else "not known",
        "Overrides": ", ".join(f"{key}={value}" for key, value in card["overrides"].items()) or "none",
        "Code": f"longspan {card['code']['version']}",
    }
    lines = [f"| {name} | {_plain(text)} |" for name, text in facts.items()]
    header = ["---", "library_name: longspan", "tags:", "- longspan", "- long-range-arena", "- attention", "---", ""]
    weights = "weights" in card["files"]
    return "\n".join(
        [
            *header,
            f"# {_plain(card['title'])} on {_plain(card['task'])}",
            "",
            "| | |",
            "| --- | --- |",
            *lines,
            "",
            "```python",
            "import longspan.sharing",
            "",
            f"(card,) = longspan.sharing.pull({repository!r})",
            "model = longspan.load(card)" if weights else "longspan.card(card)",
            "```",
            "",
            "Trained to measure a mechanism, not for use: one seed says little, and smoke runs rank nothing. The card "
            f"(`{_plain(filename)}`) is sealed with a hash and names that of each file; `longspan verify` checks them.",
            "",
        ]
    )


def _other(card: Card, filename: str) -> str:
    what = f"{card['kind']} of {card.get('mechanism', '')}".strip()
    return f"---\nlibrary_name: longspan\n---\n\n# {_plain(what)}\n\nA card of longspan: `{_plain(filename)}`.\n"


def _plain(text: object) -> str:
    """One line of a table that holds no markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in printable(str(text), keep=""))
