"use strict";
// The review queue: the turns that the judge is least certain of, then a random sample; and the progress.

const LEAST_CERTAIN = {most: 30, share: 0.8}; // this many turns at most, in which at most this share of votes agrees

// Sets each turn's place in the order of a review. The sample always begins at the start of the order of the draw, so
// earlier decisions count in it.
function orderReview() {
  SORTS.review = ["least certain first, then a random sample", (turn) => turn.place];
  const uncertain = list.turns
    .filter((turn) => turn.certainty !== null && turn.certainty <= LEAST_CERTAIN.share)
    .sort((a, b) => a.certainty - b.certainty || a.drawn - b.drawn)
    .slice(0, LEAST_CERTAIN.most);
  for (const turn of list.turns) {
    turn.place = turn.drawn ?? list.turns.length;
    if (turn.asks !== null) (list.groups[turn.asks] ??= []).push(turn);
  }
  uncertain.forEach((turn, n) => {
    turn.place = n - uncertain.length;
  });
}

// True if the turn was decided on by itself, not only with all turns of its hint.
const isReviewed = (id) => Boolean(list.decisions[id]) && list.decisions[id].chosen !== "group";

// Returns how the turn came up, for its decision: the random sample may only hold turns that nobody picked.
function cameBy(turn) {
  if (!list.queued || byId("sort").value !== "review" || list.shown.length < list.turns.length) return null;
  return turn.place < 0 ? "uncertain" : "random";
}

function nextUndecided() {
  // The sample begins where nobody has picked a turn: a picked one is no place to go on from.
  const isQueue = byId("sort").value === "review" && list.shown.length === list.turns.length,
    from = list.chosen && (list.queued || !isQueue) ? list.at + 1 : 0,
    order = [...list.shown.keys()].map((n) => (n + from) % list.shown.length);
  const next = order.find((place) => list.shown[place].hintStatus !== null && !isReviewed(list.shown[place].id));
  if (next === undefined) return problem("Every turn of this list is decided on.");
  choose(next, false, true);
}

// Shows the progress, and how often this reviewer agrees with the judge, on turns that both gave a reward.
function showProgress() {
  const judged = list.turns.filter((turn) => turn.hintStatus !== null),
    reviewed = judged.filter((turn) => isReviewed(turn.id)),
    by = (chosen) => reviewed.filter((turn) => list.decisions[turn.id].chosen === chosen),
    grouped = judged.filter((turn) => list.decisions[turn.id]?.chosen === "group").length;
  const agreement = (turns) => {
    const pairs = turns
      .map((turn) => list.decisions[turn.id])
      .filter((one) => one.reviewer === data.summary.review.reviewer)
      .map((one) => [one.voted_reward ?? null, "reward" in one ? one.reward : (one.voted_reward ?? null)])
      .filter(([voted, decided]) => voted !== null && decided !== null);
    const same = pairs.filter(([voted, decided]) => voted === decided).length;
    return pairs.length ? `${count(same)} of ${count(pairs.length)} rewards (${share(same, pairs.length)})` : null;
  };
  const all = agreement(reviewed),
    drawn = agreement(by("random"));
  const place = byId("progress") ?? el("p", {id: "progress", role: "status"});
  if (!place.parentNode) byId("filters").before(place);
  place.replaceChildren(
    el("strong", {}, `${count(reviewed.length)} of ${plural(judged.length, "judged turn")} reviewed`),
    `: ${count(by("uncertain").length)} least certain, ${count(by("random").length)} drawn at random. `,
    grouped ? `${plural(grouped, "more turn")} by hint alone. ` : "",
    all ? `You agree with the judge on ${all}` + (drawn ? `; of those drawn at random on ${drawn}. ` : ". ") : "",
    data.summary.hints?.groups.length ? linkTo("groups", "Decide on all turns of a hint at once") : "",
  );
}
