"use strict";
// The list of turns: searched, filtered, sorted, a page at a time. The address holds search, filters and the turn:
// #turns?search=%22in+Celsius%22&reward=-1&turn=ID

const PAGE = 50;
const list = {
  turns: [],
  shown: [],
  at: 0,
  chosen: false,
  page: 0,
  terms: [],
  decisions: dictionary({}),
  groups: [], // in a review: the turns of each group of hints
  queued: false,
  linked: new Map(), // filters set by a link that no field shows: name -> value
  whole: new Set(), // ids of the turns that the file shows whole
  tokens: new Set(), // ids of the turns whose tokens the file has
};

function readTurns(rows) {
  list.byId = new Map();
  const word = (name, n) => (rows[name].rows[n] === null ? null : rows[name].words[rows[name].rows[n]]);
  list.turns = rows.id.map((id, n) => {
    const turn = {
      n,
      id,
      source: word("source", n),
      state: word("state", n),
      skipReason: word("skip_reason", n),
      rewardStatus: word("reward_status", n),
      hintStatus: word("hint_status", n),
      reward: rows.reward[n],
      tokens: rows.tokens[n],
      agreement: rows.agreement[n],
      certainty: rows.certainty[n],
      asks: rows.asks[n],
      says: rows.says[n],
      drawn: rows.drawn?.[n] ?? null,
      typical: rows.typical[n],
      strength: rows.strength[n],
      total: rows.total[n],
      asked: rows.asked[n],
      reply: rows.reply[n],
      answer: rows.answer[n],
      hint: rows.hint[n],
      kept: rows.kept[n] === 1,
      hinted: rows.hinted[n] === 1,
      hintLength: rows.hint_length[n],
      checked: word("checked", n),
      scoredReward: rows.scored_reward[n],
      session: id.replace(/:\d+$/, "").replace(/(?::\d+\/rollout-\d+)+$/, ""),
    };
    list.byId.set(id, turn);
    turn.words = [id, turn.source, turn.asked, turn.reply, turn.answer].join("\n").toLowerCase();
    return turn;
  });
}

// -- filters -----------------------------------------------------------------------------------------------------------

const STATE_WORDS = {
  trained: "trained on",
  target: "a target, not trained on",
  judged: "judged, no target",
  trainable: "not judged",
  "not trainable": "not trainable",
};
const REWARD_WORDS = {1: "+1", 0: "0", "-1": "−1"};

// name -> [label, value of a turn, words for a value]
const FILTERS = {
  reward: ["Reward", (turn) => rewardOf(turn), (value) => REWARD_WORDS[value] ?? "no reward"],
  state: ["How far it came", (turn) => turn.state, (value) => STATE_WORDS[value]],
  hint: ["Hint", hintStatusOf, (value) => (value === "ok" ? "ok: has a hint" : (value ?? "not judged"))],
  asks: ["Hint asks for", (turn) => turn.asks, (value) => (value === null ? "nothing of the table" : wordingOf(value))],
  vote: ["Votes", (turn) => turn.rewardStatus, (value) => value ?? "not judged"],
  skip: ["Why not trainable", (turn) => turn.skipReason, (value) => value ?? "trainable"],
  source: ["Source", (turn) => turn.source, (value) => value],
  whole: [
    "Shown whole",
    (turn) => (list.whole.has(turn.id) ? "yes" : "no"),
    (value) => (value === "yes" ? "whole" : "in the list only"),
  ],
  decision: ["Decision", (turn) => decisionWord(turn.id), (value) => value],
};
const SORTS = {
  log: ["order of the log", (turn) => turn.n],
  typical: ["typical replies first", (turn) => turn.typical ?? Infinity],
  strength: ["largest advantages first", (turn) => -(turn.strength ?? -1)],
  negative: ["most negative sum first", (turn) => turn.total ?? Infinity],
  positive: ["most positive sum first", (turn) => -(turn.total ?? -Infinity)],
  agreement: ["least agreement first", (turn) => turn.agreement ?? 2],
  certainty: ["least certain votes first", (turn) => turn.certainty ?? 2],
  tokens: ["longest first", (turn) => -(turn.tokens ?? -1)],
};

// The reward and the hint in force, after a person's decision.
function rewardOf(turn) {
  const review = list.decisions[turn.id];
  return review && "reward" in review ? review.reward : turn.reward;
}
function hintOf(turn) {
  const review = list.decisions[turn.id];
  return review && "hint" in review ? (review.hint ?? "") : turn.hint;
}

function decisionWord(id) {
  const review = list.decisions[id];
  if (!review) return "undecided";
  if ("hint" in review && review.hint === null && "reward" in review && review.reward === null) return "struck";
  return "reward" in review || ("hint" in review && !isKept(id)) ? "edited" : "accepted";
}

// True if the decided hint is that of the votes. Only on the review page do decisions change, and is the hint whole.
function isKept(id) {
  const turn = list.byId.get(id);
  return reviewing() ? Boolean(turn?.hint) && list.decisions[id].hint === turn.hint : Boolean(turn?.kept);
}

// The first order of the list: the turns that best show what was taught come first.
const firstOrder = (reviewing) =>
  reviewing ? "review" : list.turns.some((turn) => turn.strength !== null) ? "typical" : "log";

function makeFilters(reviewing) {
  const form = byId("filters");
  form.append(
    el(
      "label",
      {class: "search"},
      "Search",
      el("input", {
        id: "search",
        type: "search",
        autocomplete: "off",
        spellcheck: "false",
        placeholder: 'words or "a phrase" in request, reply, reaction, hint, note, id  ( / )',
        oninput: soon,
      }),
    ),
  );
  for (const [name, [label, value, words]] of Object.entries(FILTERS)) {
    const counts = new Map();
    for (const turn of list.turns) counts.set(value(turn), (counts.get(value(turn)) || 0) + 1);
    if (name === "decision" ? !reviewing && counts.size < 2 : counts.size < 2) continue;
    const values =
      name === "decision"
        ? ["undecided", "accepted", "edited", "struck"]
        : [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
    // An option's text may come from a log; its value is only a number.
    const select = el(
      "select",
      {id: `filter-${name}`, onchange: filterAndKeep},
      el("option", {value: ""}, "any"),
      values
        .slice(0, 300)
        .map((one, place) =>
          el(
            "option",
            {value: String(place), dir: "auto"},
            said(String(words(one))),
            name === "decision" ? "" : ` (${count(counts.get(one))})`,
          ),
        ),
    );
    select.choices = values;
    form.append(el("label", {}, label, select));
  }
  form.append(
    el(
      "label",
      {},
      "Order",
      el(
        "select",
        {id: "sort", onchange: refilter},
        Object.entries(SORTS).map(([name, [words]]) =>
          el("option", {value: name, selected: name === firstOrder(reviewing)}, words),
        ),
      ),
    ),
    el(
      "button",
      {type: "button", id: "show-all", onclick: showAll},
      "Show all",
    ),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
}

// Returns the current search and filters as parameters of an address.
function held() {
  const found = new URLSearchParams(),
    words = byId("search").value.trim();
  if (words) found.set("search", words);
  for (const name of Object.keys(FILTERS)) {
    const select = byId(`filter-${name}`);
    if (select?.value) found.set(name, String(select.choices[Number(select.value)]));
  }
  for (const [name, value] of list.linked) found.set(name, value);
  return found;
}

function filterAndKeep() {
  refilter();
  const filters = held();
  history.replaceState(null, "", filters.size ? addressOf(filters) : "#turns");
}

function showAll() {
  byId("filters").reset();
  list.linked.clear();
  filterAndKeep();
}

// Sets the filters that an address names, scrolls to the list, and chooses the turn that the address names.
function filterBy(hash) {
  byId("filters").reset();
  list.linked.clear();
  const wanted = new URLSearchParams(hash.slice("#turns?".length));
  byId("search").value = wanted.get("search") ?? "";
  for (const [name, value] of wanted) {
    const select = byId(`filter-${name}`),
      place = select ? select.choices.findIndex((one) => String(one) === value) : -1;
    if (select?.querySelector(`[value="${place}"]`)) select.value = String(place);
    else if (valueOf(name)) list.linked.set(name, value);
  }
  refilter();
  const id = wanted.get("turn"),
    place = list.shown.findIndex((turn) => turn.id === id);
  if (place >= 0) choose(place);
  else if (id !== null) showAbsent(id);
  byId("turns").scrollIntoView();
}

// Says that the list lacks a turn, which the run may have.
function showAbsent(id) {
  whole.turn = whole.view = null;
  list.chosen = false;
  markCurrent();
  const command = `opdkit show ${shellWord(data.summary.run)} ${shellWord(id)}`;
  byId("whole").replaceChildren(
    el("p", {}, quoted(id), " is not in this list", data.summary.redacted ? "." : [": ", el("code", {}, said(command))]),
  );
}

// Splits a search into words and "phrases in quotation marks".
const termsOf = (text) =>
  [...text.toLowerCase().matchAll(/"([^"]+)"|(\S+)/g)].map(([, phrase, word]) => phrase ?? word);

let waiting = null;
function soon() {
  clearTimeout(waiting);
  waiting = setTimeout(filterAndKeep, 60);
}

function refilter() {
  clearTimeout(waiting);
  list.queued = false;
  performance.mark("filter-begins");
  const chosen = [];
  for (const [name, [, value]] of Object.entries(FILTERS)) {
    const select = byId(`filter-${name}`);
    if (select?.value) chosen.push([value, select.choices[Number(select.value)]]);
  }
  for (const [name, wanted] of list.linked) {
    const value = valueOf(name);
    chosen.push([(turn) => String(value(turn)), wanted]);
  }
  list.terms = termsOf(byId("search").value);
  const hintAndNote = (turn) => [hintOf(turn), list.decisions[turn.id]?.note].join("\n").toLowerCase();
  list.shown = list.turns.filter(
    (turn) =>
      chosen.every(([value, one]) => value(turn) === one) &&
      list.terms.every((term) => turn.words.includes(term) || hintAndNote(turn).includes(term)),
  );
  const order = byId("sort").value;
  if (order !== "log") {
    const key = SORTS[order][1];
    list.shown.sort((a, b) => key(a) - key(b) || a.n - b.n);
  }
  const place = list.shown.indexOf(whole.turn);
  list.chosen = place >= 0;
  list.at = Math.max(0, place);
  showPage(Math.floor(list.at / PAGE));
  performance.measure("filter", "filter-begins");
}

// -- the list on the screen --------------------------------------------------------------------------------------------

function showPage(page) {
  list.page = page;
  const from = page * PAGE,
    pages = Math.max(1, Math.ceil(list.shown.length / PAGE));
  byId("list").replaceChildren(
    ...list.shown.slice(from, from + PAGE).map((turn, n) => el("li", {}, row(turn, from + n))),
  );
  byId("list").scrollTop = 0;
  const isPage = (number) => number >= 0 && number * PAGE < list.shown.length;
  const button = (words, step) =>
    el(
      "button",
      {
        type: "button",
        "aria-disabled": String(!isPage(page + step)), // the attribute `disabled` would take the focus away
        onclick: () => isPage(list.page + step) && showPage(list.page + step),
      },
      words,
    );
  const pageNumber = el("span", {}, `page ${page + 1} of ${pages}`);
  renew(byId("pages"), el("div", {}, button("Earlier", -1), pageNumber, button("Later", 1)));
  byId("found").replaceChildren(
    `${count(list.shown.length)} of ${plural(list.turns.length, "turn")}${list.note}; ${plural(sessionsOf(list.shown), "session")}`,
    ...[...list.linked].map(([name, value]) => ["; only ", (FILTERS[name] ?? LINKED[name])[0], ": ", quoted(value)]).flat(),
  );
  markCurrent();
}

function row(turn, place) {
  const line = (who, text) =>
    text
      ? el(
          "span",
          {class: "line"},
          el("span", {class: "who"}, who + " "),
          el("span", {class: "said", dir: "auto"}, said(text, list.terms)),
        )
      : null;
  return el(
    "button",
    {type: "button", "data-place": place, onclick: () => choose(place, true)},
    el("span", {class: "badges"}, badges(turn), el("span", {class: "said who"}, said(turn.id, list.terms))),
    list.terms.length ? line("asked:", turn.asked) : null,
    line("reply:", turn.reply),
    line("then:", turn.answer),
    line("hint:", hintOf(turn)),
    line("note:", list.decisions[turn.id]?.note),
  );
}

function badges(turn) {
  const reward = rewardOf(turn),
    word = decisionWord(turn.id);
  return [
    el(
      "span",
      {class: "badge" + (reward === 1 ? " more" : reward === -1 ? " less" : "")},
      reward === null || reward === undefined
        ? turn.skipReason === null
          ? "no reward"
          : quoted(turn.skipReason)
        : `reward ${REWARD_WORDS[reward]}`,
    ),
    hasHint(turn) ? el("span", {class: "badge"}, "hint") : null,
    turn.strength === null ? null : el("span", {class: "badge"}, `|A| ${fixed(turn.strength)}`),
    list.tokens.has(turn.id) ? el("span", {class: "badge"}, "tokens") : null,
    word === "undecided" ? null : el("span", {class: "badge decided"}, word),
    unsent.has(turn.id) ? el("span", {class: "badge less"}, "not saved") : null,
  ];
}

function markCurrent() {
  for (const button of byId("list").querySelectorAll("button"))
    button.setAttribute("aria-current", String(Number(button.dataset.place) === list.at && list.chosen));
}

// Shows the turn at a place of the filtered list. On a narrow screen, a click scrolls to the turn below the list.
function choose(place, follow = false, queued = false) {
  if (!list.shown.length) return;
  list.queued = queued; // true if the queue of the review chose this turn, and not the reviewer
  list.at = Math.min(Math.max(0, place), list.shown.length - 1);
  list.chosen = true;
  if (Math.floor(list.at / PAGE) !== list.page) showPage(Math.floor(list.at / PAGE));
  markCurrent();
  // Scroll the list alone, and not the page, which may show the turn.
  const button = byId("list").querySelector(`[data-place="${list.at}"]`).getBoundingClientRect(),
    {top, bottom} = byId("list").getBoundingClientRect();
  byId("list").scrollTop += Math.min(0, button.top - top) || Math.max(0, button.bottom - bottom);
  const turn = list.shown[list.at];
  const filters = held();
  filters.set("turn", turn.id);
  history.replaceState(null, "", addressOf(filters));
  const shown = showWhole(turn);
  if (follow && matchMedia("(max-width: 60rem)").matches) byId("whole").scrollIntoView({block: "start"});
  return shown;
}

// Opens the page on the first turn with tokens, without scrolling to it. In the order "typical", this is a turn of the
// largest group of hints, with summed |advantages| nearest to the median of the group's replies with reward -1.
function openFirst() {
  if (reviewing()) nextUndecided();
  if (list.chosen) return;
  const isScored = (turn) => turn.strength !== null && list.tokens.has(turn.id),
    place = reviewing() ? -1 : list.shown.findIndex(isScored);
  if (place < 0) {
    byId("whole").replaceChildren(
      el("p", {class: "faint"}, "Choose a turn in the list, or press ", el("kbd", {}, "j"), ", to see it here."),
    );
    return;
  }
  list.at = place;
  list.chosen = true;
  showPage(Math.floor(place / PAGE));
  showWhole(list.shown[place]);
}

// Redraws the row of a turn, after a decision.
function redrawRow(id) {
  for (const button of byId("list").querySelectorAll("button")) {
    const place = Number(button.dataset.place);
    if (list.shown[place].id !== id) continue;
    renew(button, row(list.shown[place], place));
  }
}
