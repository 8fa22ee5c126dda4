// The request: in the form, and in the address, so that a link, a reload and the back button ask it again.

import { button, byId, element } from "./elements.js";

const NUMBERS = ["k", "occurrences", "min_share"];
const ID = "document ID"; // of the filter by documents, among the fields

let filters = { where: [], documents: [], scoring: "default" }; // shown as chips
let example = ""; // the first of the index, shown while nothing is asked
let changed = null; // called when a chip is removed or added

/** The defaults of a request, those of the server: the page, the command line and programs get the same answers. */
function defaults(index) {
  const { k, occurrences, retrieval, min_share } = index.defaults;
  return { k, occurrences, retrieval, min_share };
}

/** What the form holds, with a filter that was typed and not added. */
export function readForm() {
  addFilter();
  return {
    view: byId("fill-form").dataset.view,
    text: byId("text").value,
    ...Object.fromEntries(NUMBERS.map((name) => [name, numeric(byId(name).value)])),
    retrieval: byId("retrieval").value,
    compare: byId("compare").checked,
    ...filters,
  };
}

/** What the address asks. */
export function readAddress(index) {
  const query = new URLSearchParams(location.search);
  const given = (name) => query.get(name) ?? `${defaults(index)[name]}`;
  return {
    view: query.get("view") === "trace" ? "trace" : "ask",
    text: query.get("text") ?? "",
    ...Object.fromEntries(NUMBERS.map((name) => [name, numeric(given(name))])),
    retrieval: given("retrieval"),
    compare: query.get("compare") === "1",
    where: query.getAll("where"),
    documents: query.getAll("documents"),
    scoring: query.get("scoring") ?? "default",
  };
}

/** The address of a request, without what is as usual. */
export function addressOf(request, index) {
  const query = new URLSearchParams();
  if (request.view === "trace") query.append("view", "trace");
  query.append("text", request.text);
  for (const [name, usual] of Object.entries({ ...defaults(index), scoring: "default" })) {
    if (request[name] !== usual) query.append(name, request[name] ?? "");
  }
  for (const name of ["where", "documents"]) for (const each of request[name]) query.append(name, each);
  if (request.compare) query.append("compare", "1");
  return `?${query}`;
}

export function writeForm(request) {
  for (const name of ["text", "retrieval", ...NUMBERS]) byId(name).value = request[name] ?? "";
  byId("compare").checked = request.compare;
  filters = { where: [...request.where], documents: [...request.documents], scoring: request.scoring };
  byId("where-value").value = "";
  showFilters();
  showView(request.view);
}

function showView(view) {
  const traces = view === "trace";
  byId("fill-form").dataset.view = view;
  byId("ask").textContent = traces ? "Check" : "Ask";
  byId("text").placeholder = traces ? "Paste a text to compare with the documents." : example;
  byId("text").setAttribute("aria-label", traces ? "Text to check" : "Sentence with a blank, or a question");
  for (const part of document.querySelectorAll("[data-only]")) part.classList.toggle("off", part.dataset.only !== view);
  for (const [name, current] of [["to-ask", !traces], ["to-trace", traces]]) {
    if (current) byId(name).setAttribute("aria-current", "page");
    else byId(name).removeAttribute("aria-current");
  }
}

/** A number if it is one, else the text as it is, which the server refuses; nothing for no text: the default. */
function numeric(text) {
  if (text.trim() === "") return undefined;
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The body of a request; no documents at all means all of them, an empty list would mean none. */
export function bodyOf({ view, compare, documents, where, text, ...fill }, index) {
  const body = { text, where, ...(documents.length > 0 ? { documents } : {}) };
  if (view === "trace") return body;
  if (index.partitions > 1) body.allow_partial = true; // an answer of the rest says what is missing
  return { ...body, ...fill };
}

// --- filters ---

function showFilters() {
  const { where, documents, scoring } = filters;
  const chips = [
    ...where.map((each) => chip(each, () => where.splice(where.indexOf(each), 1))),
    ...documents.map((each) => chip(`document ${each}`, () => documents.splice(documents.indexOf(each), 1))),
  ];
  if (scoring !== "default") chips.push(chip(`scoring ${scoring}`, () => (filters.scoring = "default")));
  byId("filters").replaceChildren(...chips.map((each) => element("li", {}, each)));
  byId("filters").hidden = chips.length === 0;
}

function chip(name, remove) {
  const onPress = () => {
    remove();
    showFilters();
    byId("text").focus();
    changed();
  };
  return button(`${name} ×`, onPress, { class: "filter", "aria-label": `Remove the filter ${name}` });
}

/** Add the condition that is in the row of the form; a value that could be misread is quoted. Returns whether one was. */
function addFilter() {
  const [name, comparison, value] = ["field", "operator", "value"].map((part) => byId(`where-${part}`).value.trim());
  if (value === "") return false;
  byId("where-value").value = "";
  const quoted = /^[^"[\],=<>]+$/.test(value) ? value : JSON.stringify(value);
  const condition = comparison === "in" ? `${name} in [${value}]` : `${name}${comparison}${quoted}`;
  const [list, entry] = name === ID ? [filters.documents, value] : [filters.where, condition];
  if (!list.includes(entry)) list.push(entry);
  showFilters();
  return true;
}

/** Only this document, with all else as it is. */
export function onlyDocument(identifier) {
  filters.documents = [identifier];
  showFilters();
}

/** Connect the row of filters and fill it with the fields of the index; `onChange` asks again. */
export function connectFilters(onChange) {
  changed = onChange;
  const add = () => addFilter() && changed();
  byId("where-add").addEventListener("click", add);
  byId("where-value").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    add();
  });
  byId("where-field").addEventListener("change", () => {
    byId("where-operator").hidden = byId("where-field").value === ID;
  });
}

export function offerFields({ fields, limits, defaults: usual, examples }) {
  example = examples.find((each) => !each.startsWith("#")) ?? example;
  byId("where-field").replaceChildren(...[...fields, ID].map((field) => element("option", {}, field)));
  byId("where-operator").hidden = fields.length === 0;
  for (const name of NUMBERS) byId(name).max = limits[name] ?? 1;
  for (const name of ["k", "occurrences"]) byId(name).value ||= usual[name];
}
