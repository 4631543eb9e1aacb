"use strict";
// Counts that lead to what they count: a filter per property of a turn, and links whose address holds filters.

const yes = (is) => (is ? "yes" : "no");
const rewardWord = (reward) => (reward === null ? "none" : reward > 0 ? "+1" : String(reward));

// Filters without a field of their own, which only links set: [label, the turn's value].
const LINKED = {
  trainable: ["trainable", (turn) => yes(turn.skipReason === null)],
  judged: ["judged", isJudged],
  rewarded: ["with a reward", (turn) => yes(rewardOf(turn) !== null && isJudged(turn) === "yes")],
  hinted: ["with a hint", (turn) => yes(hasHint(turn))],
  logged: ["logged reply is a target", (turn) => yes(turn.tokens !== null)],
  target: ["a target", (turn) => yes(["trained", "target"].includes(turn.state))],
  decided: ["decided by a person", (turn) => yes(decisionWord(turn.id) !== "undecided")],
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

// The filters that show what a level of the funnel counts, and what it lacks for a reason.
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
  targets: (reason) =>
    reason === "no signal" ? {target: "no", judged: "yes", hinted: "no", rewarded: "no"} : {state: "judged"},
};
const levelLink = (level) => verified(level.count, LEVELS[level.name], level.unit);
const lostLink = (level, reason, number) => verified(number, LOST[level.name]?.(reason), "turns");

// As `linked`, where the list shows just as many; a list that is a sample is believed to, if turns are counted.
function verified(number, filters, unit) {
  const values = Object.entries(filters ?? {}).map(([name, wanted]) => [valueOf(name), wanted]),
    found = list.turns.filter((turn) => values.every(([value, wanted]) => String(value(turn)) === wanted)),
    isSample = list.turns.length < data.summary.turns,
    isShown = isSample ? unit === "turns" : (unit === "sessions" ? sessionsOf(found) : found.length) === number;
  return linked(number, isShown ? filters : null, undefined, unit === "sessions" ? unit : "turns");
}
const sessionsOf = (turns) => new Set(turns.map((turn) => `${turn.source}\n${turn.session}`)).size;

// The commonest wording of a group of hints, or the number of the group.
const wordingOf = (number) =>
  data.summary.redacted ? `group ${number + 1}` : data.summary.hints.groups[number].wordings[0][0];
const groupName = (number) => (data.summary.redacted ? wordingOf(number) : quoted(wordingOf(number)));

// A number that leads to the turns, or the sessions, that it counts; a text where there is nothing to see.
function linked(number, filters, words = count(number), what = "turns") {
  return number && filters ? el("a", {href: addressOf(filters), "data-counts": what}, words) : words;
}
