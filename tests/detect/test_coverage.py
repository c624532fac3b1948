"""The promise of calibration, two-sided, on a law that is known: `benchmarks/coverage.py` with fewer pools."""

import runpy
from pathlib import Path

import pytest
from scipy.stats import binom

tool = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "coverage.py"))
POOLS = 60


@pytest.fixture(scope="module")
def rates():
    return tool["study"](POOLS, fresh=1500)


def test_the_rate_is_kept_as_often_as_asked_for_and_not_more(rates):
    kept = int((rates["bound"] <= 0.05).sum())
    low, high = binom.ppf([0.005, 0.995], POOLS, 0.9)
    assert low <= kept <= high < POOLS


def test_there_is_no_more_slack_than_in_a_bound_that_knows_the_variance(rates):
    """Paired, and up to three standard errors of the difference; the plug-in variance that was used once gave 0.9 %."""
    difference = rates["bound"] - rates["yardstick"]
    assert difference.mean() >= -3 * difference.std() / POOLS**0.5
    assert rates["bound"].mean() > 0.018


@pytest.mark.parametrize(("name", "share"), [("p <= 0.05", 0.05), ("p <= 0.5", 0.5)])
def test_p_values_are_uniform_over_references_and_pools(rates, name, share):
    found = rates[name]
    assert abs(found.mean() - share) <= 3 * found.std() / POOLS**0.5 + 0.001
