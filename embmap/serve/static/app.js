// The page. The address contains the whole query, and each part of the page is drawn from it.

import * as api from "./api.js";
import { drawChart, markStep, MOST_LINES, removeChart, resizeChart } from "./chart.js";
import { Combobox } from "./combobox.js";
import { $, el, quoted, score } from "./dom.js";
import { cosine, drawMap } from "./map.js";

const DEFAULT_N = 10;
const COMMON_AMONG = 50;

let files = [];
let state = null;
const drawn = {}; // the key of what each part of the page shows now

// ---- the address -------------------------------------------------------------------------------

function readHash() {
  const query = new URLSearchParams(location.hash.slice(1));
  const number = (name, otherwise) => {
    const value = query.get(name);
    return value !== null && /^\d{1,6}$/.test(value) ? Number(value) : otherwise;
  };
  return {
    file: query.get("file") ?? "",
    word: query.get("word") ?? "",
    n: Math.min(Math.max(number("n", DEFAULT_N), 1), 100),
    t: number("t", 0),
    lines: [...new Set(query.getAll("line"))].slice(0, MOST_LINES - 1),
    to: query.get("to") ?? "",
    with: query.get("with") ?? "",
  };
}

function hashOf(changes = {}) {
  const next = { ...state, ...changes };
  const query = new URLSearchParams();
  if (next.file) query.set("file", next.file);
  if (next.word) query.set("word", next.word);
  if (next.n !== DEFAULT_N) query.set("n", next.n);
  if (next.t) query.set("t", next.t);
  for (const line of next.lines) query.append("line", line);
  if (next.to) query.set("to", next.to);
  if (next.with) query.set("with", next.with);
  return `#${query}`;
}

// Add an entry to the history, or replace the last one (while the slider moves).
function go(changes, { replace = false } = {}) {
  const hash = hashOf(changes);
  if (hash === location.hash) {
    render();
  } else if (replace) {
    history.replaceState(null, "", hash);
    render();
  } else {
    location.hash = hash;
  }
}

const file = () => files.find((one) => one.name === state.file);
const isDynamic = () => Boolean(file()?.timesteps);

// Time steps are numbers here. People see their labels, such as years, where there are any.
const labels = () => file()?.labels ?? [];
const stepName = (t) => String(labels()[t] ?? t);
const whichStep = (t) => (labels().length ? stepName(t) : `${t} of 0–${$("step").max}`);
// A number that is the label of another step would be refused; one from the end is not.
const askedStep = (t) => (labels().includes(t) ? t - file().timesteps : t);

// ---- messages ----------------------------------------------------------------------------------

function say(box, ...content) {
  box.replaceChildren(...content);
  box.hidden = content.length === 0;
}

// `data-to` holds the change that a link makes, so that its address can follow later changes.
const link = (word, changes = { word }) =>
  el("a", { href: hashOf(changes), "data-to": JSON.stringify(changes) }, word);

const listed = (words, changes = (word) => ({ word })) =>
  words.flatMap((word, i) => [...(i ? [", "] : []), link(word, changes(word))]);

function refreshLinks() {
  for (const one of document.querySelectorAll("[data-to]")) {
    one.setAttribute("href", hashOf(JSON.parse(one.dataset.to)));
  }
}

function retryButton() {
  const button = el("button", { type: "button" }, "Try again");
  button.addEventListener("click", () => {
    forget();
    start();
  });
  return button;
}

async function explain(box, error) {
  const word = error.word ?? state.word;
  if (error.code === "unknown_word") {
    say(box, `${quoted(word)} is not in ${state.file}.`);
    const others = await likelyMeant(word);
    if (others.length) {
      box.append(" Perhaps: ", ...listed(others));
    }
  } else {
    say(box, error.message || "Something went wrong.", " ", retryButton());
  }
}

// Words of the file that share the longest prefix with a word.
async function likelyMeant(word) {
  const letters = [...word];
  try {
    let length = letters.length;
    for (; length > 0; length = Math.min(length - 1, (length * 3) >> 2)) {
      const words = await api.complete(state.file, letters.slice(0, length).join(""), 5);
      if (words.length) return words;
    }
  } catch {
    // The message is shown without suggestions.
  }
  return [];
}

function forget() {
  for (const name of Object.keys(drawn)) delete drawn[name];
}

// Draw a part of the page unless it shows this already. A later call supersedes an earlier one.
async function part(name, key, panel, work, fail) {
  if (drawn[name] === key) return;
  drawn[name] = key;
  const current = () => drawn[name] === key;
  panel.setAttribute("aria-busy", "true");
  try {
    await work(current);
  } catch (error) {
    if (!current()) return;
    delete drawn[name];
    if (!(error instanceof api.ApiError)) console.error(error);
    fail(error);
  } finally {
    if (current() || !(name in drawn)) panel.removeAttribute("aria-busy");
  }
}

// ---- neighbours and the map --------------------------------------------------------------------

const nearest = (word, n) =>
  isDynamic()
    ? api.related(state.file, word, askedStep(state.t), Math.min(n, file().count - 1))
    : api.similar(state.file, word, n);

const nameOf = (neighbor) => neighbor.word ?? `#${neighbor.row}`;

const vectorsOf = (words) =>
  isDynamic()
    ? api.lookupAt(state.file, words, askedStep(state.t))
    : api.lookup(state.file, words);

function listNeighbors(list, neighbors) {
  const most = Math.max(...neighbors.map((one) => Math.abs(one.score)), 1e-9);
  const items = neighbors.map((one) => {
    const bar = el("span", { class: "score-bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", Math.max(one.score, 0) / most);
    const name = one.word === null ? el("span", {}, nameOf(one)) : link(one.word);
    return el("li", {}, name, bar, el("span", { class: "score" }, score(one.score)));
  });
  list.replaceChildren(...items);
}

let mapped = null;

function redrawMap() {
  if (!mapped) return;
  const shown = drawMap($("map-box"), mapped);
  refreshLinks();
  $("map-note").textContent =
    `The two directions in which these words differ most: ${Math.round(shown * 100)} % of their ` +
    "variance. Choose a word to move on.";
}

function showNeighbors() {
  const { word, n, t } = state;
  const key = JSON.stringify([state.file, word, n, isDynamic() && t]);
  part("neighbors", key, $("neighbors"), async (current) => {
    const neighbors = await nearest(word, n);
    if (!current()) return;
    say($("message"));
    $("results").hidden = false;
    $("neighbors-title").replaceChildren("Neighbours of ", el("b", {}, word));
    listNeighbors($("neighbor-list"), neighbors);
    $("status").textContent = `${neighbors.length} neighbours of ${word}`;
    showMap(key, word, neighbors);
    showTime();
    showCompared();
  }, (error) => {
    $("results").hidden = true;
    explain($("message"), error);
  });
}

function showMap(key, word, neighbors) {
  part("map", key, $("map"), async (current) => {
    const known = neighbors.filter((one) => typeof one.word === "string");
    const vectors = await vectorsOf([word, ...known.map((one) => one.word)]);
    if (!current()) return;
    const items = [{ word }, ...known]
      .map((one, i) => ({
        word: one.word,
        score: i ? score(one.score) : "",
        to: JSON.stringify({ word: one.word }),
        vector: vectors[i],
      }))
      .filter((item) => item.vector);
    mapped = items.length > 1 && items[0].word === word ? items : null;
    if (mapped) redrawMap();
    else say($("map-box"), "There are too few vectors for a map.");
  }, (error) => {
    mapped = null;
    $("map-note").textContent = "";
    say($("map-box"), error.message);
  });
}

// ---- words over time ---------------------------------------------------------------------------

let series = [];

function chips(words) {
  const items = words.map((word, i) => {
    const swatch = el("span", { class: `swatch line-${i + 1}`, "aria-hidden": "true" });
    if (i === 0) return el("li", {}, swatch, el("b", {}, word));
    const remove = el("button", { type: "button", "aria-label": `Remove ${word}` }, "×");
    remove.addEventListener("click", () => {
      go({ lines: state.lines.filter((line) => line !== word) });
      $("line").focus();
    });
    const lines = state.lines.map((line) => (line === word ? state.word : line)); // they swap
    return el("li", {}, swatch, link(word, { word, lines }), remove);
  });
  $("chips").replaceChildren(...items);
}

function showTime() {
  $("time").hidden = !isDynamic();
  if (!isDynamic()) {
    removeChart();
    delete drawn.time;
    return;
  }
  markStep(state.t);
  const words = [...new Set([state.word, ...state.lines])];
  const { to } = state;
  const key = JSON.stringify([state.file, words, to]);
  if ($("to") !== document.activeElement) $("to").value = to;
  part("time", key, $("time"), async (current) => {
    chips(words);
    const answers = await Promise.allSettled(
      words.map((word) => api.trajectory(state.file, word, to)),
    );
    if (!current()) return;
    const failed = words.filter((_, i) => answers[i].status === "rejected");
    series = words
      .map((word, i) => ({ word, values: answers[i].value }))
      .filter((line) => line.values);
    const [first] = answers.filter((answer) => answer.status === "rejected");
    say($("time-error"), ...(first ? [whyNoLine(first.reason, failed)] : []));
    redrawChart();
  }, (error) => say($("time-error"), error.message));
}

function whyNoLine(error, failed) {
  if (error.code !== "unknown_word") return error.message;
  const unknown = error.word === state.to ? [state.to] : failed;
  const verb = unknown.length > 1 ? "are" : "is";
  return `${unknown.map(quoted).join(", ")} ${verb} not in ${state.file}.`;
}

function redrawChart() {
  const box = $("chart");
  removeChart();
  box.replaceChildren();
  $("chart-what").textContent = "";
  $("table-box").hidden = series.length === 0;
  if (!series.length) return;
  const what = state.to ? `cosine with ${quoted(state.to)}` : "cosine with each word's first step";
  $("chart-what").textContent = what;
  const told = series.map(({ word, values }) => {
    return `${word} from ${score(values[0])} to ${score(values.at(-1))}`;
  });
  const last = series[0].values.length - 1;
  const over = labels().length
    ? `from ${stepName(0)} to ${stepName(last)}`
    : `over ${last + 1} steps`;
  box.setAttribute("aria-label", `${what}, ${over}: ${told.join("; ")}`);
  const colored = [...new Set([state.word, ...state.lines])];
  const places = series.map((line) => colored.indexOf(line.word));
  drawChart(box, series, state.t, (t) => go({ t }, { replace: true }), { places, labels: labels() });
  if ($("table-box").open) fillTable();
}

function fillTable() {
  const head = el("tr", {}, el("th", { scope: "col" }, "step"));
  for (const line of series) head.append(el("th", { scope: "col" }, line.word));
  const rows = (series[0]?.values ?? []).map((_, t) => {
    const cells = series.map((line) => el("td", {}, score(line.values[t])));
    return el("tr", {}, el("th", { scope: "row" }, stepName(t)), ...cells);
  });
  $("table").replaceChildren(el("thead", {}, head), el("tbody", {}, ...rows));
}

// ---- two words ---------------------------------------------------------------------------------

function showCompared() {
  const { word, t } = state;
  const other = state.with;
  if ($("with") !== document.activeElement) $("with").value = other;
  $("with-label").replaceChildren(el("b", {}, word), " with");
  $("with-clear").hidden = !other;
  const box = $("compared");
  if (!other) {
    delete drawn.compare;
    $("compare").removeAttribute("aria-busy");
    box.replaceChildren();
    return;
  }
  const key = JSON.stringify([state.file, word, other, isDynamic() && t]);
  part("compare", key, $("compare"), async (current) => {
    const [a, b, [mine, its]] = await Promise.all([
      nearest(word, COMMON_AMONG),
      nearest(other, COMMON_AMONG),
      vectorsOf([word, other]),
    ]);
    if (!current()) return;
    const rank = new Map(b.map((one, i) => [one.row, i]));
    const common = a
      .map((one, i) => ({ name: nameOf(one), i, j: rank.get(one.row) }))
      .filter((one) => one.j !== undefined && one.name !== word && one.name !== other)
      .sort((p, q) => p.i + p.j - (q.i + q.j));
    const similarity = mine && its ? score(cosine(mine, its)) : "–";
    const step = labels().length ? "" : "step ";
    const when = isDynamic() ? ` at ${step}${stepName(t)}` : "";
    const among = Math.min(COMMON_AMONG, Math.max(a.length, b.length));
    box.replaceChildren(
      el("p", { class: "cosine" }, el("span", { class: "big" }, similarity), ` cosine${when} of `,
        el("b", {}, word), " and ", link(other, { word: other, with: word })),
      common.length
        ? el("p", {}, `In common among the nearest ${among} of each: ${common.length}`)
        : el("p", {}, `None of the nearest ${among} of each are in common.`),
      el("ul", { class: "common" }, ...common.map((one) => el("li", {}, link(one.name)))),
    );
  }, (error) => {
    const note = el("p", { class: "note" });
    box.replaceChildren(note);
    explainOther(note, error, other);
  });
}

async function explainOther(note, error, other) {
  if (error.code !== "unknown_word") {
    explain(note, error);
    return;
  }
  say(note, `${quoted(other)} is not in ${state.file}.`);
  const words = await likelyMeant(other);
  if (words.length) note.append(" Perhaps: ", ...listed(words, (one) => ({ with: one })));
}

// ---- the whole page ----------------------------------------------------------------------------

function about(one) {
  if (!one.available) return "";
  const parts = [one.format, `${one.count.toLocaleString("en")} ${one.words ? "words" : "rows"}`];
  parts.push(`${one.dim} dimensions`, one.dtype);
  const span = one.labels ? `, ${one.labels[0]} to ${one.labels.at(-1)}` : "";
  if (one.timesteps) parts.push(`${one.timesteps} time steps${span}`);
  return parts.join(" · ");
}

async function welcome() {
  const one = file();
  const box = $("examples");
  $("welcome").hidden = false;
  $("results").hidden = true;
  box.replaceChildren();
  part("welcome", one.name, $("welcome"), async (current) => {
    const first = await api.complete(one.name, "", 300);
    if (!current()) return;
    const telling = first.filter((word) => /^\p{L}{4,15}$/u.test(word));
    const words = (telling.length ? telling : first).slice(0, 8);
    if (words.length) {
      box.append("For example: ", ...listed(words));
    }
  }, () => {});
}

function render() {
  state = readHash();
  if (!files.length) return;
  const asked = state.file;
  if (!file()) state.file = files[0].name;
  const one = file();
  const last = Math.max((one.timesteps ?? 1) - 1, 0);
  state.t = Math.min(state.t, last);
  document.title = [state.word, one.name, "embmap"].filter(Boolean).join(" · ");
  $("file").value = one.name;
  $("about").textContent = about(one);
  $("home").setAttribute("href", `#${new URLSearchParams({ file: one.name })}`);
  const sizes = [...$("n").options].map((option) => option.value);
  if (!sizes.includes(String(state.n))) $("n").append(el("option", {}, String(state.n)));
  $("n").value = String(state.n);
  $("when").hidden = !isDynamic();
  $("step").max = String(last);
  $("step").value = String(state.t);
  $("step-value").textContent = whichStep(state.t);
  $("step").setAttribute("aria-valuetext", whichStep(state.t));
  if ($("word").value !== state.word) $("word").value = state.word;
  $("word").disabled = !(one.words && one.vectors);
  say($("message"));
  $("welcome").hidden = true;
  if (asked && asked !== one.name) {
    $("results").hidden = true;
    say($("message"), `This server has no file ${quoted(asked)}. Showing ${one.name} instead.`);
  } else if (!one.available) {
    $("results").hidden = true;
    say($("message"), `${one.name} cannot be read by the server now. `, retryButton());
  } else if (!one.words || !one.vectors) {
    $("results").hidden = true;
    const lacks = one.words ? "one vector for each word" : "words";
    say($("message"), `${one.name} does not contain ${lacks}, so it cannot be searched.`);
  } else if (!state.word) {
    forget();
    welcome();
  } else {
    if (drawn.neighbors === undefined) forget();
    showNeighbors();
    if (!$("results").hidden) {
      showTime();
      showCompared();
    }
  }
  refreshLinks();
}

function askForToken(refused) {
  const dialog = $("token-dialog");
  $("token-why").hidden = !refused;
  $("token").value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    const answer = () => resolve(dialog.returnValue === "given" ? $("token").value.trim() : null);
    dialog.addEventListener("close", answer, { once: true });
  });
}

function completing(id, choose) {
  const suggest = (prefix) => api.complete(state.file, prefix);
  const combobox = new Combobox($(id), suggest, choose);
  $(id).form.addEventListener("submit", (event) => {
    event.preventDefault();
    combobox.close();
    choose($(id).value.trim());
  });
}

function addLine(word) {
  if (!word) return;
  const lines = [...state.lines, word].filter((line) => line !== state.word);
  $("line").value = "";
  if (lines.length >= MOST_LINES) {
    say($("time-error"), `The chart has room for ${MOST_LINES} words. Remove one first.`);
  } else if (lines.length) {
    go({ lines: [...new Set(lines)] });
  }
}

function wire() {
  completing("word", (word) => {
    if (word) go({ word });
  });
  completing("with", (word) => go({ with: word }));
  completing("line", addLine);
  completing("to", (word) => go({ to: word }));
  $("with-clear").addEventListener("click", () => {
    $("with").value = "";
    go({ with: "" });
    $("with").focus();
  });
  $("file").addEventListener("change", () => {
    const chosen = files.find((one) => one.name === $("file").value);
    go({ file: chosen.name, ...(chosen.words ? {} : { word: "" }), t: 0, lines: [], to: "" });
  });
  $("n").addEventListener("change", () => go({ n: Number($("n").value) }));
  $("step").addEventListener("input", () => {
    $("step-value").textContent = whichStep(Number($("step").value));
    go({ t: Number($("step").value) }, { replace: true });
  });
  $("table-box").addEventListener("toggle", fillTable);
  $("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address is for the search, not for the position on the page
    $("main").focus();
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=range]), select, textarea, dialog");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    $("word").focus();
    $("word").select();
  });
  addEventListener("hashchange", render);
  new ResizeObserver(() => {
    redrawMap();
    resizeChart($("chart").clientWidth);
  }).observe($("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (series.length && !$("time").hidden) redrawChart();
  });
}

async function start() {
  document.body.setAttribute("aria-busy", "true");
  try {
    files = await api.models();
    say($("message"));
  } catch (error) {
    say($("message"), error.message, " ", retryButton());
    return;
  } finally {
    document.body.removeAttribute("aria-busy");
  }
  if (!files.length) {
    say($("message"), "This server serves no files.");
    return;
  }
  $("file").replaceChildren(...files.map((one) => el("option", { value: one.name }, one.name)));
  $("file").disabled = files.length < 2;
  render();
  if (!state.word && matchMedia("(hover: hover)").matches) $("word").focus();
}

state = readHash();
api.onTokenNeeded(askForToken);
wire();
start();
