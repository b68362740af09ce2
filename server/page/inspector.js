/** The panel beside the chat: an answer's figures, and its steps one by one. */

import { Problem } from "./api.js";
import { composition } from "./composition.js";
import { h, percent, say, share, visible } from "./dom.js";
import { originOf } from "./origins.js";
import { MARKS, WORDS, numbersOf, outcomeOf, plural, reasonFor, summaryOf } from "./reasons.js";
import { EXAMPLE } from "./example.js";
import { drawTree } from "./tree.js";

/** @typedef {import("./steps.js").Steps} Steps */
/** @typedef {import("./steps.js").Step} Step */
/** @typedef {import("./steps.js").Candidate} Candidate */

export class Inspector {
  /** @param {HTMLElement} element @param {(index: number) => void} onStep told which step is shown */
  constructor(element, onStep) {
    this.element = element;
    this.onStep = onStep;
    /** @type {Steps | null} */
    this.steps = null;
    this.index = 0;
    this.previous = h("button", { type: "button", class: "quiet", "aria-label": "Previous step", click: () => this.go(-1) }, "←");
    this.next = h("button", { type: "button", class: "quiet", "aria-label": "Next step", click: () => this.go(1) }, "→");
    this.slider = /** @type {HTMLInputElement} */ (
      h("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Step", input: () => this.show(this.slider.valueAsNumber - 1) })
    );
    this.title = h("h2", { class: "step-title" });
    this.content = h("div", { class: "step" });
    this.whole = h("div", { class: "whole" });
    this.empty();
  }

  empty() {
    this.steps = null;
    this.element.classList.add("empty");
    this.element.replaceChildren(
      h("h2", {}, "How an answer is made"),
      h("p", {}, "A small draft model guesses a tree of tokens. The target looks at all of them in one run, keeps a path, and adds one token of its own. The text has the law of the target alone; it only takes fewer runs."),
      h("div", { class: "tree-scroll", tabindex: "0", role: "group", "aria-label": "An example" }, drawTree(EXAMPLE, " sky is", () => {})),
      h("p", { class: "note" }, "An example: four guesses, two kept, and one more token from the target. Three tokens for one run."),
      h("p", { class: "note" }, "Ask something, then point at a token, or choose it, to see where it came from."),
    );
  }

  /**
   * @param {Steps} steps
   * @param {number} index
   * @param {[string, string, number][]} tokens of the whole answer: text, origin, step
   */
  async open(steps, index, tokens) {
    this.whole.replaceChildren(composition(tokens));
    if (this.steps !== steps) {
      this.steps = steps;
      const controls = h("div", { class: "step-controls" }, this.previous, this.slider, this.next);
      this.element.classList.remove("empty");
      this.element.replaceChildren(this.whole, this.title, controls, this.content);
    }
    await this.show(index);
  }

  /** @param {number} by */
  go(by) {
    void this.show(this.index + by);
  }

  /** @param {number} index */
  async show(index) {
    const steps = this.steps;
    if (!steps) return;
    this.index = Math.max(0, index);
    let step = null;
    let trouble = "The server has forgotten this step. It keeps the latest answers only, until it is restarted.";
    try {
      step = await steps.at(this.index);
      if (step === null && steps.count > 0 && this.index >= steps.count) return void this.show(steps.count - 1);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (error.status !== 404) trouble = error.message;
    }
    if (this.steps !== steps || this.index !== Math.max(0, index)) return; // somebody went on meanwhile
    this.slider.max = String(Math.max(steps.count, this.index + 1));
    this.slider.value = String(this.index + 1);
    this.title.textContent = `Step ${this.index + 1} of ${Math.max(steps.count, this.index + 1)}`;
    if (step === null) {
      this.content.replaceChildren(h("p", { class: "problem" }, trouble));
      return;
    }
    const before = this.index > 0 ? await steps.at(this.index - 1).catch(() => null) : null;
    if (this.steps !== steps || step.index !== this.index) return;
    this.draw(step, before?.tokens.at(-1)?.text ?? "…");
    this.onStep(this.index);
  }

  /** @param {Step} step @param {string} rootText */
  draw(step, rootText) {
    const tree = drawTree(step, rootText, (candidate) => this.pick(step, candidate));
    this.reason = h("p", { class: "reason" });
    const parts = [h("p", { class: "summary" }, summaryOf(step))];
    if (step.candidates.length) {
      parts.push(h("div", { class: "tree-scroll", tabindex: "0", role: "group", "aria-label": "Tree" }, tree), this.reason, this.table(step));
    }
    const last = step.tokens.at(-1);
    if (last && last.drawn !== null) parts.push(h("p", { class: "note" }, this.lastText(last)));
    this.content.replaceChildren(...parts);
    const first = step.candidates.find((candidate) => candidate.kept) ?? step.candidates[0];
    if (first) this.pick(step, first, false);
  }

  /** @param {import("./steps.js").Token} last */
  lastText(last) {
    return `The last token, ${visible(last.text)}, is a ${originOf(last.origin).name}: the target gives it ${percent(last.p)}; ` +
      `in the law it was drawn from it had ${percent(last.drawn ?? 0)}.`;
  }

  /** @param {Step} step @param {Candidate} candidate */
  pick(step, candidate, aloud = true) {
    const key = `${candidate.parent}/${candidate.child}`;
    for (const marked of this.content.querySelectorAll("[data-key]")) {
      marked.classList.toggle("picked", marked.getAttribute("data-key") === key);
    }
    const words = `${visible(candidate.text)} (${originOf(candidate.origin).name}): ${reasonFor(candidate, step)}`;
    this.reason?.replaceChildren(h("strong", {}, words), h("span", { class: "numbers" }, numbersOf(candidate)));
    if (aloud) say(words);
  }

  /** @param {Step} step */
  table(step) {
    const head = ["Token", "Depth", "From", "Target", "Draft", "Accept", "Outcome"];
    const rows = step.candidates.map((candidate) => {
      const outcome = outcomeOf(candidate);
      const choose = h("button", { type: "button", class: "cell", click: () => this.pick(step, candidate) }, visible(candidate.text));
      const cells = [
        String(candidate.depth),
        originOf(candidate.origin).name,
        share(candidate.p),
        candidate.draft === null ? "–" : share(candidate.draft),
        share(candidate.accept),
        `${MARKS[outcome]} ${WORDS[outcome]}`,
      ];
      const key = `${candidate.parent}/${candidate.child}`;
      return h("tr", { class: outcome, "data-key": key }, h("th", { scope: "row" }, choose), ...cells.map((cell) => h("td", {}, cell)));
    });
    return h(
      "div",
      { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Candidates" },
      h("table", {},
        h("caption", {}, plural(step.candidates.length, "candidate")),
        h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, ...rows)),
    );
  }
}
