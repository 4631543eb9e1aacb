"use strict";
// The feedback: funnel, votes, advantages, and who decides.

function fill(id, ...inside) {
  byId(id).append(...inside.flat().filter(Boolean));
}

const absent = (what, command) =>
  el("p", {class: "faint"}, `${what} is not in this run yet: `, el("code", {}, command), " adds it.",
    data.summary.comparison && " Named trainings have reports of their own: opdkit report RUN/NAME.training");

function showOverview(summary) {
  fill("overview", el("ul", {class: "stages", "aria-label": "Stages"}, summary.stages.map(stageState)));
  const largest = {};
  for (const level of summary.funnel) largest[level.unit] = Math.max(largest[level.unit] || 1, level.count);
  fill(
    "overview",
    table(
      ["level", {number: "count"}, BAR, "dropped on the way, and why"],
      summary.funnel.map((level) => [
        level.part_of ? el("span", {class: "faint"}, "↳ " + level.name) : level.name,
        {
          number: [
            levelLink(level),
            level.name.includes(level.unit) ? "" : " " + level.unit,
          ],
        },
        {kind: "bar", node: bar(level.count / (largest[level.unit] || 1), level.part_of ? "none" : "")},
        {kind: "texts", node: reasons(level)},
      ]),
      "A bar compares levels with the same unit.",
    ),
  );
  fill(
    "overview",
    lazily("What each stage counted beside rows", () =>
      el(
        "div",
        {class: "cards"},
        summary.stages
          .filter((s) => s.done && s.extra.length)
          .map((stage) =>
            el(
              "div",
              {},
              el("h3", {}, stage.stage),
              table(
                ["counted", {number: "count"}],
                stage.extra.map(([name, n]) => [quoted(name), {number: linked(n, counted(stage.stage, name))}]),
              ),
            ),
          ),
      ),
    ),
  );
}

function stageState(stage) {
  if (!stage.parts) return el("li", {class: "absent"}, `${stage.stage}: not run`);
  const parts = stage.done === stage.parts ? "✓ done" : `… ${stage.done} of ${plural(stage.parts, "part")}`;
  return el("li", {}, el("strong", {}, stage.stage), ` ${parts}, ${count(stage.seconds)} s`);
}

const reasons = (level) =>
  level.dropped.length
    ? level.dropped.map(([why, n], place) => [place ? ", " : "", quoted(why), " ", lostLink(level, why, n)])
    : MISSING;

// Returns the filters that show what a counter of a stage counts; null if the list cannot show it.
function counted(stage, name) {
  if (stage === "extract" && name.startsWith("skipped: ")) return {skip: name.slice("skipped: ".length)};
  if (stage === "judge" && name.startsWith("rewards: ")) return {voted: name.slice("rewards: ".length)};
  return {"extract turns": {}, "extract trainable": {trainable: "yes"}}[`${stage} ${name}`] ?? null;
}

const REWARDS = [
  ["+1", ""],
  ["0", "none"],
  ["-1", "less"],
  ["none", "none"],
];
const rewardRows = (counts, filters = () => null) =>
  REWARDS.filter(([value]) => counts[value]).map(([value, kind]) => [
    value.replace("-", "−"),
    counts[value],
    kind,
    filters(value),
  ]);
// Turns [value, count] rows into rows whose count links to the turns with this value of a property.
const linkedRows = (rows, property) => rows.map(([value, n]) => [value, n, "", {[property]: value}]);
const sum = (counts) => Object.values(counts).reduce((a, b) => a + b, 0);

function showFeedback(votes) {
  if (!votes) return fill("feedback", absent("A judgement", "opdkit judge"));
  const agreeing = sum(Object.fromEntries(votes.agreement)),
    isOneVote = agreeing > 0 && sum(votes.scores) === agreeing,
    {reviewed, changed} = data.summary;
  fill(
    "feedback",
    facts(
      ["turns judged", linked(votes.judged, {judged: "yes"})],
      ...(isOneVote
        ? [["agreement says nothing here.", "One vote per turn:"]]
        : [
            ["mean agreement of the valid votes", votes.mean_agreement === null ? MISSING : share(votes.mean_agreement, 1)],
            ["of the rewards are unanimous", votes.unanimous === null ? MISSING : share(votes.unanimous, 1)],
          ]),
      ["votes that gave no answer", count(votes.errors.reduce((a, [, n]) => a + n, 0))],
      [
        `${reviewed === 1 ? "turn" : "turns"} reviewed by people${reviewed ? `, ${count(changed)} of them changed` : ""}`,
        linked(reviewed, {decided: "yes"}),
      ],
      ...votes.statuses
        .filter(([status]) => status === "conflict")
        .map(([vote, n]) => ["rated +1 by a person, though the log shows what was wanted instead", linked(n, {vote})]),
    ),
  );
  fill(
    "feedback",
    el(
      "div",
      {class: "cards"},
      part("Rewards of the turns", barTable(["reward", "turns"], rewardRows(votes.rewards, (voted) => ({voted})), votes.judged)),
      part("Reward votes", barTable(["vote", "votes"], rewardRows(votes.scores), sum(votes.scores))),
      part(
        "Hint votes: does the reaction show what was wanted?",
        barTable(
          ["vote", "votes"],
          [
            ["yes", votes.decisions["+1"] || 0, ""],
            ["no", votes.decisions["-1"] || 0, "less"],
          ],
          sum(votes.decisions),
        ),
      ),
      part(
        "Agreement with the reward",
        barTable(
          ["share of the valid votes", "turns"],
          votes.agreement.map(([agreement, n]) => [share(agreement, 1), n, "", {agreement}]),
          sum(Object.fromEntries(votes.agreement)),
        ),
      ),
      part("How each reward came about", barTable(["status", "turns"], linkedRows(votes.statuses, "vote"), votes.judged)),
      votes.errors.length ? part("Votes without an answer", barTable(["why", "votes"], votes.errors)) : null,
    ),
  );
}

const part = (title, ...inside) => el("div", {}, el("h3", {}, title), inside);

function showAdvantages(advantages) {
  if (!advantages) return fill("advantages", absent("An advantage", "opdkit teacher"));
  fill(
    "advantages",
    el(
      "p",
      {},
      "The advantage of a token is what its log-probability gains when the teacher has read the hint (teacher − student, in nats). Above 0 the reply should have said it, below 0 it should not.",
    ),
  );
  if (advantages.tokens) {
    fill(
      "advantages",
      facts(
        ["tokens with a teacher's advantage", count(advantages.tokens)],
        ["mean (nats)", signed(advantages.mean, 3)],
        ["of them within 0.01 of 0", share(advantages.near_zero, 1)],
        advantages.overlap === null
          ? null
          : ["of the teacher's likeliest tokens are the student's too (overlap)", share(advantages.overlap, 1)],
      ),
    );
    fill(
      "advantages",
      histogram(
        "Teacher's advantages",
        "tokens, by advantage; the scale is nearly logarithmic, so that rare ones show; the outermost bars hold all that lies beyond",
        "nats",
        advantages.bar,
        advantages.bars,
        2,
        {steep: true, least: advantages.bars[0][0], most: advantages.bars.at(-1)[0]},
      ),
    );
  } else fill("advantages", el("p", {class: "faint"}, "No target has a hint, so no token has a teacher's advantage."));
  fill(
    "advantages",
    el(
      "div",
      {class: "cards"},
      part(
        "Tokens under each reward",
        barTable(["reward", "tokens"], rewardRows(advantages.reward_tokens), sum(advantages.reward_tokens)),
      ),
    ),
  );
}

// Reply lengths double from row to row. The bar shows the shares of the rewards, the numbers the counts of replies.
function showRewardsByLength(found) {
  if (!found) return;
  const kinds = REWARDS.filter(([value]) => value !== "none"),
    minus = (value) => value.replace("-", "−");
  fill(
    "advantages",
    el("h3", {}, "Reward against reply length"),
    el(
      "p",
      {class: "faint small"},
      "Logged replies with a reward. Where the mean rises or falls with the length, the reward teaches length. Few replies in a row say little.",
    ),
    facts(
      ...kinds
        .filter(([value]) => value in found.means)
        .map(([value]) => [`tokens, mean of the replies with ${minus(value)}`, fixed(found.means[value], 1)]),
    ),
    table(
      ["tokens", {number: "replies"}, ...kinds.map(([value]) => ({number: minus(value)})), {number: "mean reward"}, BAR],
      found.bins
        .map(([low, high, counts]) => [low, high, counts, sum(counts)])
        .filter(([, , , n]) => n)
        .map(([low, high, counts, n]) => [
          low === high ? String(low) : `${count(low)} to ${count(high)}`,
          {number: linked(n, {tokens: low, weighed: "yes"})},
          ...kinds.map(([value]) => ({number: linked(counts[value], {tokens: low, scored: value})})),
          {number: signed((counts["+1"] - counts["-1"]) / n)},
          {kind: "bar", node: stackedBar(kinds.map(([value, kind]) => [counts[value] / n, kind]))},
        ]),
      "The bar shows the shares of +1, 0 and −1, from left to right.",
    ),
  );
}

function stackedBar(parts) {
  const made = el("div", {class: "shares", "aria-hidden": "true"});
  made.append(...parts.map(([part, kind]) => bar(part, kind)));
  return made;
}

// -- who decides -------------------------------------------------------------------------------------------------------

// [key, words, filters that show what is counted]
const SHARED = [
  ["sessions", "sessions", {}],
  ["turns", "turns", {}],
  ["judged", "judged", {judged: "yes"}],
  ["hints", "hints", {hinted: "yes"}],
  ["reward +1", "+1", {reward: 1, judged: "yes"}],
  ["reward -1", "−1", {reward: -1, judged: "yes"}],
  ["logged", "logged replies", {logged: "yes"}],
  ["written", "written replies", null],
  ["tokens", "target tokens", null],
  ["trained", "trained turns", {state: "trained"}],
];

function showShares(shares) {
  const total = shares.total,
    last = total.tokens ? "tokens" : "turns";
  const shareTable = (what, named, columns) =>
    table(
      [what, {number: "share"}, BAR, ...columns.map(([, name]) => ({number: name}))],
      named.map(([name, counts, own]) => [
        {kind: "texts", node: name},
        {number: share(counts[last], total[last])},
        {kind: "bar", node: bar((counts[last] || 0) / (total[last] || 1))},
        ...columns.map(([key, , filters]) => ({
          number: linked(counts[key] || 0, filters && {...own, ...filters}, undefined, key === "sessions" ? key : "turns"),
        })),
      ]),
      `The share is that of all ${last === "tokens" ? "target tokens" : "turns"}.`,
    );
  const known = SHARED.filter(([key]) => total[key]),
    rest = shares.other_sources;
  const sources = shares.sources.map((one) => [quoted(one.source), one, {source: one.source}]);
  if (rest) sources.push([plural(rest.count, "other source"), rest, {rest: "yes"}]);
  fill(
    "shares",
    el(
      "p",
      {},
      "Feedback can be wrong on purpose. A source or session that has most of what is trained on decides what is learned.",
    ),
    el("h3", {}, "Sources"),
    shareTable("source", sources, known),
    el("h3", {}, "Largest of ", linked(shares.session_count, {}, plural(shares.session_count, "session"), "sessions")),
    shareTable(
      "session",
      shares.sessions.map((one) => [quoted(one.session), one, {source: one.source, session: one.session}]),
      known.filter(([key]) => key !== "sessions"),
    ),
  );
}
