/** Talking to the server this page came from, and to no other. */

import { readEvents } from "./sse.js";

const KEY = "resispec.key";

/** What went wrong, in words for people. `status` 0: the server was not reached or the answer broke off. */
export class Problem extends Error {
  /** @param {number} status @param {string} message @param {string | null} [param] */
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }

  /** Whether trying again later may help. */
  get passing() {
    return this.status === 0 || this.status === 503 || this.status === 429;
  }
}

export function getKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

/** @param {string} key */
export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** @param {string} path @param {RequestInit} options */
async function send(path, options) {
  const headers = new Headers(options.headers);
  if (getKey()) headers.set("Authorization", `Bearer ${getKey()}`);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Problem(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  throw await problemOf(response);
}

/** @param {Response} response */
async function problemOf(response) {
  let error = null;
  try {
    error = (await response.json()).error;
  } catch {
    // Not this server's own words: a proxy's, say.
  }
  let message = error?.message ?? `The server answered ${response.status}.`;
  if (response.status === 401) {
    message = getKey() ? "The server does not accept this API key." : "This server wants an API key.";
    document.dispatchEvent(new CustomEvent("key-wanted", { detail: message }));
  }
  const wait = response.headers.get("retry-after");
  if (wait) message += ` Try again in ${wait} s.`;
  return new Problem(response.status, message, error?.param ?? null);
}

/** @param {string} path */
export async function getJson(path) {
  return (await send(path, {})).json();
}

/** @param {string} path */
export async function getText(path) {
  return (await send(path, {})).text();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
export async function postJson(path, body, signal) {
  return (await post(path, body, signal)).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/**
 * Stream a chat completion: yields its chunks. Throws a Problem, or the AbortError of `signal`.
 * @param {object} body
 * @param {AbortSignal} signal
 */
export async function* streamChat(body, signal) {
  const response = await post("v1/chat/completions", { ...body, stream: true }, signal);
  let complete = false;
  for await (const data of readEvents(response, signal)) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Problem(500, chunk.error.message, chunk.error.param);
    yield chunk;
  }
  if (!complete) throw new Problem(0, "The connection broke before the answer was complete.");
}
