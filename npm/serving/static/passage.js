// The passage of a source in a dialog: the phrase marked and scrolled to, the other sources one press away.

import { byId, element, marked } from "./elements.js";
import { problemBox } from "./problems.js";
import { ask } from "./server.js";

const FIRST_AROUND = 2000; // characters on either side of the place; three times as many at each press of "more"
const MOST_AROUND = 100000; // what the server gives at most

const shown = { places: [], number: 0, around: FIRST_AROUND, generation: null, request: null, loaded: null };

/** Open the dialog at one of the places of a phrase; `generation` is that of the index that answered. */
export function openPassage(places, number, generation) {
  Object.assign(shown, { places, number, around: FIRST_AROUND, generation });
  byId("passage").showModal();
  byId("passage-title").focus();
  load();
}

/** Connect the dialog's buttons; `askAlone` is called with the id of a document that is to be asked alone. */
export function connectPassage(askAlone) {
  const dialog = byId("passage");
  byId("passage-close").addEventListener("click", () => dialog.close());
  byId("passage-previous").addEventListener("click", () => step(-1));
  byId("passage-next").addEventListener("click", () => step(1));
  byId("passage-more").addEventListener("click", () => {
    shown.around = Math.min(3 * shown.around, MOST_AROUND);
    load();
  });
  byId("passage-only").addEventListener("click", () => {
    dialog.close();
    askAlone(shown.places[shown.number].document);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // the backdrop; what is inside has elements of its own
  });
  dialog.addEventListener("close", () => shown.request?.abort());
}

function step(by) {
  shown.number = (shown.number + by + shown.places.length) % shown.places.length;
  shown.around = FIRST_AROUND;
  load();
}

async function load() {
  const { places, number, around } = shown;
  const { document: identifier, title, start_char, end_char } = places[number];
  if (shown.loaded !== identifier) for (const part of ["text", "facts"]) byId(`passage-${part}`).replaceChildren();
  shown.loaded = identifier;
  byId("passage-title").replaceChildren(title || identifier);
  byId("passage-place").textContent = places.length > 1 ? `Source ${number + 1} of ${places.length}` : "";
  for (const name of ["previous", "next"]) byId(`passage-${name}`).hidden = places.length === 1;
  shown.request?.abort();
  shown.request = new AbortController();
  const { signal } = shown.request;
  const query = new URLSearchParams({ start_char, end_char, around });
  try {
    show(await ask(`v1/documents/${encodeURIComponent(identifier)}?${query}`, { signal }));
  } catch (problem) {
    if (signal.aborted) return;
    byId("passage-text").replaceChildren(problemBox(problem.title, problem));
    byId("passage-facts").replaceChildren();
    byId("passage-more").hidden = true;
  }
}

function show(passage) {
  const { text, window_start_char, window_end_char, total_chars, start_char, end_char } = passage;
  const before = window_start_char > 0 ? ["…"] : [];
  const after = window_end_char < total_chars ? ["…"] : [];
  const body = marked(text, start_char - window_start_char, end_char - window_start_char);
  byId("passage-text").replaceChildren(element("p", { dir: "auto" }, ...before, ...body, ...after));
  const facts = [["document", passage.id], ...Object.entries(passage.fields)];
  facts.push(["characters", `${start_char}–${end_char} of ${total_chars}`]);
  const rows = facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, valueOf(value))));
  const changed = shown.generation !== null && passage.generation !== shown.generation;
  const warning = "The index has changed since it answered: the place may have moved.";
  const band = changed ? [element("p", { class: "band" }, warning)] : [];
  byId("passage-facts").replaceChildren(...band, element("dl", {}, ...rows));
  const more = byId("passage-more");
  const isAll = (before.length === 0 && after.length === 0) || shown.around === MOST_AROUND;
  if (isAll && document.activeElement === more) byId("passage-text").focus();
  more.hidden = isAll;
  byId("passage-text").querySelector("mark").scrollIntoView({ block: "center" });
}

/** The value of a field; an address as a link. */
function valueOf(value) {
  if (!/^https?:\/\/\S+$/.test(value)) return typeof value === "object" ? JSON.stringify(value) : `${value}`;
  return element("a", { href: value, target: "_blank", rel: "noopener noreferrer" }, value);
}
