/** One answer on the page: its tokens as they come, each with the mark of its origin. */

import { byId, h, say, visible } from "./dom.js";
import { originOf } from "./origins.js";

/** @typedef {import("./state.js").Message} Message */

export class Answer {
  /** @param {Message} message */
  constructor(message) {
    this.message = message;
    this.body = h("div", {
      class: "tokens",
      dir: "auto",
      tabindex: "0",
      role: "group",
      "aria-label": "Answer. Arrow keys go from token to token, Enter shows the step of one.",
    });
    this.note = h("p", { class: "answer-note" });
    this.actions = h("div", { class: "answer-actions" });
    this.element = h("article", { class: "message assistant" }, this.body, this.note, this.actions);
    this.index = 0; // tokens shown
    this.length = 0; // characters shown
    this.current = -1;
    this.waiting = false;
    this.body.addEventListener("keydown", (event) => this.onKey(event));
    this.draw();
  }

  /** Show what is new with the next frame. */
  update() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
      this.body.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
    });
  }

  draw() {
    const { text, running } = this.message;
    const tokens = this.message.tokens ?? [];
    const fresh = document.createDocumentFragment();
    // The text may lag behind its tokens while it could still turn out to be a stop string.
    while (this.index < tokens.length) {
      const piece = tokens[this.index][0];
      const left = text.length - this.length;
      if (piece.length > left && running) break;
      fresh.append(this.token(this.index, piece.slice(0, Math.max(0, left))));
      this.index += 1;
      this.length += Math.min(piece.length, Math.max(0, left));
    }
    if (this.length < text.length && (!running || tokens.length === 0)) {
      fresh.append(text.slice(this.length));
      this.length = text.length;
    }
    this.body.append(fresh);
    this.element.classList.toggle("running", Boolean(running));
    this.note.textContent = this.message.problem ?? this.message.note ?? "";
    this.note.classList.toggle("problem", Boolean(this.message.problem));
  }

  /** @param {number} index @param {string} text */
  token(index, text) {
    const origin = originOf((this.message.tokens ?? [])[index][1]);
    return h("span", { class: `token ${origin.style}`, "data-index": index }, text);
  }

  /** @param {number} index @returns {HTMLElement | null} */
  tokenElement(index) {
    return this.body.querySelector(`[data-index="${index}"]`);
  }

  /** @param {number} index -1: none */
  select(index) {
    this.tokenElement(this.current)?.classList.remove("current");
    this.current = index;
    const element = this.tokenElement(index);
    if (!element) return;
    element.classList.add("current");
    element.scrollIntoView({ block: "nearest" });
  }

  /** Mark all tokens of a step. @param {number} step */
  markStep(step) {
    for (const marked of this.body.querySelectorAll(".in-step")) marked.classList.remove("in-step");
    (this.message.tokens ?? []).forEach(([, , own], index) => {
      if (own === step) this.tokenElement(index)?.classList.add("in-step");
    });
    this.body.querySelector(".in-step")?.scrollIntoView({ block: "nearest" });
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    const count = this.index;
    const forward = getComputedStyle(this.body).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const backward = forward === "ArrowLeft" ? "ArrowRight" : "ArrowLeft";
    const places = { [forward]: this.current + 1, [backward]: this.current - 1, Home: 0, End: count - 1 };
    if (event.key in places && count > 0) {
      event.preventDefault();
      this.select(Math.min(count - 1, Math.max(0, places[event.key])));
      const [text, origin] = (this.message.tokens ?? [])[this.current];
      say(`${visible(text)}: ${originOf(origin).name}`);
      this.tell("token-shown");
    } else if (event.key === "Enter" && this.current >= 0) {
      this.tell("token-chosen");
    } else if (event.key === "Escape") {
      this.select(-1);
      byId("details").hidden = true;
    }
  }

  /** @param {string} name */
  tell(name) {
    this.tokenElement(this.current)?.dispatchEvent(new CustomEvent(name, { bubbles: true }));
  }
}
