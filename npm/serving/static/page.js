// The page: asks what the form or the address says, and shows the answer, the wait and the refusals.

import { answerView, howAnswered } from "./answers.js";
import { comparison, METHODS } from "./compare.js";
import { button, byId, counted, element, MASK, seconds, withMasks } from "./elements.js";
import { addressOf, bodyOf, connectFilters, offerFields, onlyDocument, readAddress, readForm, writeForm } from "./form.js";
import { connectPassage, openPassage } from "./passage.js";
import { clearProblem, showProblem } from "./problems.js";
import { ask, curl, keepKey, Problem } from "./server.js";
import { traced } from "./trace.js";

const KEPT_ANSWERS = 20; // for the back button
const MOST_TRIES = 5; // of a server that is busy
const SKELETON_MS = 300;

let index = null; // what /v1/index says; null until it has answered
let running = null; // AbortController of the request that is being answered
const kept = new Map(); // address → what was shown there

// --- asking ---

/** Ask what the form holds, and put it into the address. */
function submit() {
  if (matchMedia("(pointer: coarse)").matches) byId("text").blur(); // else its keyboard goes at the next tap, which is lost
  const request = readForm();
  const address = addressOf(request, index);
  if (address !== location.search) history.pushState(null, "", address);
  run(request, address);
}

/** Show what the address asks, if it says a text: from memory where it was shown before. */
function apply() {
  const request = readAddress(index);
  writeForm(request);
  running?.abort();
  finish();
  document.title = request.text === "" ? "npmlm" : `${request.text} – npmlm`;
  const before = kept.get(location.search);
  if (before) show(before);
  else if (request.text !== "") run(request, location.search);
  else {
    clear();
    say("");
  }
}

/** Ask, and show the answer; a request that is still being answered is canceled. */
async function run(request, address) {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  document.title = `${request.text} – npmlm`;
  clearProblem();
  byId("examples").open = false;
  byId("answers").setAttribute("aria-busy", "true");
  byId("cancel").hidden = false;
  const traces = request.view === "trace";
  say(`Searching ${counted(index.documents, "document")}…`);
  const skeleton = setTimeout(showSkeleton, SKELETON_MS);
  signal.addEventListener("abort", () => clearTimeout(skeleton));
  try {
    if (request.text.trim() === "") throw new Problem({ code: "empty", field: "text" });
    const came = traces ? await traced(bodyOf(request, index), patient(signal), openPassage) : await asked(request, signal);
    if (signal.aborted) return;
    kept.delete(address);
    kept.set(address, came);
    if (kept.size > KEPT_ANSWERS) kept.delete(kept.keys().next().value);
    show(came);
  } catch (error) {
    if (signal.aborted) return;
    clear();
    refuse(error, request);
  } finally {
    clearTimeout(skeleton);
    if (!signal.aborted) finish();
  }
}

/** A POST that waits and asks again while the server is busy. */
function patient(signal) {
  return async (path, body) => {
    for (let tries = 1; ; tries += 1) {
      try {
        return await ask(path, { body, signal });
      } catch (problem) {
        if (problem.code !== "busy" || tries === MOST_TRIES) throw problem;
        say(`The server is busy. Trying again in ${problem.retrySeconds} s…`);
        await new Promise((resolve) => setTimeout(resolve, 1000 * problem.retrySeconds));
        signal.throwIfAborted();
      }
    }
  };
}

/** The elements of the answer and the line that says what came. */
async function asked(request, signal) {
  if (request.compare) return compared(request, signal);
  const body = bodyOf(request, index);
  const response = await patient(signal)("v1/fill", body);
  const open = (places, number) => openPassage(places, number, response.index.generation);
  const said = `answered in ${seconds(response.took_ms.total)}`;
  const onChoice = (heard) => say(said, (came.heard = heard));
  const came = answerView(response, { open, askOnly, onChoice });
  const how = howAnswered([response], [curl("v1/fill", body)], response.took_ms.total);
  came.shown.push(how);
  return Object.assign(came, { said });
}

/** The same text by each search method; one that is refused says so below the table, unless all are. */
async function compared(request, signal) {
  const bodies = Object.keys(METHODS).map((retrieval) => ({ ...bodyOf(request, index), retrieval }));
  const columns = await Promise.all(
    bodies.map(async (body) => {
      try {
        return { retrieval: body.retrieval, response: await patient(signal)("v1/fill", body) };
      } catch (problem) {
        if (!(problem instanceof Problem)) throw problem;
        return { retrieval: body.retrieval, problem };
      }
    }),
  );
  const responses = columns.flatMap((column) => (column.response ? [column.response] : []));
  if (responses.length === 0) throw columns[0].problem;
  const total = Math.max(...responses.map((response) => response.took_ms.total)); // asked at the same time
  const how = howAnswered(responses, bodies.map((body) => curl("v1/fill", body)), total);
  const shown = comparison(columns, (places, number) => openPassage(places, number, responses[0].index.generation));
  return { shown: [...shown, how], said: `Search methods compared in ${seconds(total)}` };
}

function askOnly(document) {
  onlyDocument(document);
  byId("text").focus(); // the button that was pressed disappears with its answer
  submit();
}

function cancel() {
  if (byId("cancel").hidden) return;
  running.abort();
  finish();
  clear();
  say("Canceled.");
  byId("text").focus();
}

// --- what is shown ---

/** Show a line; `heard` is before it for screen readers alone. */
function say(line, heard = "") {
  byId("status").replaceChildren(element("span", { class: "heard" }, heard && `${heard} – `), line);
}

function show({ shown, said, heard }) {
  clear();
  byId("answers").append(...shown);
  byId("answers").hidden = false;
  say(said, heard);
  if (byId("answers").getBoundingClientRect().top > innerHeight / 2) byId("answers").scrollIntoView();
}

function showSkeleton() {
  byId("answers").replaceChildren(...[1, 2, 3].map(() => element("div", { class: "skeleton" })));
  byId("answers").hidden = false;
}

function clear() {
  byId("answers").replaceChildren();
  byId("answers").hidden = true;
  clearProblem();
}

function finish() {
  byId("answers").removeAttribute("aria-busy");
  byId("cancel").hidden = true;
}

/** Show a refusal, and have it announced. */
function refuse(error, request, again = submit) {
  if (!(error instanceof Problem)) {
    say("The page itself has failed; its error is in the browser's console.");
    throw error;
  }
  if (error.field === "key") byId("key-form").hidden = false;
  say(`Not answered: ${showProblem(error, request, index, { again })}`);
}

// --- the form's buttons ---

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
  byId("cancel").addEventListener("click", cancel);
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    if (event.key !== "/" || event.target.closest("input, textarea, select, dialog") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    byId("text").select();
  });
  document.addEventListener("click", followLink);
  window.addEventListener("popstate", () => index !== null && apply());
  connectFilters(() => index !== null && byId("text").value.trim() !== "" && submit());
  connectPassage(askOnly);
}

/** A link to this page asks without loading it again. */
function followLink(event) {
  const link = event.target.closest?.("a[href^='?']");
  if (!link || index === null || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  const address = link.getAttribute("href").replace(/^\?$/, "");
  if (address !== location.search) history.pushState(null, "", address || location.pathname);
  const typed = byId("text").value;
  apply();
  if (link.closest("nav")) byId("text").value = typed;
  byId("text").focus();
}

// --- the beginning ---

function useKey() {
  try {
    keepKey(byId("key").value.trim());
  } catch (problem) {
    refuse(problem);
    return;
  }
  start();
}

/** Learn about the index, and go on from there. */
async function start(next = begin) {
  say("Asking the server about its index…");
  try {
    index = await ask("v1/index");
  } catch (problem) {
    refuse(problem, null, () => start(next));
    if (problem.field === "key") byId("key").focus();
    return;
  }
  clearProblem();
  const form = byId("key-form");
  if (form.contains(document.activeElement)) byId("text").focus();
  form.hidden = true;
  showIndex();
  next();
}

/** Ask what the address says; where it says nothing, what was typed in the meantime stays. */
function begin() {
  const typed = byId("text").value;
  apply();
  if (location.search === "") byId("text").value = typed;
}

function showIndex() {
  const { about, name, generation, documents, tokens, encoder, fields, version } = index;
  byId("index-line").replaceChildren(`${name} · `, element("strong", {}, counted(documents, "document")));
  byId("about").textContent = about;
  const facts = { documents, tokens, "index version": generation, encoder: encoder.name, npmlm: version };
  if (fields.length > 0) facts.fields = fields.join(", ");
  const rows = Object.entries(facts).flatMap(([key, value]) => [
    element("dt", {}, key),
    element("dd", {}, value.toLocaleString("en")),
  ]);
  byId("facts").replaceChildren(...rows);
  offerFields(index);
  const items = index.examples.map((example) => {
    if (example.startsWith("#")) return element("li", { class: "hint" }, example.slice(1).trim());
    const asks = button("", () => askExample(example), { class: "example", dir: "auto" });
    asks.append(...withMasks(example));
    return element("li", {}, asks);
  });
  byId("examples").querySelector("ul").replaceChildren(...items);
  byId("examples").hidden = items.length === 0;
  byId("examples").open = location.search === "";
}

function askExample(example) {
  byId("text").value = example;
  byId("text").focus(); // the button is folded away
  submit();
}

connect();
start();
