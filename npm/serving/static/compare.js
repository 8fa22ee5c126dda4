// The same text by several search methods: one table, a row per phrase, the rank by each method.

import { documentOf, element } from "./elements.js";
import { problemBox } from "./problems.js";

export const METHODS = { hybrid: "Hybrid", bm25: "Keywords", dense: "Whole corpus" };

/** A list of {retrieval, response} or {retrieval, problem} as a table; `open(places, number)` opens a passage. */
export function comparison(columns, open) {
  const rows = new Map(); // spelling → the phrase, its places, and its rank in each column
  for (const [column, { response }] of columns.entries()) {
    for (const [rank, { phrase, occurrences }] of found(response).entries()) {
      const key = phrase.toLowerCase().replace(/\s+/g, " ").trim();
      if (!rows.has(key)) rows.set(key, { phrase, occurrences, ranks: [] });
      rows.get(key).ranks[column] = rank + 1;
    }
  }
  const best = ({ ranks }) => Math.min(...ranks.filter(Boolean));
  const lines = [...rows.values()].sort((a, b) => best(a) - best(b)).map((row) => line(row, columns.length, open));
  const head = columns.map(({ retrieval }) => element("th", { scope: "col" }, METHODS[retrieval]));
  const table = element(
    "table",
    { class: "ranks" },
    element("caption", {}, "Rank of each phrase"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Phrase"), ...head)),
    element("tbody", {}, ...lines),
  );
  const problems = columns.filter((each) => each.problem).flatMap(({ retrieval, problem }) => [
    element("h3", {}, METHODS[retrieval]),
    problemBox(problem.title, problem),
  ]);
  return [table, ...problems];
}

function line({ phrase, occurrences, ranks }, count, open) {
  const cells = Array.from({ length: count }, (_, column) => element("td", {}, ranks[column] ? `#${ranks[column]}` : "–"));
  const head = element("th", { scope: "row", dir: "auto" }, phrase);
  if (occurrences.length > 0) head.append(" ", documentOf(occurrences[0], () => open(occurrences, 0))[0]);
  return element("tr", {}, head, ...cells);
}

/** The phrases for the one blank of a text; of several, the fillings in the form of phrases, without places. */
function found(response) {
  const answer = response?.answers[0] ?? { phrases: [] };
  if ((answer.masks ?? []).length === 0) return answer.phrases;
  return answer.fillings.map(({ phrases }) => ({ phrase: phrases.join(" · "), occurrences: [] }));
}
