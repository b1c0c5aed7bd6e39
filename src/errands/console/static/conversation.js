/**
 * A conversation: the tasks of one context, the messages in transit, and the streams that keep them up to date.
 *
 * A message gets its id before it is sent, and has the same id when it is sent again, so the agent handles it once. It
 * stays in the session storage of the tab until the server has it; a page that is reloaded sends it again.
 */

import { ApiError, call, card, newId, openStream, request, rpcError } from "./api.js";
import { fold, foldUpdates } from "./fold.js";
import { follow, keepOpen } from "./stream.js";

const TERMINAL = new Set(["TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED"]);
const PAUSED = new Set(["TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"]);
/** The most tasks of a conversation that are shown. */
const SHOWN = 50;
/** The most tasks that are followed at the same time: a browser opens at most six connections to one server. */
const FOLLOWED = 3;
/** Larger files are uploaded to the server's store of files, if it has one. */
const UPLOADED = 256 * 1024;
/** Bytes of files that fit into a message itself: the server takes 10 MB of JSON, and base64 is a third longer. */
const LARGEST_INLINE = 7_000_000;

export const streams = card.capabilities?.streaming === true;

export function isEnded(task) {
  return TERMINAL.has(task.status?.state);
}

export function isPaused(task) {
  return PAUSED.has(task.status?.state);
}

/** Return the conversations that the server still stores, the newest first: `{contextId, title, state, at}`. */
export async function listConversations() {
  const { tasks = [] } = await call("list", { pageSize: 100, historyLength: 3, includeArtifacts: false });
  const found = new Map();
  for (const task of tasks) {
    if (!task.contextId) continue;
    const known = found.get(task.contextId);
    const title = titles.get(task.contextId) ?? firstWords(task);
    if (known) known.title = title || known.title;
    else found.set(task.contextId, { contextId: task.contextId, title, state: task.status.state, at: task.status.timestamp });
  }
  return [...found.values()];
}

/** Return the first words of a user in a task, "" if it has none. */
export function firstWords(task) {
  const message = task.history?.find((one) => one.role === "ROLE_USER");
  const text = message?.parts?.find((part) => typeof part.text === "string" && part.text.trim())?.text ?? "";
  return text.trim().replace(/\s+/g, " ").slice(0, 80);
}

/** Titles of the conversations that were opened here, because a list of tasks has only the last messages of each. */
const titles = new Map();

export class Conversation {
  constructor(contextId, changed) {
    this.contextId = contextId;
    /** By id, in the order in which they began. */
    this.tasks = new Map();
    /** Messages that no task shows yet: `{message, isFailed, error}`. */
    this.outgoing = [];
    /** What the page is waiting for: `loading`, `ready` or `failed`, and the error. */
    this.state = "loading";
    this.error = null;
    /** The state of the newest stream, see `keepOpen`, and the reason for it. */
    this.live = "";
    this.liveError = null;
    /** The message that was sent last, and the version of its task before: what `Wire` shows. */
    this.last = null;
    this.hasMore = false;
    this.#changed = changed;
  }

  #changed;
  #streams = new Map();
  #pending = new Map();
  #frame = 0;
  #isClosed = false;
  /** The number of messages after which an artifact of a task appeared, if this page has seen that. */
  #places = new Map();

  /** Read the tasks of the conversation, follow those that have not ended, and send unconfirmed messages again. */
  async load() {
    this.state = "loading";
    try {
      const wanted = { contextId: this.contextId, pageSize: SHOWN, includeArtifacts: true };
      const { tasks = [], nextPageToken } = await retried(() => call("list", wanted), () => this.#isClosed);
      if (this.#isClosed) return;
      this.hasMore = Boolean(nextPageToken);
      for (const task of tasks.toReversed()) this.#keep(task);
      this.state = "ready";
      for (const message of this.#readStored()) this.#post(message);
      const live = [...this.tasks.values()].filter(({ task }) => !isEnded(task)).slice(-FOLLOWED);
      for (const { task } of live) if (!this.#streams.has(task.id)) this.#follow(task.id);
      const newest = [...this.tasks.values()].at(-1)?.task;
      const asked = newest?.history?.findLast((message) => message.role === "ROLE_USER");
      if (asked && this.last === null) this.last = { message: asked, taskId: newest.id, after: 0 };
    } catch (error) {
      this.state = "failed";
      this.error = error;
    }
    this.#paint();
  }

  close() {
    this.#isClosed = true;
    cancelAnimationFrame(this.#frame);
    for (const stream of this.#streams.values()) stream.close();
    this.#streams.clear();
  }

  /** The task at the end of the conversation, if it has not ended. */
  get open() {
    const newest = [...this.tasks.values()].at(-1)?.task;
    return newest && !isEnded(newest) ? newest : null;
  }

  /** True while the agent works, or is about to. */
  get isBusy() {
    return this.outgoing.some((one) => !one.error) || (this.open !== null && !isPaused(this.open));
  }

  /** The number of messages of its task after which an artifact is shown. */
  placeOf(task, artifactId) {
    const place = this.#places.get(`${task.id} ${artifactId}`);
    if (place !== undefined) return place;
    const history = task.history ?? [];
    // The message that ended a turn came after the artifacts of the turn.
    const endsWithAgent = history.at(-1)?.role === "ROLE_AGENT";
    return endsWithAgent ? history.length - 1 : history.length;
  }

  /** Send parts as the next message: to the open task, or as a new one. */
  send(parts, { metadata, taskId = this.open?.id } = {}) {
    const message = { messageId: newId(), role: "ROLE_USER", parts, contextId: this.contextId };
    if (taskId) message.taskId = taskId;
    if (metadata) message.metadata = metadata;
    this.#store([...this.#readStored(), message]);
    this.#post(message);
  }

  /** Send a message again that did not arrive. It has the same id, so it is accepted once. */
  again(message) {
    this.outgoing = this.outgoing.filter((one) => one.message !== message);
    this.#post(message);
  }

  discard(message) {
    this.outgoing = this.outgoing.filter((one) => one.message !== message);
    this.#store(this.#readStored().filter((one) => one.messageId !== message.messageId));
    this.#paint();
  }

  /** Ask the agent to stop. */
  async cancel() {
    const { open } = this;
    if (!open) return;
    const task = await call("cancel", { id: open.id });
    if (!this.#streams.has(task.id)) this.#keep(task);
    this.#paint();
  }

  /** A review was answered, and the task continues. */
  reviewed(taskId) {
    if (!this.#streams.has(taskId)) this.#follow(taskId);
    this.#paint();
  }

  #post(message) {
    const entry = { message, error: null };
    this.outgoing = [...this.outgoing, entry];
    this.#paint();
    if (streams) this.#postStreaming(entry);
    else this.#postOnce(entry);
  }

  #failed(entry, error) {
    entry.error = error;
    this.outgoing = [...this.outgoing];
    this.#paint();
  }

  async #postOnce(entry) {
    try {
      const params = { message: entry.message, configuration: { returnImmediately: true } };
      const { task, message } = await retried(() => call("send", params), () => this.#isClosed);
      if (this.#isClosed) return;
      if (task) {
        this.#accepted(entry.message, task.id);
        this.#keep(task);
        this.#follow(task.id);
      } else {
        this.#accepted(entry.message, null);
        const id = message.taskId ?? entry.message.messageId;
        this.#keep({ id, contextId: this.contextId, status: { state: "TASK_STATE_COMPLETED" }, history: [entry.message, message] });
      }
      this.#paint();
    } catch (error) {
      this.#failed(entry, error);
    }
  }

  /**
   * Send a message and show the stream that answers it. If the connection breaks before the answer, the message is sent
   * again; later, the page subscribes to the task after the last event that arrived.
   */
  #postStreaming(entry) {
    let taskId = null;
    if (entry.message.taskId) this.#stop(entry.message.taskId);
    const key = entry.message.messageId;
    this.#streams.set(key, keepOpen({
      sends: true,
      open: ({ lastId, signal }) => {
        this.#isFirst.add(key);
        return taskId === null
          ? openStream("stream", { message: entry.message }, { signal })
          : openStream("subscribe", { id: taskId }, { lastId, signal });
      },
      onEvents: (batch) => {
        for (const event of batch) {
          const update = this.#read(event, key);
          const id = update.task?.id ?? update.statusUpdate?.taskId ?? update.artifactUpdate?.taskId ?? update.message?.taskId;
          if (taskId === null && id) {
            taskId = id;
            this.#accepted(entry.message, id);
            // From now on it is the stream of the task.
            const stream = this.#streams.get(key);
            this.#streams.delete(key);
            this.#stop(id);
            this.#streams.set(id, stream);
          }
          if (id) this.#apply(id, update, event);
        }
      },
      isOver: () => taskId !== null && this.#isOver(taskId),
      onState: (state, error) => {
        if (state === "failed" && taskId === null) { this.#streams.delete(key); this.#failed(entry, error); return; }
        this.#setLive(state, error, taskId);
      },
    }));
  }

  /** Keys of streams whose next event is the first one of a connection. */
  #isFirst = new Set();

  #follow(id) {
    if (this.#isClosed) return;
    this.#stop(id);
    const stream = streams
      ? keepOpen({
        open: ({ lastId, signal }) => { this.#isFirst.add(id); return openStream("subscribe", { id }, { lastId, signal }); },
        onEvents: (batch) => { for (const event of batch) this.#apply(id, this.#read(event, id), event); },
        isOver: () => this.#isOver(id),
        onState: (state, error) => this.#setLive(state, error, id),
      })
      : follow(`admin/tasks/${encodeURIComponent(id)}/stream`, {
        after: 0,
        onEvent: (event) => {
          if (event.leftOut) this.#refresh(id);
          else if (event.version > 0) this.#logged(id, event);
        },
        onGap: () => this.#refresh(id),
        isOver: () => this.#isOver(id),
        onState: (state, error) => this.#setLive(state, error, id),
      });
    this.#streams.set(id, stream);
  }

  #stop(id) {
    this.#streams.get(id)?.close();
    this.#streams.delete(id);
  }

  #isOver(id) {
    this.#flush();
    const known = this.tasks.get(id);
    return known !== undefined && isEnded(known.task);
  }

  /** Return the `StreamResponse` of an event, marked if it replaces what is known. Raises `ApiError`. */
  #read(event, key) {
    const { result, error } = JSON.parse(event.data);
    if (error) throw rpcError(error);
    const isFirst = this.#isFirst.delete(key);
    if (event.name === "gap") return { ...result, isWhole: true, isGap: true };
    return isFirst && result.task ? { ...result, isWhole: true } : result;
  }

  #apply(id, update, event) {
    if (!this.#pending.has(id)) this.#pending.set(id, []);
    this.#pending.get(id).push({ update, version: event.id === null ? 0 : Number(event.id) });
    this.#paint();
  }

  /** The log of an agent that does not stream, from the operator API. */
  #logged(id, event) {
    if (!this.#pending.has(id)) this.#pending.set(id, []);
    this.#pending.get(id).push({ event, version: event.version });
    this.#paint();
  }

  async #refresh(id) {
    try {
      this.#keep(await call("get", { id }));
    } catch (error) {
      this.#setLive("failed", error, id);
    }
    this.#paint();
  }

  /** Fold the events that have arrived since the last frame was painted. */
  #flush() {
    for (const [id, updates] of this.#pending) {
      let known = this.tasks.get(id);
      let task = known?.task ?? null;
      let isGap = known?.isGap ?? false;
      let run = [];
      const foldRun = () => { if (run.length > 0 && task) task = foldUpdates(task, run); run = []; };
      for (const { update, event } of updates) {
        if (event) {
          foldRun();
          task = event.version === 1 ? fold(null, event) : task && fold(task, event);
        } else if (update.isWhole || (task === null && update.task)) {
          run = [];
          task = update.task;
          isGap ||= Boolean(update.isGap);
        } else {
          run.push(update);
        }
      }
      foldRun();
      if (task) this.#keep(task, { version: Math.max(updates.at(-1).version, known?.version ?? 0), isGap });
    }
    this.#pending.clear();
  }

  #keep(task, { version = 0, isGap = false } = {}) {
    const known = this.tasks.get(task.id);
    // A task that is read while it is followed may be older than its events.
    if (known && version === 0 && known.version > 0 && isEnded(known.task)) return;
    const isLive = version > 0;
    for (const artifact of task.artifacts ?? []) {
      const old = known?.task.artifacts?.find((one) => one.artifactId === artifact.artifactId);
      // An artifact that was replaced is shown where that happened.
      if (isLive && known && (!old || isReplaced(old, artifact))) {
        this.#places.set(`${task.id} ${artifact.artifactId}`, (known.task.history ?? []).length);
      }
    }
    const sent = this.outgoing.filter(({ message }) => task.history?.some((one) => one.messageId === message.messageId));
    if (sent.length > 0) {
      this.outgoing = this.outgoing.filter((one) => !sent.includes(one));
    }
    if (!titles.has(this.contextId) && this.tasks.size === 0) titles.set(this.contextId, firstWords(task));
    this.tasks.set(task.id, { task, version: Math.max(version, known?.version ?? 0), isGap: isGap || Boolean(known?.isGap) });
  }

  /** Forget a message that the server has, which need not be sent again. */
  #accepted(message, taskId) {
    const known = taskId === null ? null : this.tasks.get(taskId);
    this.last = { message, taskId, after: known?.version ?? 0 };
    this.#store(this.#readStored().filter((one) => one.messageId !== message.messageId));
    const joined = known && !known.task.history?.some((one) => one.messageId === message.messageId);
    // A message that waits behind a running turn is not in the stream, so it is added here.
    if (joined) this.tasks.set(taskId, { ...known, task: { ...known.task, history: [...(known.task.history ?? []), message] } });
    if (joined) this.outgoing = this.outgoing.filter((one) => one.message !== message);
  }

  #setLive(state, error, id) {
    this.live = state;
    this.liveError = error ?? null;
    if (state === "ended" || state === "failed") {
      this.#streams.delete(id);
      // The task may have ended meanwhile: a subscription to an ended task is refused.
      if (state === "failed") this.#refreshIfGone(id, error);
    }
    this.#paint();
  }

  #refreshIfGone(id, error) {
    if (id !== null && error instanceof ApiError && error.status === 400) this.#refresh(id);
  }

  #paint() {
    if (this.#isClosed || this.#frame) return;
    const paint = () => {
      this.#frame = 0;
      if (this.#isClosed) return;
      this.#flush();
      this.#changed();
    };
    // Hidden tabs get no frames.
    this.#frame = document.hidden ? setTimeout(paint, 200) : requestAnimationFrame(paint);
  }

  // Messages in transit

  get #storage() {
    return `errands-outgoing-${this.contextId}`;
  }

  #readStored() {
    try {
      const found = JSON.parse(sessionStorage.getItem(this.#storage));
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  }

  #store(messages) {
    try {
      if (messages.length > 0) sessionStorage.setItem(this.#storage, JSON.stringify(messages));
      else sessionStorage.removeItem(this.#storage);
    } catch { /* There is no room for large files; then a reload cannot send them again. */ }
  }
}

function isReplaced(old, artifact) {
  if (old === artifact) return false;
  const [before, after] = [old.parts[0], artifact.parts[0]];
  return typeof before?.text === "string" && typeof after?.text === "string" && !after.text.startsWith(before.text);
}

/** Call a function until it succeeds or fails for good, with growing pauses in between. */
async function retried(operation, isGivenUp) {
  for (let pause = 500; ; pause *= 2) {
    try {
      return await operation();
    } catch (error) {
      if (isGivenUp() || !(error instanceof ApiError) || !error.isTemporary || pause > 8000) throw error;
      await new Promise((resolve) => setTimeout(resolve, Math.max(pause, error.retryAfter * 1000)));
    }
  }
}

// Files

/** Return a file as a part of a message. Large files are uploaded first. Raises `ApiError`. */
export async function filePart(file, maxUploadBytes) {
  const about = { filename: file.name, mediaType: file.type || "application/octet-stream" };
  if (file.size > UPLOADED && maxUploadBytes) {
    if (file.size > maxUploadBytes) throw new ApiError(413, `${file.name} is larger than this server takes.`);
    const path = `blobs?${new URLSearchParams({ filename: file.name })}`;
    const headers = { "content-type": about.mediaType, "a2a-version": "1.0" };
    const stored = await (await request(path, { method: "POST", headers, body: file })).json();
    return { url: stored.url, ...about };
  }
  if (file.size > LARGEST_INLINE) {
    throw new ApiError(413, `${file.name} is too large for a message, and this server keeps no files (setting blobs).`);
  }
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let start = 0; start < bytes.length; start += 0x8000) binary += String.fromCharCode(...bytes.subarray(start, start + 0x8000));
  return { raw: btoa(binary), ...about };
}
