// Refusals in the words of the page, at the field that they are about.

import { button, byId, element } from "./elements.js";

/** The text of a problem for the reader, by its code; the server's own sentence for the rest. */
function wording(problem, request, index) {
  const limit = index?.limits ?? {};
  const length = Array.from(request?.text ?? "").length;
  const filters = [...(request?.where ?? []), ...(request?.documents ?? []).map((id) => `document ${id}`)].join(" and ");
  const texts = {
    unreachable: `Can't reach the server at ${location.host}. Is npmlm serve still running?`,
    empty: request?.view === "trace" ? "Write or paste a text." : "Write a sentence with a blank, or pick an example.",
    too_long: `The text has ${length.toLocaleString("en")} characters; the limit is ${limit.text_chars?.toLocaleString("en")}.`,
    filter_empty: `No document matches ${filters}. Remove a filter or choose another value.`,
    no_such_document: `Unknown document ID: ${request?.documents.join(", ")}. Each source shows its ID behind the title.`,
    no_such_field: `There is no such field. Available: ${index?.fields.join(", ") || "none"}.`,
    busy: "The server is busy. Try again in a moment.",
    timeout: `This took longer than ${limit.timeout_ms / 1000} s. Try a shorter text or fewer answers.`,
  };
  if (problem.code === "too_long" && length <= limit.text_chars) return problem.title; // another field, or its sentences
  const ranges = { k: `Choose between 1 and ${limit.k} answers.`, occurrences: `Choose between 0 and ${limit.occurrences} sources.` };
  if (problem.code === "out_of_range" && ranges[problem.field]) return ranges[problem.field];
  return texts[problem.code] ?? problem.title;
}

export function problemBox(title, problem = {}, ...actions) {
  const ours = problem.status >= 500 && problem.request_id; // what the server's administrator can look for in its log
  const number = ours ? [element("p", { class: "hint" }, `request ${problem.request_id}`)] : [];
  return element("div", { class: "problem" }, element("p", { dir: "auto" }, title), ...number, ...actions);
}

export function clearProblem() {
  byId("problem")?.remove();
  for (const control of document.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
    const described = control.getAttribute("aria-describedby").replace(/ ?problem$/, "");
    if (described) control.setAttribute("aria-describedby", described);
    else control.removeAttribute("aria-describedby");
  }
}

/**
 * Show a refusal beside its field, or below the button; returns its text. `again` asks once more.
 */
export function showProblem(problem, request, index, { again }) {
  clearProblem();
  const text = wording(problem, request, index);
  const actions = [];
  if (["unreachable", "busy", "timeout"].includes(problem.code)) actions.push(button("Try again", () => {
    byId("text").focus(); // the button goes with the box
    again();
  }));
  const box = problemBox(text, problem, ...actions);
  box.id = "problem";
  const name = problem.field?.split(".")[0];
  const field = name && document.querySelector(`[data-field~="${name}"]`);
  (field || byId("general-problem")).append(box);
  if (!field) return text;
  if (field.closest("details")) field.closest("details").open = true;
  const control = field.querySelector("textarea, input") ?? field.querySelector("select");
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", `${control.getAttribute("aria-describedby") ?? ""} problem`.trim());
  return text;
}
