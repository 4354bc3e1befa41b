"""Reports of one run: a terminal summary and one self-contained HTML page, made from the run directory alone."""

from dynamo_mlperf.report.page import write_report
from dynamo_mlperf.report.run_data import RunData, read_run
from dynamo_mlperf.report.summary import print_summary

__all__ = ["RunData", "print_summary", "read_run", "write_report"]
