"""Expressions that no phrase cuts: numbers, quantities, ranges, dates, times, names of things in programs, addresses,
hyphenated words and abbreviations.

Everything is found in the text by patterns, so tokenizers do not matter. Number words, months and units are English, as
the stop-words are; digits with their signs, hyphens and apostrophes are found in every language.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

_BLANK = r"[ \t\u00a0\u2007\u2009\u202f]"
_SPACE = f"{_BLANK}+"
_GAP = f"(?:{_SPACE})?"
_MINUS, _DASH = "-\u2010\u2011\u2212", "\u2012\u2013\u2014"
_FRACTION = "[\u00bc-\u00be\u2150-\u215e]"
_MONTHS = (
    *(r"Jan(?:uary|\.)?", r"Feb(?:ruary|\.)?", r"Mar(?:ch|\.)?", r"Apr(?:il|\.)?", "May", "June?", "July?"),
    *(r"Aug(?:ust|\.)?", r"Sept?(?:ember|\.)?", r"Oct(?:ober|\.)?", r"Nov(?:ember|\.)?", r"Dec(?:ember|\.)?"),
)
_MONTH = f"(?:{'|'.join(_MONTHS)})"
_DAY, _YEAR = r"\d{1,2}(?:st|nd|rd|th)?", r"\d{3,4}(?!\w)"
_DIGITS = rf"(?:\d{{1,3}}(?:[ \u00a0\u2007\u2009\u202f]\d{{3}})+(?!\d)|\d+(?:[.,]\d+)*)(?:{_GAP}{_FRACTION})?"
_NUMBERS = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million "
    "billion trillion dozen"
)
_A_NUMBER = rf"a{_SPACE}(?:hundred|thousand|million|dozen)"
_MORE_NUMBERS = (
    rf"(?i:(?:(?:-|{_SPACE}(?:(?:and|to|or){_SPACE})?)(?:{_NUMBERS.replace(' ', '|')}))*"
    rf"(?:{_SPACE}and{_SPACE}a{_SPACE}(?:half|quarter))?)"
)
"""Behind a number in words."""
_MAGNITUDE = r"(?:hundred|thousand|million|billion|trillion|dozen|bn)"
_LENGTH = r"(?:(?:kilo|centi|milli|micro|nano)?met(?:re|er)s?|miles?|feet|foot|inch(?:es)?|yards?)"
_UNIT_WORD = rf"""
(?:(?:business|calendar|working|consecutive|full|school|fiscal|square|cubic|nautical|metric|light){_SPACE})?
(?:seconds?|minutes?|hours?|days?|nights?|weeks?|fortnights?|months?|quarters?|years?|decades?|centur(?:y|ies)|
{_LENGTH}(?:{_SPACE}per{_SPACE}(?:second|hour))?|acres?|hectares?|
(?:kilo|milli|micro)?gram(?:me)?s?|pounds?|ounces?|tons?|tonnes?|(?:milli)?lit(?:re|er)s?|gallons?|pints?|barrels?|
degrees?(?:{_SPACE}(?:Celsius|Fahrenheit))?|kelvins?|per{_GAP}cent|(?:percentage|basis){_SPACE}points?|
dollars?|cents?|euros?|pence|yen|rupees?|francs?|crowns?|
(?:kilo|mega|giga)?(?:watts?|volts?|joules?|hertz|bits?|bytes?)|amps?|amperes?|newtons?|calories|decibels?|knots?)
""".replace("\n", "")
_UNIT_SIGN = (
    r"(?:[A-Za-zµΩ]{1,4}(?:[/·](?:[ckmµn]?m|[mn]?s|h|d|[mk]?g|m?[lL]|mol|K|Hz)[²³]?|[²³])|"
    rf"(?:[ap]m|[AP]M|[ap]\.m\.){_SPACE}(?:[A-Z]{{1,3}}T|UTC|GMT)|"
    r"%|‰|°[CF]?|[€$£¥₹]|(?:[kcmµn]m|m|ft)[²³23]?|[kmµ]?g|lbs?|oz|ha|m[lL]|[kMGT]?W|[kMG]Wh|[km]?V|[kMG]?Hz|kJ|K|"
    r"[kKMGT]i?B|k?Pa|hPa|dB|ppm|rpm|mph|km/h|kph|m/s|ms|min|USD|EUR|GBP|CHF|Fr\.|BCE?|BP|CE|AD|[ap]m|[AP]M|"
    r"[ap]\.m\.)"
)
_UNIT = rf"(?:(?i:{_UNIT_WORD})|{_UNIT_SIGN})(?!\w)"
_TAILS = r"(?:s|t|d|m|ll|re|ve)(?!\w)"
"""Letters after an apostrophe in a contraction or a possessive: phrases end before it."""
_NUMBERED = r"[Nn]os?|[Vv]ols?|[Pp]p?|[Ff]igs?|[Cc]h|[Ss]ecs?|[Aa]rts?|[Oo]p|[Ee]q"
_TITLES = (
    "Mr Mrs Ms Messrs Dr Prof St Mt Gen Col Sgt Capt Lt Cmdr Adm Maj Rev Hon Sen Gov Pres Inc Ltd Co Corp Jr Sr Bros"
)

_OPENERS = (
    r"(?:The|This|That|These|It|Its|An|In|On|At|He|She|They|We|You|His|Her|Their|There|Every|Each|All|But|And|If|When)"
    r"(?!\w)"
)
"""Words that begin a sentence after a letter, as in `vitamin C. It …`, rather than continue a name."""
_ENDINGS = (
    "txt|md|rst|csv|tsv|jsonl?|ya?ml|toml|xml|html?|css|pdf|docx?|xlsx?|pptx?|png|jpe?g|gif|svg|py|js|ts|rs|go|java|sh|"
    "ini|cfg|conf|log|sql|zip|tar|gz|exe|com|org|net|io|dev|edu|gov"
)
"""Of names of files and of hosts."""


def _at_word_start(*alternatives: str, ignoring_case: bool = False) -> str:
    """A pattern of alternatives, each beginning with a letter, where no word character is before it."""
    rests: dict[str, list[str]] = {}
    for each in alternatives:
        rests.setdefault(each[0], []).append(each[1:])
    flag = "i" if ignoring_case else ""
    guarded = [
        rf"{first}(?<!\w.)(?{flag}:{'|'.join(group)})"
        for letter, group in rests.items()
        for first in (letter.lower() + letter.upper() if ignoring_case else letter)
    ]
    return f"(?:{'|'.join(guarded)})"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern, and characters of which every match has one: most texts have none of `@` or `°`."""

    pattern: re.Pattern[str]
    characters: frozenset[str]


def _rules(*patterns: str | tuple[str, str]) -> tuple[_Rule, ...]:
    """Rules of patterns, each alone or after the characters of which its matches have one."""
    pairs = [("", each) if isinstance(each, str) else each for each in patterns]
    return tuple(_Rule(re.compile(pattern), frozenset(characters)) for characters, pattern in pairs)


# The engine skips to the characters that a pattern can begin with, which a lookbehind in front of them would prevent:
# (?<!\w)\d is written \d(?<!\w\d).
_BINDERS = _rules(
    # within numbers, hyphenated words, and after an apostrophe inside of a name: O'Brien
    r"[.,:/\-\u2010\u2011'\u2019](?:(?<=\d[.,:/])(?=\d)|(?<=\w[-\u2010\u2011])(?!(?<=\(\d{4}.)\d{4}\))(?=\w)|"
    rf"(?<=\w['\u2019])(?!(?i:{_TAILS}))(?=\w))",
)
"""Patterns that join their characters to the one before, and the one after to them."""
_CONNECTORS = _rules(
    rf"[{_MINUS}+±](?<![\w.)\]].)(?=\d)",
    ("$€£¥₹₩₽", rf"(?:(?<!\w)(?:US|AU?|CA?|NZ|HK)|)[$€£¥₹₩₽]{_GAP}(?=\d)"),
    rf"{_at_word_start('USD', 'EUR', 'GBP', 'CHF', 'AD')}{_SPACE}(?=\d)",
    # ranges, sizes and ratios: 7800 – 6400, 1 to 5 mg, 10 × 20 cm
    rf"\d(?:{_GAP}-{_GAP}|{_SPACE}to{_SPACE})(?={_DIGITS}(?:{_SPACE}{_MAGNITUDE})?{_GAP}{_UNIT})",
    ("×x", rf"\d{_GAP}[×x](?!\w){_GAP}(?=\d)|\d×(?=\d)"),
    # neither a life's years, as in (701–762), nor its dates, 1578 – 31 March 1621; but 3–5 May
    (
        _DASH,
        rf"\d(?:(?<!\(\d{{3}})(?<!\(\d{{4}})|(?=[{_DASH}]\d\d?(?!\d)))"
        rf"{_GAP}[{_DASH}]{_GAP}(?=\d)(?!{_DAY}{_SPACE}{_MONTH})",
    ),
    (_DASH, rf"\d(?<!\d\d)\d?{_GAP}[{_DASH}]{_GAP}(?={_DAY}{_SPACE}{_MONTH})"),
    # AT&T, 10⁻²⁷, H₂O
    ("&⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", r"\w&(?=\w)|\w[⁺⁻]?(?=[⁰¹²³⁴-⁹₀-₉])|[⁺⁻](?=[⁰¹²³⁴-⁹])"),
    rf"{_BLANK}(?<=\w.){_BLANK}*(?=A(?![\w'’])(?!{_SPACE}[A-Z]))",  # vitamin A
)
"""Patterns of a character or several that join the character after them; the first one joins nothing before it."""
_EXPRESSIONS = _rules(
    rf"\d{_SPACE}{_MAGNITUDE}(?!\w)(?:{_SPACE}{_UNIT})?|\d(?:{_SPACE}|-)(?i:{_UNIT_WORD})(?!\w)",
    rf"[\d¹²³⁰⁴-⁹](?:{_GAP}{_FRACTION})?{_GAP}{_UNIT_SIGN}(?!\w)",
    _DIGITS,
    rf"\d{_GAP}(?:ft|feet|['′’]){_GAP}\d{{1,2}}(?!\d)(?:{_GAP}(?:in(?!\w)|inch(?:es)?|[\"″”]))?",
    # coordinates; ISO times; telephone numbers; clauses
    ("°", rf"\d°{_GAP}[NSEW](?:,?{_SPACE}{_DIGITS}°{_GAP}[NSEW])?(?!\w)"),
    r"\d(?<!\w\d)\d{3}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?(?!\w)",
    r"\+(?<![\w+]\+)\d{1,3}[ -]?(?:\(\d{1,4}\)[ -]?)?\d[\d -]{3,}\d",
    rf"\((?<!\w\()\d{{2,4}}\){_GAP}\d[\d -]{{3,}}\d",
    ("§", rf"§+{_GAP}\d[\w.]*\w?(?:\(\w{{1,4}}\))*"),
    r"\d(?<!\w\d)\d{0,2}(?:\(\w{1,4}\))+",
    # addresses: of pages, mail, files and the like; names in programs: MAX_COUNT, --max-depth, C++17, .NET 8
    (":", r"(?:https?|ftp|file|mailto|s3|gs):/{0,2}[^\s<>\"“”|]*[\w/=&#%-]"),
    r"w(?<!\w.)ww\.[^\s<>\"“”|]*[\w/=&#%-]|1(?<![\w.].)0\.\d{4,9}/\S*\w",
    ("@", r"(?<![\w.+-])[\w.+-]*\w@\w[\w-]*(?:\.\w[\w-]*)+"),
    ("/\\", r"(?<![\w/.:@])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.@+~-]+(?:[/\\][\w.@+~-]+)*(?<!\.)/?"),
    rf"\w(?<![\w./].)[\w-]*(?:\.\w[\w-]*)*\.(?:{_ENDINGS})(?![\w-])",
    ("_", r"\b\w*(?:_+[A-Za-z0-9]+)+(?:\(\))?"),
    r"-(?<![\w-]-)-?[A-Za-z][\w-]*(?:/--?[A-Za-z][\w-]*)?(?:=[\w./:-]*\w)?",
    ("+#", r"[A-Z](?<!\w.)(?:\+\+\d{0,2}|#)(?!\w)"),
    rf"\.(?<![\w.].)NET(?:{_SPACE}\d[\d.]*)?(?!\w)",
    # numbers in words, alone where they are several, and with their unit: thirty (30) days
    rf"{_at_word_start(_A_NUMBER, *_NUMBERS.split(), ignoring_case=True)}{_MORE_NUMBERS}"
    rf"(?:{_SPACE}\({_DIGITS}%?\))?(?:(?:{_SPACE}|-){_UNIT}|(?!\w))",
    rf"{_at_word_start(*_MONTHS)}(?:{_SPACE}{_DAY}(?!\w)(?:,?{_SPACE}{_YEAR})?|,?{_SPACE}\d{{4}}(?!\w))",
    rf"\d(?<!\w\d)\d?(?:st|nd|rd|th)?{_SPACE}(?:of{_SPACE})?{_MONTH}(?!\w)(?:,?{_SPACE}{_YEAR})?",
    # U.S., a.m., Ph.D.; J. R. R. before a name; Dr., Inc.; No. 5
    r"[A-Za-z](?<![\w.].)(?:[A-Za-z]?\.(?:[A-Za-z]{1,2}\.)+(?:[A-Za-z](?!\w))?|\.(?:[A-Za-z]\.)*[A-Za-z](?!\w))",
    rf"[A-Z](?<![\w°].)\.(?={_GAP}[A-Z])(?!{_SPACE}{_OPENERS})",
    rf"{_at_word_start(*_TITLES.split())}\.",
    rf"\b(?:{_NUMBERED})\.{_GAP}\d+",
)
_MARKERS = re.compile(
    r"^[ \t]*(?:[-*+]|\(?\d{1,3}[.)]|\(?[A-Za-z]\)|\(?[ivx]{1,6}[.)])(?=\s|$)|\((?:[a-z]|[ivx]{2,5})\)(?=\s|$)",
    re.MULTILINE,
)


def joined_characters(text: str) -> np.ndarray:
    """Mask of the characters that belong to the same expression as the one before them: bool [characters].

    >>> text = "On May 5, 2031 about $15,000 in 45 days"
    >>> "".join("_" if joined else char for char, joined in zip(text, joined_characters(text)))
    'On M__________ about $______ in 4______'
    """
    joined = np.zeros(len(text) + 1, dtype=bool)  # [characters + 1]
    characters = set(text)
    for rules, skipped, ahead in ((_BINDERS, 0, 1), (_CONNECTORS, 1, 1), (_EXPRESSIONS, 1, 0)):
        for rule in rules:
            if rule.characters and rule.characters.isdisjoint(characters):
                continue
            for match in rule.pattern.finditer(text):
                joined[match.start() + skipped : match.end() + ahead] = True
    return joined[: len(text)]


def marker_characters(text: str) -> np.ndarray:
    """Mask of the characters of list markers, such as `b)`, `(iv)` and `12.` at the start of a line: bool [characters].

    >>> "".join("_" if marked else char for char, marked in zip("(b) Note", marker_characters("(b) Note")))
    '___ Note'
    """
    marked = np.zeros(len(text), dtype=bool)  # [characters]
    for match in _MARKERS.finditer(text):
        marked[slice(*match.span())] = True
    return marked
