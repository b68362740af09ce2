/** The same prompt without and with speculation, both timed. */

import { h, number, say } from "./dom.js";
import { Lane, rate } from "./lane.js";
import { requestFields } from "./state.js";

/** @typedef {import("./lane.js").Run} Run */

const TOKENS = 96; // unless the settings have another limit
const PROMPT = "Explain in a few sentences why the sky is blue.";

export class Race {
  /** @param {HTMLElement} element @param {import("./state.js").Settings} settings @param {{ drafted: () => boolean, traced: () => boolean }} parts */
  constructor(element, settings, parts) {
    this.settings = settings;
    this.parts = parts;
    this.plain = new Lane("Without speculation");
    this.drafted = new Lane("With speculation");
    this.prompt = /** @type {HTMLTextAreaElement} */ (h("textarea", { id: "race-prompt", rows: 2, dir: "auto" }));
    this.prompt.value = PROMPT;
    this.together = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", id: "race-together" }));
    this.button = h("button", { type: "submit", class: "primary" }, "Start the race");
    this.result = h("div", { class: "result", role: "status" });
    /** @type {number[]} */
    this.ratios = [];
    this.plainFirst = false;
    /** @type {AbortController | null} */
    this.running = null;
    this.element = element;
    this.lay();
  }

  lay() {
    const form = h("form", { class: "race-form", submit: (/** @type {Event} */ event) => {
      event.preventDefault();
      if (this.running) this.running.abort();
      else void this.start();
    } },
      h("label", { for: "race-prompt" }, "Prompt"), this.prompt,
      h("div", { class: "composer-row" },
        h("label", { class: "inline", for: "race-together" }, this.together, " both at once"), this.button));
    this.element.replaceChildren(
      h("h2", {}, "The same prompt, without and with speculation"),
      h("p", { class: "note" },
        "One runs after the other, so that each has the machine for itself; who goes first changes with every race. Both at once share the machine, and both are slower for it. " +
        "Neither finds the prompt in the cache. The clock runs from the first token to the last. Sampling follows the settings of the chat; temperature 0, unless they say otherwise."),
      form,
      h("div", { class: "lanes" }, this.plain.element, this.drafted.element),
      this.result,
    );
  }

  /** @param {string} prompt */
  propose(prompt) {
    this.prompt.value = prompt;
  }

  async start() {
    if (!this.parts.drafted()) {
      this.result.replaceChildren(h("p", { class: "problem" }, "This server runs without a draft, so there is nothing to race."));
      return;
    }
    this.running = new AbortController();
    this.button.textContent = "Stop";
    this.result.replaceChildren();
    const { signal } = this.running;
    const plain = () => this.plain.run(this.body(false), signal);
    const drafted = () => this.drafted.run(this.body(true), signal);
    let runs;
    if (this.together.checked) {
      runs = await Promise.all([plain(), drafted()]);
    } else {
      this.plainFirst = !this.plainFirst;
      (this.plainFirst ? this.drafted : this.plain).waits();
      const first = await (this.plainFirst ? plain : drafted)();
      const second = first.problem === null ? await (this.plainFirst ? drafted : plain)() : first;
      runs = this.plainFirst ? [first, second] : [second, first];
    }
    this.running = null;
    this.button.textContent = "Race again";
    this.tell(runs[0], runs[1]);
  }

  /** @param {boolean} enabled */
  body(enabled) {
    const fields = /** @type {any} */ (requestFields({ ...this.settings, mode: enabled ? drafting(this.settings.mode) : "off" }, true));
    if (!this.parts.traced()) delete fields.speculation.trace;
    const messages = [{ role: "user", content: this.prompt.value }];
    if (this.settings.system) messages.unshift({ role: "system", content: this.settings.system });
    return {
      temperature: 0,
      seed: 1,
      max_tokens: TOKENS,
      ...fields,
      messages,
      return_token_ids: true,
      stream_options: { include_usage: true },
      cache_salt: crypto.getRandomValues(new Uint32Array(4)).join("-"),
    };
  }

  /** @param {Run} plain @param {Run} drafted */
  tell(plain, drafted) {
    const problem = plain.problem ?? drafted.problem;
    if (problem !== null) {
      this.result.replaceChildren(h("p", { class: "problem" }, problem === "stopped" ? "Stopped." : problem));
      return;
    }
    const ratio = rate(plain) > 0 ? rate(drafted) / rate(plain) : 0;
    this.ratios.push(ratio);
    const same = plain.ids.length === drafted.ids.length && plain.ids.every((id, place) => id === drafted.ids[place]);
    const greedy = (this.settings.temperature ?? 0) === 0;
    const order = this.together.checked
      ? "Both ran at once and shared the machine."
      : `${this.plainFirst ? "Plain decoding" : "Speculation"} went first.`;
    const lines = [
      h("p", { class: "headline" }, `×${number(ratio)}`, h("span", {}, ` ${ratio >= 1 ? "as fast" : "as fast: slower here"} with speculation, at ${number(drafted.perStep)} tokens a step`)),
      h("p", {}, greedy ? equality(plain, drafted, same) : "Sampled answers differ from run to run; with an exact verifier both follow the target's law."),
      h("p", { class: "note" }, order),
    ];
    if (this.ratios.length > 1) {
      const all = this.ratios.map((value) => `×${number(value)}`).join(", ");
      lines.push(h("p", { class: "note" }, `Races so far: ${all}. A machine with other work makes them differ.`));
    }
    this.result.replaceChildren(...lines);
    say(`${number(ratio)} times as fast. ${greedy ? (same ? "Equal texts." : "Different texts.") : ""}`);
  }
}

/** The mode of the lane that speculates. @param {string} mode */
function drafting(mode) {
  return mode === "off" ? "auto" : mode;
}

/** @param {Run} plain @param {Run} drafted @param {boolean} same */
function equality(plain, drafted, same) {
  if (same) return `The texts are equal, all ${plain.ids.length} tokens.`;
  const place = plain.ids.findIndex((id, index) => id !== drafted.ids[index]);
  return `The texts part at token ${(place < 0 ? drafted.ids.length : place) + 1}. In half precision a near tie may fall either way when rows are computed together; in float32 they are equal.`;
}
