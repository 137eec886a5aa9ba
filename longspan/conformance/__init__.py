"""What every mechanism promises, as checks that the tests and `longspan check` both run.

    from longspan.conformance import check
    for report in check("performer(features=64)"):
        print(report.pattern, report.ok, [f.promise for f in report.broken])

Each promise is one function in a file of its family; `promises.py` lists them in order.
"""

from longspan.conformance.check import check
from longspan.conformance.render import explanation, table
from longspan.conformance.report import PromiseResult, Report

__all__ = ["PromiseResult", "Report", "check", "explanation", "table"]
