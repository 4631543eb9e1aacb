"use strict";
// The results: the answer, training curves, scores before and after, and the configuration.

// Did it get better, what was it taught, what to look at, what was left out: each with links to the counts.
function showAnswer(summary) {
  const found = summary.conclusion;
  fill("answer", ...summary.notices.map((notice) => quoted(notice, "p", "notice said")));
  if (!found && summary.comparison) fill("answer", quoted(summary.comparison.sentence, "p", "sentence said"));
  else if (!found) fill("answer", el("p", {class: "sentence"}, "Not measured yet."));
  else {
    const [word, ...rest] = found.sentence.split(":");
    fill(
      "answer",
      el("p", {class: "sentence"}, el("strong", {class: found.word.replaceAll(" ", "-")}, word + ":"), rest.join(":")),
      el("ul", {class: "facts"}, found.numbers.map(scoreOf)),
      ...found.watch.map((line) => el("p", {class: "notice"}, "Look: ", line, ". ", linkTo("evaluation", "Before and after"))),
    );
  }
  fill("answer", summary.next.map((line) => el("p", {class: "next"}, line.split("`").map((text, n) => quoted(text, n % 2 ? "code" : "span")))));
  const hints = summary.hints?.groups.slice(0, 5) ?? [],
    dropped = summary.funnel
      .flatMap((level) => level.dropped.map(([why, n]) => [why, n, lostLink(level, why, n), UNITS[level.name] ?? ["turn", "turns"]]))
      .sort(([, a], [, b]) => b - a);
  fill(
    "answer",
    el(
      "div",
      {class: "cards"},
      hints.length
        ? part(
            "What it was taught",
            el("ul", {}, hints.map(wish)),
          )
        : "",
      dropped.length
        ? part(
            "What was left out",
            el(
              "ul",
              {},
              dropped
                .slice(0, 6)
                .map(([why, n, link, unit]) =>
                  el("li", {}, quoted(why), ": ", link instanceof Node ? link : linkTo("overview", link), " ", unit[Number(n !== 1)],
                    MEANINGS[why] && el("span", {class: "faint"}, ", ", MEANINGS[why])),
                ),
            ),
          )
        : "",
    ),
  );
}

// Short names of the tables -> what they mean.
const MEANINGS = dictionary({
  "no next state": "nothing in the log follows the reply",
  retry: "the same request came again at once",
  duplicate: "the log holds the reply twice",
  "kept for validation": "their sessions measure the student during training",
  "every token skipped": "no token of theirs has an advantage",
  "held out": "of sessions that eval asks about",
});

// Level of the funnel -> the unit of what it loses, if that is not turns.
const UNITS = {sessions: ["line or session", "lines or sessions"], "trained replies": ["reply", "replies"]};

// A group of hints, with all of its turns and all of its wordings.
const wish = (group, number) =>
  el(
    "li",
    {},
    groupName(number),
    " ",
    linked(group.turns, {asks: number}, plural(group.turns, "turn")),
    group.texts > 1 ? [" in ", linkTo("hints", `${count(group.texts)} wordings`)] : "",
  );

const DRIFT = "drift from the model before training, on its replies (KL, nats per token)";

const linkTo = (id, words) => el("a", {href: "#" + id}, words);

function scoreOf(row) {
  const isDrift = row.metric === "kl_replies",
    value = isDrift ? fixed(row.after) : `${fixed(row.before)} → ${fixed(row.after)}`,
    none = (row.chance ?? null) === null ? "too few for an interval" : "no interval: all changes are equal",
    span = row.low === null ? none : `95% interval ${signed(row.low)} to ${signed(row.high)}`,
    what = isDrift
      ? `${DRIFT}; 0 is no change`
      : `right replies, ${row.domain}: ${signed(row.difference)} (${span}), ${plural(row.count, "prompt")}`;
  return el("li", {}, el("strong", {}, linkTo("evaluation", value)), " ", what);
}

const FIRST_CURVES = [
  "loss",
  "teacher_advantage",
  "reward_advantage",
  "approx_kl",
  "entropy",
  "grad_norm",
  "learning_rate",
  "clip_fraction",
];

function showTraining(training) {
  if (!training) return fill("training", absent("A finished training", "opdkit train"));
  const names = Object.keys(training.curves),
    first = FIRST_CURVES.filter((name) => names.includes(name));
  fill(
    "training",
    el(
      "p",
      {},
      `${plural(training.steps, "optimizer step")}, ${fixed(training.epoch.at(-1), 2)} passes over the targets.`,
      training.stride > 1 ? ` Each point is the mean of ${training.stride} steps.` : "",
      " Drag over a chart to look closer, double-click to come back.",
    ),
  );
  const curve = (name) =>
    lineChart(
      name.replaceAll("_", " "),
      training.curves[name].meaning,
      "step",
      training.step,
      [[name.replaceAll("_", " "), training.curves[name].values]],
    );
  showValidations(training.validations);
  fill("training", el("div", {class: "cards"}, first.map(curve)));
  const others = lazily("The other curves", () =>
    el("div", {class: "cards"}, names.filter((name) => !first.includes(name)).map(curve)),
  );
  others.addEventListener("toggle", redrawCharts);
  fill("training", others);
}

function showValidations(found) {
  if (!found.step.length) return;
  const names = ["hint_kl", "kept_kl"].filter((name) => found[name].some((kl) => kl !== null)),
    place = found.step.indexOf(found.kept),
    atKept = names.map((name) => `${name} ${fixed(found[name][place])}`).join(", ");
  fill(
    "training",
    el(
      "div",
      {class: "cards lines"},
      lineChart(
        "Distance of the model's own replies",
        "In nats per reply, on the prompts of validation: hint_kl falls as the replies become those of the teacher " +
          "that reads the hint, kept_kl rises as they move away from those before training where nobody complained; " +
          `the dashed line is step ${count(found.kept)}: the best state, which became the model (${atKept}).`,
        "step",
        found.step,
        names.map((name) => [name, found[name]]),
        [found.kept, "the model"],
      ),
    ),
  );
}

function showEvaluation(found) {
  if (!found) return fill("evaluation", absent("A comparison of before and after", "opdkit eval"));
  const better = dictionary(found.better),
    metrics = [...new Set(found.scores.map((row) => row.metric))].filter((metric) => Object.hasOwn(found.words, metric)),
    namesOf = (sign) => metrics.filter((metric) => better[metric] === sign).map((metric) => found.words[metric]);
  fill(
    "evaluation",
    el(
      "p",
      {},
      `Replies of the model before training and of the model after it to the same ${plural(found.prompts, "prompt")}, which training has not seen. ` +
        "Each change has a 95% interval. A mark (▲ or ▼) says that chance alone makes such a change in at most 5% of the cases. " +
        `Fewer than ${found.fewest} prompts are too few for either.`,
    ),
    el(
      "p",
      {},
      `More is better: ${namesOf(1).join("; ")}. Less is better: ${namesOf(-1).join("; ")}. ` +
        "Of the drift some hundredths are usual; the other metrics are neither good nor bad.",
    ),
    el(
      "p",
      {class: "legend"},
      [
        ["better", "better"],
        ["worse", "worse"],
        ["neither", "neither good nor bad, or no more than chance"],
      ].map(([kind, words]) => el("span", {}, el("b", {class: "change " + kind}), " " + words)),
    ),
  );
  const pooled = found.scores.filter((row) => ["all", "corrected", "uncorrected"].includes(row.domain)),
    single = found.scores.filter((row) => !pooled.includes(row));
  fill(
    "evaluation",
    comparison(found, pooled),
    single.length ? lazily(`By domain (${single.length} rows)`, () => el("div", {}, comparison(found, single))) : "",
  );
  showDrift(found.drift);
  if (found.replies.length)
    fill(
      "evaluation",
      lazily(
        `Greedy replies side by side: ${found.replies.length} of ${plural(found.prompts, "prompt")}, those first where only one is right`,
        () =>
          table(
            ["prompt", "before", "after"],
            found.replies.map((pair) => [
              quoted(pair.prompt_id),
              ...[pair.before, pair.after].map((one) => ({
                kind: "texts",
                node: [
                  el("strong", {}, rightness(one.passed)),
                  " ",
                  quoted(one.reply),
                  one.reply.length >= found.reply_chars ? "…" : "",
                ],
              })),
            ]),
          ),
      ),
    );
}

const QUANTILES = {0.5: "median", 1: "maximum"};

function showDrift(found) {
  if (!found) return;
  fill(
    "evaluation",
    el("h3", {}, "Drift, reply by reply"),
    el(
      "p",
      {class: "faint small"},
      `The drift (KL, nats per token) of each reply that the model before wrote. The drift at the top of the page is the mean over the tokens of all these replies, which hides a few replies far to the right.`,
    ),
    facts(
      ["replies", count(found.count)],
      ...found.quantiles.map(([q, value]) => [QUANTILES[q] ?? `${100 * q}% quantile`, fixed(value, 4)]),
    ),
    histogram("Drift of the replies", "replies, by their drift", "nats per token", found.width, found.bars, 4),
    table(
      ["prompt", {number: "sample"}, {number: "drift"}, "reply of the model before", "of the model after"],
      found.largest.map((one) => [
        {kind: "texts", node: quoted(one.prompt_id)},
        {number: count(one.sample)},
        {number: fixed(one.kl, 4)},
        {kind: "texts", node: quoted(one.before)},
        {kind: "texts", node: quoted(one.after)},
      ]),
      "The replies that drift most, and what the model after training replies instead; sample 0 is the greedy one.",
    ),
  );
}

// The table of scores. Metrics of the same unit are drawn on the same scale.
function comparison(found, some) {
  const units = dictionary(found.units),
    better = dictionary(found.better),
    unitOf = (row) => units[row.metric] ?? row.metric,
    widest = new Map();
  for (const row of some) {
    const ends = [row.low, row.high, row.difference].map((x) => Math.abs(x ?? 0));
    widest.set(unitOf(row), Math.max(widest.get(unitOf(row)) || 0, ...ends));
  }
  const head = [
    "metric",
    "domain",
    {number: "before"},
    {number: "after"},
    {number: "change"},
    {number: "95% interval"},
    "",
    {number: "n"},
  ];
  return [
    el("p", {class: "faint small"}, "The lines go ", scales(widest), ", with 0 in the middle."),
    table(
      head,
      some.map((row) => {
        const sessions = unitOf(row) === "sessions",
          digits = sessions ? 0 : row.metric === "reply_tokens" ? 1 : 3,
          value = (x) => (sessions && x === row.count ? "never" : fixed(x, digits)),
          judgement = judged(row, better);
        return [
          Object.hasOwn(found.words, row.metric) ? found.words[row.metric] : quoted(row.metric),
          {kind: "domain", node: quoted(row.domain)},
          {number: value(row.before)},
          {number: value(row.after)},
          {number: change(row, digits) + (judgement === "neither" ? "" : " " + judgement)},
          {number: row.low === null ? MISSING : `${signed(row.low, digits)} to ${signed(row.high, digits)}`},
          {kind: "", node: interval(row, widest.get(unitOf(row)), judgement)},
          {number: count(row.count)},
        ];
      }),
    ),
  ];
}

// "from −0.4 to +0.4 (share), from −1 to +1 (tokens)"
const scales = (widest) =>
  [...widest].filter(([, most]) => most).map(([unit, most], place) => {
    const end = rounded(most, most < 10 ? 2 : 0);
    return [place ? ", " : "", `from −${end} to +${end} (`, quoted(unit), ")"];
  });

const rightness = (value) => (value === null ? "? no verdict" : value ? "✓ right" : "✗ wrong");
const clear = (row) => row.chance !== null && row.chance <= 0.05;
const change = (row, digits) =>
  row.difference === null
    ? MISSING
    : `${clear(row) ? (row.difference > 0 ? "▲ " : "▼ ") : ""}${signed(row.difference, digits)}`;

// Returns if a change is for the better: by the direction of the metric, if it has one and the change exceeds chance.
function judged(row, better) {
  const sign = clear(row) ? Math.sign(row.difference) * (better[row.metric] ?? 0) : 0;
  return sign > 0 ? "better" : sign < 0 ? "worse" : "neither";
}

// The change and its interval on a line; the dashed line is 0.
function interval(row, widest, judgement) {
  const made = el("div", {class: "interval", "aria-hidden": "true"});
  if (row.difference === null || !widest) return made;
  const at = (x) => `${50 + (46 * x) / widest}%`; // 46 and not 50, as the point is some percent wide
  const zero = el("u"),
    range = el("i"),
    point = el("b", {class: "change " + judgement});
  zero.style.left = at(0);
  if (row.low !== null) {
    range.style.left = at(row.low);
    range.style.width = `${(46 * (row.high - row.low)) / widest}%`;
  }
  point.style.left = at(row.difference);
  made.append(zero, range, point);
  return made;
}

function showConfiguration(summary) {
  fill(
    "configuration",
    el("p", {}, `opdkit ${summary.opdkit}. What is not the default is marked with `, el("strong", {}, "◆"), "."),
  );
  fill(
    "configuration",
    el(
      "div",
      {class: "cards"},
      summary.configuration.map((stage) =>
        el(
          "div",
          {},
          el("h3", {}, stage.stage, stage.command === stage.stage ? "" : ` (by ${stage.command})`),
          el("p", {class: "faint small"}, `plan ${stage.fingerprint}, opdkit ${stage.version ?? MISSING}`),
          stage.models.map(([role, name]) => el("p", {class: "small"}, `${role}: `, quoted(name))),
          options(stage.options.filter(([, , changed]) => changed)),
          lazily("All options", () => options(stage.options)),
        ),
      ),
    ),
  );
}

const options = (rows) =>
  table(
    ["option", "value"],
    rows.map(([name, value, changed]) => [
      name,
      {
        kind: "texts",
        node: [
          changed ? el("strong", {}, "◆ ") : "",
          quoted(value === null ? "not set" : typeof value === "string" ? value : JSON.stringify(value)),
        ],
      },
    ]),
  );
