"use strict";
// Links from counts to the turns that they count: a filter per property of a turn, and addresses that hold filters.

const yes = (is) => (is ? "yes" : "no");
const rewardWord = (reward) => (reward === null ? "none" : reward > 0 ? "+1" : String(reward));

// Filters that only links set, as they have no field in the form: name -> [label, value of a turn].
const LINKED = {
  trainable: ["trainable", (turn) => yes(turn.skipReason === null)],
  judged: ["judged", isJudged],
  rewarded: ["with a reward", (turn) => yes(rewardOf(turn) !== null && isJudged(turn) === "yes")],
  hinted: ["with a hint", (turn) => yes(hasHint(turn))],
  logged: ["logged reply is a target", (turn) => yes(turn.tokens !== null)],
  target: ["a target", (turn) => yes(["trained", "target"].includes(turn.state))],
  decided: ["reviewed by a person", (turn) => yes(decisionWord(turn.id) !== "undecided")],
  voted: ["reward of the votes", (turn) => (isJudged(turn) === "yes" ? rewardWord(turn.reward) : "not judged")],
  scored: ["reward of the target", (turn) => (turn.tokens ? rewardWord(turn.scoredReward) : null)],
  weighed: ["target with a reward", (turn) => yes(turn.tokens && turn.scoredReward !== null)],
  agreement: ["share of the valid votes", (turn) => turn.agreement],
  length: [
    "characters of the hint, from",
    (turn) => (turn.hintLength === null ? null : barOf(turn.hintLength, data.summary.hints)),
  ],
  says: ["wording, of those of its group", (turn) => turn.says],
  tokens: ["tokens of the reply, from", (turn) => (turn.tokens ? 2 ** Math.floor(Math.log2(turn.tokens)) : null)],
  checked: ["tested hint", (turn) => turn.checked],
  session: ["session", (turn) => turn.session],
  rest: ["other sources", (turn) => yes(!data.summary.shares.sources.some((one) => one.source === turn.source))],
};

const barOf = (number, {width, lengths}) => Math.min(Math.floor(number / width) * width, lengths.at(-1)?.[0]);
function isJudged(turn) {
  return yes(turn.hintStatus !== null);
}
function hasHint(turn) {
  const review = list.decisions[turn.id];
  return review && "hint" in review ? review.hint !== null : turn.hinted;
}
function hintStatusOf(turn) {
  const review = list.decisions[turn.id];
  return review && "hint" in review && turn.hintStatus !== null ? "reviewed" : turn.hintStatus;
}
const valueOf = (name) => (FILTERS[name] ?? LINKED[name])?.[1];

const addressOf = (filters) => "#turns?" + new URLSearchParams(filters);

// Level of the funnel -> the filters that show its turns, and (LOST) those that show the turns it lost for a reason.
const LEVELS = {
  sessions: {},
  turns: {},
  "turns that may be trained on": {trainable: "yes"},
  judged: {judged: "yes"},
  "with a reward": {rewarded: "yes"},
  "with a hint": {hinted: "yes"},
  targets: {target: "yes"},
  "trained replies": {state: "trained"},
};
const LOST = {
  "turns that may be trained on": (skip) => ({skip}),
  judged: () => ({trainable: "yes", judged: "no"}),
  // The list does not know the other reasons: only if all its turns are there, their number can tell.
  targets: (reason) =>
    reason === "no signal"
      ? {target: "no", judged: "yes", hinted: "no", rewarded: "no"}
      : isSample() ? null : {state: "judged"},
};
const levelLink = (level) => verified(level.count, LEVELS[level.name], level.unit);
const lostLink = (level, reason, number) => verified(number, LOST[level.name]?.(reason), "turns");

const isSample = () => list.turns.length < data.summary.turns;

// As `linked`, but only if the list shows exactly `number`. If the list is a sample, any number of turns gets a link.
function verified(number, filters, unit) {
  const values = Object.entries(filters ?? {}).map(([name, wanted]) => [valueOf(name), wanted]),
    found = list.turns.filter((turn) => values.every(([value, wanted]) => String(value(turn)) === wanted)),
    isShown = isSample() ? unit === "turns" : (unit === "sessions" ? sessionsOf(found) : found.length) === number;
  return linked(number, isShown ? filters : null, undefined, unit === "sessions" ? unit : "turns");
}
const sessionsOf = (turns) => new Set(turns.map((turn) => `${turn.source}\n${turn.session}`)).size;

// Returns the commonest wording of a group of hints; in a redacted report, the number of the group.
const wordingOf = (number) =>
  data.summary.redacted ? `group ${number + 1}` : data.summary.hints.groups[number].wordings[0][0];
const groupName = (number) => (data.summary.redacted ? wordingOf(number) : quoted(wordingOf(number)));

// A number as a link to the turns or sessions that it counts; plain text if it is 0 or there are no filters.
function linked(number, filters, words = count(number), what = "turns") {
  return number && filters ? el("a", {href: addressOf(filters), "data-counts": what}, words) : words;
}
