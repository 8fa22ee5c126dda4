// Labels of a closed task: the form in which words are given for each, and the evidence found for each.

import { facts, filledText, forPrograms, place } from "./answers.js";
import { button, byId, element, share } from "./elements.js";
import { curl, Problem } from "./server.js";

const EXAMPLE = {
  text: "It orbits the Sun every twelve years. It is a <mask>.",
  labels: [
    ["art", "painting, fresco, novel"],
    ["science", "element, planet, gas"],
    ["nature", "river, mountain, animal"],
  ],
};
const FIRST_ROWS = 2;

/** Connect the form's buttons. */
export function connectLabels() {
  byId("add-label").addEventListener("click", () => addRow().querySelector("input").focus());
  byId("labels-example").addEventListener("click", () => writeForm(EXAMPLE));
  writeForm({ text: "", labels: [] });
}

export function writeForm({ text, labels }) {
  byId("labels-text").value = text;
  byId("label-rows").replaceChildren();
  for (const [name, words] of labels) addRow(name, words);
  while (byId("label-rows").children.length < FIRST_ROWS) addRow();
}

/** What the form holds: a text, and pairs of a label and its words, without empty rows. */
export function readForm() {
  const inputs = [...byId("label-rows").children].map((row) => [...row.querySelectorAll("input")]);
  const rows = inputs.map((pair) => pair.map((input) => input.value.trim()));
  return { text: byId("labels-text").value, labels: rows.filter(([name, words]) => name || words) };
}

/** The body of the request; raises Problem for a label that is given twice, which JSON cannot hold. */
export function labelsBody({ text, labels }) {
  const names = labels.map(([name]) => name);
  const twice = names.find((name, number) => names.indexOf(name) !== number);
  if (twice !== undefined) {
    throw new Problem({ title: `two labels have the same name: ${twice}`, field: "labels" });
  }
  const words = (list) => list.split(",").map((word) => word.trim()).filter(Boolean);
  return { text, labels: Object.fromEntries(labels.map(([name, list]) => [name, words(list)])) };
}

/** The labels by their share of the evidence, each with the word that counts most in the place where it fits best. */
export function labelsSection(response, body, openPassage) {
  const ranked = [...response.labels].sort((one, other) => other.share - one.share);
  const items = ranked.map((label) => {
    const head = element("div", { class: "phrase" }, element("h3", { dir: "auto" }, label.label), share(label.share));
    if (label.word === null || label.occurrence === null) {
      return element("li", {}, head, element("p", { class: "none" }, "None of its words was found in the corpus."));
    }
    const most = element("p", { class: "hint" }, "by the word ", element("strong", { dir: "auto" }, label.word));
    return element("li", {}, head, most, place(label.occurrence, () => openPassage([label.occurrence], 0)));
  });
  return [
    filledText(response.text, ranked[0]?.word ? [ranked[0].word] : []),
    ...response.notes.map((note) => element("p", { class: "band" }, note)),
    element("ol", { class: "phrases" }, ...items),
    facts({}, response.index, response.took_ms),
    forPrograms(response, [curl("v1/labels", body)]),
  ];
}

function addRow(name = "", words = "") {
  const label = element("input", { "aria-label": "Label", placeholder: "label", dir: "auto" });
  const list = element("input", { "aria-label": "Words, with commas between", placeholder: "word, word", dir: "auto" });
  [label.value, list.value] = [name, words];
  const row = element("li", {}, label, list);
  row.append(button("Remove", () => remove(row), { "aria-label": "Remove this label" }));
  byId("label-rows").append(row);
  return row;
}

/** Take a row out; the focus goes to the next one, or to the button that adds one. */
function remove(row) {
  const next = row.nextElementSibling ?? row.previousElementSibling;
  row.remove();
  (next?.querySelector("input") ?? byId("add-label")).focus();
}
