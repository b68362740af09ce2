/** What an answer is made of: a bar with a share for every origin. */

import { h } from "./dom.js";
import { originOf } from "./origins.js";
import { plural } from "./reasons.js";

/** @param {[string, string, number][]} tokens text, origin, step */
export function composition(tokens) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const [, origin] of tokens) counts.set(origin, (counts.get(origin) ?? 0) + 1);
  const parts = [...counts].sort(([, a], [, b]) => b - a);
  const steps = (tokens.at(-1)?.[2] ?? -1) + 1;
  const bar = h("div", { class: "share-bar", "aria-hidden": "true" }, ...parts.map(([origin, count]) => {
    const part = h("span", { class: `share ${originOf(origin).style}` });
    part.style.flexGrow = String(count);
    return part;
  }));
  const words = parts.map(([origin, count]) => h("li", {}, h("span", { class: `token ${originOf(origin).style}` }, originOf(origin).name), ` ${count}`));
  return h("div", { class: "composition" },
    h("p", { class: "summary" }, `${plural(tokens.length, "token")} in ${plural(steps, "run")} of the target`),
    bar,
    h("ul", { class: "legend" }, ...words));
}
