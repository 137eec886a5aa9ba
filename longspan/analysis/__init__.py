"""One question per file, answered from cards and published tables alone; never imports torch.

evidence = gather([Path("out/cards")])
finding = answer("tradeoff", evidence)
finding.rows, finding.notes
"""

import importlib

from longspan.analysis.cards import Evidence, gather
from longspan.analysis.finding import Finding
from longspan.core.errors import DataMissing, UnknownName, did_you_mean

QUESTIONS = {
    "tradeoff": "what does accuracy cost in time and memory?",
    "speed": "how many times faster than softmax, and in how much memory?",
    "front": "which mechanisms does nothing beat at once in score, time and memory?",
    "differences": "which mechanisms differ from softmax at all?",
    "ranks": "which mechanisms rank apart over all tasks?",
    "index": "how good is a mechanism over all tasks of a pattern?",
    "correlation": "which patterns and tasks rank mechanisms alike?",
    "predicts": "which cheap task predicts which expensive one?",
    "benefit": "what is attention good for, slot by slot?",
    "taxonomy": "what do mechanisms cost, and in which patterns do they work?",
    "settings": "which options and sizes did CAB print, and which run here?",
    "hours": "what does a task cost to train?",
    "span": "how far must attention reach, task by task?",
    "gap": "how much better are models on what they were trained on?",
    "text_lengths": "at which length is Text best, and what is the best of four?",
    "references": "how far are images in a row from those with a second dimension?",
    "convergence": "after how many steps do models reach 30 and 35 % on Image?",
    "rollout": "which pixels does an answer on Pathfinder come from?",
    "embeddings": "which intensities and positions look alike to a model of images?",
    "transfer": "do models trained on Pathfinder answer Path-X?",
    "fastest": "which mechanism is fastest for each pattern, length and mode?",
    "growth": "what do time, memory and energy come to at each length?",
    "relative": "what do time and memory come to beside exact attention?",
    "efficiency_length": "by CAB's fits, from which length on does a mechanism beat exact attention?",
    "crossover": "from which length on does a mechanism beat exact attention?",
    "scaling": "do time and memory grow as declared?",
    "roofline": "how near does each mechanism come to what the device can do?",
    "decode": "what does a token cost in decoding, and how large is the state?",
    "repeat": "does a measurement come out the same when it is made again?",
    "extrapolation": "how do language models fare at other lengths than in training?",
}
LAB = (
    "fastest",
    "growth",
    "relative",
    "efficiency_length",
    "crossover",
    "scaling",
    "roofline",
    "decode",
    "repeat",
)  # answered from core measurements alone


def answer(question: str, evidence: Evidence) -> Finding:
    """The finding for a question; raises DataMissing, with what to do, where cards and papers have no answer."""
    if question not in QUESTIONS:
        raise UnknownName(f"No question named {question!r} to analyze.{did_you_mean(question, QUESTIONS)}")
    return importlib.import_module(f"longspan.analysis.{question}").answer(evidence)


def answers(evidence: Evidence) -> list[Finding]:
    """Every question that has an answer, in the order in which a reader asks them."""
    found = []
    for question in QUESTIONS:
        try:
            found.append(answer(question, evidence))
        except DataMissing:
            continue  # no card or paper answers it yet
    return found


__all__ = ["LAB", "QUESTIONS", "Evidence", "Finding", "answer", "answers", "gather"]
