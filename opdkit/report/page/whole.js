"use strict";
// One turn whole: the conversation, the votes, the hints, and every token with its advantage.

const STEPS = [0.1, 0.5, 1.5];  // nats: from here on a token is marked weakly, clearly, strongly
const whole = {views: new Map(), turn: null, view: null, numbers: false, low: 0};

async function showWhole(turn) {
  whole.turn = turn;
  whole.view = null;
  const place = byId("whole"), fetched = whole.views.get(turn.id) ?? (reviewing() ? fetchView(turn.id) : null);
  if (fetched instanceof Promise) place.replaceChildren(...heading(turn), el("p", {role: "status"}, "Fetching…"));
  let view, problem;
  try { view = await fetched; } catch (error) { problem = error.message; }
  if (whole.turn !== turn) return;  // another one was chosen meanwhile
  whole.view = view ?? null;
  place.replaceChildren(...heading(turn), ...(view ? viewed(view) : [...(problem ? [el("p", {class: "notice", role: "alert"}, problem)] : []), ...inShort(turn)]));
  if (view && reviewing()) placePanel(turn, view);
}

const heading = (turn) => [el("h3", {class: "said"}, said(turn.id)), el("p", {class: "badges"}, badges(turn))];

// What the list knows of a turn that is not in the file whole.
function inShort(turn) {
  const run = shellWord(data.summary.run), line = (role, text, kind) => text ? el("div", {class: "message " + kind}, el("div", {class: "role"}, role), quoted(text, "p", "text")) : null;
  return [line("request", turn.asked, ""), line("reply", turn.reply, "reply"), line("reaction", turn.answer, "next"), turn.hint ? el("p", {}, "Hint: ", quoted(turn.hint)) : null,
    reviewing() ? null : el("div", {}, el("p", {class: "faint small"}, `Texts are cut to ${data.rows.chars} characters here; this file shows ${plural(data.views.length, "turn")} whole. This one in a terminal, or any in a browser:`),
      el("pre", {class: "command"}, said(`opdkit show ${run} ${shellWord(turn.id)}`), "\n", said(`opdkit review ${run}`)))].filter(Boolean);
}

function viewed(view) {
  return [facts_of(view), verdict(view), ...view.targets.map((target) => heatMap(target, view)), view.targets.length ? null : el("p", {class: "faint"}, "No target: nothing of this turn is trained on."), conversation(view)].filter(Boolean);
}

function facts_of(view) {
  const pairs = [["source", quoted(view.source)], ["line", count(view.line)], ["format", quoted(view.format)], ["model", view.model && quoted(view.model)], ["kind", view.kind],
    ["not trainable", view.skip_reason && quoted(view.skip_reason)], ["stopped because", view.finish_reason && quoted(view.finish_reason)]];
  return lazily("Where it comes from", () => el("dl", {class: "small"}, pairs.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
}

// -- conversation ------------------------------------------------------------------------------------------------------

function conversation(view) {
  const first = view.earlier || 0, reply = view.message_index - first, end = reply + 1 + view.next_count;
  const shown = view.messages.slice(0, end).map((message, n) => messageOf(message, n === reply ? "reply" : n > reply ? "next" : ""));
  return el("section", {"aria-label": "Conversation"}, el("h4", {}, "Conversation"), first ? el("p", {class: "faint small"}, `${plural(first, "earlier message")} not shown in this file.`) : null, shown);
}

function messageOf(message, kind) {
  const words = {reply: ": the reply that is judged", next: ": the reaction"}[kind] || "";
  return el("div", {class: "message " + kind}, el("div", {class: "role"}, quoted(message.role), message.name ? [" ", quoted(message.name)] : null, words),
    message.reasoning ? quoted(message.reasoning, "p", "text thinking") : null, message.content ? quoted(message.content, "p", "text") : null,
    (message.tool_calls || []).map((call) => el("div", {class: "call"}, quoted(call.name), " ", quoted(call.arguments))),
    message.cut ? el("p", {class: "faint small"}, `… ${plural(message.cut, "more character")}`) : null);
}

// -- verdict -----------------------------------------------------------------------------------------------------------

function verdict(view) {
  const judged = view.verdict, made = el("section", {"aria-label": "Verdict", id: "verdict"}, el("h4", {}, "Verdict"));
  if (!judged) { made.append(el("p", {class: "faint"}, "Not judged.")); return made; }
  made.append(...outcome(judged.voted, ""));
  if (view.review && !reviewing()) made.append(el("p", {}, "Decided by ", quoted(view.review.reviewer || "a person"), view.review.note ? [": ", quoted(view.review.note)] : ""), ...outcome(judged, "now: "));
  if (judged.candidates.length) made.append(table(["hint that was voted for", "what became of it"], judged.candidates.map((one) => [quoted(one.hint), one.status])));
  const votes = [...judged.reward_votes.map((vote) => ["reward", REWARD_WORDS[vote.score] ?? MISSING, vote]), ...judged.hint_votes.map((vote) => ["hint", {1: "yes", "-1": "no"}[vote.decision] ?? MISSING, vote])];
  made.append(lazily(plural(votes.length, "vote"), () => table(["question", "vote", "the judge's answer"], votes.map(([question, value, vote]) => [question, value, {kind: "texts", node: [vote.error ? el("p", {}, "no answer: ", quoted(vote.error)) : null, quoted(vote.raw, "div", "text small")]}]))));
  return made;
}

function outcome(judged, prefix) {
  const agreed = judged.reward_agreement === null ? "" : `, ${share(judged.reward_agreement, 1)} of the valid votes`;
  return [el("p", {}, prefix, "Reward ", el("strong", {}, REWARD_WORDS[judged.reward] ?? "none"), ` (${judged.reward_status}${agreed})`),
    el("p", {}, prefix, "Hint ", judged.hint === null ? el("strong", {}, "none") : quoted(judged.hint, "strong"), ` (${judged.hint_status})`)];
}

// -- tokens ------------------------------------------------------------------------------------------------------------

const strength = (a) => STEPS.filter((step) => Math.abs(a) >= step).length;

function tokenKind(token) {
  if (!token.trained) return "untrained";
  if (token.advantage === null || token.advantage === undefined) return "";
  const level = strength(token.advantage);
  return level ? `${token.advantage > 0 ? "more" : "less"}-${level}` : "";
}

function heatMap(target, view) {
  const hinted = target.tokens.some((token) => token.advantage !== null && token.advantage !== undefined);
  const title = target.written === null || target.written === undefined ? "The reply, token by token" : `Reply ${target.written + 1} written by the teacher, token by token`;
  const about = el("p", {class: "active-token", role: "status"}, "Choose a token, or move with ← and → inside the text.");
  const box = el("div", {class: "tokens" + (whole.numbers ? " numbers" : ""), tabindex: "0", role: "group", "aria-label": title + "; arrow keys move from token to token"}, target.tokens.map(tokenOf));
  let at = -1;
  const go = (n) => {
    if (n < 0 || n >= target.tokens.length) return;
    box.children[at]?.classList.remove("active");
    at = n;
    box.children[at].classList.add("active");
    box.children[at].scrollIntoView({block: "nearest"});
    about.replaceChildren(...tokenFacts(target.tokens[at], at));
  };
  box.addEventListener("click", (event) => { const token = event.target.closest(".token"); if (token) go([...box.children].indexOf(token)); });
  box.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10}[event.key];
    if (!step) return;
    event.preventDefault();
    go(Math.min(Math.max(at + step, 0), target.tokens.length - 1));
  });
  return el("section", {"aria-label": title}, el("h4", {}, title),
    el("p", {class: "faint small"}, `${plural(target.tokens.length, "token")} shown${target.cut ? `, ${count(target.cut)} more` : ""}, after a prompt of ${plural(target.prompt_tokens, "token")}`,
      target.cut_messages ? `, ${plural(target.cut_messages, "message")} cut off its beginning` : "", target.overlap === null || target.overlap === undefined ? "" : `, overlap ${share(target.overlap, 1)}`, `; reward ${REWARD_WORDS[target.reward] ?? "none"}.`),
    target.hint ? el("p", {class: "small"}, "Scored with the hint: ", quoted(target.hint)) : el("p", {class: "small"}, "No hint: the teacher says nothing here, only the reward weighs the tokens."),
    hinted ? legend() : null, hinted ? tokenTools(box, target) : null, box, about,
    hinted ? lazily("Tokens as a table", () => table(["token", {number: "student"}, {number: "teacher"}, {number: "advantage"}], target.tokens.map((token) => [el("span", {class: "said"}, spelled(token.text)), {number: fixed(token.old, 3)}, {number: fixed(token.teacher, 3)}, {number: signed(token.advantage, 3)}]))) : null);
}

function tokenOf(token) {
  const number = token.trained && token.advantage !== null && token.advantage !== undefined && strength(token.advantage) ? el("sub", {}, signed(token.advantage, 1)) : null;
  return el("span", {class: "token " + tokenKind(token)}, spelled(token.text), number);
}

// The text of a token with its line breaks and tabs to be seen, and still breaking the line.
function spelled(text) {
  return text.split(/(\n|\t)/).filter(Boolean).map((piece) => piece === "\n" ? [el("span", {class: "space"}, "⏎"), "\n"] : piece === "\t" ? [el("span", {class: "space"}, "⇥"), "\t"] : said(piece)).flat();
}

function tokenFacts(token, at) {
  const likely = (x) => x === null || x === undefined ? MISSING : `${fixed(x, 3)} (${Math.exp(x) < 0.001 ? "under 0.1%" : share(Math.exp(x), 1)})`;
  return [`Token ${at + 1}, `, el("strong", {class: "said"}, "“", spelled(token.text), "”"), `, id ${token.id}: student ${likely(token.old)}, teacher ${likely(token.teacher)}, advantage ${signed(token.advantage, 3)} nats`, token.trained ? "" : "; not sampled by the policy, so not trained"];
}

function legend() {
  const one = (kind, words) => el("span", {}, el("span", {class: "token " + kind}, "abc"), " " + words);
  return el("div", {class: "legend", "aria-label": "Legend"}, one("less-3", `below −${STEPS[2]}`), one("less-2", `below −${STEPS[1]}`), one("less-1", `below −${STEPS[0]}`),
    one("more-1", `above ${STEPS[0]}`), one("more-2", `above ${STEPS[1]}`), one("more-3", `above ${STEPS[2]} nats`), one("untrained", "not trained"));
}

function tokenTools(box, target) {
  const filterTokens = () => target.tokens.forEach((token, n) => box.children[n].classList.toggle("low", token.advantage !== null && Math.abs(token.advantage) < whole.low));
  const shown = el("output", {}, fixed(whole.low, 1));
  filterTokens();
  return el("div", {class: "tools"},
    el("button", {type: "button", class: "numbers-button", "aria-pressed": String(whole.numbers), onclick: (event) => {
      whole.numbers = !whole.numbers;
      for (const one of document.querySelectorAll(".tokens")) one.classList.toggle("numbers", whole.numbers);
      for (const one of document.querySelectorAll(".numbers-button")) one.setAttribute("aria-pressed", String(whole.numbers));
    }}, "Numbers ", el("kbd", {}, "v")),
    el("label", {}, "only from |A| ", el("input", {type: "range", min: "0", max: "4", step: "0.1", value: String(whole.low), oninput: (event) => { whole.low = Number(event.target.value); shown.textContent = fixed(whole.low, 1); filterTokens(); }}), " ", shown));
}
