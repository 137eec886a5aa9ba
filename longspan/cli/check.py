"""`check`: does a mechanism keep its promises?"""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longspan.cli.app import Dtype, Json, Out, Pattern, ProgressBar, app, print_json, say
from longspan.cli.completion import everything
from longspan.core.errors import CheckFailed, StorageError, UsageError, first_few

if TYPE_CHECKING:
    from longspan.conformance import Report


@app.command()
def check(
    mechanisms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MECH...", help="Names, or file.py:Class; also tasks and backbones.", autocompletion=everything
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every built-in and installed mechanism.")] = False,
    pattern: Pattern = None,
    device: Annotated[str, typer.Option("--device", metavar="NAME", help="cpu or cuda.")] = "cpu",
    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="bfloat16 means autocast; float64 only on a CPU.")
    ] = Dtype.float32,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds per pattern: fewer lengths and samples.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, metavar="N", help="Number of parallel processes.")] = 1,
    task: Annotated[
        str | None, typer.Option("--task", metavar="TASK", help="The task in which a backbone is checked.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each promise means, and check nothing.")] = False,
    as_json: Json = False,
    out: Out = Path("out"),
) -> None:
    """Prove or refute what a mechanism claims, in every pattern it declares; or what a task or a backbone does.

    Results are saved in OUT/conformance, where `board` and `report` find them. Exit code 1 if a promise is broken.
    A task is checked in its smoke tier: slots, data, gradients, scores, batches. A backbone is checked in place of a
    task's own, that of ListOps unless --task names another.

    \b
    Examples:
      longspan check my_attention.py:Mine
      longspan check my_task.py:ShallowListOps
      longspan check my_backbone.py:PostNormClassifier --task listops
      longspan check --all --quick --jobs 2
      longspan check --explain
      longspan check "performer(features=64)" --pattern CS --device cuda --dtype bfloat16
    """
    from longspan import conformance
    from longspan.cli import tables
    from longspan.conformance.parallel import check_each
    from longspan.results.conformance import save
    from longspan.runs.fingerprint import code_identity

    if explain:
        tables.console().print(conformance.explanation())
        return
    mechanisms, networks = _parted(mechanisms or [])
    faults, others = _check_others(networks, task, as_json)
    if networks and not (mechanisms or every):
        if as_json:
            print_json(others)
        if faults:
            raise CheckFailed("; ".join(faults) + ".")
        return
    asked = _to_check(mechanisms, every, pattern)
    profile = "quick" if quick else "full"
    found: dict[int, Report] = {}
    unsaved = ""
    at_hand = [f"{mechanism} as {one}" if jobs == 1 else f"{jobs} side by side" for mechanism, one in asked]
    with ProgressBar(len(asked)) as advance:
        advance(at_hand[0])
        for place, report in check_each(asked, jobs=jobs, device=device, dtype=str(dtype), profile=profile):
            advance(at_hand[min(len(found) + 1, len(asked) - 1)])
            found[place] = replace(report, code=code_identity(asked[place][0]))
            try:
                save(out / "conformance", [found[place]])  # one by one: a check that is stopped keeps what it found
            except StorageError as error:  # the result is still printed
                unsaved = f"The result was not saved: {error}"
    reports = [report for _, report in sorted(found.items())]
    if unsaved:
        say(unsaved, error=True)
    if as_json:
        print_json(others + [report.to_json() for report in reports])  # one document, whatever was named
    elif len(reports) == 1:
        tables.console().print(conformance.table(reports[0]))
    else:
        tables.print_conformance([report.to_json() for report in reports], tables.console())
    if broken := faults + [_sentence(report) for report in reports if not report.ok]:
        raise CheckFailed("; ".join(broken) + ".")


def _sentence(report: "Report") -> str:
    """What is broken, and why where one reason explains all of it, as when every call raises the same error."""
    reasons = {result.detail for result in report.broken}
    why = f", all for one reason: {reasons.pop()}" if len(reasons) == 1 < len(report.broken) else ""
    return f"{report.mechanism} as {report.pattern} breaks {first_few(repr(f.promise) for f in report.broken)}{why}"


def _parted(names: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The mechanisms, and everything else that was named, with its kind."""
    from longspan import attentions, backbones, tasks
    from longspan.api import kind_of

    found = []
    for name in names:
        kind = "tasks" if tasks.parted(name)[1] else kind_of(name)
        if ":" not in name and "(" not in name and name not in attentions.names():
            kind = next((k for k, of in (("tasks", tasks), ("backbones", backbones)) if name in of.names()), kind)
        found.append((name, kind))
    return [name for name, kind in found if kind == "attentions"], [one for one in found if one[1] != "attentions"]


def _check_others(
    named: list[tuple[str, str]], task: str | None, as_json: bool
) -> tuple[list[str], list[dict[str, Any]]]:
    """Check tasks and backbones: sentences that say what is broken, and what was found, printed unless as JSON."""
    from longspan.cli import tables
    from longspan.runs.check_task import check_backbone, check_task

    if task is not None and not any(kind == "backbones" for _, kind in named):
        raise UsageError("--task says in which task a backbone is checked, and no backbone was named; leave it out.")
    faults, content = [], []
    for name, kind in named:
        results = check_task(name) if kind == "tasks" else check_backbone(name, task or "listops")
        content.append({"name": name, "kind": kind.removesuffix("s"), "promises": [asdict(one) for one in results]})
        if not as_json:
            rows = [(one.promise, one.status, one.detail) for one in results]
            tables.console().print(tables.table(("promise", "status", "detail"), rows, title=name))
        if broken := [repr(one.promise) for one in results if one.status == "broken"]:
            # what cannot even be built may have been meant as a mechanism
            unfit = kind == "backbones" and len(broken) == len(results)
            why = ", checked as a backbone since it is no longspan.attentions.Attention," if unfit else ""
            faults.append(f"{name}{why} breaks {', '.join(broken)}")
    return faults, content


def _to_check(specs: list[str], every: bool, pattern: str | None) -> list[tuple[Any, Any]]:
    """Pairs of mechanism and pattern.

    --all skips mechanisms without the pattern, and those that reproduce the faults of released code: name them to
    check them.
    """
    from longspan import attentions

    if not specs and not every:
        raise UsageError("No mechanism was named to check; name one, as in longspan check softmax, or ask for --all.")
    wanted = attentions.Pattern.parse(pattern) if pattern else None
    pairs = []
    for spec in specs:
        mechanism = attentions.get(spec)
        pairs += [(mechanism, one) for one in ([wanted] if wanted else mechanism.meta.patterns)]
    for mechanism in map(attentions.get, attentions.names() if every else ()):
        if not mechanism.meta.fidelity:
            pairs += [(mechanism, one) for one in mechanism.meta.patterns if wanted in (None, one)]
    return pairs
