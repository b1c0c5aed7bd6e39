// The client of @a2a-js/sdk 0.3 in the conversation.

import { randomUUID } from "node:crypto";
import { binding, require, serve, textOf, transports, url } from "./caller.mjs";

const client = require("@a2a-js/sdk/client");
const grpc = require("@a2a-js/sdk/client/grpc");

function sdkPart(part) {
  if ("text" in part) return { kind: "text", text: part.text };
  if ("data" in part) return { kind: "data", data: part.data };
  const file = { name: part.name, mimeType: part.type };
  return { kind: "file", file: "raw" in part ? { ...file, bytes: part.raw } : { ...file, uri: part.url } };
}

function plainPart(part) {
  if (part.kind === "text") return { text: part.text };
  if (part.kind === "data") return { data: part.data };
  const file = { name: part.file.name ?? "", type: part.file.mimeType ?? "" };
  return "bytes" in part.file ? { raw: part.file.bytes, ...file } : { url: part.file.uri, ...file };
}

function ofTask(task) {
  const parts = (task.artifacts ?? []).flatMap((artifact) => artifact.parts);
  return {
    task_id: task.id,
    context_id: task.contextId,
    state: task.status.state,
    text: textOf(parts),
    said: textOf(task.status.message?.parts ?? []),
    history: (task.history ?? []).map((message) => [message.role, textOf(message.parts)]),
    parts: parts.map(plainPart),
  };
}

function ofEvent(event) {
  if (event.kind === "task") return ofTask(event);
  if (event.kind === "message") return { text: textOf(event.parts), is_message: true };
  const place = { task_id: event.taskId, context_id: event.contextId };
  if (event.kind === "artifact-update") return { ...place, text: textOf(event.artifact.parts) };
  return { ...place, state: event.status.state };
}

function plainCard(card) {
  return { name: card.name, skills: card.skills.length, streaming: card.capabilities.streaming };
}

function params({ parts, task_id, context_id }, configuration) {
  const message = { kind: "message", messageId: randomUUID(), role: "user", parts: parts.map(sdkPart) };
  if (task_id) message.taskId = task_id;
  if (context_id) message.contextId = context_id;
  return { message, configuration };
}

async function* ofEvents(events) {
  for await (const event of events) yield ofEvent(event);
}

const card = await new client.DefaultAgentCardResolver().resolve(url);
const sdk = await new client.ClientFactory({
  transports: transports(client, grpc),
  preferredTransports: [binding],
}).createFromAgentCard(structuredClone(card)); // the client puts the extended card in its place

await serve({
  card: async () => plainCard(card),
  extended_card: async () => plainCard(await sdk.getAgentCard()),
  send: async (message, wait) => ofEvent(await sdk.sendMessage(params(message, { blocking: wait }))),
  stream: (message) => ofEvents(sdk.sendMessageStream(params(message))),
  subscribe: (id) => ofEvents(sdk.resubscribeTask({ id })),
  get: async (id, historyLength) => ofTask(await sdk.getTask(historyLength === null ? { id } : { id, historyLength })),
  list: async () => {
    throw new Error("the client cannot list");
  },
  cancel: async (id) => ofTask(await sdk.cancelTask({ id })),
  set_push: (taskId) =>
    sdk.setTaskPushNotificationConfig({
      taskId,
      pushNotificationConfig: { id: "hook", url: "https://example.com/hook" },
    }),
});
