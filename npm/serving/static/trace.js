// A text compared with the documents: each name, number, date and quotation with its verdict and its place.

import { howAnswered } from "./answers.js";
import { codePoints, counted, documentOf, element, marked, percent, seconds } from "./elements.js";
import { curl } from "./server.js";

const VERDICTS = { found: "Found", other: "Other phrase found", elsewhere: "Occurs elsewhere", not_found: "Not found" };
const CAUTION = "A verdict says what these documents contain, not whether a text is true: read the sentence.";

/** Trace a text by `post(path, body)`; returns its elements and the line that says what came. */
export async function traced(body, post, openPassage) {
  const response = await post("v1/trace", body);
  const { spans, index, took_ms: took } = response;
  const open = (place) => openPassage([place], 0, index.generation);
  const summary = Object.entries(VERDICTS).map(([key, words]) => {
    const count = spans.filter((span) => verdictOf(span) === key).length;
    return count > 0 ? ` · ${words.toLowerCase()} ${count}` : "";
  });
  const shown = [
    element("p", { class: "traced", dir: "auto" }, ...markedText(body.text, spans)),
    element("p", { class: "trust" }, CAUTION),
    element("ol", { class: "sources", role: "list" }, ...spans.map((span) => item(span, open))),
    howAnswered([response], [curl("v1/trace", body)], took.total),
  ];
  return { shown, said: `${counted(spans.length, "phrase")}${summary.join("")} – traced in ${seconds(took.total)}` };
}

function markedText(text, spans) {
  let done = 0;
  const nodes = spans.flatMap((span, number) => {
    const before = codePoints(text, done, span.start_char);
    done = span.end_char;
    const mark = element("mark", { class: classOf(span) }, codePoints(text, span.start_char, span.end_char));
    return [before, mark, element("sup", {}, `${number + 1}`)];
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
