/** One side of a race: a clock, a text, and the figures of one request. */

import { Problem, streamChat } from "./api.js";
import { h, number } from "./dom.js";
import { originOf } from "./origins.js";

/** @typedef {{ text: string, ids: number[], tokens: number, seconds: number, perStep: number, problem: string | null }} Run */

export class Lane {
  /** @param {string} title */
  constructor(title) {
    this.clock = h("span", { class: "clock" }, "0.0 s");
    this.text = h("div", { class: "tokens lane-text", dir: "auto", tabindex: "0", role: "group", "aria-label": title });
    this.figures = h("p", { class: "figures" }, "waits");
    this.element = h("section", { class: "lane" }, h("h3", {}, title, this.clock), this.text, this.figures);
  }

  /**
   * Run a request. The clock runs from the first token to the last: the prompt is no part of the race.
   * @param {object} body
   * @param {AbortSignal} signal
   * @returns {Promise<Run>}
   */
  async run(body, signal) {
    this.text.replaceChildren();
    this.figures.textContent = "reads the prompt";
    /** @type {Run} */
    const run = { text: "", ids: [], tokens: 0, seconds: 0, perStep: 1, problem: null };
    let started = 0;
    const tick = setInterval(() => {
      if (started) this.clock.textContent = `${number((performance.now() - started) / 1000, 1)} s`;
    }, 50);
    try {
      for await (const chunk of streamChat(body, signal)) {
        started ||= chunk.choices[0]?.delta.content ? performance.now() : 0;
        this.take(run, chunk);
      }
    } catch (error) {
      run.problem = error instanceof Problem ? error.message : "stopped";
    } finally {
      clearInterval(tick);
    }
    this.finish(run);
    return run;
  }

  /** @param {Run} run @param {any} chunk */
  take(run, chunk) {
    const choice = chunk.choices[0];
    if (choice) {
      run.text += choice.delta.content ?? "";
      run.ids.push(...(choice.token_ids ?? []));
      if (choice.trace) {
        for (const { tokens } of choice.trace) {
          this.text.append(...tokens.map((/** @type {any} */ token) => h("span", { class: `token ${originOf(token.origin).style}` }, token.text)));
        }
      } else {
        this.text.append(choice.delta.content ?? "");
      }
      this.text.scrollTop = this.text.scrollHeight;
      this.figures.textContent = `${run.ids.length} tokens`;
    }
    if (chunk.metrics) {
      run.seconds = chunk.metrics.generation_time_ms / 1000;
      run.tokens = chunk.usage.completion_tokens;
      run.perStep = chunk.metrics.speculative_decoding?.num_spec_steps ? chunk.metrics.speculative_decoding.mean_acceptance_length : 1;
    }
  }

  /** @param {Run} run */
  finish(run) {
    if (run.problem !== null) {
      this.figures.textContent = run.problem;
      return;
    }
    this.clock.textContent = `${number(run.seconds, 2)} s`;
    this.figures.textContent =
      `${run.tokens} tokens, ${number(rate(run), 1)} a second, ${number(run.perStep)} a step`;
  }

  waits() {
    this.text.replaceChildren();
    this.clock.textContent = "0.0 s";
    this.figures.textContent = "waits for the other";
  }
}

/** Tokens a second after the first. @param {Run} run */
export function rate(run) {
  return run.seconds > 0 ? (run.tokens - 1) / run.seconds : 0;
}
