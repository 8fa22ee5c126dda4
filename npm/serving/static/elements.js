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

/** A text as nodes in which each mask is shown as one, or as the phrase that fills it. */
export function withMasks(text, phrases = []) {
  return text.split(MASK).flatMap((part, number) => {
    if (number === 0) return [part];
    const phrase = phrases[number - 1];
    const shown = phrase === undefined ? element("span", { class: "mask" }, MASK) : element("mark", {}, phrase);
    return [shown, part];
  });
}

const STRENGTHS = [[0.8, "strong"], [0.4, "mixed"], [0, "weak"]];

/** How much of the evidence something has, as a meter and as the number beside it, with a word for a share. */
export function share(value, { most = 1, unit = " of the evidence", more = "" } = {}) {
  const word = unit === " of the evidence" ? ` (${STRENGTHS.find(([least]) => value >= least)[1]})` : "";
  const number = `${value.toFixed(3)}${unit}${word}`;
  const meter = element("meter", { min: 0, max: most, value: Math.min(value, most), "aria-label": number });
  return element("p", { class: "share" }, meter, element("span", {}, `${number}${more}`));
}

export function counted(count, one, several = `${one}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : several}`;
}
