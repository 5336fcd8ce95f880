"""Pages are read as they are shown, in the encoding that they state; XHTML is XML."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.files.document import Document, PassedOverError
from everlong.files.html import read
from support.word_trees import marked_up, trees, words_in

XHTML = '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml">{}</html>'


def _read(page: str | bytes, suffix: str = "html") -> tuple[Document, list[str]]:
    found = list(read(page.encode() if isinstance(page, str) else page, suffix))
    (document,) = (one for one in found if isinstance(one, Document))
    return document, [f"{one.name}: {one}" for one in found if isinstance(one, PassedOverError)]


def _text(page: str | bytes) -> str:
    return _read(page)[0].text.strip()


@pytest.mark.parametrize(
    "page",
    [
        "<head><title/></head><body><p>NEEDLE here.</p></body>",
        "<head><title>One</title><script src='a.js'/><style/></head><body><p>NEEDLE here.</p></body>",
        "<body><p>Before.</p><script src='a.js'/><iframe src='v.html'/>NEEDLE here.</body>",
        "<body><p>Before.</p><noscript/><object data='a.svg'/>NEEDLE here.</body>",
        "<body><form><textarea name='a'/><select/></form><h1>Two</h1><p>NEEDLE here.</p></body>",
        "<body><a id='p1'/><div class='rule'/><p>NEEDLE here.</p></body>",
        "<body><p><![CDATA[NEEDLE <in> here.]]></p></body>",
        "<body><p>NEEDLE&nbsp;here &amp;&mdash;&#160;there.</p></body>",
        "<body xmlns:h='http://www.w3.org/1999/xhtml'><h:script/><h:p>NEEDLE here.</h:p></body>",
        "<body><iframe>no <b>frame</b></iframe><svg xmlns='http://www.w3.org/2000/svg'><style/><text>NEEDLE</text></svg></body>",
        "<body><p>Broken &amp <title/><script/>NEEDLE here.</body>",
    ],
)
def test_an_element_of_xhtml_that_closes_itself_swallows_nothing(page: str) -> None:
    for suffix in ("html", "xhtml"):
        document, _ = _read(XHTML.format(page), suffix)
        assert "NEEDLE" in document.text
        assert "</" not in document.text
        assert "NEEDLE" not in document.title


def test_entities_of_a_page_s_own_are_neither_resolved_nor_hidden() -> None:
    page = '<!DOCTYPE html [<!ENTITY me "Ada"><!ENTITY etc_ SYSTEM "file:///etc/passwd">]>'
    page += '<html xmlns="http://www.w3.org/1999/xhtml"><body><p>By &me; &etc_;.</p></body></html>'
    assert _text(page) == "By &me; &etc_;."


@pytest.mark.parametrize(
    ("stated", "encoding", "words"),
    [
        ("iso-8859-1", "cp1252", "The rent is 1,250 €, “all in” – isn’t it…"),
        ("gb2312", "gbk", "合同由丂和镕签署，押金一千二百五十元。"),
        ("shift_jis", "cp932", "契約①の髙橋さんは五月五日までに敷金を支払います。"),
        ("ks_c_5601-1987", "cp949", "계약서의 똠방각하는 오월 오일까지 보증금을 지불합니다."),
        ("iso-8859-9", "cp1254", "Kiracı “depozitoyu” beş Mayıs'tan önce ödeyecek…"),
        ("iso-2022-jp", "iso2022_jp", "鍵は本の隣の上の棚にあります。"),
        ("us-ascii", "utf-8", "Zürich – naïve"),
    ],
)
def test_a_page_is_decoded_as_it_states(stated: str, encoding: str, words: str) -> None:
    head = f'<html><head><script>{"x" * 6000}</script><meta charset="{stated}"></head><body><p>'
    assert _text(head.encode() + words.encode(encoding)) == words
    assert _text(f'<?xml version="1.0" encoding="{stated}"?><html><body><p>'.encode() + words.encode(encoding)) == words


def test_code_keeps_its_spaces_and_powers_are_no_digits() -> None:
    code = "def f(x):\n    if x:\n        return 1\n\n\n    return 2"
    assert _text(f"<h1>How</h1><pre><code>{code}\n</code></pre>") == f"How\n\n{code}"
    assert _text("<p>10<sup>6</sup> kg, 1<sup>st</sup>, H<sub>2</sub>O, x<sup>n</sup>, 5<sup>1</sup>/<sub>2</sub>") == (
        "10^6 kg, 1st, H2O, x^n, 5^1/2"
    )
    assert _text("<math><mfrac><mn>1</mn><mn>2</mn></mfrac><msup><mi>x</mi><mn>3</mn></msup></math>") == "1/2x^3"
    assert _text("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>です") == "漢字(かんじ)です"
    assert _text("Donau\u00addampf<wbr>schiff&shy;fahrt") == "Donaudampfschifffahrt"


def test_what_a_page_shows_on_a_click_is_read() -> None:
    assert _text("<details><summary>More</summary>inside</details><dialog>asked</dialog>") == "More\ninside\nasked"
    assert _text("<noscript><p>no script</p></noscript><template>no</template>") == "no script"
    assert (
        _text('<p><abbr title="World Health">WHO</abbr> <img alt="A map" title="Tip"></p>')
        == "WHO (World Health) A map (Tip)"
    )
    form = "<input value=v><input type=hidden value=h><input placeholder=p><input type=checkbox checked>one"
    form += "<textarea> t</textarea>"
    assert (
        _text(form + "<select><optgroup label=G><option selected>a<option>b</select>")
        == "v p [x] one\n t\nG\n\n[x] a\nb"
    )
    assert _text("<div><template shadowrootmode=open><i>shadow</i></template>light</div>") == "shadow\nlight"
    assert _text("<p>a</p><iframe srcdoc='<p>inner &lt;b&gt;page'>raw</iframe>z") == "a\n\ninner page\n\nz"
    assert _text("<table><caption>Cap</caption><tr><th>A<td>B<tr><td>1<td>2</table>") == "Cap\nA | B\n1 | 2"
    assert _text("<button>Send</button><button>Stop</button><!-- no --><script>no()</script>") == "Send Stop"


def test_what_is_not_read_is_named() -> None:
    page = "<p>Shown.</p><p hidden>one two<script>no()</script></p>"
    page += "<p style='color:red; Display : none'>three</p><i aria-hidden=true>icon</i>"
    document, over = _read(page)
    assert document.text.split() == ["Shown.", "icon"]
    assert over == ["hidden text: is not shown: 3 words"]
    document, over = _read("<frameset><frame src=a.html><frame src=b.html><noframes><p>None</p></noframes></frameset>")
    assert document.text.strip() == "None"
    assert over == ["a.html, b.html: are pages of their own, shown in frames"]
    _, over = _read("<title>Rent<body><p>The words</p></body>")
    assert "may be lost" in over[0]
    assert _read("<p hidden=until-found>found</p><p style='background: none'>shown")[1] == []


def test_a_long_title_is_read_whole() -> None:
    words = " ".join(f"word{n}" for n in range(60))
    document, _ = _read(f"<title>{words}</title><p>Text")
    assert document.text.split() == [*words.split(), "Text"]


def test_pages_within_pages_end() -> None:
    page = "<p>deepest"
    for _ in range(9):
        page = f'<p>level<iframe srcdoc="{page.replace("&", "&amp;").replace(chr(34), "&quot;")}"></iframe>'
    assert _text(page).split().count("level") == 5
    deep = "<div>" * 5_000 + "word"
    assert _text(deep) == "word"


@given(st.lists(trees(), max_size=4))
def test_all_words_of_a_page_come_back_in_order(several: list[object]) -> None:
    markup, words = marked_up(several)
    document, over = _read(f"<!doctype html><title>T</title><body>{''.join(markup)}")
    assert words_in(document.text) == words
    assert over == []


@given(st.lists(trees(empty=True), max_size=4), st.booleans())
def test_all_words_of_xhtml_come_back_in_order(several: list[object], broken: bool) -> None:
    markup, words = marked_up(several)
    body = "".join(markup) + ("<p>&" if broken else "")
    document, _ = _read(XHTML.format(f"<head><title/></head><body>{body}</body>"), "xhtml")
    assert words_in(document.text) == words


@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=30))
def test_a_page_in_any_words_is_read(text: str) -> None:
    shown = text.replace("&", "&amp;").replace("<", "&lt;")
    found = _text(f"<!doctype html><meta charset=utf-8><p>{shown}</p>")
    assert found.split() == text.replace("\u00ad", "").split()


def test_a_page_in_ascii_is_not_in_the_wide_encoding_that_it_states() -> None:
    page = '<?xml version="1.0" encoding="utf-16"?><html xmlns="http://www.w3.org/1999/xhtml"><body>w0 w1</body></html>'
    (found,) = read(page.encode(), "xhtml")
    assert isinstance(found, Document)
    assert found.text.split() == ["w0", "w1"]
