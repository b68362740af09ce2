/** The conversation: asking, streaming, stopping, trying again. */

import { Problem, streamChat } from "./api.js";
import { Answer } from "./answer.js";
import { h } from "./dom.js";
import { figuresText, take } from "./message.js";
import { loadConversation, requestFields, saveConversation } from "./state.js";
import { Steps } from "./steps.js";
import { welcome } from "./welcome.js";

/** @typedef {import("./state.js").Message} Message */
/** @typedef {{ answer: Answer, steps: Steps | null }} Shown */

const SAVE_EVERY = 700; // milliseconds, while an answer comes

export class Chat {
  /**
   * @param {{ list: HTMLElement, settings: import("./state.js").Settings, drafted: () => boolean,
   *   traced: () => boolean, onBusy: (busy: boolean) => void, onAway: () => void,
   *   onOrigin: (origin: string) => void,
   *   onAnswer: (answer: Answer, steps: Steps, tokens: [string, string, number][]) => void }} parts
   */
  constructor(parts) {
    this.parts = parts;
    this.messages = loadConversation();
    /** @type {Map<Message, Shown>} */
    this.shown = new Map();
    /** @type {AbortController | null} */
    this.running = null;
    this.saved = 0;
    /** @type {Answer | null} */
    this.looked = null;
    for (const message of this.messages) {
      if (message.running) {
        message.running = false;
        message.note = "The page was closed before this answer was complete.";
      }
      this.show(message);
    }
    this.greet();
    this.parts.list.addEventListener("grown", () => this.follow());
    // A page that is left tears its streams down: that is no fault of theirs.
    this.leaving = false;
    window.addEventListener("beforeunload", () => (this.leaving = true));
    window.addEventListener("pageshow", () => (this.leaving = false));
    window.addEventListener("pagehide", () => this.save());
    this.follow(true);
  }

  /** @param {string} text */
  async ask(text) {
    this.add({ role: "user", text });
    await this.answer();
  }

  /** Throw the last answer away and ask for another. */
  async retry() {
    if (this.running) return;
    const last = this.messages.at(-1);
    if (last?.role === "assistant") {
      this.messages.pop();
      this.shown.get(last)?.answer.element.remove();
      this.shown.delete(last);
    }
    await this.answer();
  }

  /** What stands in an empty conversation. */
  greet() {
    if (this.messages.length === 0) this.parts.list.append(welcome((idea) => void this.ask(idea)));
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.shown.clear();
    this.parts.list.replaceChildren();
    this.greet();
    this.save();
  }

  async answer() {
    const history = this.messages.filter((message) => message.text !== "").map(({ role, text }) => ({ role, content: text }));
    const { settings } = this.parts;
    if (settings.system) history.unshift(/** @type {any} */ ({ role: "system", content: settings.system }));
    const fields = requestFields(settings, this.parts.drafted());
    if (!this.parts.traced()) delete (/** @type {any} */ (fields.speculation).trace);
    /** @type {Message} */
    const message = { role: "assistant", text: "", tokens: [], running: true };
    this.add(message);
    this.follow(true);
    const { answer } = /** @type {Shown} */ (this.shown.get(message));
    const control = new AbortController();
    this.running = control;
    this.parts.onBusy(true);
    try {
      const body = { messages: history, stream_options: { include_usage: true }, ...fields };
      for await (const chunk of streamChat(body, control.signal)) {
        for (const origin of take(message, chunk)) this.parts.onOrigin(origin);
        answer.update();
        this.saveSometimes();
      }
    } catch (error) {
      if (this.leaving) return;
      this.explain(message, error);
    } finally {
      message.running = this.leaving;
      this.running = null;
      answer.draw();
      this.finish(message);
      this.save();
      this.follow();
      this.parts.onBusy(false);
      const found = this.find(answer.element);
      if (found?.steps) this.parts.onAnswer(answer, found.steps, message.tokens ?? []);
    }
  }

  /** @param {Message} message @param {unknown} error */
  explain(message, error) {
    if (error instanceof DOMException && error.name === "AbortError") {
      message.note = "Stopped.";
    } else if (error instanceof Problem) {
      message.problem = error.message;
      if (error.status === 0) this.parts.onAway();
    } else {
      message.problem = "This page failed to read the answer.";
      console.warn(error);
    }
  }

  /** @param {Message} message */
  add(message) {
    this.parts.list.querySelector(".welcome")?.remove();
    this.messages.push(message);
    this.show(message);
    this.save();
  }

  /** @param {Message} message */
  show(message) {
    if (message.role === "user") {
      this.parts.list.append(h("article", { class: "message user", dir: "auto", "aria-label": "You" }, message.text));
      return;
    }
    this.shown.set(message, { answer: new Answer(message), steps: null });
    this.parts.list.append(/** @type {Shown} */ (this.shown.get(message)).answer.element);
    for (const [, origin] of message.tokens ?? []) this.parts.onOrigin(origin);
    if (!message.running) this.finish(message);
  }

  /** The answer whose steps are looked at. @param {Answer} answer */
  look(answer) {
    this.looked = answer;
  }

  /** Mark the tokens of a step in the answer that is looked at. @param {number} index */
  markStep(index) {
    this.looked?.markStep(index);
  }

  /** What was asked before an answer. @param {Element} element within the answer */
  questionOf(element) {
    const place = this.messages.findIndex((message) => this.shown.get(message)?.answer.element.contains(element));
    return this.messages.slice(0, place).findLast((message) => message.role === "user")?.text ?? "";
  }

  /** Figures and buttons below an answer that has ended. @param {Message} message */
  finish(message) {
    const { answer } = /** @type {Shown} */ (this.shown.get(message));
    const figures = figuresText(message);
    answer.actions.replaceChildren(
      h("span", { class: "figures" }, figures),
      h("button", { type: "button", class: "quiet", "data-action": "retry" }, "Retry"),
      h("button", { type: "button", class: "quiet", "data-action": "race" }, "Race it"),
    );
    const last = this.messages.at(-1) === message;
    answer.element.classList.toggle("last", last);
    for (const [other, { answer: shown }] of this.shown) {
      if (other !== message) shown.element.classList.remove("last");
    }
  }

  /** The answer, message and steps behind an element on the page. @param {Element} element */
  find(element) {
    for (const [message, shown] of this.shown) {
      if (!shown.answer.element.contains(element)) continue;
      const traced = message.tokens?.length && message.requestId;
      if (!shown.steps && traced) shown.steps = new Steps(/** @type {string} */ (message.requestId));
      return { message, ...shown };
    }
    return null;
  }

  /** Keep the end in view, unless the reader has scrolled up. */
  follow(always = false) {
    const { list } = this.parts;
    const near = list.scrollHeight - list.scrollTop - list.clientHeight < 160;
    if (always || near) list.scrollTop = list.scrollHeight;
  }

  saveSometimes() {
    if (performance.now() - this.saved > SAVE_EVERY) this.save();
  }

  save() {
    this.saved = performance.now();
    saveConversation(this.messages);
  }
}
