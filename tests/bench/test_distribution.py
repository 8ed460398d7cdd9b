"""The test statistic of distribution.py; the runs themselves need vLLM on a GPU."""

from __future__ import annotations

import pytest

from tests.bench import distribution


def test_the_chi_square_itself() -> None:
    """Against values of the distribution's table: 18.307 is the 0.05 tail of 10 degrees of freedom."""
    same = [[token, 100] for token in range(11)]
    assert distribution.chi_square(same, same)[1:] == (10, 1.0)
    tilted = [[token, 100 + 12 * (-1) ** token] for token in range(10)] + [[10, 100]]
    statistic, freedom, p = distribution.chi_square(same, tilted)
    assert freedom == 10
    expected = sum(2 * 6**2 / (100 + 6 * (-1) ** token) for token in range(10))
    assert statistic == pytest.approx(expected)
    assert 0.5 < p < 0.999
    assert distribution.chi_square(same, [[token, 10 * token + 50] for token in range(11)])[2] < 1e-3
