/**
 * Requests to the server: the operator API, the operations of A2A, and who is signed in.
 *
 * Credentials are headers of each request, never cookies, so other pages cannot use them. They are kept in memory or, if
 * the user wants it, in the session storage of this tab.
 */

/** The mount point of the server, with a slash at its end. All other addresses are relative to it. */
export const root = new URL(document.documentElement.dataset.root, location.href).href;
/** The agent's public card (A2A 1.0), which the page contains. */
export const card = JSON.parse(document.getElementById("card").textContent);
/** The version of errands that serves the console. */
export const version = document.querySelector("meta[name=errands-version]").content;

const STORED = "errands-credentials";
/** The extension of a card that names the OAuth client with which people sign in, by the name of the scheme. */
const SIGN_IN = "urn:errands:sign-in:1";

/** A request that failed. `status` is 0 if there was no answer; `message` is a sentence for people. */
export class ApiError extends Error {
  constructor(status, message, { reason = "", retryAfter = 0 } = {}) {
    super(message);
    this.status = status;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status === 408 || this.status === 429 || this.status >= 500;
  }
}

// Who is signed in

let credentials = readStored();
const listeners = new Set();

function readStored() {
  try {
    return JSON.parse(sessionStorage.getItem(STORED)) ?? null;
  } catch {
    return null;
  }
}

/** Call `listener` with true when the server wants credentials, and with false when the user has signed in or out. */
export function onSignIn(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Use these credentials from now on: `{in: "header" | "query", name, value}`. Null signs out. */
export function signIn(given, remember = false) {
  credentials = given;
  try {
    if (given !== null && remember) sessionStorage.setItem(STORED, JSON.stringify(given));
    else sessionStorage.removeItem(STORED);
  } catch { /* A browser may forbid storage; then they are kept in memory. */ }
  listeners.forEach((listener) => listener(false));
}

export function isSignedIn() {
  return credentials !== null;
}

/**
 * Return the ways to sign in that the card offers and a page can use: `{id, label, hint, fields, read}`.
 *
 * `read` makes credentials from the values that were entered. A way with `discovery` leads to a provider instead, whose
 * `client` and `scopes` are there.
 */
export function signInWays() {
  const ways = [];
  const clients = (card.capabilities?.extensions ?? []).find((one) => one.uri === SIGN_IN)?.params?.clients ?? {};
  for (const [id, scheme] of Object.entries(card.securitySchemes ?? {})) {
    const discovery = scheme.openIdConnectSecurityScheme?.openIdConnectUrl;
    if (discovery && Object.hasOwn(clients, id)) {
      const { host } = new URL(discovery);
      const wanted = (card.securityRequirements ?? []).flatMap((one) => one.schemes?.[id]?.list ?? []);
      ways.push({
        id: `${id} at ${host}`, label: host, hint: `You sign in at ${host} and come back here.`, fields: [], discovery,
        client: clients[id], scopes: ["openid", ...wanted],
      });
    }
    const key = scheme.apiKeySecurityScheme;
    const http = scheme.httpAuthSecurityScheme;
    if (key && (key.location === "header" || key.location === "query")) {
      ways.push({
        id, label: "API key", hint: key.description ?? `Sent in the ${key.location} ${key.name}.`, fields: ["API key"],
        read: ([value]) => ({ in: key.location, name: key.name, value }),
      });
    } else if (http && http.scheme?.toLowerCase() === "basic") {
      ways.push({
        id, label: "Password", hint: http.description ?? "Sent with each request.", fields: ["User name", "Password"],
        read: ([user, password]) => {
          const bytes = new TextEncoder().encode(`${user}:${password}`);
          return { in: "header", name: "Authorization", value: `Basic ${btoa(String.fromCharCode(...bytes))}` };
        },
      });
    } else if (http || scheme.oauth2SecurityScheme || scheme.openIdConnectSecurityScheme) {
      const of = http ?? scheme.oauth2SecurityScheme ?? scheme.openIdConnectSecurityScheme;
      ways.push({
        id, label: "Token", hint: of.description ?? "A bearer token from your identity provider.", fields: ["Token"],
        read: ([value]) => ({ in: "header", name: "Authorization", value: `Bearer ${value.replace(/^Bearer\s+/i, "")}` }),
      });
    }
  }
  if (ways.length === 0) {
    ways.push({
      id: "bearer", label: "Token", hint: "The card names no scheme, so the token is sent as a bearer token.",
      fields: ["Token"], read: ([value]) => ({ in: "header", name: "Authorization", value: `Bearer ${value}` }),
    });
  }
  return ways.filter((way, index) => ways.findIndex((other) => other.label === way.label && other.hint === way.hint) === index);
}

// Requests

/**
 * Cookies are sent, because a proxy may have signed the user in with one. They are omitted if the card names passwords:
 * the browser would then answer a refusal with a dialog of its own.
 */
const cookies = Object.values(card.securitySchemes ?? {}).some((one) => one.httpAuthSecurityScheme?.scheme?.toLowerCase() === "basic")
  ? "omit" : "same-origin";

/** Send a request with the credentials, and return the response. Raises `ApiError` if it was refused. */
export async function request(path, { method = "GET", headers = {}, body, signal } = {}) {
  // Not `new URL(path, root)`, which would send the credentials to a path that is a complete address.
  const address = new URL(root + path.replace(/^\//, ""));
  const sent = new Headers(headers);
  if (credentials?.in === "header") sent.set(credentials.name, credentials.value);
  if (credentials?.in === "query") address.searchParams.set(credentials.name, credentials.value);
  let response;
  try {
    // A redirect must not carry the credentials to another place.
    response = await fetch(address, { method, headers: sent, body, signal, cache: "no-store", credentials: cookies, redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  const error = await readError(response);
  if (error.status === 401) listeners.forEach((listener) => listener(true));
  throw error;
}

async function readError(response) {
  let found = {};
  try {
    found = (await response.json()).error ?? {};
  } catch { /* A proxy may have answered with a page. */ }
  const detail = Array.isArray(found.details) ? found.details.find((entry) => entry?.reason) : null;
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  return new ApiError(response.status, sentence(found.message) || ofStatus(response.status), { reason: detail?.reason ?? "", retryAfter });
}

function sentence(text) {
  if (typeof text !== "string" || text === "") return "";
  return /[.!?…]$/.test(text) ? text : `${text}.`;
}

function ofStatus(status) {
  if (status === 401) return "Sign in to see this.";
  if (status === 403) return "You may not see or do this.";
  if (status === 404) return "Not found, or not yours.";
  if (status === 413) return "That is larger than the server accepts.";
  if (status === 429) return "Too many requests. Wait a moment.";
  if (status === 503) return "The server cannot do this right now. Try again in a moment.";
  return `The server answered with the error ${status}.`;
}

/** Return JSON from the operator API, such as `get("admin/tasks", {state: "working"})`. Empty values are left out. */
export async function get(path, values = {}, { signal } = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return (await request(text ? `${path}?${text}` : path, { signal })).json();
}

/** Send JSON to the operator API, and return its answer. */
export async function post(path, body = {}, { signal } = {}) {
  const headers = { "content-type": "application/json" };
  return (await request(path, { method: "POST", headers, body: JSON.stringify(body), signal })).json();
}

// Operations of A2A, at the agent's own JSON-RPC endpoint

/** The header and the method names of each version of A2A that the console speaks. */
export const PROTOCOLS = {
  "1.0": {
    send: "SendMessage", stream: "SendStreamingMessage", get: "GetTask", list: "ListTasks", cancel: "CancelTask",
    subscribe: "SubscribeToTask",
  },
  "0.3": {
    send: "message/send", stream: "message/stream", get: "tasks/get", cancel: "tasks/cancel", subscribe: "tasks/resubscribe",
  },
};

/** Extensions that the agent requires of its clients. The console activates them, and does nothing else for them. */
const required = (card.capabilities?.extensions ?? []).filter((one) => one.required).map((one) => one.uri);

/** Return a JSON-RPC request as it is sent: `{headers, body}`. */
export function envelope(operation, params, protocol = "1.0") {
  return {
    headers: {
      "content-type": "application/json", "a2a-version": protocol,
      ...(required.length > 0 ? { "a2a-extensions": required.join(", ") } : {}),
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: newId(), method: PROTOCOLS[protocol][operation], params }),
  };
}

/** Perform an operation of A2A 1.0 and return its result, such as `call("cancel", {id})`. Raises `ApiError`. */
export async function call(operation, params, { signal } = {}) {
  const { headers, body } = envelope(operation, params);
  const response = await request("", { method: "POST", headers, body, signal });
  const answer = await response.json();
  if (answer.error) throw rpcError(answer.error);
  return answer.result;
}

/** Begin a streaming operation: the response has its events. `lastId` is the last one that is known. */
export async function openStream(operation, params, { lastId = null, signal, protocol = "1.0" } = {}) {
  const { headers, body } = envelope(operation, params, protocol);
  headers.accept = "text/event-stream";
  if (lastId !== null) headers["last-event-id"] = String(lastId);
  const response = await request("", { method: "POST", headers, body, signal });
  if (response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
  const answer = await response.json();
  throw answer.error ? rpcError(answer.error) : new ApiError(502, "The server did not answer with a stream.");
}

/** The HTTP status that corresponds to a code of JSON-RPC. */
const STATUS_OF_CODE = {
  "-32001": 404, "-32002": 409, "-32003": 400, "-32004": 400, "-32005": 415, "-32600": 400, "-32601": 404, "-32602": 400,
  "-32603": 500, "-32700": 400,
};

/** Return an error of JSON-RPC as `ApiError`. */
export function rpcError(error) {
  const details = Array.isArray(error.data) ? error.data : [];
  const reason = details.find((entry) => entry?.reason)?.reason ?? "";
  const status = reason === "UNAVAILABLE" ? 503 : STATUS_OF_CODE[error.code] ?? 500;
  return new ApiError(status, sentence(error.message) || "The agent answered with an error.", { reason });
}

/** Return a new random id. `crypto.randomUUID` is missing on pages that came over plain HTTP from another machine. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
