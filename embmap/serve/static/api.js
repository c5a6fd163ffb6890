// The server's answers. Failures are ApiError with the server's own code and message.

export class ApiError extends Error {
  constructor(status, code, message, word) {
    super(message);
    this.word = word; // the unknown word
    this.status = status;
    this.code = code;
  }
}

const KEPT = 200;
const KEPT_MS = 60_000; // a file may be replaced under a running server
const answers = new Map();
let token = sessionStorage.getItem("embmap-token");
let askForToken = async () => null;
let asking = null;

export function onTokenNeeded(ask) {
  askForToken = ask;
}

// Ask for a token once, however many requests were refused.
function newToken(refused) {
  asking ??= askForToken(refused).then((answer) => {
    token = answer;
    if (answer) sessionStorage.setItem("embmap-token", answer);
    asking = null;
  });
  return asking;
}

async function request(path, body) {
  for (;;) {
    const sent = token;
    const headers = {};
    if (sent) headers.Authorization = `Bearer ${sent}`;
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method: body ? "POST" : "GET", headers, body });
    } catch {
      throw new ApiError(0, "unreachable", "The server does not answer. Is it still running?");
    }
    if (response.status === 401) {
      if (token === sent) await newToken(Boolean(sent));
      if (!token) throw new ApiError(401, "unauthorized", "This server asks for a token.");
      continue;
    }
    let data = null;
    try {
      data = await response.json();
    } catch {
      if (response.ok) throw new ApiError(0, "garbled", "The server's answer cannot be read.");
    }
    if (response.ok) return data;
    const said = data?.error ?? {};
    const message = said.message ?? `The server answered with status ${response.status}.`;
    throw new ApiError(response.status, said.code ?? "error", message, said.word);
  }
}

// Going back and forth in the history repeats requests; recent answers are kept.
function remembered(path, body) {
  const key = body ? `${path} ${body}` : path;
  const kept = answers.get(key);
  if (kept && performance.now() - kept.asked < KEPT_MS) return kept.answer;
  answers.delete(key);
  if (answers.size >= KEPT) answers.delete(answers.keys().next().value);
  const answer = request(path, body);
  answers.set(key, { answer, asked: performance.now() });
  answer.catch(() => answers.delete(key));
  return answer;
}

const part = encodeURIComponent;
const get = (file, path, query = {}) =>
  remembered(`v1/${part(file)}/${path}?${new URLSearchParams(query)}`);
const post = (file, path, body) => remembered(`v1/${part(file)}/${path}`, JSON.stringify(body));

export const models = async () => (await request("v1/models")).models;
export const complete = async (file, prefix, n = 8) =>
  (await get(file, "complete", { prefix, n })).words;

// A vector for each word; null for unknown words.
export const lookup = async (file, words) =>
  (await post(file, "lookup", { words, missing: "subwords" })).vectors;

// The vectors of words at a time step.
export const lookupAt = async (file, words, t) =>
  (await post(file, "lookup", { words, missing: "null", t })).vectors;

export const similar = async (file, word, n) =>
  (await post(file, "similar", { word, n })).neighbors;
// The word is in the query, because "." and ".." cannot be in a path.
export const related = async (file, word, t, n) =>
  (await get(file, "related", { word, t, n })).neighbors;
export const trajectory = async (file, word, to) =>
  (await get(file, "trajectory", to ? { word, to } : { word })).values;
