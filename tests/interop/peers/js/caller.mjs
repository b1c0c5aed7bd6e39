// A client of a JavaScript SDK for the conversation, which is held in Python: tests/interop/node.py.
//
// Each line of standard input is a call, `{"id", "method", "arguments"}`. Each line of standard output says what came of
// it: `{"id", "value"}`, or for a stream `{"id", "event"}` for every event and `{"id", "done"}`, or `{"id", "refused"}`.

import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The directory that the packages were installed into, the agent's address and the binding.
export const [, , packages, url, binding] = process.argv;
export const require = createRequire(`${packages}/`);

// What clients understand over the binding, and nothing else.
export function transports(client, grpc) {
  const factories = {
    JSONRPC: () => new client.JsonRpcTransportFactory(),
    "HTTP+JSON": () => new client.RestTransportFactory(),
    GRPC: () => new grpc.GrpcTransportFactory(),
  };
  return [factories[binding]()];
}

export function textOf(parts) {
  return parts.map((part) => part.text ?? "").join("");
}

export async function serve(caller) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, method, arguments: given } = JSON.parse(line);
    answer(id, () => caller[method](...given)); // not awaited: a stream goes on beside other calls
  }
}

async function answer(id, call) {
  try {
    const result = call();
    if (result[Symbol.asyncIterator]) {
      for await (const event of result) say({ id, event });
      say({ id, done: true });
    } else {
      say({ id, value: (await result) ?? null });
    }
  } catch (error) {
    // The SDK has a class of each error for each binding.
    const name = error.constructor.name.replace(/^_?(JsonRpc|Rest|Grpc)?/, "").replace("JSONRPCError", "Error");
    // Where it has none, the message may have the agent's name or code for it.
    const [, named, code] = error.message.match(/(\w+Error): |Code: (-\d+)/) ?? [];
    say({ id, refused: name === "Error" ? (named ?? code ?? error.message) : name });
  }
}

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
