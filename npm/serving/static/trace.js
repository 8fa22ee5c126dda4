// A text compared with the documents: each name, number, date and quotation with its verdict and its place.

import { howAnswered } from "./answers.js";
import { button, codePoints, counted, documentOf, element, marked, percent, seconds } from "./elements.js";
import { curl } from "./server.js";

const VERDICTS = {
  found: "Found",
  supported: "Supported",
  other: "Other phrase found",
  elsewhere: "Occurs elsewhere",
  not_found: "Not found",
};
const CAUTION = "A verdict says what these documents contain, not whether a text is true: read the sentence.";

/** Trace a text by `post(path, body)`; returns its elements and the line that says what came. */
export async function traced(body, post, openPassage) {
  const response = await post("v1/trace", body);
  const { spans, index, took_ms: took } = response;
  const open = (place) => openPassage([place], 0, index.generation);
  const list = element("div", { tabindex: "-1" });
  const show = (kept) => list.replaceChildren(
    element("p", { class: "traced", dir: "auto" }, ...markedText(body.text, spans, kept)),
    element("ol", { class: "sources", role: "list" }, ...kept.map((span) => item(span, open))),
  );
  const reported = spans.filter(isReported);
  const all = button(`Show all ${counted(spans.length, "phrase")}`, () => {
    show(spans);
    list.focus(); // before the button that has it goes
    all.remove();
  });
  show(reported);
  const summary = Object.entries(VERDICTS).map(([key, words]) => {
    const count = spans.filter((span) => verdictOf(span) === key).length;
    return count > 0 ? ` · ${words.toLowerCase()} ${count}` : "";
  });
  const shown = [
    element("p", { class: "trust" }, CAUTION),
    list,
    ...(reported.length < spans.length ? [element("p", { class: "acts" }, all)] : []),
    howAnswered([response], [curl("v1/trace", body)], took.total),
  ];
  return { shown, said: `${counted(spans.length, "phrase")}${summary.join("")} – traced in ${seconds(took.total)}` };
}

function isReported({ verdict }) {
  return verdict === "other" || verdict === "not_found";
}

/** The text, all spans marked; those that are listed below have their numbers. */
function markedText(text, spans, kept) {
  let done = 0;
  const nodes = spans.flatMap((span) => {
    const before = codePoints(text, done, span.start_char);
    done = span.end_char;
    const mark = element("mark", { class: classOf(span) }, codePoints(text, span.start_char, span.end_char));
    const number = kept.indexOf(span) + 1;
    return [before, mark, ...(number ? [element("sup", {}, `${number}`)] : [])];
  });
  return [...nodes, codePoints(text, done)];
}

/** The verdict; a phrase that is not found in its context may be shown in another one. */
function verdictOf({ verdict, place }) {
  return verdict === "not_found" && place ? "elsewhere" : verdict;
}

function classOf({ verdict }) {
  return verdict.replace("_", "-");
}

function item(span, open) {
  const { verdict, text, support, other, other_score: score, other_place: instead } = span;
  const place = verdict === "other" ? instead : span.place;
  const said = verdict === "other" ? [`: ${other} (${percent(score)})`] : [];
  const head = element("p", { class: "from", dir: "auto" }, element("mark", { class: classOf(span) }, text), " ");
  head.append(element("b", {}, VERDICTS[verdictOf(span)]), ...said, ` · support ${percent(support)}`);
  return element("li", {}, head, ...(place ? source(place, open) : []));
}

function source(place, open) {
  const { context, phrase_start: start, phrase_end: end } = place;
  return [
    element("blockquote", { dir: "auto" }, ...marked(context, start, end)),
    element("p", { class: "from" }, ...documentOf(place, () => open(place))),
  ];
}
