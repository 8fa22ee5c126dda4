"""What is read of an HTML page, construct by construct, and that its offsets are the file's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npm.corpus.html_pages import page_text
from npm.corpus.markup import HIDDEN, visible

TAGS = ["<p>", "<td", "<!--", "-->", "&amp", "&nbsp;", "<script>", "</script>", "<svg>", "<![", "<pre>", "</h1>", "<?"]
MARKS = st.sampled_from('\n\r a<>&#1;[]"é/' + HIDDEN) | st.sampled_from(TAGS)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>Up to <b>45</b>\n  days.</p><p>Ask.", "Up to 45 days.\nAsk."),
        ("<style>p {}</style><script>if (a<b) x()</script><!-- c --><svg><title>t</title></svg>Text", "Text"),
        ("<nav>Home</nav><template>a</template><noscript>b</noscript>Text<br>line", "Text\nline"),
        ("R&D &amp; &lt;b&gt; &#8364;5&nbsp;m &copy &unheard;", "R&D & <b> €5 m © &unheard;"),
        ("<table><tr><th>Leave<th>Days<tr><td>Parental</td>\n<td>45</td></table>", "Leave | Days\nParental | 45\n"),
        ("<pre>a\n  b</pre> c\n d", "a\n  b\nc d"),
        ("10<sup>6</sup> of CO<sub>2</sub>", "10 6 of CO2"),
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


@given(st.lists(MARKS).map("".join) | st.text())
def test_every_page_keeps_its_length(page: str) -> None:
    assert len(page_text(page)[0]) == len(page)
