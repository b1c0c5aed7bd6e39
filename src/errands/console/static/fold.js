/**
 * Folds events into a task, like `errands.lifecycle.fold`, against which it is tested.
 *
 * Arguments are not changed. Unchanged parts are shared, so folding the events of a stream one by one is cheap.
 */

const SETTLED = new Set([
  "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED", "TASK_STATE_INPUT_REQUIRED",
  "TASK_STATE_AUTH_REQUIRED",
]);
/** Kinds of events of the log that do not change the task. */
const UNFOLDED = new Set(["request", "cancel", "record"]);

/**
 * Return the task after events of its log, or after one: `{kind, data}`, where `data` is a `StreamResponse` of A2A 1.0.
 *
 * A log begins with the task; before it, `task` is null.
 */
export function fold(task, events) {
  const updates = [];
  for (const event of Symbol.iterator in events ? events : [events]) {
    if (!UNFOLDED.has(event.kind)) updates.push(typeof event.data === "string" ? JSON.parse(event.data) : event.data);
  }
  if (task === null || task === undefined) {
    if (updates.length === 0) return null;
    if (!updates[0].task) throw new Error("a log begins with the task");
    task = updates.shift().task;
  }
  return foldUpdates(task, updates);
}

/** Return the task after `StreamResponse`s of A2A 1.0. */
export function foldUpdates(task, updates) {
  let { status, metadata } = task;
  let history = task.history ?? [];
  const artifacts = new Map((task.artifacts ?? []).map((artifact) => [artifact.artifactId, artifact]));
  // Chunks by artifact: joined once, at the end.
  const appended = new Map();
  // The ids of the first `counted` messages, for published tasks.
  const known = new Set();
  let counted = 0;
  for (const update of updates) {
    if (update.artifactUpdate) {
      const { artifact, append } = update.artifactUpdate;
      const id = artifact.artifactId;
      if (append && artifacts.has(id)) {
        if (!appended.has(id)) appended.set(id, []);
        appended.get(id).push(artifact);
      } else {
        artifacts.set(id, artifact);
        appended.delete(id);
      }
    } else if (update.statusUpdate) {
      const next = update.statusUpdate.status;
      if (!next.message) {
        // A bare "still working" keeps the last message.
        if (!(next.state === "TASK_STATE_WORKING" && status.state === "TASK_STATE_WORKING")) status = next;
        continue;
      }
      status = next;
      // A message that ends a turn is part of the conversation; progress messages are not.
      if (SETTLED.has(next.state)) history = [...history, next.message];
    } else if (update.message) {
      history = [...history, update.message];
    } else if (update.task) {
      status = update.task.status;
      const merged = { ...metadata, ...update.task.metadata };
      metadata = Object.keys(merged).length > 0 ? merged : undefined;
      for (const message of history.slice(counted)) known.add(message.messageId);
      counted = history.length;
      // Messages that a published task leaves out stay: they may be newer.
      history = [...history, ...(update.task.history ?? []).filter((message) => !known.has(message.messageId))];
      for (const artifact of update.task.artifacts ?? []) {
        artifacts.set(artifact.artifactId, artifact);
        appended.delete(artifact.artifactId);
      }
    }
  }
  for (const [id, chunks] of appended) artifacts.set(id, putTogether([artifacts.get(id), ...chunks]));
  const folded = { ...task, status };
  setOrDelete(folded, "metadata", metadata);
  setOrDelete(folded, "history", history.length > 0 ? history : undefined);
  setOrDelete(folded, "artifacts", artifacts.size > 0 ? [...artifacts.values()] : undefined);
  return folded;
}

function setOrDelete(object, name, value) {
  if (value === undefined) delete object[name];
  else object[name] = value;
}

/** Return an artifact with the chunks that were appended to it; of its other fields the last value counts. */
function putTogether(chunks) {
  const joined = { ...chunks[0] };
  let metadata = {};
  const parts = [];
  for (const chunk of chunks) {
    parts.push(...(chunk.parts ?? []));
    joined.name = chunk.name || joined.name;
    joined.description = chunk.description || joined.description;
    joined.extensions = chunk.extensions?.length ? chunk.extensions : joined.extensions;
    metadata = { ...metadata, ...chunk.metadata };
  }
  for (const name of ["name", "description", "extensions"]) if (joined[name] === undefined) delete joined[name];
  setOrDelete(joined, "metadata", Object.keys(metadata).length > 0 ? metadata : undefined);
  joined.parts = joinText(parts);
  return joined;
}

/**
 * Join neighbouring plain text parts: a streamed text is one part, however it was cut.
 *
 * An empty text is left out unless there is nothing else: it only marks the end of the stream.
 */
function joinText(parts) {
  const joined = [];
  let run = null;
  for (const part of parts) {
    if (typeof part.text === "string" && part.metadata === undefined && part.filename === undefined && part.mediaType === undefined) {
      run = (run ?? "") + part.text;
      continue;
    }
    if (run) joined.push({ text: run });
    run = null;
    joined.push(part);
  }
  if (run || (run !== null && joined.length === 0)) joined.push({ text: run });
  return joined;
}
