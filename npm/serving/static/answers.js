// Answers as the reader sees them: phrases with their share, in their sentences, and what was asked and how.

import { button, codePoints, counted, element, folded, marked, MASK, share, withMasks } from "./elements.js";

const SHOWN_CODE_POINTS = 200; // of a question's text, on either side of a mask, above its answer

/** The answer to one text. `openPassage` is called with the places of a phrase and the number of the one to open. */
export function answerSection(answer, response, openPassage) {
  const joint = (answer.masks ?? []).length > 0;
  const shown = joint
    ? jointAnswer(answer, response, openPassage)
    : [phraseList(answer.phrases, response, openPassage)];
  const unclear = answer.status === "low_evidence";
  const best = unclear ? [] : joint ? answer.fillings[0]?.phrases : answer.phrases.slice(0, 1).map((phrase) => phrase.phrase);
  const below = unclear ? [folded("Show the closest phrases", ...shown)] : shown;
  return [filledText(answer.text, best ?? []), ...warnings(answer, response), ...below];
}

/** The text with its masks filled, as a heading. */
function filledText(text, phrases) {
  return element("h2", { class: "filled", dir: "auto" }, ...withMasks(nearMasks(text), phrases));
}

/** A long text without what is far from its masks. */
function nearMasks(text) {
  const parts = text.split(MASK);
  const shortened = parts.map((part, number) => {
    const length = Array.from(part).length;
    const first = number === 0 ? 0 : SHOWN_CODE_POINTS;
    const last = number === parts.length - 1 ? 0 : SHOWN_CODE_POINTS;
    if (length <= first + last + SHOWN_CODE_POINTS) return part;
    return `${codePoints(part, 0, first)} … ${codePoints(part, length - last)}`;
  });
  return shortened.join(MASK);
}

/** What a reader should know before trusting the answer, each a visible line. */
function warnings(answer, response) {
  const lines = [...answer.notes];
  if (answer.cut && lines.length === 0) lines.push("the text was longer than the encoder takes: it was cut");
  const { asked = 1, answered = 1 } = response.partitions ?? {};
  if (answered < asked) lines.push(`partial: ${answered} of ${asked} partitions answered`);
  return lines.map((line) => element("p", { class: "band" }, line));
}

function jointAnswer(answer, response, openPassage) {
  const masks = answer.masks.flatMap((mask, number) => [
    element("h3", {}, `Mask ${number + 1} by itself`),
    phraseList(mask.phrases, response, openPassage, "h4"),
  ]);
  return [element("h3", {}, "All masks together"), phraseList(found(response), response, openPassage, "h4"), ...masks];
}

/** Shares are parts of 1; the sums of the reference scoring have no bound and are shown against the best of them. */
function scale(scored, response) {
  if (response.settings.scoring !== "reference") return {};
  return { most: Math.max(...scored.map((each) => each.score)) || 1, unit: " summed evidence" };
}

function phraseList(phrases, response, openPassage, heading = "h3") {
  if (phrases.length === 0) return nothingFound();
  const items = phrases.map((phrase) => phraseItem(phrase, scale(phrases, response), openPassage, heading));
  return element("ol", { class: "phrases" }, ...items);
}

function nothingFound() {
  return element("p", { class: "none" }, "No phrase of the corpus was found.");
}

function phraseItem(phrase, options, openPassage, heading, ...beside) {
  const more = phrase.occurrence_count > 0 ? `, ${counted(phrase.occurrence_count, "place")}` : "";
  const [best, ...further] = phrase.occurrences.map((_, number) =>
    place(phrase.occurrences[number], () => openPassage(phrase.occurrences, number)),
  );
  const places = best === undefined ? [] : [best];
  if (further.length > 0) places.push(folded(`${counted(further.length, "further place")}`, ...further));
  const evidence = share(phrase.score, { ...options, more });
  const head = element("div", { class: "phrase" }, element(heading, { dir: "auto" }, phrase.phrase), evidence);
  return element("li", {}, head, ...beside, ...places);
}

/** A phrase in its sentence, with the title of the document, which opens the passage. */
function place(occurrence, onOpen) {
  const start = occurrence.start_char - occurrence.context_start_char;
  const end = occurrence.end_char - occurrence.context_start_char;
  const title = occurrence.title || occurrence.document;
  const source = button(title, onOpen, { class: "source", "aria-haspopup": "dialog" });
  const identifier = element("span", { class: "identifier" }, occurrence.title ? occurrence.document : "");
  return element(
    "div",
    { class: "place" },
    element("blockquote", { dir: "auto" }, ...marked(occurrence.context, start, end)),
    element("p", { class: "from" }, source, " ", identifier),
  );
}

/** Ways of retrieval side by side: a list of {retrieval, response} or {retrieval, problem}. */
export function comparison(columns, openPassage) {
  const ranks = columns.map(({ response }) => new Map(found(response).map((phrase, rank) => [spelling(phrase), rank])));
  const sections = columns.map(({ retrieval, response, problem }, column) => {
    const head = element("h3", {}, retrieval);
    if (problem) return element("section", { class: "column" }, head, problemBox(problem));
    const phrases = found(response);
    const items = phrases.map((phrase, rank) => {
      const others = columns.flatMap((other, number) => {
        if (number === column || other.problem) return [];
        return [rankElsewhere(other.retrieval, rank, ranks[number].get(spelling(phrase)), number)];
      });
      const beside = element("p", { class: "ranks" }, ...others);
      const item = phraseItem(phrase, scale(phrases, response), openPassage, "h4", beside);
      item.id = `phrase-${column}-${rank}`;
      item.tabIndex = -1;
      return item;
    });
    const list = items.length > 0 ? element("ol", { class: "phrases" }, ...items) : nothingFound();
    const took = element("p", { class: "hint" }, `${response.took_ms.total.toFixed(0)} ms`);
    return element("section", { class: "column" }, head, took, list);
  });
  const { response } = columns.find((column) => column.response);
  const [answer] = response.answers;
  const side = element("div", { class: "columns" }, ...sections);
  return [filledText(answer.text, []), ...warnings(answer, response), side];
}

/** Where another column has the same phrase, how that differs from the rank here, and a way there. */
function rankElsewhere(name, here, there, column) {
  if (there === undefined) return element("span", {}, `not in ${name}`);
  const [sign, meaning] = there > here ? ["▲", "higher here"] : ["▼", "lower here"];
  const spoken = element("span", { class: "unseen" }, ` ${meaning}`);
  const change = there === here ? ["same rank"] : [`${sign} ${Math.abs(there - here)}`, spoken];
  const jump = button(`${there + 1} in ${name}, `, () => goTo(`phrase-${column}-${there}`), { class: "jump" });
  jump.append(...change);
  return jump;
}

/** The phrases for the one mask of a text; of several, the fillings in the form of phrases, without places. */
function found(response) {
  const answer = response?.answers[0] ?? { phrases: [] };
  if ((answer.masks ?? []).length === 0) return answer.phrases;
  const nowhere = { occurrence_count: 0, occurrences: [] };
  return answer.fillings.map(({ phrases, score }) => ({ phrase: phrases.join(" · "), score, ...nowhere }));
}

function spelling(phrase) {
  return phrase.phrase.toLowerCase().replace(/\s+/g, " ").trim();
}

function goTo(id) {
  const item = document.getElementById(id);
  item.scrollIntoView({ block: "center" });
  item.focus({ preventScroll: true });
}

/** What a refusal says. */
export function problemBox(problem) {
  const ours = problem.status >= 500 && problem.request_id; // what the server's administrator can look for in its log
  const number = ours ? [element("p", { class: "hint" }, `request ${problem.request_id}`)] : [];
  return element("div", { class: "problem" }, element("p", { dir: "auto" }, problem.title), ...number);
}

/** The settings used, the time by part, and which index answered. */
export function facts(settings, index, took) {
  const chips = Object.entries(settings ?? {}).flatMap(([name, value]) => {
    if (!Array.isArray(value)) return value === null ? [] : [`${name} ${value}`];
    return value.map((each) => `${name} ${each}`);
  });
  const { total, ...parts } = took;
  const spent = Object.entries(parts).map(([name, value]) => `${name} ${value.toFixed(0)}`);
  chips.push(`${total.toFixed(0)} ms${spent.length > 0 ? `: ${spent.join(", ")}` : ""}`);
  chips.push(`generation ${index.generation}`, `digest ${index.digest.slice(0, 12)}`);
  const items = chips.map((chip) => element("li", {}, chip));
  return element("ul", { class: "facts", "aria-label": "How it was answered" }, ...items);
}

/** The JSON of the answers and the commands that give it, folded. */
export function forPrograms(json, commands) {
  const box = (name, text) =>
    element("pre", { tabindex: "0", role: "region", "aria-label": name, class: "code" }, text);
  return folded("JSON and curl", box("curl", commands.join("\n")), box("JSON", JSON.stringify(json, null, 2)));
}
