"""Results of runs, typed: what results.json holds, how it is read, and its JSON Schema (docs/results-format.md)."""

from twoprong.results.evaluation import EvaluationResults
from twoprong.results.files import read_results, schema
from twoprong.results.reproduction import ReproductionResults

__all__ = ["EvaluationResults", "ReproductionResults", "read_results", "schema"]
