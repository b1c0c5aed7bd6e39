// The client of @a2a-js/sdk 1.x in the conversation.

import { randomUUID } from "node:crypto";
import { binding, require, serve, textOf, transports, url } from "./caller.mjs";

const a2a = require("@a2a-js/sdk");
const client = require("@a2a-js/sdk/client");
const grpc = require("@a2a-js/sdk/client/grpc");

function sdkPart(part) {
  if ("text" in part) return { text: part.text };
  if ("data" in part) return { data: part.data };
  const file = { filename: part.name, mediaType: part.type };
  return "raw" in part ? { raw: part.raw, ...file } : { url: part.url, ...file };
}

function plainPart(part) {
  if ("text" in part) return { text: part.text };
  if ("data" in part) return { data: part.data };
  const file = { name: part.filename ?? "", type: part.mediaType ?? "" };
  return "raw" in part ? { raw: part.raw, ...file } : { url: part.url, ...file };
}

function stateOf(status) {
  return status.state.replace("TASK_STATE_", "").toLowerCase().replaceAll("_", "-");
}

function ofTask(task) {
  const parts = (task.artifacts ?? []).flatMap((artifact) => artifact.parts ?? []);
  return {
    task_id: task.id,
    context_id: task.contextId,
    state: stateOf(task.status),
    text: textOf(parts),
    said: textOf(task.status.message?.parts ?? []),
    history: (task.history ?? []).map(({ role, parts }) => [role.replace("ROLE_", "").toLowerCase(), textOf(parts)]),
    parts: parts.map(plainPart),
  };
}

const ofSdkTask = (task) => ofTask(a2a.Task.toJSON(task));

function ofSent(result) {
  if ("status" in result) return ofSdkTask(result);
  return { text: textOf(a2a.Message.toJSON(result).parts), is_message: true };
}

async function* ofEvents(events) {
  for await (const event of events) {
    const { task, message, statusUpdate, artifactUpdate } = a2a.StreamResponse.toJSON(event);
    const update = statusUpdate ?? artifactUpdate;
    if (task) yield ofTask(task);
    else if (message) yield { text: textOf(message.parts), is_message: true };
    else {
      const place = { task_id: update.taskId, context_id: update.contextId };
      yield statusUpdate
        ? { ...place, state: stateOf(statusUpdate.status) }
        : { ...place, text: textOf(artifactUpdate.artifact.parts) };
    }
  }
}

function plainCard(card) {
  return { name: card.name, skills: card.skills.length, streaming: card.capabilities.streaming };
}

function params({ parts, task_id, context_id }, configuration) {
  const message = {
    messageId: randomUUID(),
    role: "ROLE_USER",
    parts: parts.map(sdkPart),
    taskId: task_id,
    contextId: context_id,
  };
  return a2a.SendMessageRequest.fromJSON({ message, configuration });
}

const card = await new client.DefaultAgentCardResolver().resolve(url);
const sdk = await new client.ClientFactory({
  transports: transports(client, grpc),
  preferredTransports: [binding],
}).createFromAgentCard(structuredClone(card)); // the client puts the extended card in its place

await serve({
  card: async () => plainCard(card),
  extended_card: async () => plainCard(await sdk.getAgentCard(a2a.GetExtendedAgentCardRequest.fromJSON({}))),
  send: async (message, wait) => ofSent(await sdk.sendMessage(params(message, { returnImmediately: !wait }))),
  stream: (message) => ofEvents(sdk.sendMessageStream(params(message))),
  subscribe: (id) => ofEvents(sdk.resubscribeTask(a2a.SubscribeToTaskRequest.fromJSON({ id }))),
  get: async (id, historyLength) =>
    ofSdkTask(await sdk.getTask(a2a.GetTaskRequest.fromJSON(historyLength === null ? { id } : { id, historyLength }))),
  list: async (contextId) =>
    (await sdk.listTasks(a2a.ListTasksRequest.fromJSON({ contextId, includeArtifacts: true }))).tasks.map(ofSdkTask),
  cancel: async (id) => ofSdkTask(await sdk.cancelTask(a2a.CancelTaskRequest.fromJSON({ id }))),
  set_push: (taskId) =>
    sdk.createTaskPushNotificationConfig(
      a2a.TaskPushNotificationConfig.fromJSON({ taskId, id: "hook", url: "https://example.com/hook" }),
    ),
});
