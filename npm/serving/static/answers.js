// An answer as the reader sees it: the filled sentence, its candidates, and the sentences in which they occur.

import { button, codePoints, copyButton, documentOf, element, folded, MASK, percent, seconds, withMasks } from "./elements.js";

const SHOWN_CODE_POINTS = 200; // of a question's text, on either side of a blank, above its answer
const STRENGTHS = [[0.8, "Strong"], [0.4, "Mixed"], [0, "Weak"]];
const CONFIDENCES = [[0.8, "Sure"], [0.5, "Likely"], [0, "Unsure"]];
const ALSO_LIKELY = 0.2; // share of a second candidate from which all of them are shown unasked
const CLOSE_RATIO = 1.5; // of the first share to the second, below which neither is the answer
const MEANING =
  "The percentage is the share of the evidence that points to a phrase. It is not the probability " +
  "that the phrase is right. If the documents do not contain the answer, the best match is wrong: read its sentence.";

/**
 * The answer to one text. `actions` are `open(places, number)` for the passages of a phrase, `askOnly(document)`, and
 * `onChoice(heard)` after a press on a chip. Returns its elements and what is heard of it.
 */
export function answerView(response, actions) {
  const [answer] = response.answers;
  const joint = (answer.masks ?? []).length > 0;
  const isShare = response.settings.scoring !== "reference";
  const blanks = (joint ? answer.masks : [answer]).map(({ phrases }) => candidatesOf(phrases));
  const single = () => blanks[0].map((each, number) => ({ ...each, chosen: [number] }));
  const choices = joint ? combinationsOf(answer.fillings, blanks) : single();
  const bands = warnings(answer, response);
  if (choices.length === 0) {
    const text = "Nothing found. Try fewer filters or another wording.";
    return { shown: [element("p", { class: "none" }, text), ...bands], heard: text };
  }
  const head = element("div");
  const found = element("div");
  const chips = []; // each with the choice that pressing it makes
  let chosen = choices[0].chosen;

  /** Put the phrases of a choice into the heading, and their sentences below; returns what is heard. */
  function choose(numbers) {
    chosen = numbers;
    const sentences = sentencesOf(blanks);
    const own = sentences.filter((each) => blanksOf(each, chosen).size > 0);
    own.sort((a, b) => blanksOf(b, chosen).size - blanksOf(a, chosen).size); // one for all blanks before one for one
    const phrases = chosen.map((number, blank) => blanks[blank][number].phrase);
    const choice = choices.find((each) => same(each.chosen, chosen));
    const doubt = doubtOf(answer, response.settings, choices, choice, isShare);
    const trust = () => (isShare ? trustIn(answer, choice, choices) : []);
    const heading = doubt ? doubtful(doubt) : headline(answer.text, phrases, chosen, own, trust());
    head.replaceChildren(...heading);
    found.replaceChildren(...sources(own, sentences, blanks, chosen, response, actions));
    for (const [made, choiceOf] of chips) made.setAttribute("aria-pressed", `${same(choiceOf(), chosen)}`);
    return `${doubt?.[0] ?? ""} ${phrases.join(" · ")}`.trim();
  }

  /** A row of chips under its heading. */
  function row(title, candidates, choiceOf) {
    const most = isShare ? 1 : Math.max(...candidates.map((each) => each.score ?? 0)) || 1;
    const items = candidates.map((candidate, number) => {
      const choice = () => choiceOf(number);
      const format = !isShare ? (score) => score.toFixed(2) : isKnown(answer) ? () => "" : percent;
      const made = chip(candidate, most, format, () => actions.onChoice(choose(choice())));
      chips.push([made, choice]);
      return element("li", {}, made);
    });
    return [element("h3", {}, title), element("ol", { class: "chips", role: "list" }, ...items)];
  }

  const rows = row(joint ? "Best combinations" : "Candidates", choices, (number) => choices[number].chosen);
  const isOpen = joint || !isKnown(answer) || choices[1]?.score >= ALSO_LIKELY;
  const others = isOpen ? rows : choices.length > 1 ? [folded("All candidates", ...rows.slice(1))] : [];
  const ofBlank = (own, blank) => row(`Blank ${blank + 1}`, own, (number) => chosen.with(blank, number));
  const ofBlanks = joint ? blanks.flatMap(ofBlank) : [];
  const heard = choose(chosen);
  return { shown: [head, ...bands, ...(joint ? [...others, found] : [found, ...others]), ...ofBlanks], heard };
}

// --- candidates: phrases inside one another are one ---

/** The candidates for a blank, best first: a phrase inside another one, as Vinci in Leonardo da Vinci, goes with it. */
function candidatesOf(phrases) {
  const candidates = [];
  for (const { phrase, score, occurrences } of phrases) {
    const known = candidates.find((each) => overlap(each.phrase, phrase));
    if (known === undefined) {
      candidates.push({ phrase, score, also: [], occurrences: [...occurrences] });
      continue;
    }
    known.also.push(phrase);
    known.score += score;
    known.occurrences.push(...occurrences);
  }
  return candidates;
}

/** The fillings of all blanks as choices, those with the same candidates as one. */
function combinationsOf(fillings, blanks) {
  const combinations = [];
  for (const { phrases, score } of fillings) {
    const chosen = phrases.map((phrase, blank) => {
      const number = blanks[blank].findIndex((each) => overlap(each.phrase, phrase));
      return number < 0 ? blanks[blank].push({ phrase, also: [], occurrences: [] }) - 1 : number;
    });
    const known = combinations.find((each) => same(each.chosen, chosen));
    if (known) known.score += score;
    else combinations.push({ phrase: phrases.join(" · "), score, also: [], chosen });
  }
  return combinations;
}

function same(one, other) {
  return one.every((number, blank) => number === other[blank]);
}

/** Whether the words of one phrase occur in the other, one after another. */
function overlap(one, other) {
  const [a, b] = [one, other].map((phrase) => ` ${phrase.toLowerCase().split(/\s+/).join(" ")} `);
  return a.includes(b) || b.includes(a);
}

function chip(candidate, most, format, onPress) {
  const { phrase, score, also } = candidate;
  const made = button("", onPress, { class: "chip" });
  made.append(element("b", { dir: "auto" }, phrase));
  if (score !== undefined) {
    made.append(element("span", { class: "number" }, format(score)));
    made.append(element("meter", { min: 0, max: most, value: Math.min(score, most), "aria-hidden": "true" }));
  }
  if (also.length > 0) made.append(element("small", { dir: "auto" }, `also found as ${also.join(", ")}`));
  return made;
}

// --- the heading ---

function headline(text, phrases, chosen, own, trust) {
  const numbers = phrases.map((_, blank) => own.findIndex((each) => blanksOf(each, chosen).has(blank)) + 1); // 0: none
  const filled = element("h2", { class: "filled", dir: "auto" }, ...withMasks(nearMasks(text), phrases, numbers));
  const sentence = phrases.reduce((rest, phrase) => rest.replace(MASK, () => phrase), text);
  return [filled, ...trust, element("p", { class: "acts" }, ...copyButton("Copy answer", sentence))];
}

function isKnown(answer) {
  return answer.confidence != null;
}

/** The confidence of the first choice, or without one the share of a choice. */
function trustIn(answer, choice, choices) {
  if (!isKnown(answer)) return evidence(choice);
  if (choice !== choices[0]) return [];
  const line = element("p", {}, element("b", {}, wordOf(answer)), ` – right in about ${percent(answer.confidence)} of such cases.`);
  return [element("div", { class: "trust" }, line)];
}

function wordOf({ confidence }) {
  return CONFIDENCES.find(([least]) => confidence >= least)[1];
}

/** How much of the evidence a choice has, in words: the share is no probability. */
function evidence({ score }) {
  const [, word] = STRENGTHS.find(([least]) => score >= least);
  const line = element("p", {}, element("b", {}, `${word} evidence`), ` – ${percent(score)} of it points here.`);
  return [element("div", { class: "trust" }, line, folded("What does this mean?", element("p", {}, MEANING)))];
}

/** Why a choice is not put into the sentence: a heading and perhaps a line below; null for an answer. */
function doubtOf(answer, settings, choices, choice, isShare) {
  const [first, second] = choices;
  if (answer.status === "low_evidence" && isKnown(answer)) {
    const why = `The first candidate is right in about ${percent(answer.confidence)} of such cases.`;
    return ["No clear answer. Closest passages:", why];
  }
  if (answer.status === "low_evidence") {
    const unknown = answer.notes.find((note) => note.startsWith("not in the corpus"));
    const low = `The first candidate has ${percent(first.score)} of the evidence.`;
    return ["No clear answer. Closest passages:", unknown ? `N${unknown.slice(1)}.` : low];
  }
  if (!choice) return ["This combination is not among the best."];
  if (isKnown(answer) && choice === first && answer.confidence < CONFIDENCES[0][0]) {
    return [`${wordOf(answer)}. Read the sentence:`, `Right in about ${percent(answer.confidence)} of such cases.`];
  }
  if (!isShare || isKnown(answer)) return null;
  if (second && first.score < CLOSE_RATIO * second.score && [first, second].includes(choice)) {
    const shares = [first, second].map(({ phrase, score }) => `${phrase} ${percent(score)}`);
    return [`Two candidates are close: ${shares.join(", ")}.`];
  }
  return choice.score < settings.min_share ? ["Another candidate has more evidence."] : null;
}

function doubtful([title, why]) {
  const made = [element("h2", { class: "filled", dir: "auto" }, title)];
  if (why) made.push(element("p", { class: "trust" }, why));
  return made;
}

/** A long text without the parts that are far from its blanks. */
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

/** Notes to read before trusting the answer, each a visible line. */
function warnings(answer, response) {
  const unclear = answer.status === "low_evidence"; // the heading says it, and why
  const lines = answer.notes.filter((note) => !unclear || !/^(the corpus has no clear|no clear answer|not in the corpus)/.test(note));
  if (answer.cut && lines.length === 0) lines.push("The text was longer than the encoder accepts: it was cut.");
  const { asked = 1, answered = 1 } = response.partitions ?? {};
  if (answered < asked) lines.push(`Partial answer: ${answered} of ${asked} partitions answered.`);
  return lines.map((line) => element("p", { class: "band" }, line));
}

// --- the sentences ---

/** The sentences of all candidates, each once, with the places of phrases in it. */
function sentencesOf(blanks) {
  const sentences = [];
  for (const [blank, candidates] of blanks.entries()) {
    for (const [number, { occurrences }] of candidates.entries()) {
      for (const place of occurrences) {
        let sentence = sentences.find((each) => contains(each.place, place));
        if (sentence === undefined) sentences.push((sentence = { place, marks: [] }));
        sentence.marks.push({ place, blank, number });
      }
    }
  }
  return sentences;
}

function contains(shown, place) {
  const same = ["document", "context_start_char", "context_end_char"];
  return same.every((name) => shown[name] === place[name]);
}

function isChosen(mark, chosen) {
  return chosen[mark.blank] === mark.number;
}

function blanksOf(sentence, chosen) {
  return new Set(sentence.marks.filter((mark) => isChosen(mark, chosen)).map((mark) => mark.blank));
}

function sources(own, sentences, blanks, chosen, response, actions) {
  const phrases = [...new Set(chosen.map((number, blank) => `“${blanks[blank][number].phrase}”`))];
  const places = own.map((each) => each.marks.find((mark) => isChosen(mark, chosen)).place);
  const items = own.map((each, number) => source(each, chosen, response, actions, () => actions.open(places, number)));
  const others = sentences.filter((each) => !own.includes(each));
  const further = others.map((each) => source(each, chosen, response, actions, () => actions.open([each.place], 0)));
  const shown = items.length > 0 ? element("ol", { class: "sources", role: "list" }, ...items) : element("p", { class: "none" }, "No source is shown.");
  const made = [element("h3", { dir: "auto" }, `Where ${phrases.join(" and ")} was found`), shown];
  if (further.length > 0) {
    const list = element("ul", { class: "sources", role: "list" }, ...further);
    made.push(folded(`Sentences for the other candidates (${further.length})`, list));
  }
  return made;
}

/** A sentence with its phrases marked, the title of the document, which opens the passage, and what can be done. */
function source(sentence, chosen, response, actions, onOpen) {
  const { place } = sentence;
  const mark = sentence.marks.find((each) => isChosen(each, chosen)) ?? sentence.marks[0];
  const { start_char, end_char, document: id } = mark.place;
  const citation = `“${place.context}” ${place.title} [${id}], characters ${start_char}–${end_char}, index ${response.index.digest.slice(0, 12)}`;
  return element(
    "li",
    {},
    element("blockquote", { dir: "auto" }, ...markedSentence(sentence, chosen)),
    element("p", { class: "from" }, ...documentOf(place, onOpen)),
    element("p", { class: "acts" }, ...copyButton("Copy citation", citation), button("Ask only this document", () => actions.askOnly(id))),
  );
}

/** A sentence as nodes: chosen phrases are marked first, others where they do not overlap these. */
function markedSentence({ place, marks }, chosen) {
  const kept = [];
  for (const mark of [...marks].sort((a, b) => isChosen(b, chosen) - isChosen(a, chosen))) {
    const { phrase_start: start, phrase_end: end } = mark.place;
    if (kept.every((each) => end <= each.start || each.end <= start)) kept.push({ start, end, own: isChosen(mark, chosen) });
  }
  kept.sort((a, b) => a.start - b.start);
  const nodes = [];
  let done = 0;
  for (const { start, end, own } of kept) {
    const text = codePoints(place.context, start, end);
    nodes.push(codePoints(place.context, done, start), element("mark", own ? {} : { class: "other" }, text));
    done = end;
  }
  return [...nodes, codePoints(place.context, done)];
}

// --- below the answer ---

/** The same for programs, folded: the commands, and the JSON that they give, its settings and times first. */
export function howAnswered(responses, commands, total) {
  const json = responses.map(({ answers, spans, ...used }) => ({ ...used, answers, spans }));
  const box = (name, text) =>
    element("pre", { tabindex: "0", role: "region", "aria-label": name, class: "code" }, text);
  return folded(
    `How this was answered · ${seconds(total)} · settings · JSON · curl`,
    box("curl", commands.join("\n")),
    box("JSON", JSON.stringify(json.length === 1 ? json[0] : json, null, 2)),
  );
}
