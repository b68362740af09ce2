/** The card beside a token: where it came from, and which test kept it. */

import { Problem } from "./api.js";
import { byId, h, percent, visible } from "./dom.js";
import { isCandidate, originOf } from "./origins.js";
import { numbersOf, reasonFor } from "./reasons.js";

/** @typedef {import("./steps.js").Steps} Steps */

let wanted = 0;

export function hideDetails() {
  wanted += 1;
  byId("details").hidden = true;
}

/**
 * @param {Element} token
 * @param {[string, string, number]} told text, origin, step
 * @param {number} place of the token within its step
 * @param {Steps | null} steps
 */
export async function showDetails(token, told, place, steps) {
  const turn = ++wanted;
  const [text, origin, index] = told;
  const known = originOf(origin);
  const card = byId("details");
  const title = h("p", { class: "details-title" }, h("span", { class: `chip ${known.style}` }, visible(text)), ` ${known.name}`);
  const lines = h("div", {}, h("p", {}, `${known.text}.`));
  card.replaceChildren(title, lines, h("p", { class: "note" }, `Step ${index + 1}. Choose the token to see the step.`));
  card.hidden = false;
  position(card, token);
  if (!steps) return;
  let step = null;
  try {
    step = await steps.at(index);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
  }
  if (turn !== wanted || !step) return;
  const kept = step.candidates.filter((candidate) => candidate.kept)[place];
  if (isCandidate(origin) && kept) {
    lines.append(h("p", {}, `${numbersOf(kept)}, depth ${kept.depth}`), h("p", {}, reasonFor(kept, step)));
  } else {
    const last = step.tokens[place];
    if (last) lines.append(h("p", {}, `target p = ${percent(last.p)}; drawn with ${percent(last.drawn ?? last.p)}`));
  }
  position(card, token);
}

/** Below the token, or above it where there is no room. @param {HTMLElement} card @param {Element} token */
function position(card, token) {
  const box = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const size = card.getBoundingClientRect();
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - size.width - 8));
  const below = box.bottom + 8;
  const top = below + size.height > window.innerHeight - 8 ? Math.max(8, box.top - size.height - 8) : below;
  card.style.left = `${left}px`;
  card.style.top = `${top}px`;
}
