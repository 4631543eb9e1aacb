"use strict";
// Helpers that every part of the page uses: elements, untrusted texts, numbers, colours, the packed data.
// No script of the page turns text into markup: the page's policy (Trusted Types) would refuse it.

// el("p", {class: "faint", onclick: f}, "text", node, [nodes]): strings become text nodes.
function el(tag, given = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

// An object without a prototype, so that any key is safe, even "constructor".
const dictionary = (entries) => Object.assign(Object.create(null), entries);

const byId = (id) => document.getElementById(id);

// Updates the content of `old` to that of `made`, in place: a button keeps its focus, and a click that has begun on it.
// A button also keeps its first listener, so a button at one place must always do the same.
function renew(old, made) {
  const nodes = [...made.childNodes];
  for (const extra of [...old.childNodes].slice(nodes.length)) extra.remove();
  nodes.forEach((node, n) => {
    const before = old.childNodes[n];
    if (!before) old.append(node);
    else if (!node.attributes || before.nodeName !== node.nodeName) before.replaceWith(node);
    else {
      for (const name of before.getAttributeNames()) if (!node.hasAttribute(name)) before.removeAttribute(name);
      for (const name of node.getAttributeNames()) before.setAttribute(name, node.getAttribute(name));
      renew(before, node);
    }
  });
}

// -- untrusted texts --------------------------------------------------------------------------------------------------

// Control and format characters that hide or reorder their neighbours, tag characters, and lone surrogates. Newline and
// tab count as text, and so do the joiners (U+200C, U+200D) that some scripts and emoji need.
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}\p{Cs}]/gu;

// Returns the text as nodes: each hidden character as a small box with its number, and the search terms marked.
function said(text, terms = []) {
  const nodes = [];
  let end = 0;
  for (const match of text.matchAll(HIDDEN)) {
    nodes.push(...marked(text.slice(end, match.index), terms));
    const number = match[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(el("span", {class: "control", title: "a character that does not show"}, "U+" + number));
    end = match.index + match[0].length;
  }
  return [...nodes, ...marked(text.slice(end), terms)];
}

function marked(text, terms) {
  if (!terms.length) return text ? [document.createTextNode(text)] : [];
  const nodes = [],
    lower = text.toLowerCase();
  let end = 0;
  while (lower.length === text.length) {
    // some letters change length in lower case; then nothing is marked
    const next = terms
      .map((term) => [lower.indexOf(term, end), term.length])
      .filter(([at]) => at >= 0)
      .sort(([a, n], [b, m]) => a - b || m - n)[0];
    if (!next) break;
    nodes.push(text.slice(end, next[0]), el("mark", {}, text.slice(next[0], next[0] + next[1])));
    end = next[0] + next[1];
  }
  return [...nodes, text.slice(end)].filter((node) => node !== "");
}

// An untrusted text in its own element, so that its writing direction does not affect the text around it.
const quoted = (text, tag = "span", kind = "said") => el(tag, {class: kind, dir: "auto"}, said(text));

// Quotes a text as one word of a POSIX shell.
const shellWord = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

// -- numbers -----------------------------------------------------------------------------------------------------------

const MISSING = "–";
const count = (n) => (n === null || n === undefined ? MISSING : n.toLocaleString("en-US"));
// Rounds as Python (and so the terminal output) does: an exact tie goes to the even digit.
function rounded(x, digits) {
  const text = x.toFixed(digits),
    middle = Math.abs(x * 2 ** (digits + 1)) % 2 === 1; // only these numbers are exact ties in base 2
  return middle && Number(text.at(-1)) % 2 ? (x * (1 - 2 ** -40)).toFixed(digits) : text;
}
function fixed(x, digits = 2) {
  if (x === null || x === undefined) return MISSING;
  const text = rounded(x, digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−"); // no minus before 0
}
const signed = (x, digits = 2) =>
  (x !== null && x !== undefined && Number(rounded(x, digits)) > 0 ? "+" : "") + fixed(x, digits);
// Shares near 0% and 100% get a decimal: 2 of 575 is not 0%, and 573 of 575 is not 100%.
function share(part, whole) {
  if (!whole) return MISSING;
  const percent = (100 * (part || 0)) / whole;
  if (percent > 0 && percent < 0.05) return "under 0.1%";
  if (percent >= 99.95 && percent < 100) return "over 99.9%";
  return rounded(percent, percent > 0 && (percent < 10 || (percent > 90 && percent < 100)) ? 1 : 0) + "%";
}
const plural = (n, one, many = one + "s") => count(n) + " " + (n === 1 ? one : many);

// -- tables ------------------------------------------------------------------------------------------------------------

// A cell is a string, a node, or {number: "1,234"}. A row's first cell is its header. Too many for landmarks.
function table(head, rows, caption = null) {
  const cell = (tag, value, scope) =>
    value && value.number !== undefined
      ? el(tag, {class: "number", scope}, value.number)
      : value && value.node !== undefined
        ? el(tag, {class: value.kind, scope}, value.node)
        : el(tag, {scope}, value);
  return el(
    "div",
    {
      class: "scroll",
      tabindex: "0",
      role: "group",
      "aria-label": caption || "table: " + head.map((h) => h.textContent ?? h.number ?? h.node ?? h).filter(Boolean).join(", "),
    },
    el(
      "table",
      {},
      caption && el("caption", {class: "faint small"}, caption),
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((value) => (value && value !== BAR ? cell("th", value, "col") : cell("td", value))),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            {},
            row.map((value, n) => (n ? cell("td", value) : cell("th", value, "row"))),
          ),
        ),
      ),
    ),
  );
}

const BAR = {kind: "bar", node: ""}; // the head of a column of bars; the number is in the column before

// A table with a bar per row. Rows: [name, number, kind of bar, filters for the link]. `whole`: the number for 100%.
function barTable(head, rows, whole = null) {
  const largest = Math.max(1, ...rows.map((row) => row[1]));
  return table(
    [...head.slice(0, 1), {number: head[1]}, ...(whole ? [{number: "share"}] : []), BAR],
    rows.map(([name, number, kind, filters]) => [
      typeof name === "string" ? quoted(name) : name,
      {number: linked(number, filters)},
      ...(whole ? [{number: share(number, whole)}] : []),
      {kind: "bar", node: bar(number / largest, kind)},
    ]),
  );
}

function bar(part, kind = "") {
  const made = el("div", {class: kind, "aria-hidden": "true"});
  made.style.width = `${100 * part}%`;
  return made;
}

const facts = (...pairs) =>
  el(
    "ul",
    {class: "facts"},
    pairs.filter(Boolean).map(([name, value]) => el("li", {}, el("strong", {}, value), name)),
  );

// -- data, colours -----------------------------------------------------------------------------------------------------

async function unpacked() {
  const packed = atob(byId("data").textContent.trim());
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const THEMES = ["system", "light", "dark"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = "Colours: " + theme;
  byId("theme").setAttribute("aria-label", "Colours: " + theme + "; press for the next");
  redrawCharts();
}

// Returns the colour of a custom property in the current theme.
function colour(name) {
  document.body.style.setProperty("outline-color", `var(--${name})`);
  const found = getComputedStyle(document.body).outlineColor;
  document.body.style.removeProperty("outline-color");
  return found;
}
