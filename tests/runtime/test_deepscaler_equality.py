"""Equality without algebra. What needs the library is in test_deepscaler_algebra.py."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from npu_rl.runtime.deepscaler.equality import same_without_algebra, spelled
from npu_rl.runtime.deepscaler.exact import read_number
from tests.runtime.deepscaler_pairs import DIFFERENT, HEDGED, SAME


def judge(right: object, given: object) -> bool | None:
    return same_without_algebra(spelled(right), spelled(given))


def test_pairs_without_algebra() -> None:
    """Equality is found but for one that algebra has to judge; no other pair is taken for equal."""
    assert [pair for pair in SAME if judge(*pair) is not True] == [(r"\frac{1}{-2}", "-0.5")]
    assert [pair for pair in [*DIFFERENT, *HEDGED] if judge(*pair) is True] == []


_ints = st.integers(-(10**12), 10**12)
_below = st.integers(1, 10**6)


def _written(value: Fraction) -> list[str]:
    sign, above, below = "-" if value < 0 else "", abs(value.numerator), value.denominator
    whole, rest = divmod(above, below)
    found = [
        f"{sign}{above}/{below}", rf"{sign}\frac{{{above}}}{{{below}}}", rf"\dfrac{{{sign}{above}}}{{{below}}}",
        rf"{sign}\frac{{{3 * above}}}{{{3 * below}}}", rf"$ {sign}{above}/{below} $",
    ]  # fmt: skip
    if below == 1:
        thousands = f"{sign}{above:,}"
        found += [f"{sign}{above}", thousands, f"{sign}{above}.00", thousands.replace(",", "{,}")]
    if rest and whole:
        found.append(rf"{sign}{whole}\frac{{{rest}}}{{{below}}}")
    return found


@given(_ints, _below, st.data())
def test_a_fraction_is_equal_however_it_is_written(above: int, below: int, data: st.DataObject) -> None:
    ways = _written(Fraction(above, below))
    assert judge(data.draw(st.sampled_from(ways)), data.draw(st.sampled_from(ways))) is True


@given(_ints, _below, _ints, _below)
def test_other_fractions_are_not_equal(a: int, b: int, c: int, d: int) -> None:
    assume(Fraction(a, b) != Fraction(c, d))
    assert judge(f"{a}/{b}", rf"\frac{{{c}}}{{{d}}}") is False


@given(st.decimals(-(10**9), 10**9, places=5))
def test_a_decimal_is_its_fraction_and_its_percents(value: Decimal) -> None:
    fraction = Fraction(value)
    assert judge(f"{value:f}", f"{fraction.numerator}/{fraction.denominator}") is True
    assert judge(f"{value:f}", f"{value:f}00") is True
    assert judge(f"{value * 100:f}\\%", f"{value:f}") is True
    assert judge(f"{value:f}", f"{value + Decimal('0.00001'):f}") is False


@given(st.integers(1, 999), st.integers(1, 999), st.integers(6, 12))
def test_six_correct_places_stand_for_a_fraction(above: int, below: int, places: int) -> None:
    value = Fraction(above, below)
    rounded = round(value * 10**places)
    assert judge(f"{above}/{below}", f"{Decimal(rounded).scaleb(-places):f}") is True
    assume(value * 10**places % 1 != Fraction(1, 2))  # 1/128 is 0.007812 and 0.007813
    assert judge(f"{above}/{below}", f"{Decimal(rounded + 1).scaleb(-places):f}") is False


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_gets_a_verdict(right: str, given: str) -> None:
    assert judge(right, given) in (True, False, None)
    assert judge(right, right) is (spelled(right) != "")


@given(st.text("0123456789.,-+/{}\\fracext%^ ", max_size=40))
def test_what_is_read_as_a_number_is_finite_and_small(text: str) -> None:
    number = read_number(text)
    assert number is None or abs(number.value) < Fraction(10) ** 400


HOPELESS = [
    "9^{9^{9^{9}}}", "2^{9999999}", "(10^{10})!!!", "1" * 1000, "x" * 2000 + "+1", "{" * 500 + "5" + "}" * 500 + "+x",
    "(" * 1_000_000, "\\frac{" * 100_000, "\\text{" * 100_000, " " * 1_000_000, "^ " * 300_000, "\u221a(" * 300_000,
]  # fmt: skip


def test_hopeless_ones_are_never_parsed() -> None:
    assert [text[:40] for text in HOPELESS if judge("x+5", text) is not False] == []
