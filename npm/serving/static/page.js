// The page: what is asked stands in its address, so that a link, a reload and the back button ask it again.

import { answerView, howAnswered } from "./answers.js";
import { comparison, METHODS } from "./compare.js";
import { button, byId, counted, element, MASK, seconds, withMasks } from "./elements.js";
import { connectPassage, openPassage } from "./passage.js";
import { problemBox } from "./problems.js";
import { ask, curl, keepKey, Problem } from "./server.js";

const CLEAR_SHARE = 0.4; // below it no phrase is called the answer, where the server has no min_share of its own

let index = null; // what /v1/index says; null until it has answered
let running = null; // AbortController of what is being asked

// --- what is asked, in the form and in the address ---

/** What the form holds, as it is asked. */
function readForm() {
  const lines = (id) => byId(id).value.split("\n").map((line) => line.trim()).filter(Boolean);
  return {
    text: byId("text").value,
    k: numeric(byId("k").value),
    occurrences: numeric(byId("occurrences").value),
    retrieval: byId("retrieval").value,
    scoring: byId("scoring").value,
    min_share: numeric(byId("min_share").value),
    where: lines("where"),
    documents: lines("documents"),
    compare: byId("compare").checked,
  };
}

/** What the address asks, in the same form; what it does not say is as the index has it by default. */
function readAddress() {
  const query = new URLSearchParams(location.search);
  return {
    text: query.get("text") ?? "",
    k: numeric(query.get("k") ?? `${index.defaults.k}`),
    occurrences: numeric(query.get("occurrences") ?? `${index.defaults.occurrences}`),
    retrieval: query.get("retrieval") ?? index.defaults.retrieval,
    scoring: query.get("scoring") ?? "default",
    min_share: numeric(query.get("min_share") ?? `${(index.defaults.min_share || CLEAR_SHARE)}`),
    where: query.getAll("where"),
    documents: query.getAll("documents"),
    compare: query.get("compare") === "1",
  };
}

/** The address that asks this. */
function addressOf(request) {
  const query = new URLSearchParams();
  for (const name of ["text", "k", "retrieval"]) query.append(name, request[name] ?? "");
  if (request.occurrences !== index.defaults.occurrences) query.append("occurrences", request.occurrences ?? "");
  if (request.min_share !== (index.defaults.min_share || CLEAR_SHARE)) query.append("min_share", request.min_share ?? "");
  if (request.scoring !== "default") query.append("scoring", request.scoring);
  for (const condition of request.where) query.append("where", condition);
  for (const identifier of request.documents) query.append("documents", identifier);
  if (request.compare) query.append("compare", "1");
  return `?${query}`;
}

function writeForm(request) {
  for (const name of ["text", "k", "occurrences", "retrieval", "scoring", "min_share"]) byId(name).value = request[name] ?? "";
  for (const name of ["where", "documents"]) byId(name).value = request[name].join("\n");
  byId("compare").checked = request.compare;
  const filtered = request.where.length + request.documents.length > 0;
  if (filtered) byId("settings").open = true;
  document.querySelector("[data-field=where]").hidden = index.fields.length === 0 && request.where.length === 0;
}

/** A number if it is one, else the text as it is, which the server refuses; nothing for no text: the default. */
function numeric(text) {
  if (text.trim() === "") return undefined;
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The body of a request to fill; no documents at all means all of them, an empty list would mean none. */
function fillBody({ compare, documents, ...body }) {
  if (documents.length > 0) body.documents = documents;
  if (index.partitions > 1) body.allow_partial = true; // an answer of the rest says what is missing
  return body;
}

// --- asking ---

/** Ask what the form holds, and put it into the address. */
function submit() {
  const request = readForm();
  const address = addressOf(request);
  if (address !== location.search) history.pushState(null, "", address);
  run(request);
}

/** Ask what the address says, if it says a text. */
function apply() {
  const request = readAddress();
  writeForm(request);
  if (request.text !== "") {
    run(request);
    return;
  }
  running?.abort();
  document.title = "npmlm";
  clear();
  say("");
}

/** Ask, and show the answer; what is still being asked is given up. */
async function run(request) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  document.title = `${request.text} – npmlm`;
  clearProblem();
  byId("examples").open = false;
  byId("answers").setAttribute("aria-busy", "true");
  say("Asking …");
  try {
    const { shown, said } = await asked(request, signal);
    if (signal.aborted) return;
    clear();
    byId("answers").append(...shown);
    byId("answers").hidden = false;
    say(said);
  } catch (error) {
    if (signal.aborted) return;
    clear();
    if (!(error instanceof Problem)) {
      say("The page itself has failed; its error stands in the browser's console.");
      throw error;
    }
    showProblem(error);
  } finally {
    if (!signal.aborted) byId("answers").removeAttribute("aria-busy");
  }
}

/** The elements of the answer and the line that says what came. */
async function asked(request, signal) {
  if (request.compare) return compared(request, signal);
  const body = fillBody(request);
  const response = await ask("v1/fill", { body, signal });
  const open = (places, number) => openPassage(places, number, response.index.generation);
  const { shown, said } = answerView(request.text, response, { open, askOnly });
  const how = howAnswered(response.settings, response.index, response.took_ms, response, [curl("v1/fill", body)]);
  return { shown: [...shown, how], said: `${said} – answered in ${seconds(response.took_ms.total)}` };
}

/** The same text by each search method; one that is refused says so below the table, unless all are. */
async function compared(request, signal) {
  const bodies = Object.keys(METHODS).map((retrieval) => ({ ...fillBody(request), retrieval }));
  const columns = await Promise.all(
    bodies.map(async (body) => {
      try {
        return { retrieval: body.retrieval, response: await ask("v1/fill", { body, signal }) };
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        return { retrieval: body.retrieval, problem };
      }
    }),
  );
  const responses = columns.flatMap((column) => (column.response ? [column.response] : []));
  if (responses.length === 0) throw columns[0].problem;
  const [{ settings, index: answering }] = responses;
  const { retrieval, ...common } = settings;
  const total = responses.reduce((sum, response) => sum + response.took_ms.total, 0);
  const how = howAnswered(common, answering, { total }, responses, bodies.map((body) => curl("v1/fill", body)));
  const shown = comparison(columns, (places, number) => openPassage(places, number, answering.generation));
  return { shown: [...shown, how], said: `Search methods compared in ${seconds(total)}` };
}

function askOnly(document) {
  byId("documents").value = document;
  byId("settings").open = true;
  byId("text").focus(); // the button that was pressed disappears with its answer
  submit();
}

// --- what is said beside the answer ---

function say(line) {
  byId("status").textContent = line;
}

function clear() {
  byId("answers").replaceChildren();
  byId("answers").hidden = true;
  clearProblem();
}

function clearProblem() {
  document.querySelector("#problem")?.remove();
  for (const control of document.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
    control.setAttribute("aria-describedby", control.getAttribute("aria-describedby").replace(/ ?problem$/, ""));
  }
}

/** Show a refusal beside the field it is about, and have it announced. */
function showProblem(problem) {
  clearProblem();
  const asksKey = problem.field === "key";
  if (asksKey) byId("key-form").hidden = false;
  const form = document.querySelector(asksKey ? "#key-form" : "#fill-form");
  const field = problem.fields.map((name) => form.querySelector(`[data-field="${name}"]`)).find(Boolean);
  const box = problemBox(problem.title, problem);
  box.id = "problem";
  (field ?? byId("general-problem")).append(box);
  if (field) {
    field.hidden = false;
    if (field.closest("details")) field.closest("details").open = true;
    const control = field.querySelector("textarea, input, select");
    const described = control.getAttribute("aria-describedby") ?? "";
    control.setAttribute("aria-invalid", "true");
    control.setAttribute("aria-describedby", `${described} problem`.trim());
  }
  say(`Not answered: ${problem.title}`);
}

// --- the form's buttons ---

/** Add the condition that is put together in the row below the field; a value that could be misread is quoted. */
function addCondition() {
  const [name, comparison, value] = ["field", "operator", "value"].map((part) => byId(`where-${part}`).value.trim());
  byId("where-value").focus();
  if (value === "") return;
  const quoted = /^[^"[\],]+$/.test(value) ? value : JSON.stringify(value);
  const condition = comparison === "in" ? `${name} in [${value}]` : `${name}${comparison}${quoted}`;
  byId("where").value = [byId("where").value.trimEnd(), condition].filter(Boolean).join("\n");
  byId("where-value").value = "";
}

function connect() {
  byId("fill-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (index === null) start(submit);
    else submit();
  });
  byId("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("fill-form").requestSubmit();
  });
  byId("insert-mask").addEventListener("click", () => {
    const field = byId("text");
    field.setRangeText(MASK, field.selectionStart, field.selectionEnd, "end");
    field.focus();
  });
  byId("scoring").addEventListener("change", () => {
    if (byId("scoring").value === "reference") byId("retrieval").value = "bm25"; // the original looks there
  });
  byId("where-add").addEventListener("click", addCondition);
  byId("where-value").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    addCondition();
  });
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey();
  });
  document.addEventListener("click", followLink);
  window.addEventListener("popstate", () => index !== null && apply());
  connectPassage(askOnly);
}

/** A link to this page asks without loading it again. */
function followLink(event) {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || index === null || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  const address = link.getAttribute("href").replace(/^\?$/, "");
  if (address !== location.search) history.pushState(null, "", address || location.pathname);
  apply();
}

// --- the beginning ---

function useKey() {
  try {
    keepKey(byId("key").value.trim());
  } catch (problem) {
    showProblem(problem);
    return;
  }
  start();
}

/** Learn about the index, and go on from there. */
async function start(goOn = begin) {
  say("Asking the server about its index …");
  try {
    index = await ask("v1/index");
  } catch (problem) {
    if (!(problem instanceof Problem)) throw problem;
    showProblem(problem);
    if (problem.field === "key") byId("key").focus();
    return;
  }
  clearProblem();
  byId("key-form").hidden = true;
  showIndex();
  goOn();
}

/** Ask what the address says; where it says nothing, what was typed in the meantime stays. */
function begin() {
  const typed = byId("text").value;
  apply();
  if (location.search === "") byId("text").value = typed;
}

function showIndex() {
  const { name, generation, documents, tokens, tier, encoder, fields, limits, examples, version } = index;
  const size = element("strong", {}, counted(documents, "document"));
  const line = ["Fills ", element("code", {}, MASK), " with phrases of ", size, ", and shows where they occur."];
  byId("index-line").replaceChildren(...line);
  const state = [`index ${name}`, `generation ${generation}`, counted(tokens, "token"), tier];
  byId("about").textContent = `${state.join(" · ")} · read by ${encoder.name} · npmlm ${version} · `;
  for (const name of ["k", "occurrences", "min_share"]) {
    byId(name).max = limits[name] ?? 1;
    byId(name).value ||= index.defaults[name] || CLEAR_SHARE;
  }
  const kept = fields.length > 0 ? `Kept fields: ${fields.join(", ")}.` : "This index keeps no fields.";
  byId("where-hint").textContent = kept;
  byId("where-row").hidden = fields.length === 0;
  byId("where-field").replaceChildren(...fields.map((field) => element("option", {}, field)));
  const shown = examples.map((example) => {
    const asks = button("", () => askExample(example), { class: "example", dir: "auto" });
    asks.append(...withMasks(example));
    return asks;
  });
  byId("examples").querySelector("ul").replaceChildren(...shown.map((asks) => element("li", {}, asks)));
  byId("examples").hidden = examples.length === 0;
  byId("examples").open = location.search === "";
}

function askExample(example) {
  byId("text").value = example;
  submit();
}

connect();
start();
