/** An answer's record: what its chunks add to it, and its figures in words. */

import { number } from "./dom.js";
import { plural } from "./reasons.js";

/** @typedef {import("./state.js").Message} Message */

/** Returns the origins of the tokens that came. @param {Message} message @param {any} chunk @returns {string[]} */
export function take(message, chunk) {
  message.requestId = chunk.id;
  /** @type {[string, string, number][]} */
  const fresh = [];
  const choice = chunk.choices[0];
  if (choice) {
    message.text += choice.delta.content ?? "";
    for (const { step, tokens } of choice.trace ?? []) {
      for (const token of tokens) fresh.push([token.text, token.origin, step]);
    }
    message.tokens?.push(...fresh);
    if (choice.finish_reason === "length") message.note = "Cut off: the longest answer, or the context, is reached.";
    if (choice.finish_reason === "abort") message.note = "The server ended this answer early.";
  }
  if (chunk.metrics) message.figures = { ...chunk.metrics, tokens: chunk.usage?.completion_tokens };
  return fresh.map(([, origin]) => origin);
}

/** @param {Message} message */
export function figuresText(message) {
  const figures = /** @type {any} */ (message.figures);
  if (!figures) return "";
  const parts = [`${plural(figures.tokens ?? 0, "token")}, ${number(figures.tokens_per_second, 1)} a second`];
  const speculation = figures.speculative_decoding;
  if (speculation?.num_spec_steps) {
    parts.push(`${number(speculation.mean_acceptance_length)} a speculative step`);
    parts.push(speculation.exact ? `${speculation.verifier}, exact` : `${speculation.verifier}, not exact`);
    if (speculation.speedup) parts.push(`×${number(speculation.speedup)} measured`);
  } else {
    parts.push("without speculation");
  }
  return parts.join(" · ");
}
