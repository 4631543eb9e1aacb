"use strict";
// One turn whole: the conversation, the votes, the hints, and every token with its advantage.

const whole = {views: new Map(), turn: null, view: null, numbers: false, low: 0};

async function showWhole(turn) {
  whole.turn = turn;
  whole.view = null;
  const place = byId("whole"),
    fetched = whole.views.get(turn.id) ?? (reviewing() ? fetchView(turn.id) : null),
    pressed = byId("panel")?.querySelector("button:focus-visible")?.textContent; // by the keyboard, not by the mouse
  place.style.minHeight = `${place.offsetHeight}px`; // until it is fetched, so that the page does not scroll
  if (fetched instanceof Promise) place.replaceChildren(...heading(turn), el("p", {role: "status"}, "Fetching…"));
  let view, problem;
  try {
    view = await fetched;
  } catch (error) {
    problem = error.message;
  }
  if (whole.turn !== turn) return; // another turn was chosen meanwhile
  whole.view = view ?? null;
  place.replaceChildren(
    ...heading(turn),
    ...(view
      ? viewed(view)
      : [...(problem ? [el("p", {class: "notice", role: "alert"}, problem)] : []), ...inShort(turn)]),
  );
  if (view && reviewing()) placePanel(turn, view);
  place.style.minHeight = "";
  if (!view || !reviewing()) return;
  [...byId("panel").querySelectorAll("button")].find((one) => one.textContent === pressed)?.focus({preventScroll: true});
}

const heading = (turn) => [el("h3", {class: "said"}, said(turn.id)), el("p", {class: "badges"}, badges(turn))];

// Shows what the list knows of a turn, if the file does not have it whole.
function inShort(turn) {
  const run = shellWord(data.summary.run),
    line = (role, text, kind) =>
      text ? el("div", {class: "message " + kind}, el("div", {class: "role"}, role), quoted(text, "p", "text")) : null;
  return [
    line("request", turn.asked, ""),
    line("reply", turn.reply, "reply"),
    line("reaction", turn.answer, "next"),
    turn.hint ? el("p", {}, "Hint: ", quoted(turn.hint)) : null,
    data.summary.redacted
      ? facts(
          ["tokens of the reply", count(turn.tokens)],
          ["mean absolute advantage (nats)", fixed(turn.strength, 3)],
          ["characters of the hint", count(turn.hintLength)],
          ["of the valid votes agree", turn.agreement === null ? MISSING : share(turn.agreement, 1)],
        )
      : null,
    reviewing() || data.summary.redacted
      ? null
      : el(
          "div",
          {},
          el(
            "p",
            {class: "faint small"},
            `Texts are cut to ${data.rows.chars} characters here; this file shows ${plural(data.views.length, "turn")} whole. This one in a terminal, or any in a browser:`,
          ),
          el(
            "pre",
            {class: "command"},
            said(`opdkit show ${run} ${shellWord(turn.id)}`),
            "\n",
            said(`opdkit review ${run}`),
          ),
        ),
  ].filter(Boolean);
}

function viewed(view) {
  return [
    conversation(view),
    view.decision.length ? decided(view.decision) : null,
    verdict(view),
    view.targets.some(isHinted) ? legend() : null,
    ...view.targets.map((target) => heatMap(target, view)),
    view.targets.length ? null : el("p", {class: "faint"}, "No target: nothing of this turn is trained on."),
    factsOf(view),
  ].filter(Boolean);
}

function factsOf(view) {
  const pairs = [
    ["source", quoted(view.source)],
    ["line", count(view.line)],
    ["format", quoted(view.format)],
    ["model", view.model && quoted(view.model)],
    ["kind", view.kind],
    ["not trainable", view.skip_reason && quoted(view.skip_reason)],
    ["stopped because", view.finish_reason && quoted(view.finish_reason)],
  ];
  return lazily("Where it comes from", () =>
    el(
      "dl",
      {class: "small"},
      pairs.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
}

// -- conversation ------------------------------------------------------------------------------------------------------

// The conversation from the user's last request on; earlier messages are folded away.
function conversation(view) {
  const missing = view.earlier || 0,
    reply = view.message_index - missing;
  const shown = view.messages
    .slice(0, reply + 1 + view.next_count)
    .map((message, n) => messageOf(message, n === reply ? "reply" : n > reply ? "next" : ""));
  const request = Math.max(
    0,
    view.messages.findLastIndex((message, n) => n < reply && message.role === "user"),
  );
  const before = shown.splice(0, request),
    note = missing ? `${plural(missing, "message")} before these not in this file.` : "";
  return el(
    "section",
    {"aria-label": "Conversation", id: "conversation"},
    el("h4", {}, "Conversation"),
    before.length
      ? el("details", {}, el("summary", {class: "small"}, plural(before.length, "earlier message")), note, before)
      : el("p", {class: "faint small"}, note),
    shown,
  );
}

function messageOf(message, kind) {
  const words = {reply: ": the reply that is judged", next: ": the reaction"}[kind] || "";
  return el(
    "div",
    {class: "message " + kind},
    el("div", {class: "role"}, quoted(message.role), message.name ? [" ", quoted(message.name)] : null, words),
    message.reasoning ? quoted(message.reasoning, "p", "text thinking") : null,
    message.content ? quoted(message.content, "p", "text") : null,
    (message.tool_calls || []).map((call) =>
      el("div", {class: "call"}, quoted(call.name), " ", quoted(call.arguments)),
    ),
    message.cut ? el("p", {class: "faint small"}, `… ${plural(message.cut, "more character")}`) : null,
  );
}

// What a person decided about the reply in the log: a rating, a comment, an edit.
function decided(parts) {
  return el(
    "section",
    {"aria-label": "Decision", id: "decision"},
    el("h4", {}, "Decided in the log"),
    el("dl", {}, parts.map(([name, text]) => [el("dt", {}, name), el("dd", {}, quoted(text))])),
  );
}

// -- verdict -----------------------------------------------------------------------------------------------------------

function verdict(view) {
  const judged = view.verdict,
    made = el("section", {"aria-label": "Verdict", id: "verdict"}, el("h4", {}, "Verdict"));
  if (!judged) {
    made.append(el("p", {class: "faint"}, "Not judged."));
    return made;
  }
  made.append(...outcome(judged.voted, ""));
  if (view.review && !reviewing())
    made.append(
      el(
        "p",
        {},
        "Decided by ",
        quoted(view.review.reviewer || "a person"),
        view.review.note ? [": ", quoted(view.review.note)] : "",
      ),
      ...outcome(judged, "now: "),
    );
  if (judged.candidates.length)
    made.append(
      table(
        ["hint that was voted for", "what became of it"],
        judged.candidates.map((one) => [quoted(one.hint), one.status]),
      ),
    );
  const votes = [
    ...judged.reward_votes.map((vote) => ["reward", REWARD_WORDS[vote.score] ?? MISSING, vote]),
    ...judged.hint_votes.map((vote) => ["hint", {1: "yes", "-1": "no"}[vote.decision] ?? MISSING, vote]),
  ];
  made.append(
    lazily(plural(votes.length, "vote"), () =>
      table(
        ["question", "vote", "the judge's answer"],
        votes.map(([question, value, vote]) => [
          question,
          vote.confidence == null ? value : `${value} (${share(vote.confidence, 1)})`,
          {
            kind: "texts",
            node: [
              vote.error ? el("p", {}, "no vote: ", quoted(vote.error)) : null,
              quoted(vote.raw, "div", "text small"),
            ],
          },
        ]),
      ),
    ),
  );
  return made;
}

function outcome(judged, prefix) {
  const agreed = judged.reward_agreement === null ? "" : `, ${share(judged.reward_agreement, 1)} of the valid votes`;
  return [
    el(
      "p",
      {},
      prefix,
      "Reward ",
      el("strong", {}, REWARD_WORDS[judged.reward] ?? "none"),
      ` (${judged.reward_status}${agreed})`,
    ),
    el(
      "p",
      {},
      prefix,
      "Hint ",
      judged.hint === null ? el("strong", {}, "none") : quoted(judged.hint, "strong"),
      ` (${judged.hint_status})`,
    ),
  ];
}
