/** The exactness corner: a rule's output law, enumerated in the server, beside the target's. */

import { Problem, postJson } from "./api.js";
import { h, number, svg } from "./dom.js";

const EXAMPLE = { p: [0.4, 0.3, 0.3], q: [0.6, 0.3, 0.1] };
const EPSILON = 1e-9;

/** @typedef {{ exact: boolean, law: number[], acceptance: number, total_variation: number, ceiling: number | null }} Found */

export class Exactness {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    this.p = laws("Target p", EXAMPLE.p);
    this.q = laws("Draft q", EXAMPLE.q);
    this.draws = /** @type {HTMLInputElement} */ (h("input", { id: "draws", type: "number", min: 1, max: 4, value: 3 }));
    this.result = h("div", { class: "audit", role: "status" });
    this.started = false;
    element.replaceChildren(
      h("h2", {}, "Does the rule change the text's law?"),
      h("p", {}, "Three tokens. The target wants the first with p, the draft guesses them with q, and some candidates are drawn. " +
        "An exact rule gives every token back with exactly the target's probability, however wrong the draft is. " +
        "The server adds up every way the draws and tests can come out, with the verifiers it serves with; nothing is sampled."),
      h("form", { class: "audit-form", novalidate: true, submit: (/** @type {Event} */ event) => {
        event.preventDefault();
        void this.run();
      } },
        this.p.element, this.q.element,
        h("div", { class: "field" }, h("label", { for: "draws" }, "Candidates drawn"), this.draws),
        h("button", { type: "submit", class: "primary" }, "Add it up"),
        h("button", { type: "button", class: "quiet", click: () => this.reset() }, "The example again")),
      this.result,
      h("p", { class: "note" }, "The rule of the paper, as printed, chooses what it keeps for later by which token was refused, and so favours tokens that the target wants less. The proof, the rule and its audit over thousands of laws: docs/exactness.md, with the source."),
    );
  }

  /** Run once, when the corner is first looked at. */
  shown() {
    if (!this.started) void this.run();
  }

  reset() {
    this.p.set(EXAMPLE.p);
    this.q.set(EXAMPLE.q);
    this.draws.value = "3";
    void this.run();
  }

  async run() {
    this.started = true;
    const p = this.p.law();
    const q = this.q.law();
    if (!p || !q) {
      this.say("Each law needs a number of 0 or more for every token, not all of them 0.");
      return;
    }
    try {
      const found = await postJson("v1/audit", { p, q, tail_draws: this.draws.valueAsNumber });
      this.draw(p, found.verifiers);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.say(error.message);
      this.started = false;
    }
  }

  /** @param {string} text */
  say(text) {
    this.result.replaceChildren(h("p", { class: "problem" }, text));
  }

  /** @param {number[]} p @param {Record<string, Found>} found */
  draw(p, found) {
    const shown = ["resispec", "resispec-paper"].filter((name) => name in found);
    const charts = shown.map((name) => chart(name, p, found[name]));
    const rows = Object.entries(found).map(([name, one]) =>
      h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, one.exact ? "exact" : "not exact"),
        h("td", {}, one.total_variation < EPSILON ? "0" : number(one.total_variation, 3)),
        h("td", {}, number(one.acceptance, 3)), h("td", {}, one.ceiling === null ? "–" : number(one.ceiling, 3))));
    this.result.replaceChildren(
      h("ul", { class: "legend", "aria-label": "Bars" },
        h("li", {}, h("span", { class: "swatch wanted" }), " target"),
        h("li", {}, h("span", { class: "swatch got" }), " output, as the target wants it"),
        h("li", {}, h("span", { class: "swatch off" }), " output, off")),
      h("div", { class: "charts" }, ...charts),
      h("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "All verifiers" }, h("table", {},
        h("caption", {}, "All verifiers on this case: distance of the output from the target, share of candidates kept, and the most that any exact rule could keep"),
        h("thead", {}, h("tr", {}, ...["Verifier", "Says it is", "Distance", "Kept", "Ceiling"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...rows))),
    );
  }
}

/** @param {string} name @param {number[]} p @param {Found} found */
function chart(name, p, found) {
  const height = 150;
  const group = 100;
  const scale = height / Math.max(...p, ...found.law);
  const picture = svg("svg", {
    class: "bars", viewBox: `0 0 ${p.length * group} ${height + 52}`, role: "img",
    "aria-label": `${name}: ${p.map((value, token) => `token ${token}: target ${number(value, 3)}, output ${number(found.law[token], 3)}`).join("; ")}`,
  });
  p.forEach((value, token) => {
    const x = token * group + 20;
    const off = Math.abs(found.law[token] - value) > EPSILON;
    const bar = (/** @type {number} */ of, /** @type {number} */ from, /** @type {string} */ style, /** @type {number} */ digits) => {
      const top = 18 + height - of * scale;
      picture.append(
        svg("rect", { class: `bar ${style}`, x: from, y: top, width: 28, height: of * scale }),
        svg("text", { class: style, x: from + 14, y: top - 5, "text-anchor": "middle" }, of >= 1 ? "1" : number(of, digits).slice(1)),
      );
    };
    bar(value, x, "wanted", 3);
    bar(found.law[token], x + 32, off ? "got off" : "got", 3);
    picture.append(svg("text", { x: x + 30, y: height + 38, "text-anchor": "middle" }, `token ${token}`));
  });
  const exact = found.total_variation < EPSILON;
  return h("figure", { class: exact ? "exact" : "inexact" }, picture,
    h("figcaption", {}, h("strong", {}, name === "resispec" ? "resispec, the rule served here" : `${name}, as printed`),
      exact ? " The output has the target's law." : ` The output is off by ${number(found.total_variation, 3)} (total variation).`));
}

/** Three number fields that make up a law. @param {string} label @param {number[]} values */
function laws(label, values) {
  const inputs = values.map((value, token) => /** @type {HTMLInputElement} */ (
    h("input", { type: "number", min: 0, max: 1, step: "any", value, "aria-label": `${label}, token ${token}` })));
  return {
    element: h("fieldset", { class: "law" }, h("legend", {}, label), ...inputs),
    /** @param {number[]} next */
    set(next) {
      inputs.forEach((input, token) => (input.value = String(next[token])));
    },
    /** Normalised, or null for what is no law. */
    law() {
      const given = inputs.map((input) => input.valueAsNumber);
      const total = given.reduce((sum, value) => sum + value, 0);
      return given.every((value) => value >= 0) && total > 0 ? given.map((value) => value / total) : null;
    },
  };
}
