"""ROUGE-1, ROUGE-2 and ROUGE-L of summaries, as the Perl script ROUGE-1.5.5 counts them with stemming.

Words are runs of a-z and 0-9 in lower case, those of more than three letters cut to their Porter stem. With P and R the
shares of the hypothesis and of the reference that match, the score is F = 2 P R / (P + R).

    ROUGE-1, ROUGE-2   single words and pairs of neighbours in common, each counted as often as the rarer side has it
    ROUGE-L            of the whole summary: for every sentence of the reference the union of its longest common
                       subsequences with all sentences of the hypothesis

Counting is rouge-score's. Sentences are split here by a rule of our own, since only ROUGE-L needs them and the usual
splitter needs data files: a sentence ends at a line feed, and after . ! or ?, with the quotation marks and brackets
that close there, where white space and then anything but a lower-case letter follows; not after a single capital letter
("J. Smith") nor after one of a few abbreviations ("Mr."). Paper: ROUGE, aclanthology.org/W04-1013. Departs from CAB in:
that rule in place of NLTK's splitter, and an empty hypothesis scores 0 instead of the score of some fixed words.
"""

import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from longspan.core.errors import UsageError

NAMES = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rougeLsum"}  # ours, and rouge-score's
_END = re.compile(r"""[.!?]+['")\]\u2019\u201d]*(?=\s+[^\sa-z])""")
_ABBREVIATION = re.compile(  # just before a full stop
    r"""(?:\A|[\s'"(\[\u2018\u201c])(?:[A-Z]|(?i:a\.m|adm|apr|aug|capt|co|col|corp|dec|dept|dr|e\.g|feb|gen|gov|i\.e|inc|"""
    r"""jan|jr|lt|ltd|maj|mr|mrs|ms|mt|nov|oct|p\.m|ph\.d|prof|rep|rev|sen|sept|sgt|sr|st|u\.k|u\.n|u\.s|vs))\Z"""
)


def rouge(
    hypotheses: Sequence[str], references: Sequence[str], names: Sequence[str] = tuple(NAMES)
) -> dict[str, Float[np.ndarray, " texts"]]:
    """F for each text, from 0 to 1, by name: rouge1, rouge2 and rougeL, or only those in `names`.

    >>> rouge(["the gunman was killed"], ["police killed the gunman"], ["rouge1"])["rouge1"].round(2)
    array([0.75])
    """
    scorer = rouge_scorer(names)
    found = [
        scorer.score("\n".join(sentences(reference)), "\n".join(sentences(hypothesis)))
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    return {name: np.array([one[NAMES[name]].fmeasure for one in found], np.float64) for name in names}


def rouge_scorer(names: Sequence[str] = tuple(NAMES)):
    """rouge-score's counter; if that package is absent, an error that says so."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UsageError(
            "ROUGE is counted by the package rouge-score, which is not installed; run: pip install rouge-score"
        ) from error
    return RougeScorer([NAMES[name] for name in names], use_stemmer=True)


def sentences(text: str) -> list[str]:
    """The sentences of a text by the rule above, without white space around them.

    >>> sentences("Mr. J. Smith left. He was 41.5 years old!")
    ['Mr. J. Smith left.', 'He was 41.5 years old!']
    """
    found = []
    for line in text.split("\n"):
        start = 0
        for end in _END.finditer(line):
            if end[0] != "." or not _ABBREVIATION.search(line[start : end.start()]):
                found.append(line[start : end.end()])
                start = end.end()
        found.append(line[start:])
    return [stripped for sentence in found if (stripped := sentence.strip())]
