// Requests to the server that this page came from, and what it answers when it refuses.

const KEY = "npmlm.key";

/** A refusal: a problem of RFC 9457 as the server writes it, or one of ours in the same form. */
export class Problem extends Error {
  constructor(fields) {
    super(fields.title);
    Object.assign(this, fields);
  }

  /** The field of the form it is about: `text` of `body.text` or `body.text.3`, the first of `body.where, body.k`. */
  get field() {
    return /^[a-z]+\.([a-z_]+)/.exec(this.where)?.[1] ?? "";
  }
}

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Keep the API key for this tab; raises a Problem if no header can hold it. */
export function keepKey(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) {
    const expected = "letters, digits and signs of ASCII, without spaces";
    const fix = "copy a line of the server's key file";
    throw new Problem({ title: "that is no key", expected, fix, where: "form.key" });
  }
  sessionStorage.setItem(KEY, key);
}

/** The JSON that the server answers to a GET, or to a POST of `body`. Raises Problem, or an AbortError by `signal`. */
export async function ask(path, { body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  let response;
  try {
    response = await fetch(path, { method, headers, body: JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "the server does not answer",
      expected: `an answer from ${location.host}`,
      fix: "see whether npmlm serve still runs, and press the button again",
    });
  }
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && answer !== null) return answer;
  const title = `the server answers ${response.status} ${response.statusText}`;
  const where = response.status === 401 ? { where: "form.key" } : {}; // the header is filled from that field
  throw new Problem({ title, ...answer, ...where });
}

/** The command that asks the same on a terminal; of the key it names the variable only. */
export function curl(path, body) {
  const key = hasKey() ? ` -H "Authorization: Bearer $NPMLM_KEY"` : "";
  const data = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s ${new URL(path, document.baseURI)} -H 'Content-Type: application/json'${key} -d '${data}'`;
}
