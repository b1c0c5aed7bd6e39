/**
 * Server-sent events over `fetch`, which unlike EventSource can send headers and POST.
 *
 * `keepOpen` and `follow` keep a stream open: after a lost connection it continues after the last event that arrived
 * (`Last-Event-ID`), so every event arrives exactly once.
 */

import { ApiError, request, rpcError } from "./api.js";

/** Milliseconds to wait before connecting again: the first time, and at most. */
const SOONEST = 500;
const LATEST = 10_000;
/** Milliseconds after which a stream of a hidden tab is closed. */
const HIDDEN = 10_000;
/** Milliseconds of silence after which a connection counts as lost. The server writes something every 4 seconds. */
const SILENCE = 60_000;

/** Reads events from text that comes in pieces of any size. */
export class EventReader {
  #rest = "";
  #data = [];
  #id = null;
  #name = "";

  /** Return the events that are complete with this text: `{id, name, data}`; `id` is null for events without one. */
  feed(text) {
    this.#rest += text;
    // A carriage return at the very end may be half of a line break.
    const held = this.#rest.endsWith("\r") ? 1 : 0;
    const lines = this.#rest.slice(0, this.#rest.length - held).split(/\r\n|\n|\r/);
    this.#rest = lines.pop() + (held ? "\r" : "");
    return lines.map((line) => this.#line(line)).filter((event) => event !== null);
  }

  #line(line) {
    if (line === "") {
      const event = { id: this.#id, name: this.#name || "message", data: this.#data.join("\n") };
      const isEvent = this.#data.length > 0;
      this.#id = null;
      this.#name = "";
      this.#data = [];
      return isEvent ? event : null;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "event") this.#name = value;
    return null;
  }
}

/** Yield the events of a response in batches, so that those that arrive together are shown together. */
export async function* readEvents(response, signal) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventReader();
  try {
    for (;;) {
      const { done, value } = await withinSilence(reader.read(), signal);
      if (done) return;
      const events = parser.feed(value);
      if (events.length > 0) yield events;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function withinSilence(promise, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new ApiError(0, "The connection went silent.")), SILENCE);
    const stop = () => reject(new DOMException("closed", "AbortError"));
    signal?.addEventListener("abort", stop, { once: true });
    promise.then(resolve, reject).finally(() => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    });
  });
}

/**
 * Keep a stream open until it is over, and return `{close}`.
 *
 * - `open({lastId, signal})` sends the request and returns the response.
 * - `onEvents(batch)` is called with batches of `{id, name, data}`; an event called `gap` says that events before it are
 *   no longer kept, and carries the state that replaces them.
 * - `onState(state, error)` is called with `connecting`, `live`, `reconnecting`, `paused` (the tab is hidden), `ended`
 *   and `failed`.
 * - `sends` says that the first request has an effect: it is made in a tab in the background, too.
 * - `isOver()` says whether a stream that ended was complete; if not, it is opened again.
 */
export function keepOpen({ open, onEvents, onState = () => {}, isOver = () => true, lastId = null, sends = false }) {
  let closed = false;
  let abort = new AbortController();
  let wake = () => {};
  let hiding = 0;
  // A tab that is opened in the background must not take one of the few connections of a browser to one server.
  let isPaused = !sends && document.visibilityState === "hidden";

  const looked = () => {
    clearTimeout(hiding);
    if (document.visibilityState === "hidden") {
      if (isPaused) return;
      hiding = setTimeout(() => { isPaused = true; abort.abort(); }, HIDDEN);
    } else if (isPaused) {
      isPaused = false;
      wake();
    } else {
      wake();
    }
  };
  const online = () => wake();
  document.addEventListener("visibilitychange", looked);
  window.addEventListener("online", online);

  const close = () => {
    closed = true;
    clearTimeout(hiding);
    document.removeEventListener("visibilitychange", looked);
    window.removeEventListener("online", online);
    abort.abort();
    wake();
  };

  const pause = (milliseconds) => new Promise((resolve) => {
    const timer = milliseconds === null ? 0 : setTimeout(resolve, milliseconds);
    wake = () => { clearTimeout(timer); resolve(); };
  });

  const run = async () => {
    let failures = 0;
    if (isPaused) {
      onState("paused");
      await pause(null);
    }
    while (!closed) {
      abort = new AbortController();
      onState(failures === 0 ? "connecting" : "reconnecting");
      let problem = null;
      try {
        const response = await open({ lastId, signal: abort.signal });
        onState("live");
        for await (const batch of readEvents(response, abort.signal)) {
          if (closed) return;
          failures = 0;
          const shown = [];
          for (const event of batch) {
            if (event.name === "error") { problem = streamError(event.data); break; }
            if (event.id !== null) lastId = event.id;
            shown.push(event);
          }
          if (shown.length > 0) onEvents(shown);
          if (problem !== null) throw problem;
        }
        if (isOver()) { onState("ended"); close(); return; }
      } catch (error) {
        if (closed) return;
        problem = error;
      }
      if (problem === null) {
        await pause(SOONEST);
        continue;
      }
      if (isPaused) {
        onState("paused");
        await pause(null);
        failures = 0;
        continue;
      }
      const isFinal = problem instanceof ApiError ? !problem.isTemporary : false;
      if (isFinal) { onState("failed", problem); close(); return; }
      failures += 1;
      onState("reconnecting", problem);
      const longest = Math.min(LATEST, SOONEST * 2 ** (failures - 1));
      await pause(Math.max((problem?.retryAfter ?? 0) * 1000, longest * (0.5 + Math.random() / 2)));
    }
  };
  run();
  return { close, get lastId() { return lastId; } };
}

/**
 * Follow a stream of the operator API after version `after`, and return `{close}`.
 *
 * `onEvent` is called with each event as the API writes it. Its `version` is 0 at the end of the log. `onGap` is called
 * with what the API says about events that are no longer kept. `signal` closes the stream, too.
 */
export function follow(path, { after = null, signal, onEvent, onGap = () => {}, onState, isOver }) {
  const stream = keepOpen({
    open: ({ lastId, signal: ended }) => request(path, {
      headers: { accept: "text/event-stream", ...(lastId === null ? {} : { "last-event-id": String(lastId) }) }, signal: ended,
    }),
    onEvents: (batch) => {
      for (const event of batch) {
        const data = JSON.parse(event.data);
        if (event.name === "gap") onGap(data);
        else onEvent({ version: Number(event.id), ...data });
      }
    },
    onState, isOver, lastId: after,
  });
  signal?.addEventListener("abort", stream.close, { once: true });
  return stream;
}

/** Return the error that an event `error` carries, in JSON-RPC or in HTTP+JSON. */
function streamError(data) {
  try {
    const { error } = JSON.parse(data);
    if (typeof error.status === "string") return new ApiError(error.code, error.message);
    return rpcError(error);
  } catch {
    return new ApiError(0, "The stream broke off.");
  }
}
