// Elements made of text. Nothing here or elsewhere on the page reads markup out of a string: what a corpus or a
// question holds is shown as the characters it consists of.

export const MASK = "<mask>";

export function byId(id) {
  return document.getElementById(id);
}

/** An element with attributes; children are elements or strings, which become text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function button(label, onPress, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", onPress);
  return made;
}

/** The title of a document, which opens a passage, and its id. */
export function documentOf({ title, document }, onOpen) {
  const opens = button(title || document, onOpen, { class: "source", "aria-haspopup": "dialog" });
  return [opens, " ", element("span", { class: "identifier" }, title ? document : "")];
}

/** A folded part of the page. */
export function folded(summary, ...children) {
  return element("details", {}, element("summary", {}, summary), ...children);
}

/** The characters [start, end) of a text, counted as the server counts them: in code points, not in UTF-16 units. */
export function codePoints(text, start, end) {
  return Array.from(text).slice(start, end).join("");
}

/** A text as nodes, the code points [start, end) in a <mark>. */
export function marked(text, start, end) {
  const mark = element("mark", {}, codePoints(text, start, end));
  return [codePoints(text, 0, start), mark, codePoints(text, end)];
}

/** A text as nodes in which each mask is a blank, or the phrase that fills it with the number of its source, if any. */
export function withMasks(text, phrases = [], numbers = []) {
  return text.split(MASK).flatMap((part, number) => {
    if (number === 0) return [part];
    const phrase = phrases[number - 1];
    if (phrase === undefined) return [element("span", { class: "mask" }, MASK), part];
    const source = numbers[number - 1] ? [element("sup", {}, `${numbers[number - 1]}`)] : [];
    return [element("mark", {}, phrase), ...source, part];
  });
}

/** A share in percent; one that is not all or nothing is not rounded to it. */
export function percent(share) {
  const number = share > 0.995 && share < 1 ? ">99" : share < 0.005 ? "<1" : `${Math.round(100 * share)}`;
  return `${number}\u00a0%`;
}

export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(1)} s`;
}

export function counted(count, one) {
  return `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;
}

/** A button that copies a text; none where the browser allows no page to, as on http but for this machine. */
export function copyButton(label, text) {
  if (!navigator.clipboard) return [];
  const made = button(label, async () => {
    made.textContent = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Not allowed");
    setTimeout(() => (made.textContent = label), 2000);
  });
  return [made];
}
