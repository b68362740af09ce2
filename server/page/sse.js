/** Server-sent events out of a response's body. */

/**
 * The `data` of every event. Ends quietly where the connection ends.
 * @param {Response} response
 * @param {AbortSignal} signal
 */
export async function* readEvents(response, signal) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    while (true) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (signal.aborted) throw error;
        return; // the server went away
      }
      if (part.done) return;
      held += part.value;
      const events = held.split(/\r?\n\r?\n/);
      held = /** @type {string} */ (events.pop());
      for (const event of events) {
        const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
