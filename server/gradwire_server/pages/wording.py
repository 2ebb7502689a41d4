"""Text, numbers, times and counts of one language, for one reader's time zone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel.dates import format_datetime
from babel.numbers import format_decimal

from gradwire_server.pages.languages import Language

# Narrow and unbreakable: between groups of digits, and between a number and its unit.
THIN = "\u202f"
MINUS = "\u2212"
# An en dash that no line ends at: half an interval reads as a number of its own.
TO = "\u2060–\u2060"

# Patterns of Babel by language; the year is shown only where it is not this one.
DATES = {"en": "EEE d MMM", "zh": "M月d日 EEE"}
DATES_WITH_YEAR = {"en": "d MMM y", "zh": "y年M月d日"}

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
PREFIXES = ("", "k", "M", "G", "T", "P")


def zone_of(name: str | None) -> tzinfo:
    """Return the reader's time zone by its IANA name; UTC when it is absent or unknown here."""
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


@dataclass(frozen=True)
class Wording:
    """Says things in one language; times in the reader's zone, from the server's clock."""

    language: Language
    # Unix seconds: what ages and dates are counted from.
    now: float
    zone: tzinfo = UTC

    def say(self, message: str, /, **values: object) -> str:
        """Return the message in this language with its placeholders filled in."""
        return self.language.translations.gettext(message).format(**values)

    def say_many(self, one: str, many: str, count: int, /, **values: object) -> str:
        """Return the message that fits the count; `{count}` is filled in as a number."""
        text = self.language.translations.ngettext(one, many, count)
        return text.format(count=self.number(count), **values)

    def reason(self, text: str) -> str:
        """Return reasons, apart by "; ", in this language; one that training itself gave stays as it came."""
        parts = (self.language.translations.gettext(part) for part in text.split("; ") if part)
        return ("；" if self.language.code == "zh" else "; ").join(parts)

    def join(self, sentences: Iterable[str]) -> str:
        """Return sentences one after the other; Chinese puts no space between them."""
        return ("" if self.language.code == "zh" else " ").join(filter(None, sentences))

    def enumerate(self, parts: Iterable[str]) -> str:
        """Return parts of a sentence with the language's comma between them."""
        return ("，" if self.language.code == "zh" else ", ").join(filter(None, parts))

    def number(self, value: float, digits: int = 0) -> str:
        """Return a number with its thousands apart; Chinese groups only long ones."""
        text = format_decimal(abs(value), "#,##0." + "0" * digits if digits else "#,##0", self.language.locale)
        is_short = self.language.code == "zh" and abs(value) < 100_000
        text = text.replace(",", "" if is_short else THIN)
        is_negative = value < 0 and any(character in "123456789" for character in text)
        return MINUS + text if is_negative else text

    def significant(self, value: float, digits: int = 3) -> str:
        """Return a number rounded to so many significant digits, never in exponents."""
        if value == 0:
            return "0"
        return self.number(value, max(0, digits - 1 - math.floor(math.log10(abs(value)))))

    def percent(self, ratio: float, digits: int = 0) -> str:
        """Return a ratio of 0 to 1 as per cent."""
        return self.number(100 * ratio, digits) + self._percent_sign

    def percents(self, low: float, high: float, digits: int = 0) -> str:
        """Return an interval of ratios as per cent; one number when both ends look the same."""
        texts = (self.number(100 * low, digits), self.number(100 * high, digits))
        if texts[0] == texts[1]:
            return texts[0] + self._percent_sign
        if self.language.code == "zh":
            return f"{texts[0]}%{TO}{texts[1]}%"
        return f"{texts[0]}{TO}{texts[1]}{THIN}%"

    @property
    def _percent_sign(self) -> str:
        return "%" if self.language.code == "zh" else f"{THIN}%"

    def span(self, low: float, high: float, digits: int = 0) -> str:
        """Return an interval of plain numbers, with one digit more where it would look empty."""
        if low == high:
            return self.number(low, digits)
        texts = (self.number(low, digits), self.number(high, digits))
        if texts[0] == texts[1]:
            texts = (self.number(low, digits + 1), self.number(high, digits + 1))
        return texts[0] if texts[0] == texts[1] else f"{texts[0]}{TO}{texts[1]}"

    def times(self, ratio: float, digits: int = 2) -> str:
        """Return a factor: "1.31×", in Chinese "1.31 倍"."""
        return self.say("{factor}×", factor=self.number(ratio, digits))

    def milliseconds(self, seconds: float) -> str:
        """Return a short time in milliseconds, three digits of it."""
        milliseconds = 1000 * seconds
        return f"{self.number(milliseconds, 0 if milliseconds >= 100 else 1)}{THIN}ms"

    def seconds(self, seconds: float, digits: int = 1) -> str:
        """Return a time of some seconds, with digits after the point below ten."""
        return self.say("{number}\u202fs", number=self.number(seconds, digits if seconds < 9.95 else 0))

    def duration(self, seconds: float, digits: int = 1) -> str:
        """Return a time in the largest unit that leaves at least two of it; few seconds with digits."""
        return self._in_unit(seconds, duration_unit(seconds), digits)

    def durations(self, one: float, other: float) -> tuple[str, str, str] | None:
        """Return two times in the largest unit that tells them apart, and the second as a mere number.

        None when no unit tells them apart.
        """
        units = [unit for unit in (DAY, HOUR, MINUTE, 1.0) if unit <= duration_unit(max(one, other))]
        for unit in units:
            if round(one / unit) != round(other / unit):
                return self._in_unit(one, unit), self._in_unit(other, unit), self.number(round(other / unit))
        return None

    def _in_unit(self, seconds: float, unit: float, digits: int = 1) -> str:
        count = round(seconds / unit)
        if unit == DAY:
            return self.say_many("{count} day", "{count} days", count)
        if unit == HOUR:
            return self.say_many("{count} hour", "{count} hours", count)
        if unit == MINUTE:
            return self.say_many("{count} minute", "{count} minutes", count)
        return self.seconds(seconds, digits)

    def bytes(self, count: float) -> str:
        """Return a number of bytes in decimal units, as links are sold."""
        power = 0 if count < 1000 else min(int(math.log10(count) // 3), len(PREFIXES) - 1)
        return f"{self.significant(count / 1000**power)}{THIN}{PREFIXES[power]}B"

    def compact(self, value: float) -> str:
        """Return a large number with three significant digits and a prefix from a million on."""
        if abs(value) < 1_000_000:
            return self.significant(value) if abs(value) < 1000 else self.number(value)
        power = min(int(math.log10(abs(value)) // 3), len(PREFIXES) - 1)
        return f"{self.significant(value / 1000**power)}{THIN}{PREFIXES[power]}"

    def clock(self, at: float) -> str:
        """Return the time of day to the second; with the date when it was not today, with the zone when UTC."""
        moment = self._local(at)
        text = format_datetime(moment, "HH:mm:ss", locale=self.language.locale)
        if self.zone is UTC:
            text += " UTC"
        return text if moment.date() == self._local(self.now).date() else f"{self.date(at)} {text}"

    def date(self, at: float) -> str:
        """Return the day, with the year when it is not this one."""
        moment = self._local(at)
        patterns = DATES if moment.year == self._local(self.now).year else DATES_WITH_YEAR
        return format_datetime(moment, patterns[self.language.code], locale=self.language.locale)

    def moment(self, at: float) -> str:
        """Return day and minute."""
        return f"{self.date(at)} {format_datetime(self._local(at), 'HH:mm', locale=self.language.locale)}"

    def iso(self, at: float) -> str:
        """Return the time for machines, in UTC."""
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")

    def _local(self, at: float) -> datetime:
        return datetime.fromtimestamp(at, self.zone)

    def ranks(self, count: int, device: str) -> str:
        """Return a number of GPUs, or of processes where training runs on CPU."""
        if device == "cpu":
            return self.say_many("{count} process", "{count} processes", count)
        return self.say_many("{count} GPU", "{count} GPUs", count)

    def rank(self, rank: int, device: str) -> str:
        """Return the name of one GPU, or process."""
        if device == "cpu":
            return self.say("process {rank}", rank=self.number(rank))
        return self.say("GPU {rank}", rank=self.number(rank))

    def codec(self, name: str) -> str:
        """Return what a codec is called inside a sentence."""
        return self.say("uncompressed") if name == "none" else name


def duration_unit(seconds: float) -> float:
    """Return the largest of day, hour, minute and second of which there are at least two."""
    return next((unit for unit in (DAY, HOUR, MINUTE) if seconds >= 1.995 * unit), 1.0)
