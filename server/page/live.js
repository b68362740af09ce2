/** The strip at the bottom: what the whole server does right now, out of its metrics. */

import { getText } from "./api.js";
import { byId, h, number } from "./dom.js";

const EVERY = 3000; // milliseconds

/** @type {[string, string][]} */
const FIGURES = [
  ["running", "Requests running"],
  ["waiting", "Waiting"],
  ["rate", "Tokens a second"],
  ["length", "Tokens a speculative step"],
  ["speedup", "Speedup, measured"],
];

/** Sums of samples by metric name. @param {string} text */
export function sums(text) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^resispec_([a-z_]+)(?:\{.*\})? (\S+)$/.exec(line);
    if (match) found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[2]));
  }
  return found;
}

/** @param {() => void} onAway called when the server does not answer */
export function watchServer(onAway) {
  const cells = new Map(FIGURES.map(([name]) => [name, h("dd", {}, "–")]));
  byId("live").replaceChildren(
    ...FIGURES.map(([name, label]) => h("div", { class: `figure ${name}`, hidden: name === "speedup" }, h("dt", {}, label), /** @type {HTMLElement} */ (cells.get(name)))),
  );
  /** @type {{ at: number, values: Map<string, number> } | null} */
  let before = null;

  async function look() {
    if (document.hidden) return;
    let values;
    try {
      values = sums(await getText("metrics"));
    } catch {
      onAway();
      return;
    }
    const now = { at: performance.now(), values };
    if (before) draw(before, now);
    before = now;
  }

  /** @param {{ at: number, values: Map<string, number> }} from @param {{ at: number, values: Map<string, number> }} to */
  function draw(from, to) {
    const grown = (/** @type {string} */ name) => Math.max(0, (to.values.get(name) ?? 0) - (from.values.get(name) ?? 0));
    put("running", String(to.values.get("num_requests_running") ?? 0));
    put("waiting", String(to.values.get("num_requests_waiting") ?? 0));
    put("rate", number((1000 * grown("generation_tokens_total")) / (to.at - from.at), 1));
    const steps = grown("acceptance_length_count");
    if (steps) put("length", number(grown("acceptance_length_sum") / steps));
    const measured = grown("request_speedup_count");
    if (measured) put("speedup", `×${number(grown("request_speedup_sum") / measured)}`);
  }

  /** @param {string} name @param {string} text */
  function put(name, text) {
    const cell = /** @type {HTMLElement} */ (cells.get(name));
    cell.textContent = text;
    /** @type {HTMLElement} */ (cell.parentElement).hidden = false;
  }

  void look();
  setInterval(look, EVERY);
  document.addEventListener("visibilitychange", () => void look());
}
