"""Two mathematical answers are the same by PRM800K's rules; every expectation is derived by hand from them."""

from __future__ import annotations

import pytest

from dynamo_mlperf.benchmark.accuracy.math_equal import same_answer


@pytest.mark.parametrize(
    ("truth", "given"),
    [
        (r"\frac{1}{2}", "1/2"),
        (r"\frac{1}{2}", r"\dfrac12"),
        (r"\frac{1}{2}", "0.5"),
        ("1234", "1,234"),
        ("12", r"12\text{ cm}"),
        ("5", "k = 5"),
        ("x+1", "1+x"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("(1,2)", r"\left( 1, 2 \right)"),
        (r"\text{yes}", "Yes"),
        ("90", r"90^\circ"),
        ("31/4", "7 3/4"),
    ],
)
def test_spellings_of_one_answer(truth: str, given: str) -> None:
    assert same_answer(truth, given)


@pytest.mark.parametrize(
    ("truth", "given"),
    [
        (r"\frac{1}{2}", r"\frac{2}{4}"),
        ("12", "12.1"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("5", "2+3"),
        ("a+b+c", "c+b+a"),
        ("2^{10}", "1024"),
        ("1", ""),
        (r"\frac", "1"),
        ("1", "]["),
    ],
)
def test_what_is_not_the_same(truth: str, given: str) -> None:
    assert not same_answer(truth, given)
