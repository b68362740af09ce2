/** What the marks mean. Only origins that have been seen are listed. */

import { h } from "./dom.js";
import { originOf } from "./origins.js";

export class Legend {
  constructor() {
    this.element = h("ul", { class: "legend", "aria-label": "Where tokens come from" });
    /** @type {Set<string>} */
    this.seen = new Set();
  }

  /** @param {string} origin */
  see(origin) {
    if (this.seen.has(origin)) return;
    this.seen.add(origin);
    const known = originOf(origin);
    this.element.append(h("li", {}, h("span", { class: `token ${known.style}` }, known.name), h("span", { class: "hidden" }, `: ${known.text}`)));
  }
}
