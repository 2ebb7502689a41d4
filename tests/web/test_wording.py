"""Numbers, times and counts in both languages."""

from datetime import UTC
from zoneinfo import ZoneInfo

import pytest
from gradwire_server.pages.languages import languages
from gradwire_server.pages.wording import THIN, Wording, zone_of
from gradwire_server.verdict import reasons
from made_view import NOW, chinese, english, plain


@pytest.mark.parametrize(
    ("value", "digits", "in_english", "in_chinese"),
    [
        (0, 0, "0", "0"),
        (999, 0, "999", "999"),
        (1200, 0, "1 200", "1200"),
        (41_207, 0, "41 207", "41207"),
        (1_234_567, 0, "1 234 567", "1 234 567"),
        (1.314, 2, "1.31", "1.31"),
        (-0.8, 1, "−0.8", "−0.8"),
        (-0.04, 1, "0.0", "0.0"),
    ],
)
def test_number_groups_digits(value: float, digits: int, in_english: str, in_chinese: str) -> None:
    assert plain(english().number(value, digits)) == in_english
    assert plain(chinese().number(value, digits)) == in_chinese


def test_number_and_unit_cannot_be_torn_apart() -> None:
    assert english().percent(0.43) == f"43{THIN}%"
    assert english().number(1200) == f"1{THIN}200"
    assert "\n" not in english().percents(0.41, 0.45)
    assert " " not in english().percents(0.41, 0.45)


def test_percents_collapse_to_one_number_when_both_ends_look_the_same() -> None:
    assert plain(english().percents(0.431, 0.4312)) == "43 %"
    assert plain(chinese().percents(0.41, 0.45)) == "41%–45%"


def test_span_takes_a_digit_more_rather_than_look_empty() -> None:
    assert plain(english().span(1.346, 1.3492, 2)) == "1.346–1.349"
    assert plain(english().span(1.27, 1.35, 2)) == "1.27–1.35"
    assert plain(english().span(2.0, 2.0, 2)) == "2.00"


@pytest.mark.parametrize(
    ("seconds", "in_english", "in_chinese"),
    [
        (0.9, "0.9 s", "0.9 秒"),
        (9.94, "9.9 s", "9.9 秒"),
        (30, "30 s", "30 秒"),
        (90, "90 s", "90 秒"),
        (120, "2 minutes", "2 分钟"),
        (1200, "20 minutes", "20 分钟"),
        (7200, "2 hours", "2 小时"),
        (2 * 86400, "2 days", "2 天"),
    ],
)
def test_duration_takes_the_largest_unit_of_which_there_are_two(
    seconds: float, in_english: str, in_chinese: str
) -> None:
    assert plain(english().duration(seconds)) == in_english
    assert plain(chinese().duration(seconds)) == in_chinese


def test_durations_take_a_unit_that_tells_them_apart() -> None:
    assert english().durations(9 * 86400, 12 * 86400) == ("9 days", "12 days", "12")
    assert english().durations(49 * 3600, 52 * 3600) == ("49 hours", "52 hours", "52")
    assert english().durations(0.9, 0.8) is None


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1_200_000_000, "1.20 GB"), (12_500_000_000, "12.5 GB"), (5e20, "500 000 PB")],
)
def test_bytes_are_in_decimal_units(count: float, text: str) -> None:
    assert plain(english().bytes(count)) == text


def test_compact_shortens_from_a_million_on() -> None:
    assert plain(english().compact(0.127)) == "0.127"
    assert plain(english().compact(41_207)) == "41 207"
    assert plain(english().compact(1_240_000)) == "1.24 M"


def test_milliseconds_have_a_digit_after_the_point_below_a_hundred() -> None:
    assert plain(english().milliseconds(0.0117)) == "11.7 ms"
    assert plain(english().milliseconds(0.324)) == "324 ms"


def test_ranks_are_processes_on_cpu() -> None:
    assert english().ranks(8, "cuda") == "8 GPUs"
    assert english().ranks(1, "cpu") == "1 process"
    assert chinese().ranks(8, "cuda") == "8 张卡"
    assert chinese().ranks(2, "cpu") == "2 个进程"
    assert english().rank(3, "cpu") == "process 3"
    assert chinese().rank(3, "cuda") == "3 号卡"


def test_clock_names_the_zone_only_when_the_readers_is_unknown() -> None:
    shanghai = Wording(languages()["zh"], NOW, ZoneInfo("Asia/Shanghai"))
    assert english().clock(NOW) == "14:02:07 UTC"
    assert shanghai.clock(NOW) == "22:02:07"


def test_clock_names_the_day_when_it_is_not_today() -> None:
    assert english().clock(NOW - 86400) == "Sun 3 May 14:02:07 UTC"
    assert chinese().clock(NOW - 86400) == "5月3日 周日 14:02:07 UTC"


def test_date_names_the_year_when_it_is_another() -> None:
    assert english().date(NOW) == "Mon 4 May"
    assert english().date(NOW + 400 * 86400) == "8 Jun 2027"
    assert chinese().date(NOW + 400 * 86400) == "2027年6月8日"


@pytest.mark.parametrize("name", [None, "", "Nowhere/Land", "../../etc/passwd", "/etc/passwd", "a" * 5000, "\x00"])
def test_an_unknown_zone_is_utc(name: str | None) -> None:
    assert zone_of(name) is UTC


def test_values_are_not_taken_for_placeholders() -> None:
    assert english().say("{who} rolled back at {time}.", who="{time}", time="now") == "{time} rolled back at now."


def test_a_reason_that_nobody_translated_stands_as_it_came() -> None:
    assert chinese().reason("the {odd} one") == "the {odd} one"
    assert chinese().reason("") == ""


def test_reasons_of_several_ranks_are_each_translated() -> None:
    both = f"{reasons.NOT_TRACED}; no side group"
    assert english().reason(both) == both
    assert chinese().reason(both) == "为不超出测量开销预算，没有跟踪任何一步；no side group"
    assert chinese().reason("") == ""
