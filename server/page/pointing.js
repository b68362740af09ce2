/** Pointing at tokens and choosing them, and the buttons below an answer. */

import { hideDetails, showDetails } from "./details.js";

/** The token an event is about. @param {import("./chat.js").Chat} chat @param {Event} event */
function tokenOf(chat, event) {
  const element = event.target instanceof Element ? event.target.closest("[data-index]") : null;
  const found = element && chat.find(element);
  if (!element || !found) return null;
  const index = Number(element.getAttribute("data-index"));
  const tokens = found.message.tokens ?? [];
  let place = 0;
  while (index - place > 0 && tokens[index - place - 1][2] === tokens[index][2]) place += 1;
  return { element, index, place, told: tokens[index], ...found };
}

/**
 * @param {{ list: HTMLElement, chat: import("./chat.js").Chat, inspector: import("./inspector.js").Inspector,
 *   race: import("./race.js").Race }} parts
 */
export function setUpTokens({ list, chat, inspector, race }) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const show = (/** @type {Event} */ event) => {
    const found = tokenOf(chat, event);
    if (found) void showDetails(found.element, found.told, found.place, found.steps);
  };
  const open = (/** @type {Event} */ event) => {
    const found = tokenOf(chat, event);
    if (!found?.steps) return;
    found.answer.select(found.index);
    chat.look(found.answer);
    void inspector.open(found.steps, found.told[2], found.message.tokens ?? []);
  };
  list.addEventListener("pointerover", (event) => {
    clearTimeout(timer);
    if (event.pointerType === "mouse") timer = setTimeout(() => (tokenOf(chat, event) ? show(event) : hideDetails()), 90);
  });
  list.addEventListener("pointerleave", () => {
    clearTimeout(timer);
    hideDetails();
  });
  list.addEventListener("scroll", hideDetails, { passive: true });
  list.addEventListener("focusout", hideDetails);
  list.addEventListener("token-shown", show);
  list.addEventListener("token-chosen", open);
  list.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("[data-action]") : null;
    if (!button) return open(event);
    if (button.getAttribute("data-action") === "retry") return void chat.retry();
    race.propose(chat.questionOf(button));
    location.hash = "race";
  });
}
