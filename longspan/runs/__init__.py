"""One cell of the arena: (task, mechanism, pattern, protocol, tier, seed) goes in, a card comes out.

card = run(Cell("listops", "performer(features=64)", tier="smoke"))
model = load("out/cards/listops/....json")
"""

from longspan.runs.cell import Cell, RunPlan, cells, count_baseline, count_parameters
from longspan.runs.export import export
from longspan.runs.load import load
from longspan.runs.restore import restore
from longspan.runs.train import run
from longspan.runs.unfinished import clean, unfinished

__all__ = ["Cell", "RunPlan", "cells", "clean", "count_baseline", "count_parameters", "export"]
__all__ += ["load", "restore", "run", "unfinished"]
