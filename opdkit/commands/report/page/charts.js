"use strict";
// Charts, drawn by uPlot on a canvas; below each, a table has the same numbers.

const drawn = []; // all charts, to redraw them for another theme or width

function chart(title, meaning, options, rows) {
  const place = el("div", {
    class: "chart",
    role: "img",
    "aria-label": `${title}: ${meaning}. The numbers are in the table below it.`,
  });
  const made = {place, options, plot: null};
  drawn.push(made);
  return el(
    "div",
    {},
    el("p", {class: "chart-title"}, title),
    meaning && el("p", {class: "faint small"}, meaning),
    place,
    lazily("As a table", () => table(rows.head, rows.body())),
  );
}

// A closed part of the page, whose content is made when it is first opened.
function lazily(title, make) {
  const made = el(
    "details",
    {
      ontoggle: () => {
        if (made.open && made.children.length === 1) made.append(make());
      },
    },
    el("summary", {class: "small"}, title),
  );
  return made;
}

function redrawCharts() {
  for (const one of drawn) {
    if (!one.place.isConnected) continue;
    one.plot?.destroy();
    const width = Math.max(220, one.place.clientWidth);
    const made = one.options();
    one.plot = new uPlot({width, height: 220, ...made.plot}, made.data, one.place);
  }
}

function axes(xLabel, yLabel) {
  const line = {stroke: colour("line"), width: 1};
  const common = {
    stroke: colour("text"),
    grid: line,
    ticks: line,
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
    labelSize: 18,
  };
  return [
    {...common, label: xLabel, size: 40},
    {
      ...common,
      label: yLabel,
      size: 56,
      values: (plot, marks) => marks.map((mark) => (mark < 0 && plot.scales.y.distr === 4 ? "" : short(mark))),
    },
  ];
}

const short = (x) =>
  x === null
    ? ""
    : Math.abs(x) >= 10000
      ? (x / 1000).toLocaleString("en-US") + "k"
      : Math.abs(x) > 0 && Math.abs(x) < 0.001
        ? x.toExponential(0)
        : x.toLocaleString("en-US", {maximumFractionDigits: 4});

// `lines`: [name, ys] each. `mark`, `markName`: the x of a dashed line, and what it means.
function lineChart(title, meaning, xLabel, xs, lines, [mark, markName] = []) {
  const inks = ["more", "less"];
  return chart(
    title,
    meaning,
    () => ({
      data: [xs, ...lines.map(([, ys]) => ys)],
      plot: {
        scales: {x: {time: false}},
        axes: axes(xLabel, ""),
        cursor: {drag: {x: true, y: false}},
        series: [
          {label: xLabel},
          ...lines.map(([name], n) => ({
            label: name,
            stroke: colour(inks[n]),
            width: 2,
            points: {show: xs.length < 60, size: 5},
            value: (plot, y) => precise(y),
          })),
        ],
        hooks: mark === undefined ? {} : {draw: [(plot) => verticalLine(plot, mark)]},
      },
    }),
    {
      head: [{number: xLabel}, ...lines.map(([name]) => ({number: name})), ...(markName ? [""] : [])],
      body: () =>
        xs.map((x, n) => [
          {number: count(x)},
          ...lines.map(([, ys]) => ({number: precise(ys[n])})),
          ...(markName ? [x === mark ? markName : ""] : []),
        ]),
    },
  );
}

const precise = (y) => (y === null || y === undefined ? MISSING : String(+y.toPrecision(5)));

function verticalLine(plot, x) {
  const at = plot.valToPos(x, "x", true),
    {top, height} = plot.bbox;
  plot.ctx.save();
  plot.ctx.strokeStyle = colour("text");
  plot.ctx.setLineDash([6, 4]);
  plot.ctx.beginPath();
  plot.ctx.moveTo(at, top);
  plot.ctx.lineTo(at, top + height);
  plot.ctx.stroke();
  plot.ctx.restore();
}

// `bars`: [start, count] each, all of one width; bars that start below 0 have the colour "less". `steep`: asinh scale
// for the heights. `filters`: start of a bar -> the filters that show its turns. `least`, `most`: the starts of the
// bars that hold everything below and above, too.
function histogram(title, meaning, xLabel, width, bars, digits, {steep = false, filters = null, least, most} = {}) {
  const xs = bars.map(([start]) => start),
    less = bars.map(([start, n]) => (start < 0 ? n : null)),
    more = bars.map(([start, n]) => (start < 0 ? null : n));
  const name = (start) =>
    start === least
      ? `below ${fixed(start + width, digits)}`
      : fixed(start, digits) + (start === most ? " or more" : ` to ${fixed(start + width, digits)}`);
  const series = (label, ink) => ({
    label,
    stroke: colour(ink),
    fill: colour(ink),
    width: 0,
    points: {show: false},
    paths: uPlot.paths.bars({size: [0.85], align: 1}),
  });
  const two = xs[0] < 0;
  return chart(
    title,
    meaning,
    () => ({
      data: two ? [xs, less, more] : [xs, more],
      plot: {
        scales: {
          x: {time: false, range: () => [xs[0], xs.at(-1) + width]},
          y: {distr: steep ? 4 : 1, asinh: 1, range: (plot, low, high) => [0, Math.max(1, high * (steep ? 1.5 : 1.1))]},
        },
        axes: axes(xLabel, ""),
        hooks: filters ? {ready: [(plot) => plot.over.addEventListener("click", () => goToBar(plot))]} : {},
        series: [
          {label: xLabel, value: (plot, x) => (x === null ? MISSING : name(x))},
          ...(two ? [series("below 0", "less")] : []),
          series(two ? "above 0" : "count", "more"),
        ],
      },
    }),
    {
      head: [xLabel, {number: "count"}],
      body: () => bars.map(([start, n]) => [name(start), {number: linked(n, filters?.(start))}]),
    },
  );

  function goToBar(plot) {
    const [start, n] = bars[plot.cursor.idx] ?? [];
    if (n) location.hash = addressOf(filters(start));
  }
}
