"""What is read of Markdown, HTML and wrapped text, construct by construct, and that its offsets are the file's."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from npm.corpus.html_pages import page_text
from npm.corpus.markdown import joined_lines, markdown_text
from npm.corpus.markup import CELL, HEADER_CELL, HIDDEN, readable, table_rows, visible

MARKS = "<p> <!-- --> &amp; &#1 <script> ]( ![ ** ``` ~~~ --- === [^1]:"
LETTERS = st.sampled_from("\n\r\t aB.é<>[](){}%*_`|#-+1\\\ufeff\ue000" + HIDDEN)
TEXTS = st.lists(LETTERS | st.sampled_from(["    ", *MARKS.split()])).map("".join) | st.text()


def marked(text: str) -> str:
    """A read text with its marks of tables as they were."""
    return text.replace(CELL, "|").replace(HEADER_CELL, "|")


def shown(markdown: str) -> str:
    return visible(markdown_text(markdown)[0])


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        ("The Office of\nCommunications", "The Office of Communications"),
        ("a life-\nthreatening case\r\nis  \nrare", "a life- threatening case is rare"),
        ("One.\n\nTwo\nwords.\n", "One.\n\nTwo words.\n"),
        ("Rules:\n1. be kind\n   to all\n2. be brief", "Rules:\n1. be kind to all\n2. be brief"),
        ("- one\n  item\n- two\n* three", "- one item\n- two\n* three"),
        ("(a) the first;\n(b) the second", "(a) the first;\n(b) the second"),
        ("as in paragraph\n(2) of this Act", "as in paragraph (2) of this Act"),
        ("it was built in\n1999. Then came", "it was built in 1999. Then came"),
        ("A Title\nin two lines\n============\nText", "A Title in two lines\n============\nText"),
        ("Text\n# Heading\nmore\ntext", "Text\n# Heading\nmore text"),
        ("| a | b |\n| c | d |\nText", "| a | b |\n| c | d |\nText"),
        ("Text\n-----\nText", "Text\n-----\nText"),
        ("    if x:\n        f(x)\n", "    if x:\n        f(x)\n"),
        ("Call it:\n\n    f(x)\n    g\n\nThen\ngo", "Call it:\n\n    f(x)\n    g\n\nThen go"),
        ("Note:\n\n     The terms\n     apply.", "Note:\n\n     The terms apply."),
        ("```\ncode\nmore\n```\nText", "```\ncode\nmore\n```\nText"),
        ("```\ncode\n```x\nmore\nlines\n```\nText", "```\ncode\n```x\nmore\nlines\n```\nText"),
        ("   A first\nline. The\n   Next one\nends.", "   A first line. The\n   Next one ends."),
        ("> quoted\n> text\nown\ntext", " quoted text\nown text"),
        (">>> f(1)\n", ">>> f(1)\n"),
    ],
)
def test_single_line_breaks_of_a_paragraph_are_joined(wrapped: str, expected: str) -> None:
    assert visible(joined_lines(wrapped)).strip(" ") == expected.strip(" ")


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("It takes **45\ndays** at *most*.", "It takes 45 days at most."),
        ("__a__ _b_ ***c*** ~~d~~ un*frigging*real", "a b c unfriggingreal"),
        ("The pump costs ~~400 EUR~~ 350 EUR, <del>net</del>.", "The pump costs 350 EUR, ."),
        ("==a== [[Ana Duarte|Ana]] [[Bo]]^[a note] ![[b.png]] %% c %% d", "a Ana Bo (a note) d"),
        ("> [!warning] Freeze\n> It starts\n> in May.", "Freeze\nIt starts in May."),
        ("25 m<sup>3</sup>, word<sup>1</sup>, CO<sub>2</sub>, **1**<sup>st</sup>", "25 m³, word, CO2, 1st"),
        ("<table>\n<tr>\n<th>A</th>\n<th>B</th>\n</tr>\n<tr>\n<td>1</td>\n<td>2</td></tr></table>", "A |B\n1 |2"),
        ("snake_case_name, 2 * 3 * 4, `a * b *` and \\*x\\*", "snake_case_name, 2 * 3 * 4, a * b * and *x*"),
        ("**bold *both* [link](x)**", "bold both link"),
        ("[Form](/f(1).pdf 'T'), [ref][r] and [plain]", "Form, ref and [plain]"),
        ("a ![pic](p.png) b [![badge](b.svg)](ci) c", "a b c"),
        ("[r]: https://a.b 'T'\n[^1]: A note.\nText[^1].", "\nA note. Text."),
        ("<https://a.b/c_d_e> and https://a.b/_c_ end", "https://a.b/c_d_e and https://a.b/_c_ end"),
        ("a <b>c</b> d<br>e &amp; R&D &lt;x&gt;", "a c d e & R&D <x>"),
        ("a {{ site.name }} b {% if x %}c{% endif %}.", "a b c."),
        ("{% if x %}\nText\n{% endif %}\n", "\nText\n\n"),
        ("`{{ x }}` stays\n\n```\n<!-- {{ y }} -->\n```", "{{ x }} stays\n<!-- {{ y }} -->\n"),
        ("a <!-- one\n\ntwo --> b", "a b"),
        ("## Heading {#id} ##\nText", "Heading\nText"),
        ("- [x] one\n  two\n- three", "one two\nthree"),
        ("1. one\n2. two (1)\n   three", "1. one\n2. two (1) three"),
        ("> a\n> b\n\nc", "a b\n\nc"),
        ("| a | b |\n|---|:-:|\n| **c** | d |", "a | b\nc | d "),
        ("a | b\n--|--\nc | d\n\ne", "a | b\nc | d\n\ne"),
        ("```python\n# no *heading*\n  x\n```\nText", "# no *heading*\n  x\nText"),
        ("Text\n\n    code *x*\n      y\n", "Text\n\n    code *x*\n      y\n"),
        ("- a\n\n      code\n\n    text\n    more", "a\n\n      code\ntext more"),
    ],
)
def test_marks_of_markdown_are_hidden(markdown: str, expected: str) -> None:
    assert shown(markdown).strip(" \n") == expected.strip(" \n")


@pytest.mark.parametrize(
    ("markdown", "title"),
    [
        ("```\n# code\n```\n\n## The *capital* ##\n", "The capital"),
        ("A long\ntitle\n=====\n", "A long title"),
        ("#hashtag\n", ""),
        ("#\n# [Two](x)\n", "Two"),
    ],
)
def test_the_title_is_the_first_heading(markdown: str, title: str) -> None:
    assert markdown_text(markdown)[1] == title


def test_line_breaks_stay_where_they_are_not_to_be_joined() -> None:
    assert visible(markdown_text("*One*\ntwo\n", join_lines=False)[0]) == "One\ntwo\n"


@example("- ")
@example("|")
@given(TEXTS)
def test_every_text_keeps_its_length_and_its_visible_characters(text: str) -> None:
    for plain in (joined_lines(text), markdown_text(text)[0], markdown_text(text, join_lines=False)[0]):
        assert len(plain) == len(text)
        decodes = "&" in text
        pairs = zip(marked(plain), text, strict=True)
        assert decodes or all(now == given or now.isspace() for now, given in pairs)


@example("- ")
@example("|")
@given(TEXTS)
def test_nothing_but_space_changes_in_wrapped_text_without_quotes(text: str) -> None:
    text = text.replace(">", "")
    assert marked(joined_lines(text)).split() == text.split()


@given(
    st.lists(st.sampled_from(["a", "B.", "1. ", "- ", "\n", "# ", "|", "---"])).map("".join)
)  # indentation may end a list item
def test_joining_joined_lines_changes_nothing(text: str) -> None:
    once = visible(joined_lines(text))
    assert visible(joined_lines(once)) == once


TAGS = ["<p>", "<td", "<!--", "-->", "&amp", "&nbsp;", "<script>", "</script>", "<svg>", "<![", "<pre>", "</h1>", "<?"]
PAGE_PARTS = st.sampled_from('\n\r a<>&#1;[]"é/' + HIDDEN) | st.sampled_from(TAGS)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>Up to <b>45</b>\n  days.</p><p>Ask.", "Up to 45 days.\nAsk."),
        ("<style>p {}</style><script>if (a<b) x()</script><!-- c --><svg><title>t</title></svg>Text", "Text"),
        ("<nav>Home</nav><template>a</template><noscript>b</noscript>Text<br>line", "Text\nline"),
        ("R&D &amp; &lt;b&gt; &#8364;5&nbsp;m &copy &unheard;", "R&D & <b> €5 m © &unheard;"),
        ("<table><tr><th>Leave<th>Days<tr><td>Parental</td>\n<td>45</td></table>", "Leave|Days\nParental |45\n"),
        (
            "<table><tr><td><p>Item</p><td>Price<tr><td>Pump<td><p>812</p><p>euros</p></table>",
            "Item |Price\nPump| 812 euros",
        ),
        ("<table><tr><td>a<table><tr><td>b<td>c</table><td>d</table>", "a\nb|c\nd"),
        ("<p hidden>a<p>b<div style='color:red; display: none'>c<div>d</div>e</div>f<input hidden>g", "b\nfg"),
        (
            "founder<sup><a href='#1'>1</a></sup>, 1998<sup>4</sup>, 890 N/mm<sup>2</sup>, 1<sup>st</sup>",
            "founder, 1998, 890 N/mm², 1st",
        ),
        ("costs <s>400</s> 350", "costs 350"),
        ("<pre>a\n  b</pre> c\n d", "a\n  b\nc d"),
        ("10<sup>6</sup> of CO<sub>2</sub>", "10⁶ of CO2"),
        ("a<![if !IE]>b<![endif]> <a href='x>y'>c</a>", "ab c"),
        ("<ul><li>x<li>y</ul>z", "x\ny\nz"),
    ],
)
def test_what_a_browser_shows_is_read(page: str, expected: str) -> None:
    text = page_text(page).text
    assert len(text) == len(page)
    assert visible(text).strip(" \n") == expected.strip()


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<svg><title>no</title></svg><title>Leave &amp;\n more</title><h1>Head</h1>", "Leave & more"),
        ("<body><h1>The <i>first</i></h1><h1>Next</h1>", "The first"),
        ("<p>Text", ""),
        ("", ""),
    ],
)
def test_the_title_is_that_of_the_page_or_its_first_heading(page: str, title: str) -> None:
    assert page_text(page)[1] == title


@given(st.lists(PAGE_PARTS).map("".join) | st.text())
def test_every_page_keeps_its_length(page: str) -> None:
    assert len(page_text(page)[0]) == len(page)


TABLE = "# R\n\n| Depot | Rate |\n|---|---|\n| Porto | 737 EUR |\n| a\\|b | |\n| too | many | cells |\n\nEnd.\n"


def test_a_row_is_read_with_the_cells_of_its_header() -> None:
    read = readable(markdown_text(TABLE).text)
    lines = [line.strip() for line in read.text.splitlines()]
    assert [line for line in lines if line] == [
        *("R", "Depot | Rate", "Depot: Porto; Rate: 737 EUR", "Depot: a|b", "too | many | cells", "End."),
    ]
    inserted = "".join(char for char, own in zip(read.text, read.is_inserted, strict=True) if own)
    assert inserted == "Depot: ; Rate: Depot: "
    for place, char, own in zip(read.places.tolist(), read.text, read.is_inserted.tolist(), strict=False):
        assert own or char in (TABLE[place], " ", "\n")


def test_a_table_without_a_header_has_no_rows_under_one() -> None:
    read = readable("a\u037eb\n")
    assert (read.text, list(table_rows(read))) == ("a|b\n", [])


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_a_text_is_read_as_in_the_whole(text: str, start: int, length: int) -> None:
    stored = markdown_text(text).text
    part = readable(stored, min(start, len(stored)), min(start + length, len(stored)))
    assert len(part.places) == len(part.text) + 1 == len(part.is_header) + 1
    assert (part.places[1:] >= part.places[:-1]).all()
    whole = readable(stored)
    if "\u0387" not in stored:
        assert part.text in whole.text
