"use strict";
// Puts the page together, and listens to the keyboard.

let data = null;

const KEYS = {
  "/": ["search", () => byId("search").focus()],
  j: ["next turn", () => choose(list.chosen ? list.at + 1 : 0)],
  ArrowDown: [null, () => choose(list.chosen ? list.at + 1 : 0)],
  k: ["turn before", () => choose(list.at - 1)],
  ArrowUp: [null, () => choose(list.at - 1)],
  v: ["numbers under the tokens", () => document.querySelector(".numbers-button")?.click()],
  t: ["colours: system, light, dark", () => nextTheme()],
  "?": ["this help", () => byId("help").showModal()],
};
const REVIEW_KEYS = {
  a: ["accept: the rest is right", () => accept()],
  "+": ["reward +1", () => decide({reward: 1})],
  "=": [null, () => decide({reward: 1})],
  0: ["reward 0", () => decide({reward: 0})],
  "-": ["reward −1", () => decide({reward: -1})],
  e: ["edit the hint", () => editHint()],
  x: ["strike the hint", () => decide({hint: null})],
  X: ["strike hint and reward", () => decide({hint: null, reward: null})],
  m: ["write a note", () => byId("note")?.focus()],
  w: ["withdraw the decision", () => withdraw()],
  u: ["undo", undo],
  n: ["next turn to decide", nextUndecided],
};

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "system") + 1) % THEMES.length]);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const typing = event.target.closest("input, textarea, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (event.key.startsWith("Arrow") && !(event.target === document.body || event.target.closest("#list-pane, #whole")))
    return; // they scroll the page
  if (event.defaultPrevented) return;
  // A key that is held down decides on one turn, not on the following ones, which nobody has read.
  if (event.repeat && (event.key === "Enter" || event.key in REVIEW_KEYS)) return event.preventDefault();
  const known = KEYS[event.key] ?? (reviewing() ? REVIEW_KEYS[event.key] : null);
  if (!known) return;
  event.preventDefault();
  known[1]();
}

function showKeys() {
  const known = {...KEYS, ...(reviewing() ? REVIEW_KEYS : {}), "← →": ["from token to token, inside the reply"]};
  byId("keys").append(
    ...Object.entries(known)
      .filter(([, [words]]) => words)
      .map(([key, [words]]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)])
      .flat(),
  );
}

function arrange() {
  const summary = data.summary;
  if (reviewing()) {
    document.body.classList.add("review");
    document.querySelector("main").insertBefore(byId("turns"), byId("answer"));
    byId("turns").after(byId("hints"));
    byId("title").textContent = "opdkit review";
  }
  document.title = (reviewing() ? "opdkit review " : "opdkit report ") + (summary.redacted ? "(redacted)" : summary.run);
  byId("run").append(
    ...(summary.redacted ? ["without texts: numbers alone, names are numbered"] : said(summary.run)),
  );
  if (!summary.comparison) byId("comparison").remove();
  const sections = [...document.querySelectorAll("main section")];
  byId("sections").append(
    ...sections.map((section) => el("li", {}, el("a", {href: "#" + section.id}, section.dataset.name))),
  );
  byId("accounts").addEventListener("toggle", redrawCharts);
  let clicked = null; // the address of the last link: only one to the section "Turns" keeps the filters
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link) follow((clicked = link.hash));
  });
  addEventListener("hashchange", () => {
    if (["", "#turns"].includes(location.hash) && location.hash !== clicked) showAll();
    follow(location.hash);
  });
}

// A link to turns sets the filters; a link into the accounts opens them.
function follow(hash) {
  if (hash?.startsWith("#turns?")) return filterBy(hash);
  const target = hash?.length > 1 && byId(hash.slice(1));
  if (target && byId("accounts").contains(target)) byId("accounts").open = true;
}

async function start() {
  byId("theme").addEventListener("click", nextTheme);
  byId("help-button").addEventListener("click", () => byId("help").showModal());
  try {
    data = await unpacked();
  } catch (error) {
    byId("loading").textContent = `This browser cannot unpack the report (${error.message}): open it in a current one.`;
    return;
  }
  const {summary, rows, views} = data;
  arrange();
  whole.views = new Map(views.map((view) => [view.turn_id, view]));
  list.whole = new Set(whole.views.keys());
  list.tokens = new Set(views.filter((view) => view.targets.some((one) => one.tokens.length)).map((v) => v.turn_id));
  list.decisions = dictionary(rows.reviews);
  list.note =
    (rows.id.length < summary.turns
      ? `, of ${count(summary.turns)} in the run (${count(rows.id.length)} are in this list)`
      : "") + `; the search reads the first ${rows.chars} characters of each text`;
  readTurns(rows);
  if (reviewing()) {
    orderReview();
    await startReview();
  }
  showKeys();
  showAnswer(summary);
  showOverview(summary);
  showFeedback(summary.votes);
  showHints(summary.hints);
  showMoved(summary.moved);
  showHintChecks(summary.hint_checks);
  showAdvantages(summary.advantages);
  showRewardsByLength(summary.rewards_by_length);
  showShares(summary.shares);
  showTraining(summary.training);
  showEvaluation(summary.evaluation);
  showComparison(summary.comparison);
  showConfiguration(summary);
  makeFilters(reviewing());
  refilter();
  if (reviewing()) showProgress();
  byId("loading").remove();
  redrawCharts();
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  let resized = null;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(redrawCharts, 150);
  });
  const {hash} = location; // read first, because opening a turn changes it
  if (!hash.startsWith("#turns?")) openFirst();
  follow(hash);
  document.documentElement.dataset.ready = "true";
}

start();
