/**
 * Signing in at an OpenID provider: the authorization code flow with PKCE, for the client that the card names.
 *
 * The page leaves for the provider, which leads back to `console/sign-in`. What that page needs stays in the session
 * storage of the tab. The token is asked for from the page itself, so the provider has to allow requests of its origin.
 */

import { root, signIn } from "./api.js";

const PENDING = "errands-sign-in";
const redirectUri = `${root}console/sign-in`;

/** Leave for the provider of a way to sign in. Raises `Error` if it cannot be used. */
export async function begin(way, remember) {
  if (!crypto.subtle) throw new Error("Browsers allow this sign-in only over https, and on this machine.");
  const provider = await discover(way.discovery);
  const address = new URL(provider.authorization_endpoint);
  if (!/^https?:$/.test(address.protocol)) throw new Error("The provider has no address for signing in.");
  const verifier = random(), state = random();
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const values = {
    response_type: "code", client_id: way.client, redirect_uri: redirectUri, scope: way.scopes.join(" "), state,
    code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(values)) address.searchParams.set(name, value);
  const back = location.pathname + location.search;
  sessionStorage.setItem(PENDING, JSON.stringify({ verifier, state, remember, back, client: way.client, discovery: way.discovery }));
  location.assign(address);
}

/** Take what the provider has led back with, and sign in with its token. Raises `Error` if there is none. */
export async function finish() {
  const pending = JSON.parse(sessionStorage.getItem(PENDING));
  sessionStorage.removeItem(PENDING);
  const query = new URLSearchParams(location.search);
  // The code must not stay in the history, whatever comes of it.
  history.replaceState(null, "", pending?.back ?? `${root}console`);
  if (!pending || query.get("state") !== pending.state) throw new Error("This sign-in was not begun in this tab. Begin again.");
  if (query.has("error")) throw new Error(query.get("error_description") || `The provider answered: ${query.get("error")}.`);
  const provider = await discover(pending.discovery);
  if (query.has("iss") && query.get("iss") !== provider.issuer) throw new Error("Another provider has answered.");
  const answer = await ask(provider.token_endpoint, {
    method: "POST",
    body: new URLSearchParams({
      grant_type: "authorization_code", code: query.get("code") ?? "", redirect_uri: redirectUri, client_id: pending.client,
      code_verifier: pending.verifier,
    }),
  });
  if (typeof answer.access_token !== "string") throw new Error("The provider gave no token.");
  signIn({ in: "header", name: "Authorization", value: `Bearer ${answer.access_token}` }, pending.remember);
}

function discover(address) {
  return ask(address, {});
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, { ...options, credentials: "omit", cache: "no-store", redirect: "error" });
  } catch {
    throw new Error(`${new URL(address, location.href).host} cannot be reached from this page: it has to allow requests of ${location.origin} (CORS).`);
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(answer.error_description || `The provider refused: ${answer.error ?? response.status}.`);
  return answer;
}

function random() {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

function base64url(bytes) {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}
