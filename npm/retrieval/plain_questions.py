"""Plain English questions turned into statements with a mask, by rules.

A question is its asking words, an auxiliary, and the rest. Nothing is parsed: the subject ends where the last
participle, the first known verb or a preposition left at the end says so. A question that no rule fits is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from npm.core.types import MASK_TEXT

BLANK = re.compile(r"_{3,}|\[MASK\]", re.IGNORECASE)
"""Other marks of a missing phrase."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BE, _DO = _words("is are was were"), _words("do does did")
_HAVE, _MODAL = _words("has have had"), _words("can could will would shall should may might must")
_AUXILIARIES = _BE | _DO | _HAVE | _MODAL
_ASKING = _words("who whom whose what which when where how")
_PREPOSITIONS = _words(
    "of in on at by to from with into onto upon over under between among through during before after against about "
    "around across along behind beyond near off out up down toward towards since until for as without"
)
_STRANDED = _PREPOSITIONS - _words("out up off down over")
_DETERMINERS = _words("a an the this that these those its his her their our your my all both each every")
_ADJECTIVES = _words("famous responsible similar equal allergic native known married")
"""Those of `famous for`, `married to`, which belong to a preposition at the end."""
_MEASURES = _words("old tall high deep wide long large big heavy thick")
_TIMES = {"year": "in the year", "century": "in the", "month": "in", "day": "on", "date": "on", "time": "at"}
_IRREGULAR = """
arise arose arisen|be was been|bear bore born|beat beat beaten|become became become|begin began begun|bend bent|
bet bet|bind bound|bite bit bitten|bleed bled|blow blew blown|break broke broken|breed bred|bring brought|build built|
burn burned|burst burst|buy bought|cast cast|catch caught|choose chose chosen|come came come|commit committed|
control controlled|cost cost|cut cut|deal dealt|die died|dig dug|do did done|draw drew drawn|drink drank drunk|
drive drove driven|eat ate eaten|fall fell fallen|feed fed|feel felt|fight fought|find found|flee fled|fly flew flown|
forbid forbade forbidden|forget forgot forgotten|freeze froze frozen|get got|give gave given|go went gone|grind ground|
grow grew grown|hang hung|have had|hear heard|hide hid hidden|hit hit|hold held|hurt hurt|keep kept|know knew known|
lay laid|lead led|leave left|lend lent|let let|lie lay lain|lose lost|make made|mean meant|meet met|occur occurred|
pay paid|put put|quit quit|read read|refer referred|rebuild rebuilt|ride rode ridden|ring rang rung|rise rose risen|
run ran run|say said|see saw seen|seek sought|sell sold|send sent|set set|shake shook shaken|shine shone|shoot shot|
shrink shrank shrunk|shut shut|sing sang sung|sink sank sunk|sit sat|sleep slept|speak spoke spoken|spend spent|
split split|spread spread|spring sprang sprung|stand stood|steal stole stolen|stick stuck|strike struck|swim swam swum|
swear swore sworn|take took taken|teach taught|tear tore torn|tell told|think thought|throw threw thrown|
transfer transferred|understand understood|undergo underwent undergone|wake woke woken|wear wore worn|win won|
withdraw withdrew withdrawn|write wrote written
"""
_REGULAR = """
accept achieve act add adopt air allow announce appear apply appoint arrive ask assassinate attack attend award ban
belong border borrow call capture carry cause celebrate change charge chew claim climb close collapse collect compete
compose conduct connect conquer consist construct contain continue contribute convert cover crash create cross declare
defeat defend define deliver depend derive describe design destroy develop direct disappear discover divide drop earn
elect emigrate employ end enter erupt establish exist expand explain explore export express face fail film finish flow
form found gain gather govern graduate happen help host hunt import improve include increase inherit inspire introduce
invade invent join jump kill lack land last launch learn legalize like live locate look love marry measure migrate
mine move name need obtain offer open operate orbit order organize originate own paint pass perform pick plan plant
play post practice predict premiere produce protect prove publish pull purchase push rain reach receive record reduce
refuse reign release remain remove replace represent require research resign respond retire return reveal review rule
save score search separate serve settle show sign solve sound span stay start stop store study suffer support
surrender survive symbolize talk test touch trade train transform translate travel treat try turn unify use visit vote
walk want warn wash watch weigh work worship
"""
_FORMS = [verb.split() for verb in _IRREGULAR.replace("\n", "").split("|")]
_PAST = {base: forms[0] for base, *forms in _FORMS}
_PARTICIPLES = frozenset(forms[-1] for _, *forms in _FORMS) | {"located", "set"}
_PAST_FORMS = frozenset(_PAST.values())
_BASES = frozenset(_PAST) | _words(_REGULAR)
_ALSO_NOUNS = _words("film form last name plan plant play post record release show sign test trade train vote")
_NO_PARTICIPLES = _words("united bred feed weed deed seed speed need breed indeed hundred sacred")


class _NoRuleError(Exception):
    """No rule fits the question."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """The missing part of the statement: its text, and whether it may only come last, as a time or a place does."""

    text: str
    is_adverbial: bool = False


def is_question(text: str) -> bool:
    """Return True if `text` ends with a question mark or begins with an asking word.

    >>> is_question("who wrote hamlet"), is_question("Is it late?"), is_question("It is late.")
    (True, True, False)
    """
    return text.rstrip().endswith("?") or text.lower().split(maxsplit=1)[:1] in [[each] for each in _ASKING]


def statement_of(question: str) -> str | None:
    """The question as a statement with one `<mask>`; None if no rule fits.

    >>> statement_of("When did Victor Hugo die?"), statement_of("Who is Iceland named after?")
    ('Victor Hugo died in <mask>.', 'Iceland is named after <mask>.')
    >>> statement_of("Why is the sky blue?") is None
    True
    """
    plain = re.sub(r"\b(who|what|where|when|how)['’]s\b", r"\1 is", question.strip(), flags=re.IGNORECASE)
    plain = re.sub(r"\b(who|what|where|when|how)['’]re\b", r"\1 are", plain, flags=re.IGNORECASE)
    words = plain.rstrip(" ?!.").split()
    try:
        found = " ".join(_statement(words))
    except _NoRuleError:
        return None
    return f"{found[:1].upper()}{found[1:]}."


def _statement(words: list[str]) -> list[str]:
    low = [word.lower().strip(",;") for word in words]
    if {"not", "n't"} & set(low) or any(word.endswith("n't") for word in low) or len(words) < 3:
        raise _NoRuleError
    if low[0] in _PREPOSITIONS and low[1] in _ASKING:  # in which year …
        start, slot, noun = _asked(low[1:], words[1:])
        named = (
            slot.text.split(" ", 1)[1] if slot.is_adverbial else _named(slot, noun)
        )  # in the year, not in in the year
        return _clause(words[1 + start :], _Slot(f"{words[0].lower()} {named}", is_adverbial=True))
    if low[0] not in _ASKING:
        return _asked_last(words, low)
    start, slot, noun = _asked(low, words)
    rest, verb = words[start:], low[start] if start < len(low) else ""
    if noun and not slot.is_adverbial and slot.text == MASK_TEXT and _is_subject(low[start:]):
        participle = verb in _BE and _is_participle(low[start + 1]) if start + 1 < len(low) else False
        that = rest[1:] if participle else ["that", *rest]
        is_plural = verb in ("are", "were") or noun[0].endswith("s")
        return ["the", *noun, *that, "are" if is_plural else "is", MASK_TEXT]
    if verb in _AUXILIARIES or slot.text != MASK_TEXT:
        return _clause(rest, _Slot(_named(slot, noun), slot.is_adverbial))
    if low[0] in ("who", "what") and _is_finite(verb):
        return [MASK_TEXT, *rest]
    raise _NoRuleError


def _asked(low: list[str], words: list[str]) -> tuple[int, _Slot, list[str]]:
    """The number of asking words, the slot, and the noun they ask for, such as `year` of `in which year`."""
    asking = low[0]
    if asking in ("when", "where"):
        return 1, _Slot(f"in {MASK_TEXT}", is_adverbial=True), []
    if asking == "how" and low[1] in ("many", "much"):
        stop = _noun_end(low, 2)
        return stop, _Slot(" ".join([MASK_TEXT, *words[2:stop]])), []
    if asking == "how" and low[1] in _MEASURES:
        unit = "years old" if low[1] == "old" else low[1]
        return 2, _Slot(f"{MASK_TEXT} {unit}" if low[2] in _BE else f"for {MASK_TEXT}", is_adverbial=True), []
    if asking == "how" and low[1] == "far":
        return 2, _Slot(MASK_TEXT, is_adverbial=True), []
    if asking == "how":
        raise _NoRuleError
    if asking in ("who", "whom") or low[1] in _AUXILIARIES or (asking == "what" and _is_finite(low[1], after="what")):
        return 1, _Slot(MASK_TEXT), []
    stop = _noun_end(low, 1)
    if asking == "whose":
        return stop, _Slot(" ".join([f"{MASK_TEXT}'s", *words[1:stop]])), []
    if owner := next((n for n in range(1, stop) if low[n].endswith(("'s", "’s"))), 0):  # which country's president
        return stop, _Slot(" ".join([f"{MASK_TEXT}'s", *words[owner + 1 : stop]])), []
    noun = [*(["one"] if low[1] == "of" else []), *words[1:stop]]
    if low[1] in _TIMES and stop == 2 and low[2] in _DO | _BE and low[-1] not in _STRANDED:
        return stop, _Slot(f"{_TIMES[low[1]]} {MASK_TEXT}", is_adverbial=True), []
    return stop, _Slot(MASK_TEXT), noun


def _noun_end(low: list[str], first: int) -> int:
    """The index of the verb after the noun that begins at `first`."""
    for number in range(first, len(low)):
        if low[number] in _AUXILIARIES or (number > first and _is_finite(low[number], after=low[number - 1])):
            return number
    if len(low) > first + 2 and _is_finite(low[first + 1]):  # a verb that is not known
        return first + 1
    raise _NoRuleError


def _named(slot: _Slot, noun: list[str]) -> str:
    """The slot after its noun: `the river <mask>`."""
    return " ".join(["the", *noun, slot.text]) if noun else slot.text


def _is_subject(low: list[str]) -> bool:
    """Return True if what is asked for is the subject of these words: `flows through Rome`, `is spoken in Brazil`."""
    verb, following = low[0], low[1] if len(low) > 1 else ""
    if verb in _DO or low[-1] in _STRANDED:
        return False
    if verb in _MODAL:
        return following in _BASES or following == "be"
    if verb in _HAVE:
        return _is_participle(following) or not _has_participle(low[1:])
    return verb not in _BE or _is_participle(following) or following.endswith("est") or following in _PREPOSITIONS


def _asked_last(words: list[str], low: list[str]) -> list[str]:
    """`Perth is the capital of which state?`"""
    places = [number for number, word in enumerate(low) if word in _ASKING]
    if not places or places[0] < max(2, len(low) - 4) or low[0] in _AUXILIARIES or low[places[0]] == "how":
        raise _NoRuleError
    place = places[0]
    noun = words[place + 1 :]
    prefix = ["in"] if low[place] in ("when", "where") and low[place - 1] not in _PREPOSITIONS else []
    return [*words[:place], *prefix, *(["the", *noun] if noun else []), MASK_TEXT]


def _clause(words: list[str], slot: _Slot) -> list[str]:
    """The statement of an auxiliary and the rest, with the slot where it belongs."""
    low = [word.lower().strip(",;") for word in words]
    if not low:
        raise _NoRuleError
    verb, rest, own = low[0], words[1:], low[1:]
    if verb not in _AUXILIARIES:
        if slot.is_adverbial:
            raise _NoRuleError
        return [slot.text, *words]  # how many people live in …
    if not rest:
        raise _NoRuleError
    if verb in _BE:
        return _of_be(verb, rest, own, slot)
    if not slot.is_adverbial and (
        (verb in _MODAL and own[0] in _BASES | {"be"})
        or (verb in _HAVE and (_is_participle(own[0]) or own[0] in _DETERMINERS or not _has_participle(own)))
    ):
        return [slot.text, *words]  # the subject is asked for
    if verb in _HAVE:
        place = max(number for number in range(len(own)) if _is_participle(own[number])) if _has_participle(own) else 0
        if not place:
            raise _NoRuleError
        return [*rest[:place], verb, rest[place], *_with_slot(rest[place + 1 :], slot)]
    if not slot.is_adverbial and own[0] in _DETERMINERS and not _BASES.intersection(own):
        return [slot.text, *words]  # who does the voice of …
    place = _verb_place(rest, own)
    predicate = [verb, rest[place]] if verb in _MODAL else [_inflected(own[place], verb)]
    if slot.text == f"for {MASK_TEXT}" and own[place] in ("last", "take"):
        slot = _Slot(MASK_TEXT, is_adverbial=False)
    return [*rest[:place], *predicate, *_with_slot(rest[place + 1 :], slot)]


def _of_be(verb: str, rest: list[str], own: list[str], slot: _Slot) -> list[str]:
    if own[0] == "there":
        return ["there", verb, slot.text, *rest[1:]]
    is_open = own[-1] in _STRANDED
    pairs = [*enumerate(own)][1:]
    is_moment = own[2:3] == ["time"]  # the last time it rained
    place = 0 if is_moment else max((n for n, _ in pairs if _is_predicate(own, n)), default=0)
    second = (n for n, word in pairs if word in _DETERMINERS and rest[n - 1][0].isupper())
    if is_open or slot.is_adverbial:
        place = place or next(second, 0)  # Reykjavík | the capital of
    place -= place > 1 and (own[place - 1] == "first" or own[place - 1].endswith("ly"))
    if is_open and not place:
        place = len(own) - 1
        place -= place > 1 and own[place - 1] in _ADJECTIVES
    if slot.is_adverbial:
        if "from" in own[1:-1] and slot.text == MASK_TEXT:  # how far
            place = own.index("from")
            return [*rest[:place], verb, slot.text, *rest[place:]]
        place = place or len(rest)
        is_from = is_open and slot.text == f"in {MASK_TEXT}"  # `comes from` takes no other preposition
        return [*rest[:place], verb, *rest[place:], MASK_TEXT if is_from else slot.text]
    is_count = slot.text != MASK_TEXT and slot.text.startswith(MASK_TEXT)  # how many … are in …
    is_role = rest[0].islower() and own[0] not in _DETERMINERS and own[1:2] and own[1] in _PREPOSITIONS and not is_open
    is_passive = (_is_participle(own[0]) or own[0].endswith("ly")) and not _is_participle(own[-1])
    if is_count or is_role or is_passive or own[0] in _PREPOSITIONS:
        return [slot.text, verb, *rest]
    if is_open or place == len(own) - 1 > 0:
        return [*rest[:place], verb, *rest[place:], slot.text]
    return [*rest, verb, slot.text]


def _with_slot(tail: list[str], slot: _Slot) -> list[str]:
    """The words after a verb with the slot: after a lone preposition, before a prepositional phrase, else last."""
    low = [word.lower() for word in tail]
    taking = {"from", "to"} if slot.is_adverbial else _PREPOSITIONS  # came from where
    for number, word in enumerate(low):
        following = low[number + 1 : number + 3]
        is_lone = not following or (following[0] in _PREPOSITIONS | _ASKING and following[-1] not in _PREPOSITIONS)
        if word in taking and is_lone:
            return [*tail[: number + 1], slot.text.removeprefix("in "), *tail[number + 1 :]]
    if slot.is_adverbial:
        return [*tail, slot.text]
    if low and low[0] in _PREPOSITIONS:
        return [slot.text, *tail]
    return [*tail, slot.text]


def _verb_place(words: list[str], low: list[str]) -> int:
    """The index of the verb after `did` and its subject: the first known one that no article makes a noun.

    Else an unknown word before an article or before a preposition at the end, or the last word.
    """
    possible = [
        n for n in range(1, len(low)) if words[n].islower() and low[n - 1] not in _DETERMINERS | _PREPOSITIONS | {"and"}
    ]
    known = [n for n in possible if low[n] in _BASES]
    if known:
        return known[1] if low[known[0]] in _ALSO_NOUNS and len(known) > 1 else known[0]
    followed = [
        n for n in possible if low[n] not in _PREPOSITIONS and low[n + 1 : n + 2] and low[n + 1] in _DETERMINERS
    ]
    last = len(low) - (2 if low[-1] in _PREPOSITIONS else 1)
    if not followed and last in possible and not _PREPOSITIONS.intersection(low[: last + 1]):
        followed = [last]
    if not followed:
        raise _NoRuleError
    return followed[0]


def _is_participle(word: str) -> bool:
    if word.endswith("ing"):
        return not _BASES.isdisjoint((word[:-3], word[:-4], f"{word[:-3]}e"))
    return word in _PARTICIPLES or (
        word.endswith("ed") and word.isalpha() and word not in _NO_PARTICIPLES and len(word) > 3
    )


def _is_predicate(low: list[str], number: int) -> bool:
    """Return True for a participle without an article or an auxiliary of its own: not `the lost city`, `has lived`."""
    is_alone = _DETERMINERS.isdisjoint(low[number - 1 : number])
    return is_alone and _is_participle(low[number]) and (_BE | _HAVE).isdisjoint(low[max(0, number - 2) : number])


def _has_participle(low: list[str]) -> bool:
    return any(map(_is_participle, low[1:]))


def _is_finite(word: str, after: str = "") -> bool:
    """Return True if `word` looks like a verb in the past or the third person, after a noun if given."""
    if word in _PAST_FORMS or _is_participle(word):
        return True
    stems = {word[:-1], word[:-2], f"{word[:-3]}y"} if word.endswith("s") else set[str]()
    if after:  # `people live`: plurals are nouns, unless another noun is before them
        return bool(stems & _BASES) or (word in _BASES and (after.endswith("s") or after in ("people", "men", "women")))
    return word.endswith("s") and not word.endswith("ss")


def _inflected(base: str, auxiliary: str) -> str:
    """The form of a verb that says what `do`, `does` or `did` says.

    >>> [_inflected(base, "did") for base in ("die", "stop", "marry", "visit", "go")]
    ['died', 'stopped', 'married', 'visited', 'went']
    >>> [_inflected(base, "does") for base in ("have", "go", "marry", "watch", "play")]
    ['has', 'goes', 'marries', 'watches', 'plays']
    """
    ends_in_y = base.endswith("y") and base[-2:-1] not in "aeiou"
    if auxiliary == "do" or base.removesuffix("s") in _BASES - {base}:  # does it comes
        return base
    if auxiliary == "does":
        if base in ("have", "be"):
            return {"have": "has", "be": "is"}[base]
        if ends_in_y:
            return f"{base[:-1]}ies"
        return f"{base}es" if base.endswith(("s", "x", "z", "ch", "sh", "o")) else f"{base}s"
    if base in _PAST or base in _PAST_FORMS:
        return _PAST.get(base, base)
    if ends_in_y:
        return f"{base[:-1]}ied"
    if base.endswith("e"):
        return f"{base}d"
    return f"{base}{base[-1]}ed" if re.fullmatch(r"[^aeiou]*[aeiou][bdgmnprt]", base) else f"{base}ed"
