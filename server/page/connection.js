/** Says when the server is away, and when it is back. */

import { byId } from "./dom.js";

const FIRST_WAIT = 1000; // milliseconds; doubled after every try
const LONGEST_WAIT = 15000;

let away = false;

/** Look for the server until it takes requests again; `onBack` is then called. @param {() => void} onBack */
export function serverAway(onBack) {
  if (away) return;
  away = true;
  show("The server cannot be reached. Your conversation is safe; looking for it …");
  void look(FIRST_WAIT, onBack);
}

/** @param {number} wait @param {() => void} onBack */
async function look(wait, onBack) {
  await new Promise((resolve) => setTimeout(resolve, wait));
  let answer = null;
  try {
    answer = await fetch(new URL("ready", document.baseURI), { cache: "no-store" });
  } catch {
    // Still away.
  }
  if (answer?.ok) {
    away = false;
    show("The server is back.");
    setTimeout(() => away || show(""), 4000);
    onBack();
    return;
  }
  if (answer) show("The server is starting or shutting down; waiting for it …");
  await look(Math.min(LONGEST_WAIT, wait * 2), onBack);
}

/** @param {string} text empty: nothing */
function show(text) {
  const banner = byId("connection");
  banner.textContent = text;
  banner.hidden = text === "";
}
