/** A step to look at before there is a real one. Its numbers are made up. */

/** @typedef {import("./steps.js").Step} Step */

/** @param {number} slot @param {number} parent @param {string} text @param {object} more */
function candidate(slot, parent, text, more) {
  return {
    slot, parent, depth: parent === 0 ? 1 : 2, child: 0, token_id: 0, text, origin: "head", p: 0, q: null, draft: null,
    accept: 0, threshold: null, uniform: null, shared: true, reached: true, kept: false, ...more,
  };
}

/** @type {Step} */
export const EXAMPLE = {
  index: 0,
  position: 0,
  verifier: "resispec",
  candidates: [
    candidate(1, 0, " blue", { p: 0.62, kept: true }),
    candidate(2, 0, " dark", { child: 1, origin: "tail", p: 0.08, q: 0.2 }),
    candidate(3, 1, " because", { p: 0.71, kept: true }),
    candidate(4, 2, " and", { origin: "tail", p: 0.4, q: 0.3, reached: false }),
  ],
  tokens: [
    { token_id: 0, text: " blue", origin: "head", p: 0.62, drawn: null },
    { token_id: 0, text: " because", origin: "head", p: 0.71, drawn: null },
    { token_id: 0, text: " of", origin: "bonus", p: 0.55, drawn: 0.55 },
  ],
};
