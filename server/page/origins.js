/** Where tokens come from: names, explanations, and the class that gives each its mark and colour. */

/** @typedef {{ name: string, style: string, text: string }} Origin */

/** @type {Record<string, Origin>} */
const KNOWN = {
  head: { name: "draft, chosen", style: "head", text: "one of the draft's best tokens, kept" },
  tail: { name: "draft, drawn", style: "tail", text: "drawn at random from the draft's law, kept" },
  correction: {
    name: "correction",
    style: "correction",
    text: "drawn from what the tests had left of the target's law, after every candidate was refused",
  },
  bonus: {
    name: "bonus",
    style: "bonus",
    text: "drawn from the target's law, for free, after a path that was kept to its end",
  },
  forced: { name: "forced", style: "source", text: "the only token that the answer's form allowed" },
  target: { name: "target alone", style: "target", text: "drawn from the target's law in a step without a tree" },
};

/** Candidates of other sources (n-gram, suffix, ...) carry the source's own name. @param {string} origin @returns {Origin} */
export function originOf(origin) {
  return KNOWN[origin] ?? { name: origin, style: "source", text: `proposed by ${origin}, kept` };
}

/** Whether such a token was a candidate in a tree. @param {string} origin */
export function isCandidate(origin) {
  return !["correction", "bonus", "target", "forced"].includes(origin);
}
