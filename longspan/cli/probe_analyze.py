"""`probe` asks a question of trained models, `analyze` answers one from cards."""

from pathlib import Path
from typing import Annotated, Any

import typer

from longspan.cli.app import Cards, Json, Out, ProgressBar, app, print_json, say
from longspan.core.errors import UsageError


@app.command()
def probe(
    question: Annotated[
        str, typer.Argument(metavar="QUESTION", help="span, rollout, embeddings, transfer, extrapolation, gap.")
    ],
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Run cards whose weights are still there.")],
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", metavar="N", min=1, help="Number of examples; a default for each question if left out."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed for choosing the examples.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu, cuda, or auto.")] = "auto",
    attention: Annotated[
        str | None, typer.Option("--attention", metavar="MECH", help="Your plug-in file: path/mine.py:Mine.")
    ] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that a card names, as it is now. Only if you know it.")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Also draw it: HTML, PDF and PNG.")] = None,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Ask a question of trained models and save each answer as a card in OUT/cards/probes.

    Cards are data: code that a card names is not run unless --attention passes the file, or --trust allows it.

    \b
    span        how far away is what a token attends to?
    rollout     which pixels of an image does the answer come from?
    embeddings  which intensities and which positions look alike?
    transfer    does a model trained on Pathfinder answer Path-X?
    extrapolation  the perplexity of a language model at lengths other than in training
    gap         how much better is the model on what it was trained on?

    \b
    Examples:
      longspan probe span out/cards/listops/*.json --samples 200
      longspan probe rollout out/cards/pathfinder/pathfinder-softmax-....json -o figures
    """
    from longspan import analysis
    from longspan.api import ask
    from longspan.cli import tables
    from longspan.results import card as card_module

    made = {}
    with ProgressBar(len(cards)) as advance:
        for path in cards:
            advance(f"{question} of {path.name}")
            how = {"device": device, "attention": attention, "trust": trust}
            answer, where = ask(question, path, samples=samples, seed=seed, out=out, **how)
            made[where] = answer
    runs = [card_module.read(path, "run") for path in cards]
    folders = {answer["sha256"]: where.parent for where, answer in made.items()}
    finding = analysis.answer(question, analysis.Evidence(runs, list(made.values()), folders=folders))
    if as_json:
        print_json(list(made.values()))
    else:
        tables.print_finding(finding, tables.console())
        for where in made:
            say(f"The answer is {where}.")
    if output is not None:
        _draw(finding, output)


def _draw(finding: Any, folder: Path) -> None:
    from longspan.report.answer import write

    for path in write(finding, folder):
        say(f"Drawn: {path}.", error=True)


@app.command()
def analyze(
    question: Annotated[
        str | None,
        typer.Argument(metavar="[QUESTION]", help="One of those above; all that have an answer if left out."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", metavar="DIR", help="Draw it: HTML, PDF and PNG.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="With index: the paper's own scores alone, and what is wrong with them.")
    ] = False,
    as_json: Json = False,
    cards: Cards = None,
    out: Out = Path("out"),
) -> None:
    """Answer the papers' questions from cards, beside what the papers printed.

    \b
    tradeoff     what does accuracy cost in time and memory?         runs, measurements
    speed        how many times faster than softmax?              measurements
    front        which are unbeaten in score, time and memory?       runs
    differences  which differ from softmax at all?                   runs
    ranks        which rank apart over all tasks?                    runs
    index        how good over all tasks of a pattern?               runs
    correlation  which patterns and tasks rank mechanisms alike?     runs
    predicts     which cheap task predicts which expensive one?      runs
    benefit      what is attention good for, slot by slot?           runs
    taxonomy     what do mechanisms cost, in which patterns?         the catalogue
    settings     which options and sizes did CAB print?              the catalogue
    hours        what does a task cost to train?                     runs
    span         how far must attention reach, task by task?         probes
    gap          how much better on what it was trained on?          probes
    text_lengths Text at four lengths, and the best of them          runs
    references   images with and without a second dimension          runs
    convergence  steps to 30 and 35 % on Image                       runs
    rollout      which pixels does an answer come from?              probes
    embeddings   which intensities and positions look alike?         probes
    transfer     do Pathfinder models answer Path-X?                 probes
    fastest      which one for each pattern, length and mode?        core measurements
    growth       time, memory and energy at each length              core measurements
    relative     time and memory over those of exact attention       core measurements
    efficiency_length  the crossover by CAB's fits, and as printed   core measurements
    crossover    from which length is exact attention beaten?        core measurements
    scaling      do time and memory grow as declared?                core measurements
    roofline     how near to what the device can do?                 core measurements
    decode       what does a token cost, how large is the state?     core measurements
    repeat       is it the same when measured again?                 core measurements
    extrapolation  language models at other lengths than trained at  probes

    \b
    Examples:
      longspan analyze tradeoff -o figures
      longspan analyze gap --json
      longspan analyze index --published
      longspan analyze scaling
    """
    from longspan import analysis
    from longspan.analysis import index
    from longspan.cli import tables
    from longspan.results import collect

    if published and question != "index":
        raise UsageError(f"--published goes with the question index, and {question or 'none'} was asked.")
    folders = collect.card_folders(cards, out)
    evidence = analysis.gather(folders)
    for problem in evidence.problems:
        say(f"Left out: {problem.sentence}", error=True)
    if published:
        found = [index.answer_published()]
    else:
        found = [analysis.answer(question, evidence)] if question else analysis.answers(evidence)
    if as_json:
        contents = [finding.to_json() for finding in found]
        print_json(contents[0] if question else contents)
    else:
        for finding in found:
            tables.print_finding(finding, tables.console())
    if output is not None:
        for finding in found:
            _draw(finding, output)
