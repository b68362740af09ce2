/** Why a candidate was kept, refused or never looked at, in words. */

import { number, percent } from "./dom.js";

/** @typedef {import("./steps.js").Candidate} Candidate */
/** @typedef {import("./steps.js").Step} Step */

/** @param {Candidate} candidate @returns {"kept" | "refused" | "unreached"} */
export function outcomeOf(candidate) {
  if (candidate.kept) return "kept";
  return candidate.reached ? "refused" : "unreached";
}

export const MARKS = { kept: "✓", refused: "✕", unreached: "·" };
export const WORDS = { kept: "kept", refused: "refused", unreached: "not reached" };

/** @param {Candidate} candidate @param {Step} step */
export function reasonFor(candidate, step) {
  const outcome = outcomeOf(candidate);
  if (outcome === "unreached") return unreached(candidate, step);
  const chance = percent(candidate.accept);
  if (candidate.shared) {
    return outcome === "kept"
      ? `One draw decides between the chosen children and a correction. This one had a share of ${chance} of it, and the draw fell on it.`
      : `One draw decides between the chosen children and a correction. This one had a share of ${chance} of it; the draw fell elsewhere.`;
  }
  if (candidate.uniform === null) {
    return outcome === "kept"
      ? `Its own children decide: it had to accept with probability ${chance}, and below it something was accepted.`
      : `Its own children decide: it had to accept with probability ${chance}, but below it nothing was accepted.`;
  }
  const draw = number(candidate.uniform, 3);
  return outcome === "kept"
    ? `Its test keeps it with probability ${chance}. The random number was ${draw}, below that: kept.`
    : `Its test keeps it with probability ${chance}. The random number was ${draw}, not below that: refused.`;
}

/** The numbers behind the test. @param {Candidate} candidate */
export function numbersOf(candidate) {
  const parts = [`target p = ${percent(candidate.p)}`];
  if (candidate.draft !== null) parts.push(`draft ${percent(candidate.draft)}`);
  if (candidate.q !== null) {
    parts.push(`drawn with q = ${percent(candidate.q)}`);
    if (candidate.q > 0) parts.push(`p/q = ${number(candidate.p / candidate.q)}`);
  }
  if (candidate.threshold !== null) parts.push(`threshold t = ${number(candidate.threshold)}`);
  return parts.join(", ");
}

/** @param {Candidate} candidate @param {Step} step */
function unreached(candidate, step) {
  const parent = step.candidates.find((other) => other.slot === candidate.parent && !other.kept);
  const keptParent = step.candidates.some((other) => other.slot === candidate.parent && other.kept);
  if (parent && !keptParent) return "Never looked at: the candidate before it was not kept.";
  return "Its turn never came: a sibling was kept before it.";
}

/** One sentence about a step. @param {Step} step */
export function summaryOf(step) {
  const tokens = step.tokens.length;
  const forced = step.tokens.filter((token) => token.origin === "forced").length;
  const last = step.tokens[tokens - forced - 1];
  const behind = forced ? ` ${plural(forced, "token")} behind it could be no other.` : "";
  if (!step.candidates.length) return `A step without a tree: the target drew one token.${behind}`;
  const kept = step.candidates.filter((candidate) => candidate.kept).length;
  const candidates = plural(step.candidates.length, "candidate");
  const end = last.origin === "bonus" ? "then a bonus token" : "then a correction";
  const rest = last.origin === "bonus" || last.origin === "correction" ? `, ${end}` : ", where the answer ends";
  return `${candidates}, ${kept} kept${rest}: ${plural(tokens, "token")} for one run of the target.${behind}`;
}

/** @param {number} count @param {string} noun */
export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
