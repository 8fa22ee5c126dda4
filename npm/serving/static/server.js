// Requests to the server that this page came from, and what it answers when it refuses.

const KEY = "npmlm.key";

/** A refusal: a problem of RFC 9457 as the server writes it, or one of ours with the same members. */
export class Problem extends Error {
  constructor(fields) {
    super(fields.title);
    Object.assign(this, fields);
  }
}

function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Keep the API key for this tab; raises a Problem if no header can hold it. */
export function keepKey(key) {
  if (!/^[\x21-\x7e]+$/.test(key)) {
    throw new Problem({ title: "the key must be ASCII without spaces: copy a line of the server's key file", field: "key" });
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
    throw new Problem({ code: "unreachable", title: "The server cannot be reached." });
  }
  const answer = await response.json().catch((error) => {
    if (error.name === "AbortError") throw error;
    return null;
  });
  if (response.ok && answer !== null) return answer;
  const title = `the server answers ${response.status} ${response.statusText}`;
  const field = response.status === 401 ? { field: "key" } : {}; // the header is filled from that field
  const retrySeconds = Number(response.headers.get("Retry-After") ?? 1);
  throw new Problem({ title, retrySeconds, ...answer, ...field });
}

/** The command that asks the same on a terminal; of the key it names the variable only. */
export function curl(path, body) {
  const key = hasKey() ? ` -H "Authorization: Bearer $NPMLM_KEY"` : "";
  const data = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl -s ${new URL(path, document.baseURI)} -H 'Content-Type: application/json'${key} -d '${data}'`;
}
