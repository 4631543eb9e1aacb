"use strict";
// The trainings of the run compared: which is better, the scores, what each did and cost, as in `opdkit compare`.

function showComparison(found) {
  if (!found) return;
  fill("comparison", quoted(found.sentence, "p", "sentence said"));
  fill("comparison", ...(found.watch ?? []).map((line) => quoted(`Look: ${line}.`, "p", "notice")));
  for (const [place, [head, ...rows]] of found.tables.entries()) {
    const shown = table(
      head.map((name) => quoted(name)),
      rows.map((row) => row.map((cell) => quoted(cell))),
      place ? `${head[3]} beside ${head[2]}, prompt by prompt` : "What each training did and cost",
    );
    fill("comparison", place ? lazily(`Scores of ${head[2]} and ${head[3]}`, () => el("div", {}, shown)) : shown);
  }
}
