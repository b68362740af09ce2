/** The dialog that asks for an API key. */

import { getKey, setKey } from "./api.js";
import { byId } from "./dom.js";

/** @param {() => void} onChange called when another key is to be used */
export function setUpKey(onChange) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("key-dialog"));
  const input = /** @type {HTMLInputElement} */ (byId("key-input"));
  const text = byId("key-text");
  const usual = text.textContent ?? "";

  /** @param {string} [why] */
  function open(why) {
    if (dialog.open) return;
    text.textContent = why ? `${why} ${usual}` : usual;
    input.value = getKey();
    dialog.showModal();
    input.focus();
  }

  byId("key-button").addEventListener("click", () => open());
  byId("key-cancel").addEventListener("click", () => dialog.close());
  byId("key-form").addEventListener("submit", () => {
    setKey(input.value.trim());
    onChange();
  });
  document.addEventListener("key-wanted", (event) => open(/** @type {CustomEvent<string>} */ (event).detail));
}
