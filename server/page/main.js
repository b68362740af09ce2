/** Puts the page together. */

import { Problem, getJson } from "./api.js";
import { Chat } from "./chat.js";
import { serverAway } from "./connection.js";
import { hideDetails } from "./details.js";
import { byId } from "./dom.js";
import { Exactness } from "./exactness.js";
import { Inspector } from "./inspector.js";
import { setUpKey } from "./keys.js";
import { Legend } from "./legend.js";
import { watchServer } from "./live.js";
import { setUpTokens } from "./pointing.js";
import { Race } from "./race.js";
import { drawSettings } from "./settings.js";
import { loadSettings } from "./state.js";
import { setUpTheme } from "./theme.js";

const VIEWS = ["chat", "race", "exactness"];
const settings = loadSettings();
/** @type {any} */
let model = null;

const drafted = () => model === null || model.speculation !== null;
const traced = () => model === null || model.traces;
const away = () => serverAway(() => void loadModel());
const prompt = /** @type {HTMLTextAreaElement} */ (byId("prompt"));
const legend = new Legend();
const chat = new Chat({
  list: byId("messages"), settings, drafted, traced, onAway: away,
  onBusy: (busy) => {
    byId("send-button").textContent = busy ? "Stop" : "Send";
    byId("send-button").classList.toggle("stop", busy);
  },
  onOrigin: (origin) => legend.see(origin),
  onAnswer: (answer, steps, tokens) => {
    // The first time, show what there is to see: the step that gave the most.
    if (inspector.steps || !window.matchMedia("(min-width: 981px)").matches) return;
    chat.look(answer);
    void inspector.open(steps, bestStep(tokens), tokens);
  },
});
const inspector = new Inspector(byId("inspector"), (index) => chat.markStep(index));
const race = new Race(byId("race"), settings, { drafted, traced });
const exactness = new Exactness(byId("exactness"));

/** The step with the most tokens. @param {[string, string, number][]} tokens */
function bestStep(tokens) {
  const counts = new Map();
  for (const [, , step] of tokens) counts.set(step, (counts.get(step) ?? 0) + 1);
  return [...counts].sort(([, a], [, b]) => b - a)[0][0];
}

async function loadModel() {
  try {
    model = (await getJson("v1/models")).data[0];
  } catch (error) {
    if (error instanceof Problem && error.status === 0) away();
    return;
  }
  byId("model").textContent = model.id;
  drawSettings(byId("settings"), settings, model.speculation, model.generation_defaults);
}

function showView() {
  const wanted = location.hash.slice(1);
  const view = VIEWS.includes(wanted) ? wanted : "chat";
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    const link = document.querySelector(`.views a[href="#${name}"]`);
    if (name === view) link?.setAttribute("aria-current", "page");
    else link?.removeAttribute("aria-current");
  }
  hideDetails();
  if (view === "exactness") exactness.shown();
}

function setUpComposer() {
  const grow = () => {
    prompt.style.height = "auto";
    prompt.style.height = `${Math.min(prompt.scrollHeight, 200)}px`;
  };
  prompt.addEventListener("input", grow);
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      /** @type {HTMLFormElement} */ (byId("composer")).requestSubmit();
    }
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    if (chat.running) return chat.stop();
    const text = prompt.value.trim();
    if (!text) return;
    prompt.value = "";
    grow();
    void chat.ask(text);
  });
  byId("clear-button").addEventListener("click", () => {
    chat.clear();
    inspector.empty();
    prompt.focus();
  });
  byId("settings-button").addEventListener("click", () => {
    const panel = byId("settings");
    panel.hidden = !panel.hidden;
    byId("settings-button").setAttribute("aria-expanded", String(!panel.hidden));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") chat.stop();
  });
}

setUpTheme();
setUpKey(() => void loadModel());
setUpComposer();
setUpTokens({ list: byId("messages"), chat, inspector, race });
byId("composer").prepend(legend.element);
window.addEventListener("hashchange", showView);
showView();
watchServer(away);
void loadModel();
