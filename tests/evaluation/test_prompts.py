"""Prompts: templates filled, Treebank tokens joined, clozes of LAMA, and what is too long cut to fit."""

from __future__ import annotations

import random

import pytest

from npm.evaluation.prompts import Template, answer_tokens, cloze, cut_values, detokenize, prompt_tokens
from npm.models.encoder import Encoder
from npm.retrieval.queries import encode_masks
from tests.helpers.tiny_models import FAMILIES, tiny_encoder


@pytest.mark.parametrize(
    ("template", "values", "prompt"),
    [
        ("{{ text }} It was <mask>.", {"text": " A  film. "}, "A film. It was <mask>."),
        ("{{ title }} \n {{ description }} <mask>", {"title": "T", "description": "D"}, "T \n D <mask>"),
        ("title: {{ q }} content: {{ c }} <mask>", {"q": "Why?", "c": ""}, "title: Why? content: <mask>"),
        ("{ {{ text }} } <mask>", {"text": "a"}, "{ a } <mask>"),
        ("{{ a | final_stop }} {{ b }} <mask>", {"a": "Good", "b": "Yes."}, "Good. Yes. <mask>"),
        ("{{ a | final_stop }} {{ b }} <mask>", {"a": "Good!", "b": "Yes."}, "Good! Yes. <mask>"),
        ("{{ a | final_stop }} {{ b }} <mask>", {"a": "", "b": "Yes."}, "Yes. <mask>"),
        ("{{ q | question }} The answer is: <mask>.", {"q": "who wrote it"}, "who wrote it? The answer is: <mask>."),
        ("{{ q | question }} <mask>.", {"q": '"Who wrote it?"'}, "Who wrote it? <mask>."),
        ("{{ a }} {{ a }} <mask>", {"a": "{{ b }}"}, "{{ b }} {{ b }} <mask>"),  # what an example says is no template
    ],
)
def test_a_template_is_rendered_with_fields_and_filters(template: str, values: dict[str, str], prompt: str) -> None:
    assert Template(template).render(values) == prompt


def test_the_prompt_of_rte_drops_final_punctuation_and_the_capital_of_the_hypothesis() -> None:
    template = Template("{{ a | no_final_punctuation }}, right? <mask>, {{ b | no_final_punctuation | lower_first }}.")
    filled = template.render({"a": 'He said: "It rains..."', "b": "It is U.S. weather."})
    assert filled == 'He said: "It rains, right? <mask>, it is U.S. weather.'
    assert template.fields == ("a", "b")


@pytest.mark.parametrize(
    ("answers", "prompt"),
    [
        (["Paris", "Lutetia"], "Where? Answer: <mask>."),
        (["Paris", "Washington D.C."], "Where? Answer: <mask>"),
        (["Yes!"], "Where? Answer: <mask>"),
        (["C+"], "Where? Answer: <mask>"),
        (["what?"], "Where? Answer: <mask>."),
    ],
)
def test_the_full_stop_of_kamel_goes_where_an_answer_brings_its_own_end(answers: list[str], prompt: str) -> None:
    template = Template("{{ question }} Answer: <mask>{{ stop }}")
    assert template.render({"question": "Where?"}, answers) == prompt
    assert template.fields == ("question",)


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("[X] was born in [Y] .", "Ann was born in <mask>."),
        ("The capital of [X] , that is [Y] .", "The capital of Ann, that is <mask>."),
        ("Where was [S] born?", "Where was Ann born?"),
        ("Ann plays for _X_.", "Ann plays for <mask>."),
    ],
)
def test_a_cloze_gets_its_subject_and_its_mask(template: str, filled: str) -> None:
    assert cloze(template, "Ann") == filled


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("It 's a lovely film , is n't it ?", "It's a lovely film, isn't it?"),
        ("you 've , they 'll , I 'd , we 're , I 'm , ca n't", "you've, they'll, I'd, we're, I'm, can't"),
        ("( DeNiro ) brings -LRB- much -RRB- [ sic ]", "(DeNiro) brings (much) [sic]"),
        ("`` Hart 's War '' is a ` gem '", "\"Hart's War\" is a 'gem'"),
        ('a " b " and " c d " .', 'a "b" and "c d".'),
        ("the critics ' choice", "the critics' choice"),
        ("wait . . . and ... see ; 50 % of $ 10 !", "wait... and... see; 50% of $10!"),
        ("it does n 't , it ' s", "it doesn't, it's"),
        ("gon na , wan na , got ta", "gonna, wanna, gotta"),
        ("either\\/or 9\\/11 \\*\\*", "either/or 9/11 **"),
        ("visit peoplemovin . com today", "visit peoplemovin.com today"),
        ("well-made -- and long - drawn", "well-made -- and long - drawn"),
        ("already joined, isn't it? “so” he said.", "already joined, isn't it? “so” he said."),
        ("  ", ""),
    ],
)
def test_treebank_tokens_are_joined_as_people_write(tokens: str, text: str) -> None:
    assert detokenize(tokens) == text


@pytest.fixture(scope="module", params=FAMILIES)
def encoder(request: pytest.FixtureRequest) -> Encoder:
    return tiny_encoder(request.param, max_positions=32)


def test_a_prompt_counted_to_fit_is_encoded_whole(encoder: Encoder) -> None:
    """At the border: what is counted to fit is never cut, and what is not cut is counted one token over at most."""
    words = ["the", "river", "Rhine", "flows", "Oslo", "1605"]
    prompts = [
        " ".join(words[(start + step) % 6] for step in range(size)) + " <mask>."
        for start in range(6)
        for size in range(1, 40)
    ]
    counts = prompt_tokens(encoder, prompts)
    cut = encode_masks(encoder, prompts, masks_per_text=2).cut
    assert any(cut) and not all(cut)
    for count, is_cut in zip(counts, cut, strict=True):
        assert is_cut or count <= encoder.max_input_tokens + 1
        assert not is_cut or count > encoder.max_input_tokens


def test_answers_are_counted_as_they_stand_behind_a_space(encoder: Encoder) -> None:
    one, two = answer_tokens(encoder, [" the ", "the the"])
    assert two == 2 * one and answer_tokens(encoder, []) == []


@pytest.mark.parametrize("keep_start", [True, False])
def test_the_longest_field_is_cut_to_as_many_words_as_fit(encoder: Encoder, keep_start: bool) -> None:
    rng = random.Random(1)
    template = Template("{{ short }} {{ long }} It was <mask>.")
    for _ in range(20):
        words = [rng.choice(["the", "river", "Rhine", "flows,", "Oslo."]) for _ in range(rng.randrange(30, 60))]
        values = {"short": "A capital", "long": " ".join(words)}
        cut = cut_values(encoder, values, template.render, max_tokens=30, keep_start=keep_start)
        assert cut is not None and cut["short"] == "A capital"
        kept = cut["long"].split()
        one_more = words[: len(kept) + 1] if keep_start else words[len(words) - len(kept) - 1 :]
        assert kept == (one_more[:-1] if keep_start else one_more[1:])
        longer = template.render({**values, "long": " ".join(one_more)})
        fits, too_long = prompt_tokens(encoder, [template.render(cut), longer])
        assert fits <= 30 < too_long


def test_a_template_that_alone_is_too_long_cannot_be_cut(encoder: Encoder) -> None:
    template = Template("{{ a }} It was <mask>.")
    assert cut_values(encoder, {"a": "the river"}, template.render, max_tokens=4, keep_start=True) is None
