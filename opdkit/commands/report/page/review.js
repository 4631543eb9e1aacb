"use strict";
// `opdkit review`: the decisions of this page, and how they are sent to the server. They wait here until the server has
// them, so nothing is lost if the server is away for a while. Decisions of another window are shown, and never
// overwritten unseen.

const unsent = new Map(); // turn id, or "group N" -> {body, seen}: decisions that the server does not have yet
const conflicts = new Map(); // same key -> {body, newer}: the refused decision, and the server's newer ones
const before = []; // [turn id, the decision before, the decision of this page], for undo
const RETRY = 3000; // milliseconds
const LONGEST = 20_000; // characters of a decision; at three bytes each it is still under the server's limit
let sending = false;
let seen = -1; // number of the last decision that this page knows
let refusedTurn = null; // turn or group whose last decision the server refused

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
    throw new NotNow(
      `The server does not answer. If \`opdkit review\` was stopped, start it again with --port ${location.port}.`,
    );
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
  if (answer.status === 409) throw new Conflict(words, found);
  // A restarted server has another token, and a full disk can be emptied: such errors may pass, so it tries again.
  if (answer.status === 403) throw new NotNow("The server was started again: it has a new address.", addressField());
  if (answer.status >= 500) throw new NotNow(words);
  throw new Error(words);
}

class NotNow extends Error {
  constructor(words, field) {
    super(words);
    this.field = field;
  }
}

// Takes the address that a restarted server printed: this page's decisions are sent with its token.
function addressField() {
  const take = (event) => {
    const token = /token=([\w-]+)/.exec(event.target.value)?.[1];
    if (!token) return;
    data.summary.review.token = token;
    history.replaceState(null, "", `?token=${token}${location.hash}`); // for reloading the page
    send();
    if (!whole.view && whole.turn) showWhole(whole.turn);
  };
  return el("label", {}, " Paste the new address: ", el("input", {type: "text", autocomplete: "off", oninput: take}));
}

class Conflict extends Error {
  constructor(words, answer) {
    super(words);
    this.answer = answer;
  }
}

const fetchView = async (id) => {
  const view = await ask("GET", "/api/turns/" + encodeURIComponent(id));
  whole.views.set(id, view);
  if (whole.views.size > 50) whole.views.delete(whole.views.keys().next().value);
  return view;
};

// -- deciding ----------------------------------------------------------------------------------------------------------

// Sets the decision on a turn, and sends it; null withdraws the decision. `keepsHint`: it does not decide on the hint.
function put(id, decision, undoable, keepsHint = false) {
  const last = list.decisions[id] ?? null;
  const action = decision === null ? "strike" : "set";
  unsent.set(id, {body: {turn_id: id, action, ...decision}, seen: unsent.get(id)?.seen ?? seen, keepsHint});
  if (conflicts.delete(id)) showConflicts();
  showLocally(id, decision);
  if (undoable) before.push([id, last, list.decisions[id]]);
  send();
}

// The content and the reviewer of a decision, as text: equal for a decision of this page and the server's copy of it.
function contentOf(decision) {
  const {reviewer, reward, hint, note} = decision ?? {};
  return JSON.stringify({reviewer, reward, hint, note: note || undefined});
}

// Shows a decision as the server will return it.
function showLocally(id, decision) {
  const voted_reward = list.byId.get(id)?.reward ?? null;
  if (decision === null) delete list.decisions[id];
  else list.decisions[id] = {...decision, voted_reward, reviewer: data.summary.review.reviewer};
  redecided([id]);
}

function decideGroup(number, decision) {
  const turns = list.groups[number].map((turn) => turn.id);
  unsent.set(`group ${number}`, {body: {group: wordingOf(number), ...decision}, seen, turns});
  if (conflicts.delete(`group ${number}`)) showConflicts();
  before.length = 0; // no earlier decision can be undone: it is no longer the last of its turn
  drawGroups(data.summary.hints);
  send();
}

// Redraws everything that shows the decisions on these turns.
function redecided(ids) {
  const [id] = ids;
  if (ids.length === 1)
    byId("spoken").textContent = `${id}: ${decisionWord(id)}${unsent.has(id) ? ", not saved yet" : ""}`;
  const visible = new Set(list.shown.slice(list.page * PAGE, (list.page + 1) * PAGE).map((turn) => turn.id));
  for (const one of ids) if (visible.has(one)) redrawRow(one);
  if (byId("groups")) drawGroups(data.summary.hints);
  showProgress();
  if (whole.view && ids.includes(whole.turn?.id)) {
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

// Sends the decisions one after the other, only the latest of each turn; tries again until the server has them.
async function send() {
  if (sending) return;
  sending = true;
  try {
    while (unsent.size) {
      const [key, entry] = unsent.entries().next().value,
        id = entry.body.turn_id;
      try {
        const answer = await ask("POST", "/api/reviews", {...entry.body, seen: entry.seen});
        if (key === refusedTurn) refusedTurn = null;
        if (unsent.get(key) === entry) unsent.delete(key);
        // Decisions made here since then have seen this one, and no other came between.
        for (const other of entry.turns ?? [key]) if (unsent.has(other)) unsent.get(other).seen = answer.last;
        for (const other of entry.turns ?? []) if (unsent.get(other)?.keepsHint) takeHint(other, answer.reviews[other]);
        receive(answer, id);
      } catch (error) {
        if (error instanceof NotNow) {
          showUnsent(error.message, error.field);
          setTimeout(send, RETRY);
          return;
        }
        if (error instanceof Conflict) {
          const {body} = unsent.get(key) ?? entry; // the reviewer may have decided again since
          unsent.delete(key);
          conflicts.set(key, {body, turns: entry.turns, newer: error.answer.newer, words: error.message});
          receive(error.answer, id);
          showConflicts();
        } else await refused(key, entry, error.message);
      }
    }
    showUnsent("");
  } finally {
    sending = false;
  }
}

// Puts the hint of a group's decision into the decision that waits on one of its turns.
function takeHint(id, review) {
  const waiting = unsent.get(id);
  if (review === undefined) return; // the group's decision left this turn as it was
  if (waiting.body.action === "strike") return unsent.delete(id); // it undid what the group's decision came before
  delete waiting.body.hint;
  if (review && "hint" in review) waiting.body.hint = review.hint;
  showLocally(id, waiting.body);
}

// Takes over the server's decisions, also of other windows, except on turns whose decision still waits here.
function receive(answer, id) {
  const changed = Object.entries(answer.reviews).filter(([one]) => !unsent.has(one));
  for (const [one, review] of changed) {
    if (review) list.decisions[one] = review;
    else delete list.decisions[one];
  }
  seen = answer.last;
  redecided([...new Set([...(id === undefined ? [] : [id]), ...changed.map(([one]) => one)])]);
}

// Drops a decision that the server refused, and shows the server's decisions again.
async function refused(key, entry, words) {
  const {turn_id: id, hint} = entry.body;
  if (unsent.get(key) === entry) unsent.delete(key);
  refusedTurn = key;
  if (id !== undefined) delete list.decisions[id];
  try {
    await readDecisions();
  } catch {
    /* the next answer has them */
  }
  if (entry.body.note && !notes.has(id)) notes.set(id, entry.body.note); // keep the typed note
  redecided(id === undefined ? [] : [id]);
  if (id !== undefined && typeof hint === "string") drafts.set(id, hint); // keep the typed hint
  if (drafts.has(id) && whole.turn?.id === id) editHint();
  problem(`Not saved: ${words}`);
  byId("unsent").replaceChildren("A decision on ", quoted(id ?? entry.body.group), " was not saved: ", quoted(words));
  byId("unsent").hidden = false;
}

function showUnsent(words, field) {
  if (!words && refusedTurn !== null) return; // the message about the refused decision stays
  byId("unsent").hidden = !words;
  const waiting = `${plural(unsent.size, "decision")} not saved yet: keep this page open, it tries again.`;
  renew(byId("unsent"), el("div", {}, words, words && unsent.size ? " " + waiting : "", field));
}

// -- two windows -------------------------------------------------------------------------------------------------------

const spelledOut = (decision) =>
  [
    decision === null || decision.action === "strike" ? "withdraws the decision" : null,
    decision && "reward" in decision ? `reward ${REWARD_WORDS[decision.reward] ?? "none"}` : null,
    decision && "hint" in decision ? (decision.hint === null ? "no hint" : ["hint ", quoted(decision.hint)]) : null,
    decision?.note ? ["note ", quoted(decision.note)] : null,
  ]
    .filter(Boolean)
    .flatMap((words, place) => [place ? ", " : "", words]);

// Shows both decisions on each turn that two windows decided on, to choose from.
function showConflicts() {
  const place = byId("conflicts") ?? el("div", {id: "conflicts", class: "notice", role: "alert"});
  if (!place.parentNode) byId("unsent").after(place);
  place.hidden = !conflicts.size;
  const choice = (key, {body, turns, newer, words}) => {
    const settle = (mine) => () => {
      conflicts.delete(key);
      if (mine) unsent.set(key, {body, seen, turns});
      if (mine && body.turn_id) showLocally(body.turn_id, body.action === "strike" ? null : body);
      showConflicts();
      send();
    };
    const accepts = (shown) => (shown.length ? shown : ["accepted"]);
    return el(
      "div",
      {},
      el("p", {}, el("strong", {}, "Not saved: "), quoted(words), ". ", quoted(body.turn_id ?? body.group)),
      el("p", {}, "Yours: ", accepts(spelledOut(body))),
      Object.entries(newer)
        .slice(0, 3)
        .map(([id, review]) =>
          el("p", {}, "Newer, of ", quoted(id), " by ", quoted(review.reviewer), ": ", accepts(spelledOut(review))),
        ),
      el(
        "div",
        {class: "tools"},
        el("button", {type: "button", onclick: settle(false)}, "Leave the newer"),
        el("button", {type: "button", onclick: settle(true)}, "Put yours in its place"),
      ),
    );
  };
  place.replaceChildren(...[...conflicts].map(([key, conflict]) => choice(key, conflict)));
}

addEventListener("beforeunload", (event) => {
  const isTyped = [...notes.values(), ...drafts.values()].some((text) => text.trim());
  if (unsent.size || conflicts.size || isTyped || byId("groups")?.querySelector("textarea")) event.preventDefault();
});

const readDecisions = async () => receive(await ask("GET", "/api/reviews"));

async function startReview() {
  try {
    await readDecisions();
  } catch (error) {
    showUnsent(error.message);
  }
  document.addEventListener("visibilitychange", lookAgain);
}

// Reads the decisions of others when the reviewer comes back to the page.
async function lookAgain() {
  if (document.hidden || unsent.size) return;
  try {
    await readDecisions();
  } catch {
    return; // the answer to the next decision has them
  }
}
