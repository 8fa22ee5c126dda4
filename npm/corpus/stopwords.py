"""English function words: words that rarely begin or end a phrase worth returning."""

from __future__ import annotations

_FUNCTION_WORDS = """
a an the this that these those such same
i me my mine myself we us our ours ourselves you your yours yourself yourselves
he him his himself she her hers herself it its itself they them their theirs themselves one oneself
who whom whose which what where when why how whoever whatever whichever whenever wherever
and or but nor so yet if then else than because although though while whereas unless until since whether
of in on at by to from with without within into onto upon over under above below between among amongst
through throughout during before after against about around across along behind beside besides beyond
near off out up down toward towards via per as for like despite except
am is are was were be been being do does did doing done have has had having
can could will would shall should may might must ought cannot
not no never neither either both each every all any some few many much more most other others another
only own just also too very quite rather even still again once here there now ever always often
however therefore thus hence moreover furthermore meanwhile otherwise instead already almost
doesn didn isn wasn weren aren hasn hadn couldn wouldn shouldn
"""

STOP_WORDS = frozenset(_FUNCTION_WORDS.split())
"""Whole words, lower case."""

LINKING_WORDS = frozenset({"of", "the", "and", "s"})
"""Function words that names and titles are built with: Bank of America, War and Peace, Noah's Ark."""

NAMES = frozenset({"US", "IT", "WHO", "May", "Will"})
"""Written so, these are names: no stop-words."""

CONTRACTION_TAILS = frozenset({"s", "t", "d", "m", "ll", "re", "ve"})
"""What stands after an apostrophe in a contraction; stop-words there only, so that "vitamin D" keeps its D."""

APOSTROPHES = "'\u2019\u02bc"


def is_stop_word(word: str, preceding: str = "") -> bool:
    """Whether `word` is a function word; `preceding` is the character before it, which decides on contractions.

    >>> is_stop_word("The"), is_stop_word("us"), is_stop_word("US")
    (True, True, False)
    >>> is_stop_word("s", preceding="'"), is_stop_word("s"), is_stop_word("'ll")
    (True, False, True)
    """
    if word[:1] in APOSTROPHES:
        word, preceding = word[1:], word[:1]
    if word in NAMES:
        return False
    lowered = word.lower()
    return lowered in STOP_WORDS or (preceding != "" and preceding in APOSTROPHES and lowered in CONTRACTION_TAILS)
