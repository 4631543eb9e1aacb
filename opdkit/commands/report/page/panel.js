"use strict";
// The reviewer's panel of a turn: the decision on it, made by keys or buttons, and a note.

const notes = new Map(); // turn id -> the note that is typed and not saved
const drafts = new Map(); // turn id -> the hint that is typed and not saved

function placePanel(turn, view) {
  const panel = el(
    "section",
    {id: "panel", "aria-label": "Your decision"},
    el("div", {}),
    hintEditor(turn),
    el("label", {class: "small"}, "Note ", el("kbd", {}, "m"), noteField(turn)),
    el("p", {id: "problem", role: "alert"}),
  );
  byId("conversation").before(panel);
  drawPanel(turn, view);
}

function drawPanel(turn, view) {
  const review = list.decisions[turn.id],
    votes = view.verdict?.voted;
  const reward = review && "reward" in review ? review.reward : (votes?.reward ?? null),
    hint = review && "hint" in review ? review.hint : (votes?.hint ?? null);
  const button = (words, key, action, more) =>
    el("button", {type: "button", onclick: action, ...more}, words + " ", el("kbd", {}, key));
  const rewardButton = (words, key, value) =>
    button(words, key, () => decide({reward: value}), {"aria-pressed": String(reward === value)});
  const note = byId("note");
  if (note !== document.activeElement) note.value = notes.get(turn.id) ?? review?.note ?? "";
  problem(review && drafts.has(turn.id) ? "The typed hint is not saved." : "");
  const who = review?.reviewer
    ? ` by ${review.reviewer}${review.time ? ", " + review.time.slice(0, 16).replace("T", " ") : ""}`
    : "";
  const made = el(
    "div",
    {},
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
      rewardButton("+1", "+", 1),
      rewardButton("0", "0", 0),
      rewardButton("−1", "-", -1),
    ),
    el(
      "p",
      {},
      "Hint ",
      hint === null ? el("strong", {}, "none") : quoted(hint, "strong"),
      isReviewed(turn.id) && !isSettled(turn) ? " – accept, edit or strike it" : "",
    ),
    el(
      "div",
      {class: "tools"},
      button("Accept", "a", accept),
      button("Edit the hint", "e", () => editHint()),
      button("Strike the hint", "x", () => decide({hint: null})),
      button("Strike all", "X", () => decide({hint: null, reward: null})),
      button("Withdraw", "w", withdraw, {hidden: !review}),
      button("Undo", "u", undo),
      button("Next", "n", nextUndecided),
    ),
  );
  renew(byId("panel").firstChild, made);
}

// The note is saved with the decision; if the turn is decided already, when the field loses the focus.
function noteField(turn) {
  const field = el("input", {id: "note", type: "text", dir: "auto", maxlength: "10000", autocomplete: "off"});
  field.addEventListener("input", () => notes.set(turn.id, field.value));
  field.addEventListener("keydown", (event) => event.key === "Enter" && field.blur());
  field.addEventListener("change", () => isReviewed(turn.id) && save(turn, {}));
  return field;
}

// Puts an editor for a text into `place`; Ctrl+Enter saves.
function textEditor(place, label, text, save, leave) {
  const area = el("textarea", {"aria-label": label, dir: "auto"});
  area.value = text;
  const finish = () => {
    place.replaceChildren();
    save(area.value.trim());
  };
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      finish();
    }
    if (event.key === "Escape") leave();
  });
  place.replaceChildren(
    area,
    el(
      "div",
      {class: "tools"},
      el("button", {type: "button", onclick: finish}, "Save ", el("kbd", {}, "Ctrl+Enter")),
      el("button", {type: "button", onclick: leave}, "Leave as it was ", el("kbd", {}, "Esc")),
    ),
  );
  area.focus();
}

// Makes the place of the editor, with the draft if there is one. It gets no focus, as the place is not on the page yet.
function hintEditor(turn) {
  const place = el("div", {id: "edit", oninput: (event) => drafts.set(turn.id, event.target.value)});
  if (drafts.has(turn.id)) editHint(place);
  return place;
}

function editHint(place = byId("edit")) {
  const {id} = whole.turn ?? {},
    review = list.decisions[id];
  if (!place) return;
  const text = drafts.get(id) ?? (review && "hint" in review ? review.hint : whole.view.verdict?.voted.hint) ?? "";
  textEditor(
    place,
    "The hint: what the reply should have done",
    text,
    (written) => decide({hint: written || null}),
    () => {
      drafts.delete(id);
      problem("");
      place.replaceChildren();
      byId("panel").querySelector("button").focus();
    },
  );
}

// -- deciding ----------------------------------------------------------------------------------------------------------

// True if the reward is decided, and the hint, too, if the turn has one.
function isSettled(turn) {
  const review = list.decisions[turn.id];
  return "reward" in review && ("hint" in review || !turn.hint);
}

// Saves the decision on a turn, changed by `change`. Fields that are not in the decision stay as the votes have them.
function save(turn, change) {
  const before = list.decisions[turn.id] ?? {},
    decision = {chosen: isReviewed(turn.id) ? before.chosen : cameBy(turn)};
  for (const name of ["reward", "hint"]) if (name in before) decision[name] = before[name];
  const note = (notes.get(turn.id) ?? before.note ?? "").trim();
  if (note) decision.note = note;
  notes.delete(turn.id);
  if ("hint" in change) drafts.delete(turn.id);
  put(turn.id, {...decision, ...change}, true, !("hint" in change) && (unsent.get(turn.id)?.keepsHint ?? true));
}

// Decides, and goes to the next turn if nothing is left to decide or to save on this one.
function decide(change) {
  const turn = whole.turn;
  if (!reviewing() || !turn || !whole.view) return;
  save(turn, change);
  if (isSettled(turn) && !drafts.has(turn.id)) nextUndecided();
}

// Accepts the turn: what is not decided stays as the votes have it.
function accept() {
  const turn = whole.turn;
  if (!reviewing() || !turn || !whole.view) return;
  if (!isReviewed(turn.id) || notes.has(turn.id)) save(turn, {});
  if (!drafts.has(turn.id)) nextUndecided();
}

function withdraw() {
  if (whole.turn && list.decisions[whole.turn.id]) put(whole.turn.id, null, true);
}

function undo() {
  const last = before.pop();
  if (!last) return problem("Nothing to undo on this page.");
  const [id, decision, made] = last,
    place = list.shown.findIndex((turn) => turn.id === id);
  if (contentOf(list.decisions[id]) !== contentOf(made))
    return problem("Nothing is undone: that turn was decided on again since.");
  const names = ["reward", "hint", "note", "chosen"].filter((name) => decision && name in decision);
  put(id, decision && Object.fromEntries(names.map((name) => [name, decision[name]])), false, true);
  if (place >= 0 && whole.turn?.id !== id) choose(place);
}

// -- all turns of a hint -----------------------------------------------------------------------------------------------

// Counts of a group's turns that are kept, reworded and struck, and the buttons to do so.
function groupDecision(group, number) {
  const name = wordingOf(number),
    counts = {open: 0, kept: 0, reworded: 0, struck: 0};
  for (const turn of list.groups[number] ?? []) {
    const review = list.decisions[turn.id];
    const is = !review ? "open" : !("hint" in review) || isKept(turn.id) ? "kept" : review.hint ? "reworded" : "struck";
    counts[is] += 1;
  }
  const place = el("div", {}),
    act = (decision) => decideGroup(number, decision);
  const reword = ({target}) => {
    const save = (text) => {
      target.focus();
      if (text) act({action: "set", hint: text});
    };
    const hint = list.groups[number].find((turn) => turn.says === 1)?.hint ?? ""; // `name` may be cut
    textEditor(place, "The hint of all these turns", hint, save, () => {
      place.replaceChildren();
      target.focus();
    });
  };
  const button = (words, action) =>
    el(
      "button",
      {
        type: "button",
        "aria-disabled": String(unsent.size > 0), // the attribute `disabled` would take the focus away
        onclick: (event) => unsent.size || action(event),
        "aria-label": `${words}: ${name}`,
      },
      words,
    );
  return [
    el("p", {}, Object.entries(counts).filter(([, n]) => n).map(([word, n]) => `${count(n)} ${word}`).join(", ")),
    el(
      "div",
      {class: "tools"},
      button("Keep", () => act({action: "keep"})),
      button("Reword", reword),
      button("Strike", () => act({action: "set", hint: null})),
      counts.open < group.turns ? button("Withdraw", () => act({action: "strike"})) : null,
    ),
    place,
  ];
}
