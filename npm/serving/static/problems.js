// Refusals as the reader sees them.

import { element } from "./elements.js";

export function problemBox(title, problem = {}) {
  const ours = problem.status >= 500 && problem.request_id; // what the server's administrator can look for in its log
  const number = ours ? [element("p", { class: "hint" }, `request ${problem.request_id}`)] : [];
  return element("div", { class: "problem" }, element("p", { dir: "auto" }, title), ...number);
}
