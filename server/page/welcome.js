/** What an empty conversation shows: what this is, and something to ask. */

import { h } from "./dom.js";

const IDEAS = [
  "Why is the sky blue? Answer in three sentences.",
  "Write a Python function that returns the first n prime numbers.",
  "Repeat this list three times: apple, pear, plum, cherry, fig.",
];

/** @param {(text: string) => void} onIdea */
export function welcome(onIdea) {
  return h(
    "div",
    { class: "welcome" },
    h("h2", {}, "See where every token comes from"),
    h("p", {}, "Ask something. Each token is marked by its origin: guessed by the small draft model and kept, or added by the target itself. Point at a token for its numbers, choose it for the tree it was picked from."),
    h("div", { class: "ideas" }, ...IDEAS.map((idea) => h("button", { type: "button", click: () => onIdea(idea) }, idea))),
  );
}
