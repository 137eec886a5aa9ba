"""The rules of Long Range Arena, checked for every run; a run that breaks one is on the free track.

- parameters: at most ten per cent more than the same network with softmax attention;
- no pretraining: building the network reads no file and uses no network access, and training starts from no other run,
  so every weight comes from the seed;
- no spatial information: the network is given a row of tokens, and the mechanism knows no second dimension;
- frozen sizes: nothing of the protocol's network is changed.

All runs under the protocol `strong`, whose recipes differ by mechanism, are on the free track. Published numbers of the
arena may be quoted beside the fixed track only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.attentions import AttentionMeta
from longspan.results.parameter_rule import within_rule

FREE = frozenset({"strong"})


@dataclass(frozen=True)
class RuleCheck:
    """Whether one rule was kept, and what was found."""

    kept: bool
    finding: str


def judge(
    mechanism: AttentionMeta,
    overrides: Mapping[str, Any],
    parameters: int,
    baseline: int,
    read: Sequence[str],
    pretraining: int = 0,
    initial: str | None = None,
) -> dict[str, RuleCheck]:
    """The result for each rule; `read` names what was opened while the network was built.

    `pretraining` counts steps on something other than the task before it; `initial` is the hash of the weights of
    another run that training starts from.
    """
    ratio = parameters / baseline
    changed = sorted(name for name in overrides if name.startswith("model."))
    return {
        "parameters": RuleCheck(
            within_rule(parameters, baseline), f"{parameters:,} against {baseline:,} with softmax ({ratio:.3f})"
        ),
        "no pretraining": RuleCheck(
            not read and not pretraining and not initial,
            f"opened while the network was built: {', '.join(read)}"
            if read
            else f"starts from the weights {initial[:12]} of another run"
            if initial
            else f"{pretraining:,} steps on masked tokens first"
            if pretraining
            else "weights from the seed alone",
        ),
        "no spatial information": RuleCheck(
            not mechanism.spatial, "the mechanism knows rows and columns" if mechanism.spatial else "a row of tokens"
        ),
        "frozen sizes": RuleCheck(
            not changed, f"changed: {', '.join(changed)}" if changed else "those of the protocol"
        ),
    }


def track(verdicts: Mapping[str, RuleCheck], overrides: Mapping[str, Any], protocol: str = "") -> str:
    """`fixed` where every rule is kept, nothing was overridden, and the protocol has one recipe for all."""
    kept = all(verdict.kept for verdict in verdicts.values())
    return "fixed" if kept and not overrides and protocol not in FREE else "free"
