"use strict";
// `opdkit review`: a person accepts, edits or strikes what the votes say, with the keyboard. Decisions wait here until
// the server has them: nothing is lost when it is gone for a while.

const unsent = new Map(); // turn id -> the decision that the server does not have yet; null: withdraw
const before = []; // [turn id, the decision before], for undo
const RETRY = 3000; // milliseconds
const LONGEST = 20_000; // characters of a decision; three bytes each still reach the server whole
let sending = false;
let refusedTurn = null; // whose last decision the server did not take

const reviewing = () => Boolean(data?.summary.review);

async function ask(method, path, body) {
  const sent = body && JSON.stringify(body);
  if (sent?.length > LONGEST) throw new Error("a decision is too long");
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: {"X-Opdkit-Token": data.summary.review.token, ...(body ? {"Content-Type": "application/json"} : {})},
      body: sent,
      cache: "no-store",
    });
  } catch {
    throw new NotNow("The server does not answer. Is `opdkit review` still running?");
  }
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    found = null;
  }
  if (answer.ok && found !== null) return found;
  const words = found?.error || `The server answered ${answer.status}.`;
  // A server that was started again knows another token, and a full disk can be emptied: neither is the last word.
  if (answer.status === 403 || answer.status >= 500) throw new NotNow(words);
  throw new Error(words);
}

class NotNow extends Error {}

const fetchView = async (id) => {
  const view = await ask("GET", "/api/turns/" + encodeURIComponent(id));
  whole.views.set(id, view);
  if (whole.views.size > 50) whole.views.delete(whole.views.keys().next().value);
  return view;
};

// -- the panel ---------------------------------------------------------------------------------------------------------

function placePanel(turn, view) {
  const panel = el("section", {id: "panel", "aria-label": "Your decision"});
  byId("conversation").before(panel);
  drawPanel(turn, view);
}

function drawPanel(turn, view) {
  const review = list.decisions[turn.id],
    votes = view.verdict?.voted;
  const reward = review && "reward" in review ? review.reward : (votes?.reward ?? null),
    hint = review && "hint" in review ? review.hint : (votes?.hint ?? null);
  const button = (words, key, action, pressed) =>
    el(
      "button",
      {type: "button", onclick: action, "aria-pressed": pressed === undefined ? null : String(pressed)},
      words + " ",
      el("kbd", {}, key),
    );
  const edit = byId("edit") ?? el("div", {id: "edit"}), // what is being typed stays
    typing = edit.contains(document.activeElement) ? document.activeElement : null;
  const who = review?.reviewer
    ? ` by ${review.reviewer}${review.time ? ", " + review.time.slice(0, 16).replace("T", " ") : ""}`
    : "";
  byId("panel").replaceChildren(
    el(
      "h4",
      {},
      "Your decision: ",
      el("span", {id: "decision"}, decisionWord(turn.id)),
      el("span", {class: "faint small"}, said(who)),
      unsent.has(turn.id) ? " (not saved yet)" : "",
    ),
    el(
      "div",
      {class: "tools", role: "group", "aria-label": "Reward"},
      "Reward ",
      button("+1", "+", () => decide({reward: 1}), reward === 1),
      button("0", "0", () => decide({reward: 0}), reward === 0),
      button("−1", "-", () => decide({reward: -1}), reward === -1),
    ),
    el("p", {}, "Hint ", hint === null ? el("strong", {}, "none") : quoted(hint, "strong")),
    el(
      "div",
      {class: "tools"},
      button("Accept", "a", () => decide({})),
      button("Edit the hint", "e", () => editHint()),
      button("Strike the hint", "x", () => decide({hint: null})),
      button("Strike all", "X", () => decide({hint: null, reward: null})),
      button("Undo", "u", undo),
      button("Next undecided", "n", nextUndecided),
    ),
    edit,
    el("p", {id: "problem", role: "alert"}),
  );
  typing?.focus();
}

function editHint(typed) {
  const turn = whole.turn,
    place = byId("edit");
  if (!place) return;
  const review = list.decisions[turn.id],
    text = typed ?? (review && "hint" in review ? review.hint : whole.view.verdict?.voted.hint) ?? "";
  const area = el("textarea", {"aria-label": "The hint: what the reply should have done", dir: "auto"});
  area.value = text;
  const save = () => {
    const written = area.value.trim();
    place.replaceChildren();
    decide({hint: written || null});
  };
  const leave = () => {
    place.replaceChildren();
    byId("panel").querySelector("button").focus();
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      save();
    }
    if (event.key === "Escape") leave();
  });
  place.replaceChildren(
    area,
    el(
      "div",
      {class: "tools"},
      el("button", {type: "button", onclick: save}, "Save ", el("kbd", {}, "Ctrl+Enter")),
      el("button", {type: "button", onclick: leave}, "Leave as it was ", el("kbd", {}, "Esc")),
    ),
  );
  area.focus();
}

// -- deciding ----------------------------------------------------------------------------------------------------------

// What was decided of this turn, with `change` on top. A field that is not in it stays as the votes have it.
function decide(change) {
  const turn = whole.turn;
  if (!reviewing() || !turn) return;
  const kept = list.decisions[turn.id] ?? {},
    decision = {};
  for (const name of ["reward", "hint", "note"])
    if (name in kept && kept[name] !== undefined && !(name === "note" && kept[name] === null))
      decision[name] = kept[name];
  put(turn.id, Object.keys(change).length ? {...decision, ...change} : {}, true);
}

function put(id, decision, undoable) {
  if (undoable) before.push([id, list.decisions[id] ?? null]);
  if (decision === null) delete list.decisions[id];
  else list.decisions[id] = decision;
  unsent.set(id, decision);
  redecided(id);
  send();
}

function undo() {
  const last = before.pop();
  if (!last) return problem("Nothing to undo on this page.");
  const [id, decision] = last,
    place = list.shown.findIndex((turn) => turn.id === id);
  const kept =
    decision &&
    Object.fromEntries(
      ["reward", "hint", "note"]
        .filter((name) => name in decision && !(name === "note" && decision[name] === null))
        .map((name) => [name, decision[name]]),
    );
  put(id, kept, false);
  if (place >= 0 && whole.turn.id !== id) choose(place);
}

function nextUndecided() {
  const open = (turn) => turn.state !== "not trainable" && decisionWord(turn.id) === "undecided";
  const from = list.chosen ? list.at + 1 : 0,
    order = [...list.shown.keys()].map((n) => (n + from) % list.shown.length);
  const next = order.find((place) => open(list.shown[place]));
  if (next === undefined) return problem("No undecided turn is left in this list.");
  choose(next);
}

function redecided(id) {
  byId("spoken").textContent = `${id}: ${decisionWord(id)}${unsent.has(id) ? ", not saved yet" : ""}`;
  redrawRow(id);
  if (whole.turn?.id === id && whole.view) {
    drawPanel(whole.turn, whole.view);
    byId("whole")
      .querySelector(".badges")
      .replaceChildren(...badges(whole.turn).filter(Boolean));
  }
}

function problem(words) {
  const place = byId("problem");
  if (place) {
    place.textContent = words;
    place.className = words ? "problem" : "";
  }
}

// -- sending -----------------------------------------------------------------------------------------------------------

// One decision after the other, the latest of each turn; tried again until the server has it.
async function send() {
  if (sending) return;
  sending = true;
  try {
    while (unsent.size) {
      const [id, decision] = unsent.entries().next().value;
      try {
        const answer = await ask(
          "POST",
          "/api/reviews",
          decision === null ? {turn_id: id, action: "strike"} : {turn_id: id, action: "set", ...decision},
        );
        if (id === refusedTurn) refusedTurn = null;
        if (unsent.get(id) === decision) {
          unsent.delete(id);
          if (answer.review) list.decisions[id] = answer.review;
          else delete list.decisions[id];
        }
      } catch (error) {
        if (error instanceof NotNow) {
          showUnsent(error.message);
          setTimeout(send, RETRY);
          return;
        }
        await refused(id, decision, error.message);
        continue;
      }
      redecided(id);
    }
    showUnsent("");
  } finally {
    sending = false;
  }
}

// What the server does not take is not kept as if it had: the decisions are those that it has.
async function refused(id, decision, words) {
  if (unsent.get(id) === decision) unsent.delete(id);
  refusedTurn = id;
  try {
    await readDecisions();
  } catch {
    /* the next answer will tell */
  }
  redecided(id);
  if (whole.turn?.id === id && typeof decision?.hint === "string") editHint(decision.hint); // what was typed stays
  problem(`Not saved: ${words}`);
  byId("unsent").replaceChildren("A decision on ", quoted(id), " was not saved: ", quoted(words));
  byId("unsent").hidden = false;
}

function showUnsent(words) {
  if (!words && refusedTurn !== null) return; // that one is still to be mended
  byId("unsent").hidden = !words;
  byId("unsent").textContent = words
    ? words +
      (unsent.size ? ` ${plural(unsent.size, "decision")} not saved yet: keep this page open, it tries again.` : "")
    : "";
}

addEventListener("beforeunload", (event) => {
  if (unsent.size) event.preventDefault();
});

// The decisions in force, other reviewers' too; those of this page that wait stay on top.
async function readDecisions() {
  const found = dictionary(await ask("GET", "/api/reviews"));
  for (const [id, decision] of unsent) {
    if (decision) found[id] = decision;
    else delete found[id];
  }
  list.decisions = found;
}

async function startReview() {
  try {
    await readDecisions();
  } catch (error) {
    showUnsent(error.message);
  }
  document.addEventListener("visibilitychange", lookAgain);
}

// Whoever comes back to the page sees what others decided meanwhile.
async function lookAgain() {
  if (document.hidden || unsent.size) return;
  try {
    await readDecisions();
  } catch {
    return; // the next decision will tell
  }
  for (const turn of list.shown.slice(list.page * PAGE, (list.page + 1) * PAGE)) redrawRow(turn.id);
  if (whole.view) drawPanel(whole.turn, whole.view);
}
