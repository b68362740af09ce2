/** What outlives a reload: the conversation and the settings, in this browser only. */

const CONVERSATION = "resispec.conversation";
const SETTINGS = "resispec.settings";
const MOST_CHARACTERS = 2_000_000; // browsers give about 5 MB

/** @typedef {{ id: number, text: string, origin: string, position: number }} Token */
/**
 * @typedef {{
 *   role: "user" | "assistant", text: string, tokens?: [string, string, number][], requestId?: string,
 *   figures?: object, note?: string, problem?: string, running?: boolean
 * }} Message a token is [text, origin, position of its step]
 */

export const DEFAULTS = {
  system: "",
  temperature: /** @type {number | null} */ (null),
  top_p: /** @type {number | null} */ (null),
  max_tokens: /** @type {number | null} */ (null),
  seed: /** @type {number | null} */ (null),
  mode: "",
  verifier: "",
  proposer: "",
  max_nodes: /** @type {number | null} */ (null),
  max_depth: /** @type {number | null} */ (null),
};

/** @typedef {typeof DEFAULTS} Settings */

/** @param {string} name */
function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

/** @param {string} name @param {unknown} value @returns {boolean} whether it could be kept */
function write(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false; // private mode, or full
  }
}

/** @returns {Message[]} */
export function loadConversation() {
  const kept = read(CONVERSATION);
  return Array.isArray(kept) ? kept.filter((message) => typeof message?.text === "string") : [];
}

/** The oldest turns are forgotten when there is too much. @param {Message[]} messages */
export function saveConversation(messages) {
  let kept = messages;
  while (kept.length > 2 && JSON.stringify(kept).length > MOST_CHARACTERS) kept = kept.slice(2);
  return write(CONVERSATION, kept);
}

/** @returns {Settings} */
export function loadSettings() {
  const kept = read(SETTINGS);
  return { ...DEFAULTS, ...(kept && typeof kept === "object" ? kept : {}) };
}

/** @param {Settings} settings */
export function saveSettings(settings) {
  return write(SETTINGS, settings);
}

/**
 * The fields of a request that the settings ask for.
 * @param {Settings} settings
 * @param {boolean} drafted whether the server has a draft or another proposer
 */
export function requestFields(settings, drafted) {
  /** @type {Record<string, unknown>} */
  const fields = {};
  for (const name of /** @type {const} */ (["temperature", "top_p", "max_tokens", "seed"])) {
    if (settings[name] !== null) fields[name] = settings[name];
  }
  /** @type {Record<string, unknown>} */
  const speculation = { trace: true };
  if (!drafted) speculation.enabled = false;
  else if (settings.mode) speculation.mode = settings.mode;
  if (drafted && settings.mode !== "off") {
    if (settings.verifier) speculation.verifier = settings.verifier;
    if (settings.proposer) speculation.proposer = settings.proposer;
    const tree = Object.fromEntries(
      Object.entries({ max_nodes: settings.max_nodes, max_depth: settings.max_depth }).filter(([, v]) => v !== null),
    );
    if (Object.keys(tree).length) speculation.tree = tree;
  }
  return { ...fields, speculation };
}
