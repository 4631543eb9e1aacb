"use strict";
// The hints: how many, whether they help, groups of what they ask for, and the tokens that they moved.

function showHintChecks(checks) {
  if (!checks) return;
  fill(
    "hints",
    el("h3", {}, "Do the hints help?"),
    el("p", {class: "faint small"}, "Fresh replies of the student to the same prompt, judged by what the hint asks."),
    barTable(
      ["status", "hints"],
      list.turns.some((turn) => turn.checked !== null) ? linkedRows(checks.statuses, "checked") : checks.statuses,
      sum(Object.fromEntries(checks.statuses)),
    ),
  );
  if (checks.examples.length)
    fill(
      "hints",
      table(
        ["dropped hint", "why", {number: "replies that follow it"}, {number: "without the hint"}, "a reply with it", "turn"],
        checks.examples.map((row) => [
          {kind: "texts", node: quoted(row.hint)},
          {node: row.status},
          {number: share(row.with_hint, 1)},
          {number: share(row.without_hint, 1)},
          {kind: "texts", node: quoted(row.reply || "")},
          {node: el("a", {href: addressOf({turn: row.turn_id})}, quoted(row.turn_id))},
        ]),
      ),
    );
}

function showHints(hints) {
  if (!hints) return fill("hints", absent("A hint", "opdkit judge"));
  const leaks = hints.rejected.find(([reason]) => reason === "leak")?.[1] || 0;
  fill(
    "hints",
    facts(
      ["turns with a hint", linked(hints.count, {hinted: "yes"})],
      ["candidates refused because they leak the reaction", count(leaks)],
      ["candidates refused in all", count(hints.rejected.reduce((a, [, n]) => a + n, 0))],
    ),
  );
  fill(
    "hints",
    el(
      "div",
      {class: "cards"},
      hints.count
        ? histogram(
            "Length of the hints",
            "turns, by length of their hint; the last bar holds all longer ones",
            "characters",
            hints.width,
            hints.lengths,
            0,
            {filters: (length) => ({length}), most: hints.last},
          )
        : null,
      part(
        "How each hint came about",
        barTable(["status", "turns"], linkedRows(hints.statuses, "hint"), sum(Object.fromEntries(hints.statuses))),
      ),
      hints.rejected.length ? part("Candidates refused", barTable(["why", "candidates"], hints.rejected)) : null,
    ),
  );
  if (!hints.groups.length) return;
  fill(
    "hints",
    el("h3", {}, "What the hints ask for"),
    el("p", {class: "faint small"}, "Hints that ask for like things are one row; each number leads to its turns."),
    el("div", {id: "groups"}),
  );
  drawGroups(hints);
}

// A row per group: its effect, what speaks against it, its sources. Reviewers decide on all turns of a group.
function drawGroups(hints) {
  if (byId("groups").querySelector("textarea")) return; // a reviewer is typing a wording
  const scored = hints.groups.some((group) => group.scored),
    measured = hints.groups.some((group) => group.topic),
    texts = (node) => ({kind: "texts", node});
  const made = el(
    "div",
    {},
    el(
      "p",
      {class: "faint small"},
      `The judge was ${judgeName()}. `,
      scored
        ? "Moved no token: share of the turns where the hint makes no token of the reply 0.1 nats likelier or less likely. Effect: mean size of the advantages of a reply, as a mean over the replies. Under 0.01 the hint changes nearly nothing, 0.1 is small (one token in ten moves by 1 nat), and from 0.5 on it is large (all tokens move, or some by several nats). "
        : "",
      measured ? "The topic: held-out prompts whose replies have the words of these turns' replies." : "",
    ),
    table(
      [
        "what is wanted, and all wordings",
        {number: "turns"},
        ...(reviewing() ? ["your decision on all of them"] : []),
        ...(scored ? [{number: "moved no token"}, {number: "effect (nats per token)"}] : []),
        "speaks against it",
        ...(measured ? ["right replies on its topic"] : []),
        "from",
      ],
      hints.groups.map((group, number) => [
        texts([el("strong", {}, groupName(number)), el("div", {class: "small"}, wordings(group, number))]),
        {number: linked(group.turns, {asks: number})},
        ...(reviewing() ? [texts(groupDecision(group, number))] : []),
        ...(scored
          ? [{number: group.scored ? share(group.still, group.scored) : MISSING}, {number: fixed(group.effect, 2)}]
          : []),
        texts(against(group, number)),
        ...(measured ? [resultOf(group.topic)] : []),
        texts((group.sources ?? []).map(([name, n]) => el("div", {}, quoted(name.replace(/^.*\//, "")), ` ${count(n)}`))),
      ]),
    ),
  );
  renew(byId("groups"), made);
}

function judgeName() {
  const options = data.summary.configuration.find((one) => one.stage === "judge")?.options ?? [],
    value = (wanted) => options.find(([name]) => name === wanted)?.[1];
  return [value("judge"), value("judge_model")].filter(Boolean).join(", ") || "not named";
}

function against(group, number) {
  const reward = reviewing() ? {voted: "+1"} : {reward: 1}; // a review counts the rewards of the votes
  const found = [
    group.rewarded
      ? [linked(group.rewarded, {asks: number, ...reward}, plural(group.rewarded, "turn")), " with reward +1"]
      : null,
    group.split ? `${plural(group.split, "turn")} with a vote against the hint` : null,
    ...(group.opposed ?? []).map((text) => ["the opposite is wanted: ", quoted(text)]),
  ].filter(Boolean);
  return found.length ? found.map((words) => el("div", {}, words)) : MISSING;
}

const resultOf = (row) =>
  row === null || row === undefined
    ? MISSING
    : [
        linkTo("evaluation", row.domain),
        ` ${fixed(row.before)} → ${fixed(row.after)}`,
        row.low === null ? "" : ` (${signed(row.low)} to ${signed(row.high)})`,
      ];

const wordings = (group, number) => [
  (data.summary.redacted ? [] : group.wordings.slice(0, 8)).map(([text, n], place) => [
    place ? " · " : "",
    quoted(text),
    " ",
    linked(n, {asks: number, says: place + 1}),
  ]),
  group.texts > 8 && !data.summary.redacted ? ` and ${count(group.texts - 8)} more` : "",
];

function showMoved(moved) {
  if (!moved.length) return;
  fill(
    "hints",
    el("h3", {}, "Tokens that moved most"),
    el(
      "p",
      {class: "faint small"},
      "What a reply has that the teacher, who has read the hint, finds clearly less likely, and its likeliest token there.",
    ),
    table(
      ["the reply has", "the teacher would say", {number: "times"}],
      moved.map((one) => [
        {kind: "texts", node: el("code", {class: "said"}, "“", spelled(one.token), "”")},
        {kind: "texts", node: el("code", {class: "said"}, "“", spelled(one.instead), "”")},
        {number: count(one.count)},
      ]),
    ),
  );
}
