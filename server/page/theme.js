/** Light, dark, or as the system has it. */

import { byId, say } from "./dom.js";

const NAME = "resispec.theme";
const CHOICES = ["", "light", "dark"];
const WORDS = ["as your system", "light", "dark"];

export function setUpTheme() {
  let choice = CHOICES.indexOf(localStorage.getItem(NAME) ?? "");
  const apply = () => {
    choice = Math.max(0, choice);
    document.documentElement.dataset.theme = CHOICES[choice];
    byId("theme-button").title = `Colours: ${WORDS[choice]}`;
  };
  byId("theme-button").addEventListener("click", () => {
    choice = (choice + 1) % CHOICES.length;
    localStorage.setItem(NAME, CHOICES[choice]);
    apply();
    say(`Colours: ${WORDS[choice]}`);
  });
  apply();
}
