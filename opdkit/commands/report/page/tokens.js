"use strict";
// The tokens of a reply, each with a colour for its advantage, and an underline for readers who cannot see the colour.

const STEPS = [0.1, 0.5, 1.5]; // |advantage| (nats) from which a token is marked weakly, clearly, strongly

const strength = (a) => STEPS.filter((step) => Math.abs(a) >= step).length;

function tokenKind(token) {
  if (!token.trained) return "untrained";
  if (token.advantage === null || token.advantage === undefined) return "";
  const level = strength(token.advantage);
  return level ? `${token.advantage > 0 ? "more" : "less"}-${level}` : "";
}

const isHinted = (target) => target.tokens.some((token) => token.advantage !== null && token.advantage !== undefined);

function heatMap(target, view) {
  const hinted = isHinted(target);
  const logged = target.written === null || target.written === undefined;
  const written =
    target.written < 0
      ? "The reply as a person edited it, token by token"
      : `Reply ${target.written} that the teacher wrote, token by token`;
  const review = (reviewing() ? list.decisions[view.turn_id] : view.review) ?? {},
    isOlder = (name) => name in review && review[name] !== target[name];
  const title = logged ? "The reply, token by token" : written;
  const about = el(
    "p",
    {class: "active-token", role: "status"},
    "Choose a token, or move with ← and → inside the text.",
  );
  const box = el(
    "div",
    {
      class: "tokens" + (whole.numbers ? " numbers" : ""),
      dir: "auto",
      tabindex: "0",
      role: "group",
      "aria-label": title + "; arrow keys move from token to token",
    },
    target.tokens.map(tokenOf),
  );
  let at = -1;
  const go = (n) => {
    if (n < 0 || n >= target.tokens.length) return;
    box.children[at]?.classList.remove("active");
    at = n;
    box.children[at].classList.add("active");
    box.children[at].scrollIntoView({block: "nearest"});
    about.replaceChildren(...tokenFacts(target.tokens[at], at));
  };
  box.addEventListener("click", (event) => {
    const token = event.target.closest(".token");
    if (token) go([...box.children].indexOf(token));
  });
  box.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10}[event.key];
    if (!step) return;
    event.preventDefault();
    go(Math.min(Math.max(at + step, 0), target.tokens.length - 1));
  });
  return el(
    "section",
    {"aria-label": title},
    el("h4", {}, title),
    el(
      "p",
      {class: "faint small"},
      `${plural(target.tokens.length, "token")} shown${target.cut ? `, ${count(target.cut)} more` : ""}, after a prompt of ${plural(target.prompt_tokens, "token")}`,
      target.cut_messages ? `, ${plural(target.cut_messages, "message")} cut off its beginning` : "",
      target.overlap === null || target.overlap === undefined ? "" : `, ${share(target.overlap, 1)} of the teacher's likeliest tokens are the student's too`,
      `; reward ${REWARD_WORDS[target.reward] ?? "none"}.`,
    ),
    target.hint
      ? el("p", {class: "small"}, "Scored with the hint: ", quoted(target.hint))
      : el("p", {class: "small"}, "No hint: the teacher says nothing here, only the reward weighs the tokens."),
    isOlder("hint") || (logged && isOlder("reward"))
      ? el("p", {class: "notice"}, "Scored before the decision: to update it, run `opdkit teacher` again as before.")
      : null,
    hinted ? tokenTools(box, target) : null,
    box,
    about,
    hinted
      ? lazily("Tokens as a table", () =>
          table(
            ["token", {number: "student"}, {number: "teacher"}, {number: "advantage"}],
            target.tokens.map((token) => [
              el("span", {class: "said"}, spelled(token.text)),
              {number: fixed(token.old, 3)},
              {number: fixed(token.teacher, 3)},
              {number: signed(token.advantage, 3)},
            ]),
          ),
        )
      : null,
  );
}

function tokenOf(token) {
  const number =
    token.trained && token.advantage !== null && token.advantage !== undefined && strength(token.advantage)
      ? el("sub", {}, signed(token.advantage, 1))
      : null;
  const better = instead(token);
  return el(
    "span",
    {class: "token " + tokenKind(token) + (better === null ? "" : " corrected")},
    better === null ? null : el("span", {class: "instead"}, spelled(better), " "),
    spelled(token.text),
    number,
  );
}

// The text of a token with visible signs for line breaks and tabs, which keep their effect.
function spelled(text) {
  return text
    .split(/(\n|\t)/)
    .filter(Boolean)
    .map((piece) =>
      piece === "\n"
        ? [el("span", {class: "space"}, "⏎"), "\n"]
        : piece === "\t"
          ? [el("span", {class: "space"}, "⇥"), "\t"]
          : said(piece),
    )
    .flat();
}

function tokenFacts(token, at) {
  const likely = (x) =>
    x === null || x === undefined
      ? MISSING
      : `${fixed(x, 3)} (${share(Math.exp(x), 1)})`;
  return [
    `Token ${at + 1}, `,
    el("strong", {class: "said"}, "“", spelled(token.text), "”"),
    `, id ${token.id}: student ${likely(token.old)}, teacher ${likely(token.teacher)}, advantage ${signed(token.advantage, 3)} nats`,
    token.trained ? "" : "; not sampled by the policy, so not trained",
    token.likely
      ? el(
          "span",
          {class: "likely"},
          Object.entries(token.likely).map(([model, some]) =>
            el(
              "span",
              {},
              `${model}: `,
              some.map(([text, logprob], n) => [
                n ? ", " : "",
                el("strong", {class: "said"}, "“", spelled(text), "”"),
                ` ${share(Math.exp(logprob), 1)}`,
              ]),
            ),
          ),
        )
      : "",
  ];
}

// The token that the teacher prefers to a token that it finds clearly less likely, or null.
function instead(token) {
  const [text] = token.likely?.teacher[0] ?? [];
  return text !== undefined && text !== token.text && token.advantage <= -STEPS[1] ? text : null;
}

function legend() {
  const one = (kind, words) => el("span", {}, el("span", {class: "token " + kind}, "abc"), " " + words);
  return el(
    "div",
    {class: "legend", "aria-label": "Legend"},
    "Advantage in nats:",
    one("less-3", `below −${STEPS[2]}`),
    one("less-2", `below −${STEPS[1]}`),
    one("less-1", `below −${STEPS[0]}`),
    one("more-1", `above ${STEPS[0]}`),
    one("more-2", `above ${STEPS[1]}`),
    one("more-3", `above ${STEPS[2]}`),
    one("untrained", "not trained"),
    el("span", {}, el("span", {class: "above"}, "abc"), " above a token: what the teacher would say"),
  );
}

function tokenTools(box, target) {
  const filterTokens = () =>
    target.tokens.forEach((token, n) =>
      box.children[n].classList.toggle("low", token.advantage !== null && Math.abs(token.advantage) < whole.low),
    );
  const shown = el("output", {}, fixed(whole.low, 1));
  filterTokens();
  return el(
    "div",
    {class: "tools"},
    el(
      "button",
      {
        type: "button",
        class: "numbers-button",
        "aria-pressed": String(whole.numbers),
        onclick: (event) => {
          whole.numbers = !whole.numbers;
          for (const one of document.querySelectorAll(".tokens")) one.classList.toggle("numbers", whole.numbers);
          for (const one of document.querySelectorAll(".numbers-button"))
            one.setAttribute("aria-pressed", String(whole.numbers));
        },
      },
      "Numbers ",
      el("kbd", {}, "v"),
    ),
    el(
      "label",
      {},
      "only from |A| ",
      el("input", {
        type: "range",
        min: "0",
        max: "4",
        step: "0.1",
        value: String(whole.low),
        oninput: (event) => {
          whole.low = Number(event.target.value);
          shown.textContent = fixed(whole.low, 1);
          filterTokens();
        },
      }),
      " ",
      shown,
    ),
  );
}
